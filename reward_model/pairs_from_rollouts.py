"""Preferences from the agent's own trajectories: `agentgrpo reward pairs --rollouts DIR`.

It reads the files of `agentgrpo evaluate` and of training (RUN_DIR/trajectories), and pairs right with wrong rollouts
of the same task. Both sides have the same distribution of lengths, of numbers of tool calls and of having an answer, so
that none of these shows which side is better. The hash of a prompt decides which of the two files gets it, so it stays
there when rollouts are added. The texts contain no verdicts. Rollouts that were not judged, were lost, or belong to a
run's validation are counted and left out.
"""

from __future__ import annotations

if __name__ == "__main__":
    from agentgrpo.commands import run_module

    run_module("reward_model.pairs_from_rollouts")

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from agentgrpo.chat.conversations import RowError, normalize_tool_call_ids, read_conversation, read_tools
from agentgrpo.chat.messages import Message, num_chars, num_tool_calls
from agentgrpo.commands import failed
from agentgrpo.flags import Parser
from agentgrpo.outputs import OutputError, check_output
from agentgrpo.printed_commands import agentgrpo_command
from agentgrpo.row_files import iter_rows
from reward_model.datatypes import Preference
from reward_model.measures import MAX_NAMED, Balance, PairSummary, format_percent, has_answer, pair_digest
from reward_model.preferences import PreferenceFileError, write_preferences

PAIRS_PER_TASK = 8
# At most this many pairs of a task are considered; they are drawn at random if there are more.
MAX_CANDIDATES = 512
# Length classes per factor of two; two sides of one class differ by at most a factor of 2 ** (1 / 2), that is 41 %.
LENGTHS_PER_DOUBLING = 2

Shape = tuple[int, int, bool]


@dataclass(frozen=True)
class SavedRollout:
    task_id: str
    kind: str
    prompt: tuple[Message, ...]
    side: tuple[Message, ...]
    """The messages of the agent and its tools, up to the agent's last message."""
    right: bool
    answered: bool
    """Whether the rollout ended with an answer that is not empty, and not at a limit."""
    source: str
    tools: str | None = None
    """The schemas of the tools that the agent was offered, as in `Preference.tools`; None if the file has none."""

    @cached_property
    def task(self) -> tuple[str, bytes]:
        # The same id with another prompt is another task.
        return self.task_id, pair_digest(self.prompt)

    @cached_property
    def chars(self) -> int:
        return num_chars(self.side)

    @cached_property
    def shape(self) -> Shape:
        """What must not tell right from wrong: length class, number of tool calls, having an answer."""
        length_class = round(LENGTHS_PER_DOUBLING * math.log2(self.chars + 1))
        return length_class, num_tool_calls(self.side), self.answered


@dataclass(frozen=True, order=True)
class Cell:
    right: Shape
    wrong: Shape
    longer: int
    """1 if the right side is longer, -1 if the wrong side is, otherwise 0."""

    @property
    def opposite(self) -> Cell:
        return Cell(self.wrong, self.right, -self.longer)


@dataclass(frozen=True)
class Candidate:
    right: SavedRollout
    wrong: SavedRollout

    @property
    def cell(self) -> Cell:
        difference = self.right.chars - self.wrong.chars
        return Cell(self.right.shape, self.wrong.shape, (difference > 0) - (difference < 0))

    def preference(self, *, with_tools: bool = False) -> Preference:
        right, wrong = self.right, self.wrong
        metadata = {"task_id": right.task_id, "kind": right.kind, "sources": [right.source, wrong.source]}
        tools = right.tools if with_tools else None
        return Preference(prompt=right.prompt, chosen=right.side, rejected=wrong.side, tools=tools, metadata=metadata)


# Reading --------------------------------------------------------------------------------------------------------------


@dataclass
class Read:
    rollouts: list[SavedRollout] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """The number of rollouts that cannot be in a pair, by reason."""
    problems: list[str] = field(default_factory=list)
    """The rows that could not be read, each with its error."""
    files: int = 0
    rows: int = 0


def read_rollouts(folder: Path) -> Read:
    """Raises PreferenceFileError: the folder is missing, or holds no *.jsonl."""
    if not folder.is_dir():
        raise PreferenceFileError(
            f"{folder} is not a folder; give the one with the *.jsonl of sql_agent.evaluate or of a run"
        )
    read = Read()
    for path in sorted(folder.rglob("*.jsonl")):
        read.files += 1
        for row in iter_rows(path):
            _read_row(row.value, f"{path.relative_to(folder)}:{row.number}", read)
    if not read.files:
        evaluate = agentgrpo_command("evaluate", "--output")
        raise PreferenceFileError(f"{folder} holds no *.jsonl; `{evaluate} FILE` writes such files")
    return read


def _read_row(record: Any, source: str, read: Read) -> None:
    read.rows += 1
    try:
        if isinstance(record, RowError):
            raise record
        reason = why_not(record)
        if reason is None and (rollout := rollout_of(record, source)) is not None:
            read.rollouts.append(rollout)
        elif reason is None:
            reason = "no reply of the agent"
    except (ValueError, RecursionError) as error:
        reason = "not readable as a rollout"
        read.problems.append(f"{source}: {error}")
    if reason is not None:
        read.left_out[reason] += 1


def why_not(record: object) -> str | None:
    """None if the record can be in a pair.

    Raises:
        RowError: the value is not the record of a rollout.
    """
    if not isinstance(record, dict):
        raise RowError("row", "expected an object")
    if record.get("lost"):
        return "lost"
    if record.get("validate"):
        return "of a run's validation"
    if (record.get("chains") or 1) > 1:
        return "of an agent with several conversations"
    score = record.get("score")
    if not isinstance(score, dict) or "value" not in score:
        raise RowError("score", "expected a verdict; is this a file of rollouts?")
    if score["value"] is None:
        return "not judged"
    return None if right_or_wrong(score) in (0.0, 1.0) else "neither right nor wrong"


def right_or_wrong(score: dict[str, Any]) -> Any:
    # An environment that gives its own reward says beside it whether the task is solved.
    return (score.get("parts") or {}).get("correctness") if score.get("reason") == "own_reward" else score["value"]


def rollout_of(record: dict[str, Any], source: str) -> SavedRollout | None:
    """None if the agent said nothing. The prompt ends before the model's own first reply, because DB-Bench's text
    prompts contain a reply.

    Raises:
        RowError: its messages cannot be read.
    """
    messages = normalize_tool_call_ids(read_conversation(record.get("messages"), "messages", Counter()), "messages")
    turns = record.get("num_turns")
    replies = [i for i, message in enumerate(messages) if message.role == "assistant"]
    if not isinstance(turns, int) or not 0 <= turns <= len(replies):
        raise RowError("num_turns", f"expected the number of replies, at most {len(replies)}, found {turns!r}")
    said = [i for i in replies[len(replies) - turns :] if not messages[i].is_empty]
    if not said:
        return None
    start = replies[len(replies) - turns]
    side = messages[start : said[-1] + 1]
    return SavedRollout(
        task_id=str(record.get("task_id")),
        kind=str(record.get("kind")),
        prompt=tuple(messages[:start]),
        side=tuple(side),
        right=right_or_wrong(record["score"]) == 1.0,
        answered=record.get("stop_reason") == "answered" and bool(has_answer(side)),
        source=source,
        tools=read_tools(record.get("tools"), "tools", Counter()),
    )


# Choosing -------------------------------------------------------------------------------------------------------------


def candidates(read: Read, *, seed: int) -> list[list[Candidate]]:
    """Pairs of a right and a wrong rollout of each task that has both, in random order.

    Equal conversations count once. A conversation that was judged both ways is left out, and so are tasks with only
    right or only wrong rollouts; `read.left_out` counts them.
    """
    tasks: dict[Any, dict[bytes, list[SavedRollout]]] = defaultdict(lambda: defaultdict(list))
    for rollout in read.rollouts:
        tasks[rollout.task][pair_digest(rollout.side)].append(rollout)
    draw = random.Random(seed)
    found: list[list[Candidate]] = []
    for conversations in tasks.values():
        sides: dict[bool, list[SavedRollout]] = {True: [], False: []}
        for same in conversations.values():
            if len({rollout.right for rollout in same}) == 2:
                read.left_out["judged right and wrong"] += len(same)
                continue
            read.left_out["the same conversation again"] += len(same) - 1
            sides[same[0].right].append(same[0])
        if sides[True] and sides[False]:
            pairs = [Candidate(right, wrong) for right in sides[True] for wrong in sides[False]]
            found.append(draw.sample(pairs, min(len(pairs), MAX_CANDIDATES)))
        else:
            name = "right" if sides[True] else "wrong"
            read.left_out[f"of a task without other than {name} ones"] += len(sides[True] + sides[False])
    return found


def balanced(tasks: Sequence[Sequence[Candidate]], *, per_task: int) -> list[Candidate]:
    """Choose pairs so that there are equally many of each kind and of the opposite kind.

    The opposite of "right side of shape a, wrong side of shape b, right side longer" is "right b, wrong a, wrong side
    longer". A rule on length, number of tool calls and having an answer is then right as often as it is wrong, except
    for differences inside one length class. Pairs of equal shapes and lengths need no opposite.

    Args:
        tasks: the candidates of each task.
        per_task: the most pairs that a task may give.
    """
    cells: dict[Cell, list[Candidate]] = defaultdict(list)
    for rank in range(max(map(len, tasks), default=0)):  # every task's first pair comes before any second one
        for pairs in tasks:
            if rank < len(pairs):
                cells[pairs[rank].cell].append(pairs[rank])
    taken: Counter[Any] = Counter()
    chosen: list[Candidate] = []
    couples = {min(cell, cell.opposite) for cell in cells}
    # rare kinds come first, before other pairs use up the limits of their tasks
    for cell in sorted(couples, key=lambda cell: (min(len(cells[cell]), len(cells[cell.opposite])), cell)):
        if cell == cell.opposite:
            chosen += list(_within(cells[cell], taken, per_task))
            continue
        opposites = _within(cells[cell.opposite], taken, per_task)
        for candidate in _within(cells[cell], taken, per_task):
            opposite = next(opposites, None)
            if opposite is None:
                taken[candidate.right.task] -= 1
                break
            chosen += [candidate, opposite]
    return chosen


def _within(pairs: Iterable[Candidate], taken: Counter[object], per_task: int) -> Iterator[Candidate]:
    for pair in pairs:
        if taken[pair.right.task] < per_task:
            taken[pair.right.task] += 1
            yield pair


def is_held_out(prompt: Sequence[Message], fraction: float) -> bool:
    # The prompt and the fraction alone decide, so rollouts that are added later move nothing.
    return int.from_bytes(pair_digest(prompt)[:8], "big") < fraction * 2**64


# The command ----------------------------------------------------------------------------------------------------------


def describe_pairs(path: Path, possible: Sequence[Candidate], pairs: Sequence[Candidate]) -> Iterator[str]:
    if pairs:
        summary = PairSummary()
        for row, pair in enumerate(pairs, 1):
            summary.add(pair.preference(), row)
        yield f"{path}: {len(pairs)} pairs of {len({pair.right.task for pair in pairs})} tasks"
        yield from (f"  {line}" for line in summary.lines())
    else:
        yield f"{path}: not written, no pairs for it"
    unused = f"{len(possible) - len(pairs)} of {len(possible)} possible pairs"
    yield f"  {unused} left out for balance and for the limit per task"
    yield f"  'more wins' is right for: {rules(possible)} of the possible pairs"
    yield f"  'more wins' is right for: {rules(pairs)} of those written"


def rules(pairs: Sequence[Candidate]) -> str:
    features = {
        "characters": lambda rollout: rollout.chars,
        "tool calls": lambda rollout: rollout.shape[1],
        "an answer": lambda rollout: rollout.answered,
    }
    balances = {name: Balance() for name in features}
    for pair in pairs:
        for name, measure in features.items():
            balances[name].add(measure(pair.right), measure(pair.wrong))
    return ", ".join(f"{name} {format_percent(balance.rule_accuracy)}" for name, balance in balances.items())


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(
        prog="agentgrpo reward pairs",
        description="Make preferences out of right and wrong rollouts of the same task, with balanced sizes.",
    )
    parser.add_argument(
        "--rollouts", type=Path, required=True, metavar="DIR", help="folder with *.jsonl, also in subfolders"
    )
    parser.add_argument("--output", type=Path, required=True, help="X.jsonl; held-out pairs go to X.held_out.jsonl")
    parser.add_argument(
        "--held-out-fraction", type=float, default=0.2, help="the share of prompts that is held out; default 0.2"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice among the pairs of a task; default 0")
    parser.add_argument(
        "--max-pairs-per-task",
        type=int,
        default=PAIRS_PER_TASK,
        metavar="N",
        help=f"most pairs of one task; default {PAIRS_PER_TASK}",
    )
    parser.add_argument(
        "--with-tools",
        action="store_true",
        help="write the schemas of the agent's tools, too, as agentgrpo dpo needs them; a reward model is asked "
        "without them",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the two files if they exist")
    args = parser.parse_args(argv)
    if not 0 <= args.held_out_fraction < 1:
        parser.error(f"--held-out-fraction is {args.held_out_fraction:g}; it has to be at least 0 and below 1")
    if args.max_pairs_per_task < 1:
        parser.error(f"--max-pairs-per-task is {args.max_pairs_per_task}; it has to be 1 or more")
    files = {False: args.output, True: args.output.parent / f"{args.output.stem}.held_out{args.output.suffix}"}
    try:
        for path in files.values():
            check_output(path, "--output", overwrite=args.overwrite)
        read = read_rollouts(args.rollouts)
    except (OutputError, PreferenceFileError) as error:
        return failed(error)
    found = candidates(read, seed=args.seed)
    print(f"{read.rows} rollouts in {read.files} files; {len(found)} tasks with right and wrong ones")
    if args.with_tools and (unknown := sum(r.tools is None and num_tool_calls(r.side) > 0 for r in read.rollouts)):
        print(f"  {unknown} rollouts call tools, and their files lack the schemas: run them again with this version")
    for reason, count in sorted(read.left_out.items()):
        if count:
            print(f"  left out, {reason}: {count}")
    for problem in read.problems[:MAX_NAMED]:
        print(f"  {problem}")
    written = 0
    for held_out, path in files.items():
        tasks = [pairs for pairs in found if is_held_out(pairs[0].right.prompt, args.held_out_fraction) is held_out]
        pairs = balanced(tasks, per_task=args.max_pairs_per_task)
        count = write_preferences((pair.preference(with_tools=args.with_tools) for pair in pairs), path)
        print("\n".join(describe_pairs(path, [pair for of_task in tasks for pair in of_task], pairs)))
        written += count
    if written:
        return 0
    return failed("no pairs; more rollouts per task (--temperature 1, several passes) give both right and wrong ones")

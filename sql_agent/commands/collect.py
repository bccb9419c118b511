"""Makes demonstrations from correct rollouts: `agentgrpo collect --rollouts DIR --output FILE.jsonl`.

It reads the files of `agentgrpo evaluate --samples N` and of training (RUN_DIR/trajectories), keeps the rollouts that
the judge calls right, a few of each task, and writes conversations that `agentgrpo sft --dataset FILE.jsonl` learns.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import takewhile
from pathlib import Path

from agentgrpo.chat.messages import num_tool_calls, why_rendered
from agentgrpo.chat.template import NOT_TRAINED
from agentgrpo.commands import failed
from agentgrpo.flags import Parser
from agentgrpo.json_text import JsonObject
from agentgrpo.outputs import OutputError, check_output, written
from reward_model.measures import MAX_NAMED
from reward_model.pairs_from_rollouts import PreferenceFileError, SavedRollout, read_rollouts

PER_TASK = 2


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="agentgrpo collect", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--rollouts", type=Path, required=True, metavar="DIR", help="folder with *.jsonl, also in subfolders"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.jsonl", help="file for the demonstrations")
    parser.add_argument(
        "--per-task", type=int, default=PER_TASK, metavar="N", help=f"most rollouts of one task; default {PER_TASK}"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    args = parser.parse_args(argv)
    if args.per_task < 1:
        parser.error(f"--per-task is {args.per_task}; it has to be 1 or more")
    try:
        check_output(args.output, "--output", overwrite=args.overwrite)
        read = read_rollouts(args.rollouts)
    except (OutputError, PreferenceFileError) as error:
        return failed(error)
    tasks = {rollout.task for rollout in read.rollouts}
    right: dict[object, list[SavedRollout]] = defaultdict(list)
    for rollout in read.rollouts:
        if rollout.right and (why := why_not_learnt(rollout)) is not None:
            read.left_out[why] += 1
        elif rollout.right:
            right[rollout.task].append(rollout)
    kept = [rollout for found in right.values() for rollout in chosen(found, args.per_task)]
    print(f"{read.rows} rollouts in {read.files} files: {len(right)} of {len(tasks)} tasks have a right one")
    for reason, count in sorted((reason, count) for reason, count in read.left_out.items() if count):
        print(f"  left out, {reason}: {count}")
    for problem in read.problems[:MAX_NAMED]:
        print(f"  {problem}")
    if not kept:
        return failed("no rollout is right; sample more of each task (--samples 8 --temperature 1), or fine-tune first")
    with written(args.output) as part:
        part.write_text("".join(json.dumps(demonstration(rollout)) + "\n" for rollout in kept), encoding="utf-8")
    print(f"{args.output}: {len(kept)} of {sum(map(len, right.values()))} right rollouts")
    return 0


def chosen(rollouts: Sequence[SavedRollout], most: int) -> list[SavedRollout]:
    """The shortest rollout of a task, then one after another that which is least like those before, no two the same."""
    by_text: dict[str, SavedRollout] = {}
    for rollout in sorted(rollouts, key=lambda each: each.chars):
        by_text.setdefault(_said(rollout), rollout)
    taken, *left = by_text
    texts, likest = [taken], dict.fromkeys(left, 0.0)
    while left and len(texts) < most:
        likest = {text: max(likest[text], _likeness(text, texts[-1])) for text in left}
        texts.append(min(left, key=likest.__getitem__))
        left.remove(texts[-1])
    return [by_text[text] for text in texts]


def why_not_learnt(rollout: SavedRollout) -> str | None:
    """Why fine-tuning would refuse the rollout, or learn another conversation than the agent had."""
    if any(map(why_rendered, (*rollout.prompt, *rollout.side))):
        return "with a mark of a chat format"
    if rollout.tools is None and num_tool_calls(rollout.side):
        return "that calls tools which its file does not describe"
    return None


def _likeness(a: str, b: str) -> float:
    return SequenceMatcher(None, a, b, autojunk=False).ratio()


def _said(rollout: SavedRollout) -> str:
    """The agent's own words, without what its tools answered."""
    replies = [message for message in rollout.side if message.role == "assistant"]
    return "\n".join(
        text
        for message in replies
        for text in (message.content, *(f"{c.function.name} {c.function.arguments}" for c in message.tool_calls))
    )


def _was_refused(messages: Sequence[JsonObject], place: int) -> bool:
    answers = list(takewhile(lambda each: each["role"] == "tool", messages[place + 1 :]))
    return bool(answers) and all(str(each["content"]).startswith("Error: ") for each in answers)


def demonstration(rollout: SavedRollout) -> dict[str, object]:
    """A row whose prompt is context and whose replies are learnt, but for those that were answered by errors alone."""
    side = [message.to_dict() for message in rollout.side]
    row: dict[str, object] = {
        "prompt": [message.to_dict() for message in rollout.prompt],
        "completion": [
            message | ({NOT_TRAINED: 0} if message["role"] == "assistant" and _was_refused(side, place) else {})
            for place, message in enumerate(side)
        ],
    }
    return row | ({"tools": json.loads(rollout.tools)} if rollout.tools else {})

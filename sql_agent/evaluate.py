"""Evaluates a model on a task file: `agentgrpo evaluate --base-url URL --model NAME --tasks FILE`.

It prints success per question type with its confidence interval, and writes every trajectory as soon as it ends.
`--env` takes any environment, or your own (FILE.py:NAME), whose tasks are the rows of the file; `--agent` takes your
own agent. It trains nothing and starts no model server; `python -m sql_agent.oracle` serves a scripted model that knows
the answers.
"""

from __future__ import annotations

from agentgrpo.commands import execute, starting

if __name__ == "__main__":
    starting()

import asyncio
import functools
import json
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from agentgrpo.checks import require
from agentgrpo.flags import Parser, dashed
from agentgrpo.outputs import written
from agentgrpo.processes import ends_in_order
from agentgrpo.stats import cluster_interval
from dbbench_adapter.engines import BackendUnavailable
from dbbench_adapter.splits import draw_by_kind
from dbbench_adapter.sql_skills import SKILLS
from sql_agent.datatypes import OWN_REWARD, RolloutRecord
from sql_agent.environments.base import Environment, EnvironmentTask, InstructionsError, Taskset, make_taskset
from sql_agent.model_servers.calls_as_text import CallsAsText
from sql_agent.model_servers.deadline_client import DeadlineClient
from sql_agent.model_servers.endpoint import check_endpoint
from sql_agent.prompts.fit import fit_tasks
from sql_agent.prompts.tokenizer import ServedTokenizer
from sql_agent.reward_functions.ask import RewardFunctions
from sql_agent.reward_functions.datatypes import LoadedReward
from sql_agent.reward_functions.load import load_function
from sql_agent.rewards import with_success
from sql_agent.settings.evaluation import EvaluateConfig
from sql_agent.settings.flags import add_flags, read_flags
from sql_agent.settings.groups import DataConfig
from sql_agent.source.stops import last_line
from sql_agent.startup.data import format_counts
from sql_agent.success_rate import Rate, rate
from sql_agent.text_to_sql.datatypes import Question
from sql_agent.trained_on import LearntError, check_not_learnt
from sql_agent.user_agents.tasks import AgentTasks

LEARNT_TOO = ("train", "all")
"""Values of --split that measure what a model has learnt, on purpose."""
REMEDIES = {
    None: "Measure on the rows that training holds out of this file, --split held-out; or on every row all the same, "
    "--split all",
    "held-out": "Name other tasks with --tasks; or measure on every row all the same, --split all",
}
"""What to do where a model has learnt tasks to measure it on, by the value of --split."""
ALL = "all"
"""The row of all tasks; no kind has the name."""
REWARD_TIMEOUT_S = 30.0
"""Limit of one call of a reward function, like `rollout.reward_timeout_s` of a run."""
MIN_DATABASES = 10
"""A bootstrap over fewer databases is narrower than the truth."""


@dataclass(frozen=True)
class EvaluationSummary:
    """Holds counts and rates of finished rollouts; rollouts without a verdict are in no rate, but counted by reason."""

    by_kind: dict[str, Rate]
    by_skill: dict[str, Rate]
    """A task counts for each of its skills, as in LifelongAgentBench; empty if the tasks name no skills."""
    overall: Rate
    three_way_mean: float | None
    unjudged: dict[str, int]
    stop_reasons: dict[str, int]
    turns_per_task: float | None
    malformed_calls_frac: float | None
    rollout_s: float | None
    """Mean wall-clock time of a rollout, in seconds; rollouts run side by side."""
    rewards: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Number and mean of the rewards that the environment or the agent gives instead of verdicts, by kind and, if there
    are any, for `all`."""
    errors: dict[str, str] = field(default_factory=dict)
    """What the first rollout of each reason in `unjudged` failed with, if it says so."""


def main(argv: Sequence[str] | None = None) -> None:
    args = _parse(argv)
    output = args.output or Path("runs/evaluate") / time.strftime("%Y%m%d-%H%M%S.jsonl")
    console = Console()
    api_key = os.environ.get("OPENAI_API_KEY", "-")
    try:
        require(files=DataConfig(train_file=args.tasks).expected(args.env_type), place=args.database)
    except ValueError as failure:
        raise SystemExit(str(failure)) from failure
    folder = check_endpoint(args.base_url, args.model, api_key)
    environment = _environment(args)
    functions = _functions(
        args
    )  # after an agent, so that agent-lightning has been imported without LiteLLM if its file imports it
    found = _load(environment, args.tasks, args.split)
    tasks = draw_by_kind(found, args.limit, seed=0)  # the tasks that a run with seed 0 holds out of the same file
    if len(tasks) < len(found):
        console.print(
            f"{len(tasks)} of {len(found)} tasks, drawn evenly by kind: the row `all` weighs the types as in this "
            "draw, not as in the file"
        )
    if folder is not None and args.split not in LEARNT_TOO:
        try:
            notes = check_not_learnt(folder, environment, tasks, REMEDIES[args.split])
        except LearntError as failure:
            raise SystemExit(f"--tasks: {failure}") from failure
        for note in notes:
            console.print(note, soft_wrap=True, markup=False, highlight=False)
    records: list[RolloutRecord] = []
    interrupted = False
    with ExitStack() as stack:
        try:
            environment.check_episodes()
            stack.enter_context(environment)
        except (BackendUnavailable, ValueError) as failure:
            raise SystemExit(f"{_flag(args.env_type)}: {failure}") from failure
        if isinstance(environment, Environment):  # an agent of the user's own writes its prompts
            tasks = _fitted(args, environment, tasks, api_key, console)
        write = stack.enter_context(_sink(output, console, len(tasks) * args.samples))
        started = time.perf_counter()
        play = _player(args, environment, functions, api_key, stack)
        as_text = CallsAsText()

        def done(record: RolloutRecord) -> None:
            score = with_success(record.score, record.score.value, args.success_reward)
            record = replace(record, score=score)
            records.append(record)
            write(record)
            if note := as_text.note(record):
                console.print(note, markup=False, highlight=False, soft_wrap=True)

        try:
            with ends_in_order():
                # the rollouts of a task follow each other, so that the server computes their prompt once
                asyncio.run(each([task for task in tasks for _ in range(args.samples)], play, done, args.concurrency))
        except KeyboardInterrupt:
            interrupted = True
        seconds = time.perf_counter() - started
    on_dbbench = f"{args.backend.split('@')[-1]} · {args.protocol} · judge {args.judge}"
    played = on_dbbench if args.env_type == "dbbench" else args.env_type
    title = f"{args.model} · {args.tasks.name} · {played}"
    print_summary(summarise(records, tasks), title, seconds, console)
    console.print(f"trajectories: {output}")
    if interrupted:
        total = len(tasks) * args.samples
        console.print(f"interrupted: {len(records)} of {total} rollouts were finished; the table holds only those")
        raise SystemExit(130)
    if line := interval_of_databases(records, tasks):
        console.print(line, soft_wrap=True)
    solved = {record.task_id for record in records if record.success == 1.0}
    if args.samples > 1:
        console.print(f"pass@{args.samples}, solved in at least one rollout: {len(solved)} of {len(tasks)} tasks")
        if votes := voted(records):
            console.print(f"vote@{args.samples}, the most frequent result: {rate(votes)}", soft_wrap=True)
    failed = {record.task_id for record in records if record.success == 0.0}
    for file, chosen, words in (
        (args.solved_tasks, solved, "solved"),
        (args.learnable_tasks, solved & failed, "solved by some rollouts and not by others"),
    ):
        if file is not None:
            rows = [environment.row(task) for task in tasks if task.id in chosen]
            with written(file) as part:
                part.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
            console.print(f"the {len(rows)} tasks that were {words}: {file}", soft_wrap=True)
    if args.predictions is not None:
        asked = write_predictions(args.predictions, [task for task in tasks if isinstance(task, Question)], records)
        console.print(f"{asked} queries beside their references, for Spider's evaluator: {args.predictions}")


def write_predictions(folder: Path, tasks: Sequence[Question], records: Sequence[RolloutRecord]) -> int:
    """Write what was handed in for each question with a reference, in the order of `tasks`.

    Returns:
        The number of lines of both files. A question without a query has `none`, since an empty line would end what
        the evaluator calls an interaction.
    """
    handed_in = {record.task_id: record.comparison.get("submitted") for record in records if record.comparison}
    asked = [task for task in tasks if task.query]
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "predictions.sql": [_in_one_line(handed_in.get(task.id) or "") for task in asked],
        "gold.sql": [f"{_in_one_line(task.query or '')}\t{task.db_id}" for task in asked],
    }
    for name, lines in files.items():
        with written(folder / name) as part:
            part.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return len(asked)


def _in_one_line(query: str) -> str:
    return re.sub(r"[\r\n\t]+", " ", query).strip() or "none"


def _fitted(
    args: EvaluateConfig, environment: Environment, tasks: list[Any], api_key: str, console: Console
) -> list[Any]:
    """Return the tasks with the first prompts that other commands give this model, and print what that cuts.

    A prompt that cannot be shortened is sent as it is.
    """
    flag = "--max-prompt-tokens"
    try:
        with DeadlineClient(api_key) as client:
            served = ServedTokenizer(args.base_url, args.model, client, environment)
            limit = served.limit(args.max_prompt_tokens, flag, reply_tokens=args.max_tokens)
            found = None if limit is None else fit_tasks(tasks, environment, served.prompt_tokens, limit)
    except httpx.HTTPError as failure:
        found, limit = None, None
        console.print(f"{args.base_url} does not count tokens ({failure})", markup=False, soft_wrap=True)
    except ValueError as failure:
        raise SystemExit(str(failure)) from failure
    if found is None:
        if args.max_prompt_tokens is not None:
            raise SystemExit(
                f"{flag} needs a server that counts tokens as vLLM does, /tokenize, and names its max_model_len in "
                "/v1/models; leave it out"
            )
        console.print(
            "first prompts: sent whole; their lengths and the model's context are not known here", soft_wrap=True
        )
        return tasks
    for line in found.describe():
        console.print(line, markup=False, soft_wrap=True)
    if too_long := len(found.tasks) - len(found.fitting):
        console.print(
            f"{too_long} first prompts are longer than the limit and cannot be shortened; sent as they are",
            soft_wrap=True,
        )
    return found.tasks


def _player(
    args: EvaluateConfig,
    environment: Taskset,
    functions: Sequence[LoadedReward],
    api_key: str,
    stack: ExitStack,
) -> Callable[[Any], Awaitable[RolloutRecord]]:
    """Return a function that plays one task; the resources that it needs stay open as long as `stack`."""
    from sql_agent.play.served import run_rollout  # imports openai-agents, which takes seconds

    if isinstance(environment, Environment):
        return functools.partial(
            run_rollout,
            base_url=args.base_url,
            model=args.model,
            environment=environment,
            config=args.limits,
            api_key=api_key,
        )
    from sql_agent.user_agents.evaluation import evaluate_rollout, policy_served  # imports agent-lightning

    assert isinstance(environment, AgentTasks)
    return functools.partial(
        evaluate_rollout,
        agent=environment.agent,
        address=stack.enter_context(policy_served(args.base_url, args.model, api_key, args.turn_timeout_s)),
        limits=args.limits,
        functions=RewardFunctions(functions, threads=args.concurrency),
        weights=args.weights,
    )


async def each(
    tasks: Sequence[EnvironmentTask],
    play: Callable[[EnvironmentTask], Awaitable[RolloutRecord]],
    done: Callable[[RolloutRecord], None],
    concurrency: int,
) -> None:
    """Play every task, `concurrency` of them at a time, and pass each record to `done` when its rollout ends."""
    from sql_agent.play.served import size_thread_pool

    size_thread_pool(concurrency)
    waiting = iter(tasks)

    async def work() -> None:
        for task in waiting:
            done(await play(task))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(tasks))):
            group.create_task(work())


def summarise(records: Sequence[RolloutRecord], tasks: Sequence[EnvironmentTask]) -> EvaluationSummary:
    kinds = dict.fromkeys(task.kind for task in tasks)  # in file order
    of_kind = {kind: [record for record in records if record.kind == kind] for kind in kinds}
    skills = {task.id: getattr(task, "skills", ()) for task in tasks}
    of_rewards = {
        kind: [r.score.value for r in played if r.score.reason == OWN_REWARD and r.score.value is not None]
        for kind, played in {**of_kind, ALL: records}.items()
    }
    agentbench = all(getattr(task, "source", None) == "agentbench" for task in tasks)
    of_skill = {skill: [record for record in records if skill in skills.get(record.task_id, ())] for skill in SKILLS}
    calls = sum(record.tool_calls for record in records)
    return EvaluationSummary(
        by_kind={kind: rate_of(played) for kind, played in of_kind.items() if played},
        by_skill={skill: rate_of(played) for skill, played in of_skill.items() if played},
        overall=rate_of(records),
        three_way_mean=three_way_mean(records) if agentbench else None,
        unjudged=dict(Counter(record.score.reason for record in records if record.score.value is None)),
        stop_reasons=dict(Counter(record.stop_reason for record in records)),
        turns_per_task=_mean([record.num_turns for record in records]),
        malformed_calls_frac=sum(record.malformed_calls for record in records) / calls if calls else None,
        rollout_s=_mean([record.seconds for record in records]),
        rewards={kind: (len(found), mean) for kind, found in of_rewards.items() if (mean := _mean(found)) is not None},
        errors={
            record.score.reason: last_line(record.error)
            for record in reversed(records)
            if record.score.value is None and record.error
        },
    )


def rate_of(records: Sequence[RolloutRecord]) -> Rate:
    return rate([(record.task_id, record.success) for record in records])


def interval_of_databases(records: Sequence[RolloutRecord], tasks: Sequence[EnvironmentTask]) -> str | None:
    """Return the 95 % interval of success over databases like these, where at least ten were asked about.

    The table's intervals are over other questions about the same databases. None where a bootstrap says nothing: of
    fewer databases, or if all answers are right or all wrong.
    """
    of_task = {task.id: task.db_id for task in tasks if isinstance(task, Question)}
    judged = [(of_task[r.task_id], r.success == 1) for r in records if r.task_id in of_task and r.success is not None]
    databases, solved = [database for database, _ in judged], [right for _, right in judged]
    if (count := len(set(databases))) < MIN_DATABASES or len(set(solved)) < 2:
        return None
    low, high = cluster_interval(solved, databases)
    return f"95 % interval over {count} databases, by bootstrap: {_percent(low)} – {_percent(high)}"


def voted(records: Sequence[RolloutRecord]) -> list[tuple[str, float | None]]:
    """The success of each task's most frequent result, the first of equally frequent ones.

    Rollouts without a result have no vote. Tasks whose results no record says are left out.

    Returns:
        The task's id and its success.
    """
    ballots: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    success: dict[tuple[str, tuple[str, str]], float | None] = {}
    for record in records:
        compared = record.comparison
        if record.score.value is None or compared is None or (compared["state"] and compared["expected"] is None):
            continue
        votes = ballots[record.task_id]
        if compared["returned"] is not None:
            # what a task changes is said by both: the rows that only the reference leaves, and those that only it does
            result = compared["returned"]["digest"], compared["expected"]["digest"] if compared["state"] else ""
            votes[result] += 1
            success.setdefault((record.task_id, result), record.success)
    if not success:
        return []
    winners = {task: max(votes, key=votes.__getitem__, default=("", "")) for task, votes in ballots.items()}
    return [(task, success.get((task, result), 0.0)) for task, result in winners.items()]


def three_way_mean(records: Sequence[RolloutRecord]) -> float | None:
    """Return AgentBench's overall score: the plain mean of the SELECT, INSERT and UPDATE accuracies.

    Everything that is neither INSERT nor UPDATE counts as SELECT, even DELETE, as in the original. Unlike there, the
    result is None and not zero if a group has no judged task.
    """
    groups: dict[str, list[RolloutRecord]] = {"SELECT": [], "INSERT": [], "UPDATE": []}
    for record in records:
        groups[record.kind if record.kind in groups else "SELECT"].append(record)
    rates = [success for played in groups.values() if (success := rate_of(played).success) is not None]
    return sum(rates) / len(groups) if len(rates) == len(groups) else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def print_summary(summary: EvaluationSummary, title: str, seconds: float, console: Console) -> None:
    rewarded = ALL in summary.rewards and not summary.overall.judged
    table = _rewards(summary, title) if rewarded else _table("question type", summary.by_kind, title)
    table.add_section()
    table.add_row(ALL, *(_reward_cells(summary, ALL) if rewarded else _cells(summary.overall)))
    console.print(table)
    if summary.by_skill:
        console.print(_table("skill", summary.by_skill))
    if summary.three_way_mean is not None:
        console.print(f"mean of SELECT, INSERT and UPDATE: {_percent(summary.three_way_mean)}")
    if ALL in summary.rewards and not rewarded:
        console.print(f"mean reward: {summary.rewards[ALL][1]:.4g}")
    console.print(f"ends: {_counts(summary.stop_reasons)}; not judged: {_counts(summary.unjudged)}")
    for reason, error in sorted(summary.errors.items()):
        console.print(f"the first {reason}: {error}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"turns per task: {_number(summary.turns_per_task)}; malformed calls: "
        f"{_percent(summary.malformed_calls_frac)}; seconds: {seconds:.1f}, {_number(summary.rollout_s)} per rollout"
    )
    console.print(
        "A training run's validation may differ by a few tasks. It samples in the run's engine.precision, this server "
        "in its own --dtype, and rounding decides between tokens that are nearly as likely."
    )


def _table(head: str, rates: dict[str, Rate], title: str | None = None) -> Table:
    table = Table(head, title=title)
    for column in ("n", "judged", "correct", "success", "95 % interval"):
        table.add_column(column, justify="right")
    for name, rate_of in rates.items():
        table.add_row(name, *_cells(rate_of))
    return table


def _rewards(summary: EvaluationSummary, title: str) -> Table:
    # Nobody says what is solved, so there is no success.
    table = Table("question type", title=title)
    for column in ("n", "rewarded", "mean reward"):
        table.add_column(column, justify="right")
    for kind in summary.by_kind:
        table.add_row(kind, *_reward_cells(summary, kind))
    return table


def _reward_cells(summary: EvaluationSummary, kind: str) -> list[str]:
    played = summary.overall if kind == ALL else summary.by_kind[kind]
    count, mean = summary.rewards.get(kind, (0, None))
    return [str(played.n), str(count), "-" if mean is None else f"{mean:.4g}"]


def _cells(of_kind: Rate) -> list[str]:
    interval = "-" if of_kind.interval is None else " – ".join(map(_percent, of_kind.interval))
    return [str(of_kind.n), str(of_kind.judged), str(of_kind.correct), _percent(of_kind.success), interval]


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


@contextmanager
def _sink(path: Path, console: Console, total: int) -> Iterator[Callable[[RolloutRecord], None]]:
    """Yield a function that appends a record to the file at once and advances the progress bar."""
    columns = (TextColumn("rollouts"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file, Progress(*columns, console=console) as progress:
        bar = progress.add_task("rollouts", total=total)

        def write(record: RolloutRecord) -> None:
            file.write(json.dumps(record.to_dict(), ensure_ascii=False) + "\n")
            file.flush()
            progress.advance(bar)

        yield write


def _environment(args: EvaluateConfig) -> Taskset:
    try:
        environment = make_taskset(args.environment)
    except InstructionsError as failure:
        raise SystemExit(f"--instructions: {failure}") from failure
    except ValueError as failure:
        raise SystemExit(f"{_flag(args.env_type)}: {failure}") from failure
    if args.agent and not environment.judged and not args.weights:
        raise SystemExit(
            f"nobody can tell what a rollout of {args.agent} is worth; give a function of its record, --reward "
            "FILE.py:NAME (doc/guides/agent.md)"
        )
    return environment


def _flag(environment: str) -> str:
    """Return the flag that names what an environment plays on."""
    return {"dbbench": "--backend", "text2sql": "--database", "agent": "--agent"}.get(environment, "--env")


def _functions(args: EvaluateConfig) -> list[LoadedReward]:
    try:
        return [load_function(name, REWARD_TIMEOUT_S) for name in args.weights]
    except ValueError as failure:
        raise SystemExit(str(failure)) from failure


def _load(environment: Taskset, path: Path, split: str | None) -> list[EnvironmentTask]:
    try:
        if split in (None, "all"):
            return environment.read_tasks(path)
        found = environment.load_split(DataConfig(train_file=path), seed=0)
        if found.left_out:
            print(f"left out of {path}: {format_counts(found.left_out)}")
        return found.val if split == "held-out" else found.train
    except (OSError, ValueError) as failure:
        raise SystemExit(f"--tasks: {failure}") from failure


def _parse(argv: Sequence[str] | None) -> EvaluateConfig:
    parser = Parser(prog="agentgrpo evaluate", description=(__doc__ or "").splitlines()[0])
    add_flags(parser, EvaluateConfig, hidden=("reward",))
    parser.add_argument(
        "--reward",
        action="append",
        metavar="FILE.py:NAME[=WEIGHT]",
        help="with --agent: a function of the rollout's record; repeat to sum several",
    )
    cfg = read_flags(parser, EvaluateConfig, parser.parse_args(argv))
    names = ("output", "solved_tasks", "learnable_tasks", "predictions")
    files: dict[str, Path | None] = {f"--{dashed(name)}": getattr(cfg, name) for name in names}
    named = [path for path in files.values() if path is not None]
    if len(set(named)) < len(named):
        parser.error(f"{', '.join(files)} need a file each")
    for name, path in files.items():
        if path is not None and path.exists():
            parser.error(f"{name} {path} exists; name another file, nothing is overwritten")
    return cfg


if __name__ == "__main__":
    execute(main)

"""Tests an environment without a model: `agentgrpo check-env FILE.py:NAME [--tasks FILE]`

The command shows the tools and the first prompt as a model reads them, runs scripted and random calls through real
episodes without any model, and prints what it finds: exceptions, hangs, verdicts without effort, state that leaks from
one episode to the next, prompts that contain the answer. The exit status is 0 without a problem, 1 with one, and 2 if
nothing could be run.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentgrpo.flags import Parser
from agentgrpo.hub_rows import named_rows
from dbbench_adapter.splits import draw_by_kind
from sql_agent.environments.base import Environment, EpisodeLostError, make_environment, with_observation
from sql_agent.environments.rows import short
from sql_agent.names import check_name
from sql_agent.play.check import PLAYS, CheckReport, check_plays
from sql_agent.settings.groups import AgentConfig, DataConfig, EnvironmentSettings


def main(argv: Sequence[str] | None = None) -> int:
    args = _parse(argv)
    console = Console(soft_wrap=True, highlight=False)
    try:
        check_name(args.environment)
        settings = EnvironmentSettings(args.environment, call_timeout_s=args.call_timeout_s)
        environment = make_environment(settings)
        environment.check_episodes()
        found = _tasks(environment, args.tasks)
    except ValueError as error:
        console.print(f"error: {escape(str(error))}")
        return 2
    tasks = draw_by_kind(found, args.limit, seed=0)
    _show(console, environment, tasks, len(found))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        report = check_plays(lambda: make_environment(settings), tasks)
    if printed.getvalue():
        report.add("note", f"it prints: {short(printed.getvalue())!r}")
    return _tell(console, report)


def _tasks(environment: Environment, file: Path | None) -> list[Any]:
    if file is not None:
        return environment.read_tasks(file)
    try:
        return environment.load_split(DataConfig(generate=16, val_limit=1), 0).train
    except ValueError as error:
        raise ValueError(f"{error}; here, --tasks ROWS.jsonl") from None


def _show(console: Console, environment: Environment, tasks: Sequence[Any], there: int) -> None:
    replies = environment.max_replies(AgentConfig())
    console.print(f"{len(tasks)} of {there} tasks are run, with at most {replies} replies\n\ntools:")
    for tool in environment.tools:
        console.print(f"  {escape(json.dumps(tool['function'], ensure_ascii=False))}")
    if not environment.tools:
        console.print("  none: the first reply is the answer")
    task = tasks[0]
    messages = environment.messages(task)
    with environment, contextlib.suppress(EpisodeLostError):  # the episodes below find out why
        episode = environment.open(task, AgentConfig())
        messages = with_observation(messages, episode)
        episode.close()
    console.print(f"\nprompt of {escape(task.id)}:")
    for message in messages:
        console.print(f"  {message['role']}: {escape(short(message['content'], 1000))}")


def _tell(console: Console, report: CheckReport) -> int:
    table = Table("script", box=None)
    for column in ("n", "worth", "least", "most", "solved", "lost"):
        table.add_column(column, justify="right")
    for name in PLAYS:
        plays = report.of(name)
        values = [each.value for each in plays if each.value is not None]
        known = [each.success for each in plays if each.success is not None]
        worth = [f"{v:.3g}" for v in (sum(values) / len(values), min(values), max(values))] if values else ["-"] * 3
        solved = f"{sum(known):.0f} of {len(known)}" if known else "unknown"
        if plays:
            table.add_row(name, str(len(plays)), *worth, solved, str(sum(each.lost is not None for each in plays)))
    console.print()
    console.print(table)
    for remark in sorted(report.remarks, key=lambda each: each.kind != "problem"):
        console.print(f"\n{remark.kind}: {escape(remark.text)}")
    problems = sum(remark.kind == "problem" for remark in report.remarks)
    console.print(f"\n{problems or 'no'} problem{'' if problems == 1 else 's'} found")
    return int(problems > 0)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="agentgrpo check-env", description="Run an environment without a model, and list what could break."
    )
    parser.add_argument("environment", help="FILE.py:NAME, module:NAME, an entry point, or a registered name")
    parser.add_argument(
        "--tasks",
        "--train-file",
        "--val-file",
        type=named_rows,
        help="rows for the environment, JSONL or parquet; registered ones make their own",
    )
    parser.add_argument("--limit", type=int, default=8, help="tasks to run, evenly over their kinds (default 8)")
    parser.add_argument(
        "--call-timeout-s",
        "--call-timeout",
        type=float,
        default=5.0,
        help="seconds after which a call counts as hanging (default 5)",
    )
    args = parser.parse_args(argv)
    if args.limit < 1 or args.call_timeout_s <= 0:
        parser.error("--limit has to be 1 or more, and --call-timeout-s above 0")
    return args

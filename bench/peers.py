"""Measures this project beside what a user would take instead: `python -m bench.peers`; 15 minutes on two idle cores.

TRL's GRPOTrainer with an environment class, verl's own agent loop with a tool class, agent-lightning's proxy with one
sample a turn, and this project without and with a lag train the same policy on the same tasks, with the same tools,
group size, limits of tokens and learning rate. `bench/parts/peers` has a module or two for each, with every change that
a peer needed. Another `--model` than the small policy takes half an hour and the sizes of a pretrained one; with
`--long-prompts` the schema of a shop stands before every question, and it takes three quarters of an hour.

Everything stays on loopback; every process that it starts ends with it.
"""

from __future__ import annotations

from agentgrpo.commands import execute, starting

if __name__ == "__main__":
    starting()

import argparse
import json
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentgrpo.flags import Parser
from agentgrpo.model_kinds import count_weights
from agentgrpo.printed_commands import agentgrpo_command
from agentgrpo.processes import ends_in_order
from bench.parts import report
from bench.parts.children import ROOT
from bench.parts.peers import run
from bench.parts.peers.order import LONG_PROMPTS, PRETRAINED, SEED, SKILL, SMALL, TRAIN_TASKS, Order, Sizes
from bench.parts.peers.run import PEERS, Measured, PeerError

MODEL = ROOT / "models" / "tiny-sql"
PAGE = ROOT / "doc" / "project/benchmarks.md"
SMALL_WEIGHTS = 20_000_000
PACKAGES = ("trl", "transformers", "verl", "vllm", "agentlightning", "litellm", "openai-agents", "ray", "torch")


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = Parser(prog="python -m bench.peers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", metavar="PEER,...", help=f"some of {', '.join(PEERS)}; default all")
    parser.add_argument("--model", type=Path, default=MODEL, help="policy; default models/tiny-sql")
    parser.add_argument(
        "--long-prompts",
        action="store_true",
        help="put the schema of sql_agent/demo_shop.py, 26 tables, before every question (with a pretrained --model)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="write what was seen as JSON after each peer, beside what the file has of the others",
    )
    parser.add_argument("--write-doc", action="store_true", help="write the table into doc/project/benchmarks.md")
    args = parser.parse_args(argv)
    args.peers = args.only.split(",") if args.only else list(PEERS)
    if unknown := [peer for peer in args.peers if peer not in PEERS]:
        parser.error(f"--only: no peer {', '.join(unknown)}; known: {', '.join(PEERS)}")
    if not (args.model / "config.json").is_file():
        make = agentgrpo_command("tiny-policy")
        parser.error(f"--model: no model in {args.model}; `{make}` makes models/tiny-sql")
    args.sizes = sizes_of(args.model, long_prompts=args.long_prompts)
    if args.sizes is SMALL and args.long_prompts:
        parser.error(f"--long-prompts: they are longer than what {args.model} reads; name a pretrained --model")
    args.title = f"{args.model.name}, long prompts" if args.long_prompts else args.model.name
    args.facts = report.facts(PACKAGES)
    args.earlier = earlier(args.output, args.title, args.facts["commit"])
    if args.write_doc and (missing := set(PEERS) - set(args.peers) - set(args.earlier)):
        parser.error(
            f"--write-doc: the table has all peers, and {', '.join(sorted(missing))} were not measured at this commit; "
            "drop --only, or name the --output that has them"
        )
    return args


def sizes_of(model: Path, *, long_prompts: bool) -> Sizes:
    if (count_weights(model) or 0) < SMALL_WEIGHTS:
        return SMALL
    return LONG_PROMPTS if long_prompts else PRETRAINED


def earlier(file: Path | None, title: str, commit: str) -> dict[str, Measured]:
    """What a file has of the same table at the same commit."""
    if file is None or not file.is_file():
        return {}
    found = json.loads(file.read_text())
    if (found["model"], found["facts"]["commit"]) != (title, commit):
        return {}
    return {name: Measured.read(fields) for name, fields in found["peers"].items()}


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    sizes: Sizes = args.sizes
    seen: dict[str, Measured] = dict(args.earlier)
    with ends_in_order(), tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as folder:
        tasks = write_tasks(Path(folder), sizes, schema=shop_schema(Path(folder)) if args.long_prompts else "")
        untrained = Order(args.model.resolve(), *tasks, Path(folder), sizes)
        (before,) = run.held_out(untrained, [str(untrained.model)], say)
        for name in args.peers:
            say(f"{PEERS[name].title} ...")
            own = Path(folder) / name
            own.mkdir()
            seen[name] = measure(name, replace(untrained, folder=own))
            if args.output:
                of_all = {"model": args.title, "facts": args.facts, "before": before, "peers": as_json(seen)}
                args.output.write_text(json.dumps(of_all, indent=1) + "\n")
    ordered = {name: seen[name] for name in PEERS if name in seen}
    figures = table(ordered, sizes, before)
    print(figures)
    if args.write_doc:
        text = f"{report.where(args.facts)}\n\n{figures}"
        PAGE.write_text(report.replace_figures(PAGE.read_text(), text, f"peers of {args.title}"))
    return int(any(measured.error for measured in seen.values()))


def write_tasks(folder: Path, sizes: Sizes, *, schema: str) -> tuple[Path, Path]:
    """The files of the tasks to train on and of the held-out ones.

    Args:
        schema: stands before every question.
    """
    from dbbench_adapter.tasks.load import write_tasks
    from sql_agent.environments.dbbench import generated

    files = folder / "train.jsonl", folder / "held_out.jsonl"
    train = generated(TRAIN_TASKS, "train", (SKILL,), SEED)
    held_out = generated(max(sizes.held_out, 1), "held_out", (SKILL,), SEED)
    for file, tasks in zip(files, (train, held_out), strict=True):
        write_tasks(file, [replace(task, question=f"{schema}{task.question}") for task in tasks])
    return files


def shop_schema(folder: Path) -> str:
    """The tables of the shop as DDL, as a stranger's schema."""
    from sql_agent.demo_shop import make_shop

    database, _ = make_shop(folder, large=True)
    with closing(sqlite3.connect(database)) as connection:
        tables = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table' ORDER BY rowid").fetchall()
    return "\n".join(ddl for (ddl,) in tables) + "\n\n"


def measure(name: str, order: Order) -> Measured:
    try:
        return run.measure(PEERS[name], order, say)
    except (PeerError, RuntimeError) as error:
        say(f"       {error}")
        return Measured(PEERS[name].title, error=str(error))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def as_json(seen: Mapping[str, Measured]) -> dict[str, Any]:
    return {name: measured.as_json() for name, measured in seen.items()}


def rows_of(sizes: Sizes, before: float | None) -> dict[str, Callable[[Measured], str]]:
    """The table's rows, by their titles.

    Args:
        before: held-out success before training.
    """
    rows: dict[str, Callable[[Measured], str]] = {
        "from the command to the end of the first step": lambda its: f"{run.first_step_s(its):.1f} s",
        "a later step (median)": lambda its: f"{run.step_s(its):.2f} s",
        "trained rollouts a second": lambda its: f"{run.per_second(its, 'rollouts'):.2f}",
        "trained tokens a second": lambda its: f"{run.per_second(its, 'trained'):,.0f}",
        "highest memory of all processes, PSS": lambda its: f"{its.peak_bytes / 2**30:.2f} GiB",
        "trained tokens that the sampler returned": lambda its: f"{run.sampled_share(its):.2%}",
    }
    if sizes.held_out:
        rounds, minutes = sizes.steps * sizes.rollouts, sizes.seconds / 60
        rows[f"held-out success after {rounds} rollouts (before: {_share(before)})"] = lambda its: _share(
            its.after_rollouts
        )
        rows[f"held-out success after {minutes:g} minutes"] = lambda its: _share(its.after_seconds)
        rows["steps in these minutes"] = lambda its: str(sum(step.at_s <= sizes.seconds for step in its.steps))
    return rows


def table(seen: Mapping[str, Measured], sizes: Sizes, before: float | None) -> str:
    """A column for each peer; a peer that did not run has its error below."""
    head = "| |" + "".join(f" {its.title} |" for its in seen.values()) + "\n|---|" + "---:|" * len(seen)
    lines = [
        f"| {title} |" + "".join(f" {'-' if its.error else value(its)} |" for its in seen.values())
        for title, value in rows_of(sizes, before).items()
    ]
    errors = [f"\n{its.title} did not run: `{its.error}`" for its in seen.values() if its.error]
    return "\n".join([head, *lines, *errors])


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


if __name__ == "__main__":
    execute(main)

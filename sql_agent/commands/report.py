"""Shows what a run of any training command achieved: `agentgrpo report RUN_DIR`; `RUN_DIR RUN_DIR` compares two.

It writes report.html, one page that needs no network, curve.png and model_card.md, which `agentgrpo push` uploads, into
the run's folder, and prints where things are.
With --follow it writes the page again after each step until the run ends. Of two runs it writes compared.html into the
second one's folder.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentgrpo.flags import Parser
from agentgrpo.outputs import written
from agentgrpo.run_folder import METRICS, is_running
from sql_agent.report import compare
from sql_agent.report.card import CARD, is_edited, write_card
from sql_agent.report.compare import Pair
from sql_agent.report.figures import series
from sql_agent.report.page import next_commands, render_page
from sql_agent.report.reading import Run, held_out, read_run, with_start

POLL_S = 3.0
# What a run of some command writes beside its report.
FILES = (
    ("metrics", "metrics.jsonl"),
    ("metrics", "logs/metrics.jsonl"),
    ("trajectories", "trajectories"),
    ("trajectories", "trajectories.jsonl"),
    ("trajectories", "sessions/episodes.jsonl"),
)


def summarize_run(run: Run) -> dict[str, str]:
    lines = {}
    name, points = run.measured
    for point in (*points[:1], *points[1:][-1:]):
        lines[f"{name} {point.when}"] = str(point)
    if found := run.change:
        lines["change"] = str(found)
    saved = run.checkpoints
    if saved:
        lines["checkpoint"] = str(saved[-1])
    lines |= {"model": str(run.model)} if run.model and run.kind != "train" else {}
    written = {name: run.folder / file for name, file in FILES if (run.folder / file).exists()}
    lines |= {"report": str(run.report)} | {name: str(file) for name, file in written.items()}
    lines["curve"] = str(run.folder / "curve.png")
    if (card := run.folder / CARD).is_file():
        lines["card"] = f"{card}{' (edited by you, so it stays as it is)' if is_edited(run) else ''}"
    return lines | next_commands(run)


def draw_curve(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw training reward per step and held-out success with its 95 % interval; where there is neither, the losses."""
    from matplotlib.figure import Figure  # pyplot would change how a notebook shows its own figures
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    steps = [row["train_step"] for row in rows if "reward/mean" in row]
    rewards = [row["reward/mean"] for row in rows if "reward/mean" in row]
    points = held_out(rows)
    losses = {} if rewards or points else series(rows, {"loss": "loss", "held-out loss": "val/loss"})
    if not losses:
        axes.plot(steps, rewards, marker="o" if len(steps) == 1 else None, label="reward, training tasks")
    for label, line in losses.items():
        axes.plot(*zip(*line, strict=True), marker="o" if len(line) < 30 else None, label=label)
    if points:
        low, high = zip(*(point.interval for point in points), strict=True)
        success = [point.success for point in points]
        spread = [
            [s - a for s, a in zip(success, low, strict=True)],
            [b - s for s, b in zip(success, high, strict=True)],
        ]
        axes.errorbar(
            [point.step for point in points], success, yerr=spread, fmt="o-", capsize=4, label="success, held-out tasks"
        )
    axes.set_xlabel("train step")
    axes.set_ylim(min(0.0, axes.get_ylim()[0]), None if losses else 1.0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(file, dpi=150, format="png")


def write_page(run: Run) -> None:
    """Write page and curve; each appears whole or not at all, since a browser may be reading it."""
    with written(run.folder / "curve.png") as part:
        draw_curve(run.metrics, part)
    with written(run.report) as part:
        part.write_text(render_page(run), encoding="utf-8", errors="replace")  # a policy may write half a character


def follow(run_dir: Path) -> Run:
    """Write the page again after each step until the run has ended; return the finished run."""
    seen, running = 0, True
    while running:
        running = is_running(run_dir)  # this is asked first, so that everything written meanwhile is read below
        size = sum(map(_size, (run_dir / METRICS, run_dir / "logs" / METRICS)))
        if running and size and size != seen:
            seen, run = size, with_start(read_run(run_dir))
            write_page(run)
            print(f"step {run.step}{'' if run.steps is None else f' of {run.steps}'}: {run.report}", flush=True)
        if running:
            time.sleep(POLL_S)
    return with_start(read_run(run_dir))


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="agentgrpo report", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run_dir", type=Path, help="the run's folder (--run-dir of the training command)")
    parser.add_argument(
        "other", nargs="?", type=Path, metavar="run_dir", help="another run's folder, to compare the two"
    )
    parser.add_argument("--follow", action="store_true", help="write the page again after each step until the run ends")
    args = parser.parse_args(argv)
    if args.other and args.follow:
        parser.error("--follow is for one run; leave it out to compare two")
    try:
        if args.other:
            if args.other.resolve() == args.run_dir.resolve():
                parser.error(f"{args.run_dir} and {args.other} are the same folder; name another run's, or one alone")
            return compare_runs(Pair(read_run(args.run_dir), read_run(args.other)))
        run = follow(args.run_dir) if args.follow else with_start(read_run(args.run_dir))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    write_page(run)
    write_card(run)
    print_lines(summarize_run(run))
    return 0


def compare_runs(pair: Pair) -> int:
    page = pair.second.folder / "compared.html"
    with written(page) as part:
        part.write_text(compare.render_comparison(pair), encoding="utf-8", errors="replace")
    print_lines(dict(compare.summary(pair)) | {"page": str(page)})
    return 0


def print_lines(lines: Mapping[str, str]) -> None:
    width = max(map(len, lines))
    for label, text in lines.items():
        print(f"{label:<{width}}  {text}")

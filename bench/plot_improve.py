"""Draws what `agentgrpo improve` brought, a line per run, and the same question before and after.

    python -m bench.plot_improve RUN_DIR ... --output doc/improve.svg

The numbers are written as JSON beside the picture. The question is the first one that every run solved anew.
"""

from agentgrpo.commands import execute, starting

if __name__ == "__main__":
    starting()

import argparse
import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgrpo.flags import Parser
from sql_agent.improve import stages_of, success_of
from sql_agent.report.questions import question
from sql_agent.report.reading import Row, solved
from sql_agent.success_rate import Rate

STAGES = ("before", "after fine-tuning", "after GRPO")
INK = "#888888"
"""Is read on a light page and on a dark one."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(
        prog="python -m bench.plot_improve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN_DIR", help="runs that differ by their seed")
    parser.add_argument("--output", type=Path, required=True, help="the .svg; a .json goes beside it")
    args = parser.parse_args(argv)
    runs = [list(stages_of(folder).values()) for folder in args.runs]
    rates = [[success_of(rows) for rows in stages] for stages in runs]
    numbers = [{stage: str(rate) for stage, rate in zip(STAGES, each, strict=True)} for each in rates]
    args.output.with_suffix(".json").write_text(json.dumps(numbers, indent=1) + "\n")

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "improve"}
    style |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)
    with matplotlib.rc_context(style):
        figure, (chart, words) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained", width_ratios=(1, 1.1))
        for run, each in enumerate(rates):
            draw(chart, each, 0.08 * (run - (len(rates) - 1) / 2), f"seed {run}")
        chart.set_xticks(range(len(STAGES)), STAGES)
        chart.set_ylim(0, 100)
        chart.set_ylabel("held-out questions solved, %")
        chart.spines[["top", "right"]].set_visible(False)
        chart.legend(frameon=False)
        words.axis("off")
        words.text(0, 1, "\n".join(before_and_after(runs)), va="top", family="monospace", fontsize=8)
        figure.savefig(args.output, transparent=True, metadata={"Date": None})
        plt.close(figure)
    for seed, each in enumerate(numbers):
        print(f"seed {seed}: " + "; ".join(f"{stage} {rate}" for stage, rate in each.items()))


def draw(chart: Any, rates: Sequence[Rate], shift: float, label: str) -> None:
    """Draw the stages of a run with their 95 % intervals."""
    known = [
        (stage + shift, rate.success, *rate.interval)
        for stage, rate in enumerate(rates)
        if rate.success is not None and rate.interval is not None
    ]
    places = [at for at, *_ in known]
    success, low, high = ([100 * row[column] for row in known] for column in (1, 2, 3))
    bars = [[s - a for s, a in zip(success, low, strict=True)], [b - s for s, b in zip(success, high, strict=True)]]
    chart.errorbar(places, success, yerr=bars, fmt="o-", capsize=3, label=label)


def before_and_after(runs: Sequence[Sequence[Sequence[Row]]]) -> list[str]:
    """A question that every run solved anew, and the answers of the first run."""
    won = [
        {row["task_id"] for row in last if solved(row)} - {row["task_id"] for row in first if solved(row)}
        for first, *_, last in runs
    ]
    task = next((row["task_id"] for row in runs[0][0] if all(row["task_id"] in each for each in won)), None)
    if task is None:
        return []
    first, last = (next(row for row in runs[0][stage] if row["task_id"] == task) for stage in (0, -1))
    said = str((first["comparison"] or {}).get("submitted") or first["messages"][-1].get("content") or "")
    parts = {question(first): "", "before:": said, "after:": last["comparison"]["submitted"]}
    return [line for head, text in parts.items() for line in (head, *textwrap.wrap(text, 58)[:7], "")]


if __name__ == "__main__":
    execute(main)

"""Plots what several runs of the main job learnt, one line per seed, and writes the numbers as JSON beside the picture.

    python -m bench.plot_main_job RUN_DIR ... --output doc/pictures/train_result_test.png

It reads each run's metrics.jsonl: held-out success per validation, and the share of zero-variance groups per step.
"""

from agentgrpo.commands import execute, starting

if __name__ == "__main__":
    starting()

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgrpo.flags import Parser
from bench.plot_local_rl import Curve, save, summary
from sql_agent.report.reading import read_metrics

# The title of a panel with the metric that it shows and the factor to percent.
PANELS = {
    "held-out success, greedy": ("val/rollout/success", 100.0),
    "zero-variance groups trained on": ("group/zero_std_frac", 100.0),
    "zero-variance groups played": ("group/set_aside_frac", 100.0),
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(
        prog="python -m bench.plot_main_job",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN_DIR", help="runs that differ by their seed")
    parser.add_argument("--output", type=Path, required=True, help="the .png; a .json goes beside it")
    args = parser.parse_args(argv)
    try:
        runs = [read_metrics(run / "metrics.jsonl") for run in args.runs]
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: {error}") from error
    curves = {title: [curve(rows, metric, scale) for rows in runs] for title, (metric, scale) in PANELS.items()}
    first, *shares = curves
    save(curves, args.output, "train step", smoothed=shares)
    print(f"{first}: {summary(curves[first])}")
    for title in shares:
        print(f"{title}: {', '.join(f'{statistics.mean(v for _, v in one):.1f} %' for one in curves[title])}")


def curve(rows: Sequence[dict[str, Any]], metric: str, scale: float) -> Curve:
    return [(row["train_step"], scale * row[metric]) for row in rows if metric in row]


if __name__ == "__main__":
    execute(main)

"""What several runs of the main job learnt, one line a seed: a picture, and its numbers as JSON beside it.

    python -m scripts.plot_main_job RUN_DIR ... --output doc/train_result_test.png

Reads each run's metrics.jsonl: held-out success at every validation, the share of groups without spread at every step.
"""

from core.commands import execute, starting

if __name__ == "__main__":
    starting()

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.plot_local_rl import Curve, summary
from sql_agent.report.reading import read_metrics

PANELS = {
    "held-out success, greedy": ("val/rollout/success", 100.0),
    "groups trained on without spread": ("group/zero_std_frac", 100.0),
    "groups played without spread": ("group/set_aside_frac", 100.0),
}
"""Title of a panel: the metric it shows and what turns it into percent."""
WINDOW = 5
"""Train steps that a share of one step, which is of eight groups or so, is averaged over."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.plot_main_job",
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
    args.output.with_suffix(".json").write_text(json.dumps(curves, indent=1) + "\n")
    draw(curves, args.output)
    first, *shares = curves
    print(f"{first}: {summary(curves[first])}")
    for title in shares:
        print(f"{title}: {', '.join(f'{statistics.mean(v for _, v in one):.1f} %' for one in curves[title])}")


def curve(rows: Sequence[dict[str, Any]], metric: str, scale: float) -> Curve:
    return [(row["train_step"], scale * row[metric]) for row in rows if metric in row]


def smooth(points: Curve, window: int = WINDOW) -> Curve:
    """Each point's mean with those up to `window` - 1 before it."""
    values = [value for _, value in points]
    return [(place, statistics.mean(values[max(0, i + 1 - window) : i + 1])) for i, (place, _) in enumerate(points)]


def draw(curves: dict[str, list[Curve]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(curves), figsize=(4.2 * len(curves), 3.4), layout="constrained")
    for axis, (title, found) in zip(axes, curves.items(), strict=True):
        measured_rarely = title == next(iter(curves))
        for run, one in enumerate(found):
            points = one if measured_rarely else smooth(one)
            axis.plot(
                *zip(*points, strict=True), marker="." if measured_rarely else None, alpha=0.7, label=f"run {run}"
            )
        if measured_rarely and len({tuple(step for step, _ in one) for one in found}) == 1:
            middle = [statistics.mean(values) for values in zip(*([v for _, v in one] for one in found), strict=True)]
            axis.plot([step for step, _ in found[0]], middle, color="black", linewidth=2, label="mean")
        axis.set_title(title if measured_rarely else f"{title}, mean of {WINDOW} steps", fontsize=10)
        axis.set_xlabel("train step")
        axis.set_ylabel("%")
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.savefig(file, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    execute(main)

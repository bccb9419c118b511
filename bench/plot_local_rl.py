"""Plots held-out success of several local runs with one setting, one line per seed, and writes the numbers as JSON.

    python -m bench.plot_local_rl --greedy RUN_DIR ... --single-skill RUN_DIR ... --output doc/pictures/local_rl.png

It reads the metrics.jsonl of runs of `sql_agent.commands.greedy_grpo` with --eval-tasks and of
`sql_agent.commands.single_skill` with training_callback.evaluate_every.
"""

from agentgrpo.commands import execute, starting

if __name__ == "__main__":
    starting()

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentgrpo.flags import Parser

# Pairs of episodes or train steps so far and a share in percent.
Curve = list[tuple[int, float]]
# A share is averaged over this many train steps, because one step has only eight groups or so.
WINDOW = 5


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(
        prog="python -m bench.plot_local_rl",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--greedy", type=Path, nargs="*", default=[], metavar="RUN_DIR", help="greedy-then-GRPO runs")
    parser.add_argument("--single-skill", type=Path, nargs="*", default=[], metavar="RUN_DIR", help="REINFORCE runs")
    parser.add_argument("--output", type=Path, required=True, help="the .png; a .json goes beside it")
    args = parser.parse_args(argv)
    if not args.greedy + args.single_skill:
        parser.error("name the run folders of one command or of both")
    try:
        curves = {
            "greedy-then-GRPO, greedy": [curve(run / "metrics.jsonl", "held_out/greedy") for run in args.greedy],
            "greedy-then-GRPO, temperature 1": [
                curve(run / "metrics.jsonl", "held_out/sampled") for run in args.greedy
            ],
            "single-skill REINFORCE, greedy": [
                curve(run / "logs" / "metrics.jsonl", "held_out") for run in args.single_skill
            ],
        }
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: {error}") from error
    curves = {name: found for name, found in curves.items() if found}
    save(curves, args.output, "episodes played")
    for name, found in curves.items():
        print(f"{name}: {summary(found)}")


def save(curves: dict[str, list[Curve]], file: Path, x_label: str, *, smoothed: Sequence[str] = ()) -> None:
    """Write a picture with one panel per title, and the numbers as JSON beside it.

    Args:
        smoothed: titles whose curves are drawn as means over `WINDOW` steps and without their mean over the runs.
    """
    file.with_suffix(".json").write_text(json.dumps(curves, indent=1) + "\n")
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    size = (4.2 * len(curves), 3.4)
    figure, axes = plt.subplots(1, len(curves), figsize=size, sharey=not smoothed, squeeze=False, layout="constrained")
    for axis, (title, found) in zip(axes[0], curves.items(), strict=True):
        smooth = title in smoothed
        for run, one in enumerate(found):
            points = moving_mean(one) if smooth else one
            axis.plot(*zip(*points, strict=True), marker=None if smooth else ".", alpha=0.7, label=f"run {run}")
        if not smooth and len({tuple(place for place, _ in one) for one in found}) == 1:
            middle = [statistics.mean(values) for values in zip(*([v for _, v in one] for one in found), strict=True)]
            axis.plot([place for place, _ in found[0]], middle, color="black", linewidth=2, label="mean")
        axis.set_title(f"{title}, mean of {WINDOW} steps" if smooth else title, fontsize=10)
        axis.set_xlabel(x_label)
        axis.set_ylabel("%")
        axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize=8)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def moving_mean(points: Curve) -> Curve:
    """Each point's mean with up to `WINDOW` - 1 points before it."""
    values = [value for _, value in points]
    return [(place, statistics.mean(values[max(0, i + 1 - WINDOW) : i + 1])) for i, (place, _) in enumerate(points)]


def curve(metrics: Path, key: str) -> Curve:
    """Read the held-out success of a run.

    Raises:
        ValueError: the run was not evaluated.
    """
    found = [
        (episodes, 100 * rate["correct"] / rate["judged"])
        for episodes, line in _with_episodes(metrics)
        if (rate := line.get(key)) and rate["judged"]
    ]
    if not found:
        raise ValueError(f"{metrics} holds no {key}; run with --eval-tasks, or with training_callback.evaluate_every")
    return found


def _with_episodes(metrics: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    played = 0
    for line in map(json.loads, metrics.read_text("utf-8").splitlines()):
        played += sum(line.get("rollout/stop", {}).values())
        yield line.get("episodes", played), line


def summary(curves: Sequence[Curve]) -> str:
    """The means before and after and the gain over the seeds; the spread is the standard deviation, n - 1."""
    before, after = [c[0][1] for c in curves], [c[-1][1] for c in curves]
    gains = [b - a for a, b in zip(before, after, strict=True)]
    spread = statistics.stdev(gains) if len(gains) > 1 else float("nan")
    means = [statistics.mean(values) for values in (before, after, gains)]
    each = ", ".join(f"{gain:+.1f}" for gain in gains)
    change = f"{means[0]:.1f} % -> {means[1]:.1f} %, gain {means[2]:+.1f} +- {spread:.1f} points"
    return f"{change} over {len(gains)} seeds ({each})"


if __name__ == "__main__":
    execute(main)

"""Reads success by skill over a single-skill run from metrics.jsonl, and plots it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentgrpo.json_text import parse_json
from sql_agent.success import Rate

BINS = 10
"""Points of the training curve; a single update has too few episodes of a skill for its own point."""
ALL = "all skills"
Curve = list[tuple[float, Rate]]
"""Pairs of the number of episodes and the success rate."""


def read_lines(metrics: Path) -> list[dict[str, Any]]:
    return [parse_json(line) for line in metrics.read_text("utf-8").splitlines()]


def held_out_curves(lines: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    """Held-out success by skill, all skills together first; {} without an evaluation."""
    found: dict[str, Curve] = {}
    for line in lines:
        if "held_out" in line:
            for skill, rate in {ALL: line["held_out"], **line["held_out/skill"]}.items():
                found.setdefault(skill, []).append((line["episodes"], Rate(**rate)))
    return found


def training_curves(lines: Sequence[Mapping[str, Any]], bins: int = BINS) -> dict[str, Curve]:
    """Sampled success, summed over equal parts of the run; each point is in the middle of its part."""
    updates = [line for line in lines if "success" in line]
    found: dict[str, Curve] = {}
    size = math.ceil(len(updates) / bins)
    for first in range(0, len(updates), size or 1):
        part = updates[first : first + size]
        middle = (part[0]["episodes"] + part[-1]["episodes"]) / 2
        for skill in (ALL, *sorted({skill for line in part for skill in line["success/skill"]})):
            own = [line["success"] if skill == ALL else line["success/skill"].get(skill) for line in part]
            found.setdefault(skill, []).append((middle, _sum([rate for rate in own if rate is not None])))
    return found


def _sum(rates: Sequence[Mapping[str, int]]) -> Rate:
    return Rate(*(sum(rate[name] for rate in rates) for name in ("n", "judged", "correct")))


def draw(lines: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw one panel per skill.

    A line shows sampled success during training, dots show greedy success on held-out tasks with 95 % intervals.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    training, held_out = training_curves(lines), held_out_curves(lines)
    skills = [ALL, *sorted((training.keys() | held_out.keys()) - {ALL})]
    columns = min(4, len(skills))
    rows = math.ceil(len(skills) / columns)
    figure, panels = plt.subplots(
        rows, columns, figsize=(3.2 * columns, 2.3 * rows + 0.6), sharex=True, sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for panel, skill in zip(panels.flat, skills, strict=False):
        points = [(at, rate.success) for at, rate in training.get(skill, ()) if rate.success is not None]
        panel.plot([at for at, _ in points], [s for _, s in points], color="tab:gray", label="training, sampled")
        _dots(panel, held_out.get(skill, []))
        panel.set_title(skill.replace("_", " "), fontsize=8)
        panel.grid(alpha=0.3)
    for panel in panels.flat[len(skills) :]:
        panel.set_visible(False)
    for panel in panels.flat[max(0, len(skills) - columns) : len(skills)]:  # nothing visible below them
        panel.tick_params(labelbottom=True)
    panels[0, 0].set_ylim(-0.03, 1.03)
    panels[0, 0].xaxis.set_major_locator(MaxNLocator(4, integer=True))
    figure.supxlabel("episodes", fontsize=9)
    figure.supylabel("success", fontsize=9)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(file, dpi=150)
    plt.close(figure)


def _dots(panel: Any, curve: Curve) -> None:
    known = [(at, rate.success, *rate.interval) for at, rate in curve if rate.interval and rate.success is not None]
    if known:
        at, success, low, high = zip(*known, strict=True)
        below = [s - a for s, a in zip(success, low, strict=True)]
        above = [b - s for s, b in zip(success, high, strict=True)]
        panel.errorbar(at, success, yerr=[below, above], fmt="o", ms=4, capsize=3, label="held-out, greedy")

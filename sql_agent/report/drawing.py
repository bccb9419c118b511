"""Draws a figure of the report as SVG."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from sql_agent.report.figures import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A line of fewer points shows each one.
MARKED_POINTS = 30


def svg(figure: Figure, number: int) -> str:
    """Draw with real text in the page's colour and ids that no other figure has."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": f"figure-{number}", "font.size": 9}):
        drawn, axes = plt.subplots(figsize=(5.4, 2.8), layout="constrained")
        _draw_lines(axes, figure)
        handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        labels = [_escape_dollars(label) for label in figure.lines]  # matplotlib names those with intervals last
        where = {"loc": "outside upper left", "ncols": 2, "frameon": False, "fontsize": 8}
        drawn.legend([handles[label] for label in labels], labels, **where)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        out = io.StringIO()
        drawn.savefig(out, format="svg", transparent=True, metadata={"Date": None})
        plt.close(drawn)
    return _own_ids(out.getvalue()[out.getvalue().index("<svg") :], number)


def _draw_lines(axes: Axes, figure: Figure) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("train step")
    axes.set_ylabel(figure.y)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if figure.stacked:
        steps = sorted({step for line in figure.lines.values() for step, _ in line})
        heights = [[dict(line).get(step, 0.0) for step in steps] for line in figure.lines.values()]
        axes.stackplot(steps, heights, labels=[_escape_dollars(label) for label in figure.lines], alpha=0.8)
    else:
        for label, line in figure.lines.items():
            steps, values = zip(*line, strict=True)
            shown = _escape_dollars(label)
            if label in figure.intervals:
                bars = [[v - low, high - v] for v, (low, high) in zip(values, figure.intervals[label], strict=True)]
                axes.errorbar(steps, values, yerr=list(zip(*bars, strict=True)), fmt="o-", capsize=3, label=shown)
            else:
                marker = "o" if len(steps) == 1 else "." if len(steps) < MARKED_POINTS else None
                axes.plot(steps, values, marker=marker, markersize=5, linewidth=1.2, label=shown)
    if figure.limit is not None:
        axes.axhline(figure.limit, linestyle="--", color="grey", linewidth=1)


def _escape_dollars(label: str) -> str:
    """Escape dollar signs, which a user's skills and rewards may contain; matplotlib would read formulas."""
    return label.replace("$", r"\$")


def _own_ids(text: str, number: int) -> str:
    """Make the ids unique within the page, and replace black by the colour of the page's text."""
    text = re.sub(r'(id="|href="#|url\(#)', rf"\1f{number}-", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)  # unused links to vocabularies
    text = text.replace("stroke: #000000", "stroke: currentColor").replace("fill: #000000", "fill: currentColor")
    text = re.sub(r"<text ", '<text fill="currentColor" ', text)
    return re.sub(r' width="[^"]*pt" height="[^"]*pt"', "", text, count=1)

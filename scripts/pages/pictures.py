"""Draw the pages' pictures for both colour schemes: results, a step beside peers, a GPU's memory by model.

python -m scripts.pages.pictures    # `make reference` runs it
"""

from __future__ import annotations

import io
import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.text import Text

from agentgrpo.stats import wilson_interval
from scripts.pages.results import STAGES, read
from sql_agent.model_shape import shape_of
from sql_agent.settings.load import load_config
from sql_agent.startup.run_memory import GIB, PROCESSES, load_of, need_of

ROOT = Path(__file__).parents[2]
DATA, PICTURES = ROOT / "doc" / "data", ROOT / "doc" / "pictures"
RECIPE = ROOT / "sql_agent" / "configs" / "24gb_lora.yaml"
INK = {"light": "#1f2328", "dark": "#e6edf3"}
PAPER = {"light": "white", "dark": "none"}
"""Pages that know one scheme show the light one, so it has to be readable on both."""
BLUE, ORANGE = "#3b82f6", "#f97316"
PARTS = {
    "vLLM: weights": ("served", "#1d4ed8"),
    "vLLM: prompts, one row of KV cache": ("reading_row", "#93c5fd"),
    "trainer: weights": ("weights", "#c2410c"),
    "trainer: gradients and moments": ("learnt", "#fdba74"),
    "trainer: activations, logits": ("working", "#fde68a"),
    "processes": ("processes", "#9ca3af"),
}


def draw_results(axes: Axes, ink: str) -> None:
    """Mean shares with Wilson's 95 % interval over the held-out tasks, a small dot for each run."""
    experiments = read()
    for place, experiment in enumerate(experiments):
        for offset, (stage, (label, colour)) in zip((-0.2, 0, 0.2), STAGES.items(), strict=True):
            if not (counts := experiment.counts(stage)):
                continue
            y, mean = place + offset, statistics.mean(counts)
            low, high = experiment.intervals.get(stage) or (
                100 * bound for bound in wilson_interval(mean, experiment.of)
            )
            percent, shares = 100 * mean / experiment.of, [100 * count / experiment.of for count in counts]
            axes.plot([low, high], [y, y], color=colour, linewidth=2, alpha=0.55, solid_capstyle="round")
            axes.plot(percent, y, "o", color=colour, markersize=7, label=None if place else label)
            axes.plot(shares, [y] * len(shares), ".", color=ink, markersize=3)
            axes.annotate(
                f"{percent:.1f} %", (high, y), (5, 0), textcoords="offset points", va="center", color=ink, fontsize=8
            )
    axes.set_yticks(range(len(experiments)), [one.title["en"].replace(", ", ",\n", 1) for one in experiments])
    axes.invert_yaxis()
    axes.set_xlim(-2, 100)
    axes.set_xlabel("held-out tasks that are right, %")
    handles = [axes.plot([], [], "o", color=colour, label=label)[0] for label, colour in STAGES.values()]
    axes.legend(handles=handles, frameon=False, labelcolor=ink, fontsize=9, loc="center right")


def peers() -> dict[str, float]:
    """Seconds of a later step by project, of the table that `bench.peers --write-doc` writes for the 135 M policy."""
    page = (ROOT / "doc" / "project" / "benchmarks.md").read_text("utf-8")
    table = re.search(r"<!-- peers of smollm2-135m-instruct: begin -->(.*?)<!-- peers", page, re.DOTALL)
    assert table is not None
    rows = [line.strip("| ").split(" | ") for line in table[1].splitlines() if line.startswith("|")]
    names = [name for name in rows[0] if name.strip("| ")]
    (step,) = (row for row in rows if row[0].startswith("a later step"))
    values = (float(cell.strip("| ").removesuffix(" s")) for cell in step[1:])
    return dict(zip((name.strip("| ") for name in names[1 - len(step) :]), values, strict=True))


def draw_peers(axes: Axes, ink: str) -> None:
    seconds = peers()
    colours = [ORANGE if name.startswith("this project") else BLUE for name in seconds]
    bars = axes.barh(list(seconds), list(seconds.values()), color=colours, height=0.6)
    axes.bar_label(bars, [f"{value:.0f} s" for value in seconds.values()], padding=4, color=ink, fontsize=9)
    axes.invert_yaxis()
    axes.set_xlabel("seconds of a train step: 32 rollouts, 135 M weights, two CPU cores")


def memory(config: dict[str, object]) -> dict[str, float]:
    """GiB on one GPU by part, as a run with the recipe for 24 GB estimates them."""
    load = load_of(load_config(RECIPE, []), cpu=False)
    need = need_of(load, shape_of(config))
    parts = {
        "served": need.served,
        "reading_row": need.reading + need.row,
        "weights": need.weights,
        "learnt": need.gradients + need.moments,
        "working": need.gathered + need.activations + need.logits,
        "processes": PROCESSES,
    }
    return {name: size / GIB for name, size in parts.items()}


def draw_memory(axes: Axes, ink: str) -> None:
    models = json.loads((DATA / "qwen2.5_configs.json").read_text("utf-8"))
    found = {f"Qwen2.5-{name}": memory(config) for name, config in models.items()}
    left = dict.fromkeys(found, 0.0)
    for label, (part, colour) in PARTS.items():
        sizes = [found[name][part] for name in found]
        axes.barh(list(found), sizes, left=list(left.values()), color=colour, height=0.6, label=label)
        left = {name: left[name] + found[name][part] for name in found}
    axes.invert_yaxis()
    axes.axvline(24, color=ink, linewidth=1, linestyle="--")
    axes.annotate("24 GB", (24, -0.42), xytext=(4, 0), textcoords="offset points", color=ink, fontsize=9)
    axes.set_xlabel("GiB by part, LoRA, estimated; rollouts and update do not need all of it at once")
    axes.legend(frameon=False, labelcolor=ink, fontsize=8, loc="upper right")


DRAWN: dict[str, tuple[Callable[[Axes, str], None], float]] = {
    "results": (draw_results, 6.0),
    "peers": (draw_peers, 2.6),
    "memory": (draw_memory, 2.8),
}
"""How each picture is drawn, and its height in inches."""


def record(output: Path, picture: Path) -> None:
    """Draw what a command printed as a terminal."""
    console = Console(record=True, width=118, file=io.StringIO(), force_terminal=True)
    console.print(Text(output.read_text("utf-8").rstrip()))
    picture.write_text(console.export_svg(title="agentgrpo demo", unique_id="demo"), "utf-8")


def main() -> None:
    record(DATA / "demo_output.txt", PICTURES / "demo.svg")
    matplotlib.rcdefaults()  # the reader's own style would change the pictures
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "pages"}
    for name, (draw, height) in DRAWN.items():
        for scheme, ink in INK.items():
            figure = Figure(figsize=(8.6, height), layout="constrained")
            axes = figure.subplots()
            axes.set_facecolor("none")
            draw(axes, ink)
            axes.tick_params(colors=ink, labelsize=9)
            axes.tick_params(axis="y", length=0)
            axes.xaxis.label.set_color(ink)
            axes.spines[["top", "right", "left"]].set_visible(False)
            axes.spines["bottom"].set_color(ink)
            axes.grid(axis="x", color=ink, alpha=0.12)
            figure.savefig(PICTURES / f"{name}_{scheme}.svg", facecolor=PAPER[scheme], metadata={"Date": None})


if __name__ == "__main__":
    main()

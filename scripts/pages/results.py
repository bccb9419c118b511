"""Render doc/data/results.json: tables between the markers of pages, and the picture for both colour schemes.

python -m scripts.pages.results    # `make reference` runs it
"""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Literal

import matplotlib
from matplotlib.figure import Figure
from pydantic import BaseModel

from agentgrpo.stats import wilson_interval

ROOT = Path(__file__).parents[2]
DATA = ROOT / "doc" / "data" / "results.json"
Language = Literal["en", "zh"]
PAGES: dict[str, tuple[Language, bool]] = {
    "README.md": ("en", False),
    "README.zh-CN.md": ("zh", False),
    "doc/project/results.md": ("en", True),
}
"""Its language, and whether a page shows each run's count."""
HEAD: dict[Language, tuple[str, ...]] = {
    "en": ("held-out tasks", "time on two cores, command", "before", "fine-tuned", "after GRPO", "p of GRPO's change"),
    "zh": ("留出任务", "两个 CPU 核上的时间与命令", "训练前", "SFT 后", "GRPO 后", "GRPO 变化的 p 值"),
}
STAGES = {"before": ("before", "#8b949e"), "fine_tuned": ("fine-tuned", "#3b82f6"), "grpo": ("after GRPO", "#f97316")}
BLOCK = re.compile(r"(<!-- results -->\n).*?(<!-- /results -->)", re.DOTALL)
INK = {"light": "#1f2328", "dark": "#e6edf3"}


class Run(BaseModel):
    """Held-out tasks that are right after each stage; None: not measured."""

    seed: int
    before: int | None
    fine_tuned: int | None
    grpo: int | None
    p: float | None


class Experiment(BaseModel):
    name: str
    of: int
    title: dict[Language, str]
    command: str
    time: dict[Language, str]
    runs: list[Run]
    interval: tuple[float, float] | None = None
    """Of the last stage, in %, where tasks of one database are alike; else Wilson's over tasks."""

    def counts(self, stage: str) -> list[int]:
        return [count for run in self.runs if (count := getattr(run, stage)) is not None]


class Results(BaseModel):
    what: str
    experiments: list[Experiment]


def read() -> list[Experiment]:
    return Results.model_validate_json(DATA.read_text("utf-8")).experiments


def table(experiments: list[Experiment], language: Language, *, counts: bool) -> str:
    rows = [
        HEAD[language],
        ("---",) * len(HEAD[language]),
        *(row(each, language, counts=counts) for each in experiments),
    ]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def row(experiment: Experiment, language: Language, *, counts: bool) -> tuple[str, ...]:
    return (
        f"{experiment.title[language]} ({experiment.of})",
        f"{experiment.time[language]}, `{experiment.command}`",
        *(share(experiment.counts(stage), experiment.of, each=counts) for stage in STAGES),
        ", ".join(f"{run.p:.2g}".replace("e-0", "e-") for run in experiment.runs if run.p is not None) or "–",
    )


def share(counts: list[int], of: int, *, each: bool) -> str:
    """Return the mean share and, of several runs, each run's count; a dash where nothing was measured."""
    if not counts:
        return "–"
    mean = f"{100 * statistics.mean(counts) / of:.1f} %"
    return f"{mean} ({', '.join(map(str, counts))})" if each and len(set(counts)) > 1 else mean


def filled(page: str, experiments: list[Experiment], language: Language, *, counts: bool) -> str:
    """Return the page with the table between its markers."""
    return BLOCK.sub(lambda match: match[1] + table(experiments, language, counts=counts) + match[2], page)


def draw(experiments: list[Experiment], scheme: str, output: Path) -> None:
    """Draw mean shares with Wilson's 95 % interval over the held-out tasks, a small dot for each run."""
    matplotlib.rcdefaults()  # the reader's own style would change the picture
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "results"}
    ink = INK[scheme]
    figure = Figure(figsize=(8.6, 0.62 * len(experiments) + 1.1), layout="constrained")
    axes = figure.subplots()
    for place, experiment in enumerate(experiments):
        for offset, (stage, (label, colour)) in zip((-0.2, 0, 0.2), STAGES.items(), strict=True):
            if not (counts := experiment.counts(stage)):
                continue
            y, mean = place + offset, statistics.mean(counts)
            low, high = experiment.interval or (100 * bound for bound in wilson_interval(mean, experiment.of))
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
    axes.tick_params(colors=ink, labelsize=9)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.label.set_color(ink)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(ink)
    axes.grid(axis="x", color=ink, alpha=0.12)
    handles = [axes.plot([], [], "o", color=colour, label=label)[0] for label, colour in STAGES.values()]
    axes.legend(handles=handles, frameon=False, labelcolor=ink, fontsize=9, loc="upper right")
    figure.savefig(output, transparent=True, metadata={"Date": None})


def main() -> None:
    experiments = read()
    for name, (language, counts) in PAGES.items():
        page = ROOT / name
        page.write_text(filled(page.read_text("utf-8"), experiments, language, counts=counts), "utf-8")
    for scheme in INK:
        draw(experiments, scheme, ROOT / "doc" / "pictures" / f"results_{scheme}.svg")


if __name__ == "__main__":
    main()

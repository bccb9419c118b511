"""Render doc/data/results.json into the tables between the markers of pages.

python -m scripts.pages.results    # `make reference` runs it
"""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

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
    intervals: dict[str, tuple[float, float]] = {}
    """By stage, in %, where tasks of one database are alike; else Wilson's over tasks."""

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


def main() -> None:
    experiments = read()
    for name, (language, counts) in PAGES.items():
        page = ROOT / name
        page.write_text(filled(page.read_text("utf-8"), experiments, language, counts=counts), "utf-8")


if __name__ == "__main__":
    main()

"""What a benchmark says: rows against targets, where they were measured, and their markdown. Pure but for `facts`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from core.machine import git_commit

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
PACKAGES = ("torch", "vllm", "verl", "agentlightning", "openai-agents", "transformers", "ray", "litellm")


@dataclass(frozen=True)
class Row:
    """One measurement. Without a target it explains the ones that have one."""

    what: str
    value: float | None
    """None: not measured; `limit` says why."""
    unit: str
    target: float | None = None
    bound: Literal["at most", "at least"] = "at most"
    limit: str = ""
    """What keeps it from being better."""

    @property
    def met(self) -> bool | None:
        """None where there is no target or no value."""
        if self.value is None or self.target is None:
            return None
        return self.value <= self.target if self.bound == "at most" else self.value >= self.target


def table(rows: Sequence[Row]) -> str:
    """A markdown table; `ratio` is measured / target."""
    head = "| what | measured | target | ratio | met | what limits |\n|---|---:|---:|---:|---|---|"
    return "\n".join([head, *map(_line, rows)])


def _line(row: Row) -> str:
    measured = "-" if row.value is None else f"{_number(row.value)} {row.unit}".strip()
    target = "" if row.target is None else f"{row.bound} {_number(row.target)}"
    ratio = "" if row.met is None or not row.target else f"{row.value / row.target:.2f}"  # type: ignore[operator]
    met = {None: "", True: "yes", False: "**no**"}[row.met]
    return f"| {row.what} | {measured} | {target} | {ratio} | {met} | {row.limit} |"


def _number(value: float) -> str:
    """Three significant digits, never in powers of ten."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def markdown(parts: Mapping[str, Sequence[Row]], facts: Mapping[str, Any]) -> str:
    """The figures section of doc/benchmarks.md."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    where = (
        f"Commit {facts['commit']}, {facts['date']}: {facts['cores']} cores of {facts['cpu']}, "
        f"load {facts['load']} at the start; Python {facts['python']}, {versions}."
    )
    return "\n\n".join([where, *(f"### {name}\n\n{table(rows)}" for name, rows in parts.items())])


def replace_figures(text: str, figures: str) -> str:
    """`text` with what stands between the two marks replaced.

    Raises:
        ValueError: a mark is missing.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no {BEGIN} ... {END} to write the figures between; put both lines into the page")
    return f"{before}{begin}\n\n{figures}\n\n{end}{after}"


def facts() -> dict[str, Any]:
    """Where and when: commit, date, CPU, cores, load, versions."""
    commit = git_commit() or "unknown"
    models = [line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")]
    return {
        "commit": commit,
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
    }


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []

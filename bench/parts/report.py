"""Prints and writes the results of a benchmark: rows with their targets, and the machine of the measurement.

The five commands share its options, its tables and its exit status. This module measures nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from agentgrpo.machine import git_commit

PACKAGES = ("torch", "vllm", "verl", "agentlightning", "openai-agents", "transformers", "ray", "litellm")


@dataclass(frozen=True)
class Row:
    """One measurement. Without a target it explains rows that have one."""

    what: str
    value: float | None
    """The measured value; None if it was not measured, for the reason in `limit`."""
    unit: str
    target: float | None = None
    bound: Literal["at most", "at least"] = "at most"
    limit: str = ""
    """The reason why the value is not better."""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without a target or a value."""
        if self.value is None or self.target is None:
            return None
        return self.value <= self.target if self.bound == "at most" else self.value >= self.target


def add_options(parser: argparse.ArgumentParser, parts: Sequence[str]) -> None:
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=list(parts),
        help=f"parts to measure: some of {','.join(parts)}; default all",
    )
    add_json(parser)


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", "--json", type=Path, metavar="FILE", help="also write the figures to this file")


def check_options(parser: argparse.ArgumentParser, args: argparse.Namespace, parts: Sequence[str]) -> None:
    if unknown := set(args.only) - {*parts, ""}:
        parser.error(f"--only {','.join(sorted(unknown))}: known are {', '.join(parts)}")
    if args.output and not args.output.parent.is_dir():
        parser.error(f"--output {args.output}: no such folder; make it with `mkdir -p {args.output.parent}`")


def finish(rows: Sequence[Row], found: Mapping[str, Any], file: Path | None = None) -> int:
    """Print the table and the machine, and write both to `file`; return 1 if a target is missed, else 0."""
    print(table(rows))
    print(f"\ncommit {found['commit']}, load {found['load']}, {found['cores']} cores of {found['cpu']}")
    if file:
        file.write_text(json.dumps({"facts": found, "rows": list(map(as_json, rows))}, indent=2) + "\n")
    return int(any(row.met is False for row in rows))


def as_json(row: Row) -> dict[str, Any]:
    return {**dataclasses.asdict(row), "met": row.met}


def table(rows: Sequence[Row]) -> str:
    """A markdown table; `ratio` is measured / target."""
    head = "| what | measured | target | ratio | met | what limits |\n|---|---:|---:|---:|---|---|"
    return "\n".join([head, *map(_line, rows)])


def _line(row: Row) -> str:
    measured = "-" if row.value is None else f"{_number(row.value)} {row.unit}".strip()
    target = "" if row.target is None else f"{row.bound} {_number(row.target)}"
    ratio = f"{row.value / row.target:.2f}" if row.value is not None and row.target else ""
    met = {None: "", True: "yes", False: "**no**"}[row.met]
    return f"| {row.what} | {measured} | {target} | {ratio} | {met} | {row.limit} |"


def _number(value: float) -> str:
    """Three significant digits, never in powers of ten."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def markdown(parts: Mapping[str, Sequence[Row]], found: Mapping[str, Any]) -> str:
    """The figures section of doc/project/benchmarks.md: every row but those that explain another ("...")."""
    return (
        f"{where(found)}\n\n{table([row for rows in parts.values() for row in rows if not row.what.startswith('...')])}"
    )


def where(found: Mapping[str, Any]) -> str:
    """Commit, date, machine and versions in a sentence."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return (
        f"Commit {found['commit']}, {found['date']}: {found['cores']} cores of {found['cpu']}, "
        f"load {found['load']} at the start; Python {found['python']}, {versions}."
    )


def marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def replace_figures(text: str, figures: str, name: str = "figures") -> str:
    """`text` with everything between the two marks of this name replaced.

    Raises:
        ValueError: a mark is missing.
    """
    first, last = marks(name)
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"no {first} ... {last} to write the figures between; put both lines into the page")
    return f"{before}{begin}\n\n{figures}\n\n{end}{after}"


def facts(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Place and time of the measurement: commit, date, CPU, cores, load, versions of these packages."""
    cpu = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "commit": git_commit() or "unknown",
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": cpu[1] if cpu else platform.processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }

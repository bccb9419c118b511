"""The metrics that a run can log: `sql_agent/metrics.yaml` as a page."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import yaml

from scripts.pages.tables import ROOT, code, table

HEAD = """# Metrics

`metrics.jsonl` in the folder of a run has one row for each train step, and one at step 0 for the validation before
training. `val/` before a name means a validation: greedy, one rollout for each held-out task. Means are over rollouts
that have a reward, shares over all rollouts. Rewards and success are those of the tasks that a step began with,
without their replacements.

A word in capitals stands for a name. `agentgrpo report RUN_DIR` draws the metrics; [reading a
run](../operate/reading_a_run.md) says where to begin.
"""


class Metric(NamedTuple):
    names: tuple[str, ...]
    meaning: str
    healthy: str
    look_at: str


class Group(NamedTuple):
    title: str
    note: str
    metrics: tuple[Metric, ...]


@cache
def registry() -> tuple[Group, ...]:
    return tuple(
        Group(
            group["title"],
            group.get("note", ""),
            tuple(Metric(tuple(names.split(", ")), *rest) for names, *rest in group["metrics"]),
        )
        for group in yaml.safe_load((ROOT / "sql_agent" / "metrics.yaml").read_text("utf-8"))
    )


def page() -> str:
    parts = [HEAD]
    for title, note, metrics in registry():
        rows = [(code(*metric.names), *metric[1:]) for metric in metrics]
        head = f"## {title}\n\n" + (f"{note}\n\n" if note else "")
        parts.append(f"{head}{table(('metric', 'meaning', 'healthy', 'else look at'), rows)}\n")
    return "\n".join(parts)

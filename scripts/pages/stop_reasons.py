"""How a rollout ends: `sql_agent/stop_reasons.yaml`, with the advice that a run prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import yaml

from scripts.pages.tables import ROOT, code, table
from sql_agent.source.stops import LOST_ADVICE, MAIN_JOB

HEAD = """# Stop and loss reasons

A rollout is *judged* (it has a reward) or *lost* (it has none). A lost rollout is masked and left out of its group's
mean and standard deviation. `metrics.jsonl` counts both ([metrics](metrics.md)); `trajectories/` has each rollout
with its reason.

A policy learns to cause whatever spares it a wrong answer. The last column says for each reason whether it can, and
what it gains by it.
"""
LOST = """## Lost

Counted as `rollout/lost/REASON`. A step that loses more than `rollout.max_lost_fraction` of its rollouts stops the
run with the most frequent reason. Your own environment may add reasons (`raise Lost("server_down")`). In
`trajectories/` a loss at a deadline has the `stop_reason` `timeout`, and one in your own environment
`environment_error`.
"""
JUDGED = """## Judged

Counted as `rollout/stop/REASON`. The judge scores an answer that was cut, too. A preset may pay less or more for such
an end: its price.
"""


class Reason(NamedTuple):
    names: tuple[str, ...]
    why: str
    by_policy: str


def reasons(kind: str) -> Iterator[Reason]:
    """The reasons of one kind, `lost` or `judged`."""
    for names, *rest in yaml.safe_load((ROOT / "sql_agent" / "stop_reasons.yaml").read_text("utf-8"))[kind]:
        yield Reason(tuple(names.split(", ")), *rest)


def page() -> str:
    lost = [(code(*each.names), each.why, advice(each.names), each.by_policy) for each in reasons("lost")]
    judged = [(code(*each.names), each.why, each.by_policy) for each in reasons("judged")]
    policy = "can the policy cause it?"
    return (
        f"{HEAD}\n{LOST}\n{table(('reason', 'why', 'to do', policy), lost)}\n\n"
        f"{JUDGED}\n{table(('reason', 'why', policy), judged)}\n"
    )


def advice(names: tuple[str, ...]) -> str:
    """What a run prints when a reason of these stops it, in the main job's names."""
    said = dict.fromkeys(LOST_ADVICE[name].format(**MAIN_JOB) for name in names if name in LOST_ADVICE)
    return " ".join(said)

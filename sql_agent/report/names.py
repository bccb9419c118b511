"""Gives the metrics of every command that trains the names that `agentgrpo train` has, so that one report reads all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Names of the other commands' metrics; the part of the name before a loss, an accuracy or a margin goes.
RENAMED = {
    "held_out": "val/rollout",
    "held_out/greedy": "val/rollout",
    "held_out/sampled": "val/sampled",
    "held_out/reward": "val/reward/mean",
    "held_out/unjudged": "val/rollout/lost",
    "held_out/skill": "val/skill",
    "reward/unjudged": "unjudged",
    "success": "rollout",
    "success/skill": "skill",
    "group/with_spread": "group/trained",
    "rollout/success": "rollout",
    "time/play_s": "time/rollout_s",
    "time/evaluate_s": "time/validation_s",
    "optim/learning_rate": "policy/learning_rate",
    "optim/grad_norm": "policy/grad_norm",
    "sft/entropy": "policy/entropy",
    "sft/token_accuracy": "accuracy",
}
OF_PAIRS = ("sft/", "dpo/", "pair/")


def named_as_train(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of metrics with flat names. A count by reason becomes a number for each reason, a success rate the share
    and how many were judged; a rate of which none was judged has no share."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        new = RENAMED.get(name) or _without_kind(name)
        if not isinstance(value, dict):
            found[new] = value
        elif name == "rollout/stop":
            found |= {f"{new}/{reason}": count / (sum(value.values()) or 1) for reason, count in value.items()}
        elif _is_rate(value):
            found |= _rate(new, value)
        else:
            for key, each in value.items():
                found |= _rate(f"{new}/{key}", each) if _is_rate(each) else {f"{new}/{key}": each}
    if row.get("held_out/unjudged"):
        found["val/reward/unjudged_frac"] = sum(row["held_out/unjudged"].values()) / row["held_out"]["n"]
    return found


def _without_kind(name: str) -> str:
    held_out, rest = ("val/", name.removeprefix("val/")) if name.startswith("val/") else ("", name)
    kind = next((kind for kind in OF_PAIRS if rest.startswith(kind)), "")
    return held_out + rest.removeprefix(kind)


def _is_rate(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == {"n", "judged", "correct"}


def _rate(name: str, rate: Mapping[str, int]) -> dict[str, float]:
    judged = rate["judged"]
    counts: dict[str, float] = {f"{name}/count": rate["judged" if "skill/" in name else "n"], f"{name}/judged": judged}
    return {f"{name}/success": rate["correct"] / judged, **counts} if judged else counts

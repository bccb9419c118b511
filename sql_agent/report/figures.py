"""Defines the report's figures: which metrics are in which. Leaves out how they are drawn (`drawing`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agentgrpo.stats import wilson_interval
from sql_agent.report.reading import Row, held_out, held_out_rewards

Points = list[tuple[int, float]]
"""Pairs of train step and value."""


@dataclass(frozen=True)
class Figure:
    title: str
    lines: dict[str, Points]
    """Points by label; a line that was never logged is left out."""
    note: str = ""
    stacked: bool = False
    intervals: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """95 % intervals of the points of a line, by its label."""
    limit: float | None = None
    empty: str = "Nothing was logged."
    """The text if there are no lines."""


def series(rows: Sequence[Row], names: dict[str, str]) -> dict[str, Points]:
    """Return the points of the metrics that were logged, by label; `names` maps labels to metrics."""
    found = {label: [(r["train_step"], r[name]) for r in rows if name in r] for label, name in names.items()}
    return {label: points for label, points in found.items() if points}


def by_prefix(rows: Sequence[Row], prefix: str, *, absent: float | None = None) -> dict[str, Points]:
    """Return a line for each metric with `prefix`; `absent` replaces a count that is not logged when it is 0."""
    names = sorted({name for row in rows for name in row if name.startswith(prefix)})
    if absent is None:
        return series(rows, {name.removeprefix(prefix): name for name in names})
    trained = [row for row in rows if "reward/unjudged_frac" in row]
    return {name.removeprefix(prefix): [(r["train_step"], r.get(name, absent)) for r in trained] for name in names}


def rate(rows: Sequence[Row], per_step: Callable[[Row], float], needs: Sequence[str]) -> Points:
    return [(row["train_step"], per_step(row)) for row in rows if all(row.get(name) for name in needs)]


def all_figures(rows: Sequence[Row]) -> list[Figure]:
    points = held_out(rows)
    learning = {"held-out success, greedy": [(p.step, p.success) for p in points]} if points else {}
    if not points and (rewards := held_out_rewards(rows)):
        learning["held-out reward, greedy"] = [(p.step, p.mean) for p in rewards]
    learning |= series(rows, {"success of sampled training rollouts": "rollout/success", "reward": "reward/mean"})
    seconds = ["time/rollout_s"]
    speed = {
        "rollouts/s while they are played": rate(
            rows, lambda r: r["rollout/count"] / r["time/rollout_s"], ["rollout/count", *seconds]
        ),
        "sampled tokens/s / 100": rate(
            rows,
            lambda r: r["rollout/count"] * r["rollout/sampled_tokens"] / r["time/rollout_s"] / 100,
            ["rollout/count", "rollout/sampled_tokens", *seconds],
        ),
    }
    parts = {
        label: line
        for label, line in by_prefix(rows, "reward/").items()
        if label not in ("mean", "std", "unjudged_frac") and not label.endswith("/none_frac")
    }
    gave_none = {
        label.removesuffix("/none_frac"): line
        for label, line in by_prefix(rows, "reward/").items()
        if label.endswith("/none_frac")
    }
    return [
        Figure(
            "Learning",
            learning,
            intervals={"held-out success, greedy": [p.interval for p in points]},
            note="Bars are Wilson's 95 % intervals.",
        ),
        Figure("Parts of the reward", parts, note="Each reward's own number, before its weight."),
        *([Figure("Rollouts without a number, by reward function", gave_none)] if gave_none else []),
        Figure(
            "Groups without spread",
            series(rows, {
                "trained on, all right": "group/all_right_frac",
                "trained on, all wrong": "group/all_wrong_frac",
                "trained on, all": "group/zero_std_frac",
                "set aside, of those played": "group/set_aside_frac",
            }),
            limit=0.3,
            note="A group whose rewards are all equal teaches nothing, and the rollouts of one that is set aside are "
            "not used. Dashed: the healthy limit for groups that are trained on.",
        ),
        Figure(
            "Groups set aside, by cause",
            by_prefix(rows, "group/set_aside/", absent=0.0),
            stacked=True,
            empty=_none(rows, "group/set_aside_frac"),
        ),
        Figure("How rollouts ended, share of the judged", by_prefix(rows, "rollout/stop/", absent=0.0), stacked=True),
        Figure(
            "Lost rollouts, by reason",
            by_prefix(rows, "rollout/lost/", absent=0.0),
            stacked=True,
            empty=_none(rows, "reward/unjudged_frac"),
        ),
        Figure(
            "Prefix breaks, by cause",
            by_prefix(rows, "prefix/break/", absent=0.0),
            note="Rollouts in which a prompt did not begin with the sampled tokens.",
            stacked=True,
            empty=_none(rows, "prefix/broken_frac"),
        ),
        Figure(
            "Seconds a step, by phase",
            series(rows, {
                "rollouts": "time/rollout_s",
                "log-probs": "time/log_prob_s",
                "update": "time/update_s",
                "weight sync": "time/weight_sync_s",
                "checkpoint": "time/checkpoint_s",
            }),
            stacked=True,
        ),
        Figure("Throughput", {label: line for label, line in speed.items() if line}),
        Figure(
            "Tokens of a rollout",
            series(rows, {"sampled": "rollout/sampled_tokens", "with tool results": "rollout/response_tokens"}),
        ),
        Figure(
            "Policy",
            series(rows, {
                "entropy, nats": "policy/entropy",
                "gradient norm": "policy/grad_norm",
                "KL to the reference, k3": "policy/kl_k3",
            }),
        ),
        Figure(
            "Sampler against trainer, probability of a sampled token",
            series(rows, {
                "largest difference": "engine/probs_diff_max",
                "mean difference": "engine/probs_diff_mean",
                "alarm": "engine/alarm",
            }),
            note="The alarm is 1 where what is trained on is not the policy's own: the largest difference above 1e-3 "
            "in float32, the mean above 0.02 in bfloat16.",
        ),
        Figure("Reward model", by_prefix(rows, "reward_model/")),
    ]  # fmt: skip


def _none(rows: Sequence[Row], counted: str) -> str:
    """Return the text for a figure without causes; it says "None" if the count itself was logged."""
    steps = sum(counted in row for row in rows)
    return f"None in {steps} train steps." if steps else "Nothing was logged."


def skills(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Return for each skill its name and its held-out success with interval, at the first and last validation."""
    validated = [row for row in rows if any(name.startswith("val/skill/") for name in row)]
    if not validated:
        return []
    names = sorted({
        name.removeprefix("val/skill/").removesuffix("/success")
        for row in validated
        for name in row
        if name.startswith("val/skill/") and name.endswith("/success")
    })  # fmt: skip
    last = validated[-1] if len(validated) > 1 else None
    return [(name, _skill(validated[0], name), "" if last is None else _skill(last, name)) for name in names]


def _skill(row: Row, name: str) -> str:
    success, count = row.get(f"val/skill/{name}/success"), row.get(f"val/skill/{name}/count")
    if success is None or not count:
        return "none judged"
    low, high = wilson_interval(round(success * count), round(count))
    return f"{success:.0%} ({low:.0%} to {high:.0%}, of {count:.0f})"

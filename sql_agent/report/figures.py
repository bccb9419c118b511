"""The report's figures: which metrics are in which."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agentgrpo.stats import wilson_interval
from sql_agent.report.reading import Row, held_out, held_out_rewards

# Pairs of train step and value.
Points = list[tuple[int, float]]


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
    y: str = ""
    """The name of the vertical axis; none where the lines have units of their own, which their labels name."""
    empty: str = ""
    """The sentence that is shown if there are no lines; a figure without lines and without one is left out."""


def series(rows: Sequence[Row], names: dict[str, str]) -> dict[str, Points]:
    """Points of the metrics that were logged, by label."""
    found = {label: [(r["train_step"], r[name]) for r in rows if name in r] for label, name in names.items()}
    return {label: points for label, points in found.items() if points}


def by_prefix(rows: Sequence[Row], prefix: str, *, absent: float | None = None) -> dict[str, Points]:
    """A line for each metric with `prefix`; `absent` replaces a count that is not logged when it is 0."""
    names = sorted({name for row in rows for name in row if name.startswith(prefix)})
    if absent is None:
        return series(rows, {name.removeprefix(prefix): name for name in names})
    trained = [row for row in rows if row.keys() & {"reward/unjudged_frac", "time/rollout_s"}]
    return {name.removeprefix(prefix): [(r["train_step"], r.get(name, absent)) for r in trained] for name in names}


def per_step_points(rows: Sequence[Row], per_step: Callable[[Row], float], needs: Sequence[str]) -> Points:
    return [(row["train_step"], per_step(row)) for row in rows if all(row.get(name) for name in needs)]


def all_figures(rows: Sequence[Row]) -> list[Figure]:
    """Every figure that some run has; one whose metrics this run does not log has no lines."""
    phases = series(rows, {
        "rollouts": "time/rollout_s",
        "log-probs": "time/log_prob_s",
        "update": "time/update_s",
        "weight sync": "time/weight_sync_s",
        "checkpoint": "time/checkpoint_s",
    })  # fmt: skip
    return [
        _learning(rows),
        Figure("Loss", series(rows, {"trained on": "loss", "held out": "val/loss"}), y="loss, nats"),
        Figure("Accuracy", series(rows, {"trained on": "accuracy", "held out": "val/accuracy"}), y="share"),
        Figure("Margin", series(rows, {"trained on": "margin", "held out": "val/margin"}), y="chosen less rejected"),
        Figure(
            "Rewards of both sides",
            series(rows, {"chosen": "reward_chosen", "rejected": "reward_rejected"}),
            y="reward",
        ),
        Figure("Scores", series(rows, {name: f"score/{name}" for name in ("max", "mean", "min")}), y="score"),
        *_parts(rows),
        Figure(
            "Zero-variance groups",
            series(rows, {
                "trained on, all right": "group/all_right_frac",
                "trained on, all wrong": "group/all_wrong_frac",
                "trained on, all": "group/zero_std_frac",
                "set aside, of those played": "group/set_aside_frac",
            }),
            limit=0.3,
            note="A group whose rewards are all equal teaches nothing, and the rollouts of one that is set aside are "
            "not used. Dashed: the healthy limit for groups that are trained on.",
            y="share of groups",
        ),
        Figure(
            "Groups set aside, by cause",
            by_prefix(rows, "group/set_aside/", absent=0.0),
            stacked=True,
            empty=_none(rows, "group/set_aside_frac"),
            y="groups",
        ),
        Figure(
            "Groups that were skipped, so far",
            by_prefix(rows, "group/skipped/", absent=0.0),
            note="A group whose rewards are all equal teaches nothing.",
            y="groups",
        ),
        Figure(
            "How rollouts ended",
            by_prefix(rows, "rollout/stop/", absent=0.0),
            stacked=True,
            y="share of rollouts",
        ),
        Figure("Verdicts", by_prefix(rows, "rollout/reason/", absent=0.0), stacked=True, y="rollouts"),
        Figure(
            "Lost rollouts, by reason",
            by_prefix(rows, "rollout/lost/", absent=0.0),
            stacked=True,
            empty=_none(rows, "reward/unjudged_frac"),
            y="rollouts",
        ),
        Figure("Rollouts that could not be judged, so far", by_prefix(rows, "unjudged/", absent=0.0), y="rollouts"),
        Figure(
            "Prefix breaks, by cause",
            by_prefix(rows, "prefix/break/", absent=0.0),
            note="Rollouts in which a prompt did not begin with the sampled tokens.",
            stacked=True,
            empty=_none(rows, "prefix/broken_frac"),
            y="rollouts",
        ),
        Figure("Seconds a step, by phase", phases, stacked=True, y="seconds"),
        Figure("Seconds a step", {} if phases else series(rows, {"whole step": "time/step_s"}), y="seconds"),
        Figure("Throughput", _speed(rows), y="per second"),
        Figure(
            "Tokens of a rollout",
            series(rows, {"sampled": "rollout/sampled_tokens", "with tool results": "rollout/response_tokens"}),
            y="tokens",
        ),
        Figure(
            "Tokens of an update",
            series(rows, {"sampled": "train/sampled_tokens", "with prompts and tool results": "train/tokens"}),
            y="tokens",
        ),
        Figure("Tokens trained on, so far", series(rows, {"tokens": "data/tokens"}), y="tokens"),
        Figure("Entropy", series(rows, {"of the policy": "policy/entropy"}), y="nats a token"),
        Figure("KL to the reference", series(rows, {"estimator k3": "policy/kl_k3"}), y="nats a token"),
        Figure("Clipped tokens", series(rows, {"of those trained on": "policy/clip_frac"}), y="share of tokens"),
        Figure("Gradient norm", series(rows, {"before clipping": "policy/grad_norm"}), y="norm"),
        Figure("Learning rate", series(rows, {"of this step": "policy/learning_rate"}), y="learning rate"),
        Figure(
            "Sampler against trainer, probability of a sampled token",
            series(rows, {
                "largest difference": "engine/probs_diff_max",
                "mean difference": "engine/probs_diff_mean",
                "alarm": "engine/alarm",
            }),
            note="The alarm is 1 where what is trained on is not the policy's own: the largest difference above 1e-3 "
            "in float32, the mean above 0.02 in bfloat16.",
            y="difference of probabilities",
        ),
        Figure("Reward model", by_prefix(rows, "reward_model/")),
    ]  # fmt: skip


def _learning(rows: Sequence[Row]) -> Figure:
    points = held_out(rows)
    lines = {"held-out success, greedy": [(p.step, p.success) for p in points]} if points else {}
    if not points and (rewards := held_out_rewards(rows)):
        lines["held-out reward, greedy"] = [(p.step, p.mean) for p in rewards]
    sampled = {
        "held-out success, sampled": "val/sampled/success",
        "success of greedy training rollouts, so far": "greedy/accuracy",
        "success of sampled training rollouts": "rollout/success",
        "reward": "reward/mean",
    }
    return Figure(
        "Learning",
        lines | series(rows, sampled),
        intervals={"held-out success, greedy": [p.interval for p in points]},
        note="Bars are Wilson's 95 % intervals." if points else "",
        y="success, reward",
    )


def _parts(rows: Sequence[Row]) -> list[Figure]:
    """The reward's parts, and how often a reward function gave no number."""
    found = {name: line for name, line in by_prefix(rows, "reward/").items() if name not in OVERALL}
    none = {name.removesuffix("/none_frac"): line for name, line in found.items() if name.endswith("/none_frac")}
    parts = {name: line for name, line in found.items() if not name.endswith("/none_frac")}
    return [
        Figure("Parts of the reward", parts, note="Each reward's own number, before its weight.", y="reward"),
        Figure("Rollouts without a number, by reward function", none, y="share of rollouts"),
    ]


# Metrics under `reward/` that are no part of the reward.
OVERALL = ("mean", "std", "unjudged_frac", "likeness")


def _speed(rows: Sequence[Row]) -> dict[str, Points]:
    seconds, tokens = "time/rollout_s", "rollout/sampled_tokens"
    lines = {
        "rollouts while they are played": per_step_points(
            rows, lambda r: r["rollout/count"] / r[seconds], ["rollout/count", seconds]
        ),
        "sampled tokens / 100": per_step_points(
            rows, lambda r: r["rollout/count"] * r[tokens] / r[seconds] / 100, ["rollout/count", tokens, seconds]
        ),
    }
    return {label: line for label, line in lines.items() if line}


def _none(rows: Sequence[Row], counted: str) -> str:
    """A figure without causes says that there were none, if the count itself was logged."""
    steps = sum(counted in row for row in rows)
    return f"None in {steps} train step{'s' * (steps != 1)}." if steps else ""


def skills(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Name and held-out success with interval, at the first and last validation."""
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

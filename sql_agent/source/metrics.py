"""Computes the metrics of one batch of rollouts, and raises an alarm over those of several: reward hacking, where the
reward model's score rises while correctness falls. `doc/operate/reading_a_run.md` says what each number means.

The alarm looks at the last `WINDOW` train steps that have both numbers. A trend counts if the slope of the fitted line
is at least `TREND` standard errors away from 0. Ten steps of pure noise reach that about once in 25 on each side. Tasks
without a judge have no correctness, so there is no alarm for them. Leaves out verl's metrics and where numbers are
written (`sql_agent.verl_side.tracking`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from sql_agent.credit.row import Row
from sql_agent.rewards import REWARDS
from sql_agent.source.datatypes import Rollout
from sql_agent.source.dynamic_sampling import zero_variance


def batch_metrics(results: Sequence[Rollout]) -> dict[str, float]:
    """Compute the metrics of the rollouts of one step.

    Means are over rollouts with a reward, shares over all of them. `group/...` counts groups that are trained on,
    except `group/played` and `group/set_aside...`. Success is over the rollouts that the environment judged, lost ones
    included.

    Rewards and success are those of the tasks that the batch began with, because replacement tasks are a biased
    sample. Example: a step has two groups, three tasks in five are always solved, and the others half the time. The
    policy's mean is 0.8, but the mean over all rollouts would be 0.76.

    Args:
        results: every rollout that was played, those of filtered groups included.
    """
    total = len(results)
    judged = [r for r in results if r.reward is not None]
    metrics: dict[str, float] = {"reward/unjudged_frac": 1 - len(judged) / total, "rollout/count": float(total)}
    for reason, count in Counter(r.lost for r in results if r.lost).items():
        metrics[f"rollout/lost/{reason}"] = float(count)
    for reason, count in Counter(r.unshaped for r in results if r.unshaped).items():
        metrics[f"rollout/unshaped/{reason}"] = float(count)
    metrics |= _none_fracs(results)
    if success := [r.success for r in results if r.draw == 0 and r.success is not None]:
        metrics |= {"rollout/success": float(np.mean(success)), "rollout/judged": float(len(success))}
    if not judged:
        return metrics
    records = [r.record for r in judged]
    metrics |= {
        "rollout/malformed_calls": float(np.mean([record.malformed_calls for record in records])),
        "rollout/seconds": float(np.mean([record.seconds for record in records])),
    }
    if refused := sum(record.refused_statements for record in records):
        metrics["rollout/refused_statements"] = float(refused)
    if cached := sum(record.cached_tokens for record in records):
        metrics["rollout/cached_prompt_frac"] = cached / sum(record.prompt_tokens for record in records)
    if first := [r for r in judged if r.draw == 0]:
        rewards, parts = np.array([r.reward for r in first], dtype=float), defaultdict[str, list[float]](list)
        for result in first:
            for name, value in result.earned.parts.items():
                parts[name].append(value)
        metrics |= {"reward/mean": rewards.mean(), "reward/std": rewards.std()}
        metrics |= {f"reward/{name}": float(np.mean(values)) for name, values in parts.items()}
    for reason, count in Counter(record.stop_reason for record in records).items():
        metrics[f"rollout/stop/{reason}"] = count / len(judged)
    return {k: float(v) for k, v in (metrics | _shape_metrics(judged) | _group_metrics(results)).items()}


def _none_fracs(results: Sequence[Rollout]) -> dict[str, float]:
    """For each reward function the share of its rollouts for which it gave no number."""
    rewards = [r.earned for r in results if r.draw == 0]
    named = {name for reward in rewards for name in (*reward.terms, *reward.lacking) if name not in REWARDS}
    shares = {}
    for name in sorted(named):  # `parts` keeps a function's number even if the group's rewards leave it out
        lacking = [name in reward.lacking for reward in rewards if name in reward.parts or name in reward.lacking]
        shares[f"reward/{name}/none_frac"] = sum(lacking) / len(lacking)
    return shares


SCORER_LOST = frozenset({"scorer_unavailable", "scorer_refused", "score_not_finite"})


def score_metrics(results: Sequence[Rollout]) -> dict[str, float]:
    """Compute the reward model's metrics over all rollouts that it was asked about, wrong ones too; {} without one.

    Correlations are Pearson's. They are left out where one side does not vary.
    """
    asked = [(r, r.scorer) for r in results if r.scorer and r.scorer.reason != "no_answer"]
    if not asked:
        return {}
    scored = [(r, scorer, scorer.score) for r, scorer in asked if scorer.score is not None]
    metrics = {
        "reward_model/lost_frac": sum(r.lost in SCORER_LOST for r in results) / len(results),
        "reward_model/unscored_frac": 1 - len(scored) / len(asked),
        "reward_model/down_s": max(r.scorer_down_s for r, _ in asked),
    }
    if not scored:
        return metrics
    scores = [score for *_, score in scored]
    metrics |= {
        "reward_model/score_mean": float(np.mean(scores)),
        "reward_model/score_std": float(np.std(scores)),
        "reward_model/truncated_frac": float(np.mean([scorer.truncated for _, scorer, _ in scored])),
    }
    lengths = [r.record.completion_tokens for r, *_ in scored]
    judged = [(score, r.earned.parts["correctness"]) for r, _, score in scored if "correctness" in r.earned.parts]
    correlations = {
        "length": _correlation(scores, lengths),
        "correctness": _correlation([score for score, _ in judged], [verdict for _, verdict in judged]),
    }
    return metrics | {f"reward_model/{name}_corr": r for name, r in correlations.items() if r is not None}


def _correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    if len(a) < 2 or min(a) == max(a) or min(b) == max(b):
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _shape_metrics(judged: Sequence[Rollout]) -> dict[str, float]:
    rows = [r.row for r in judged if r.row is not None]
    unused = sum((Counter(r.unused_turns) for r in judged), Counter(too_long=sum(row.dropped_turns for row in rows)))
    metrics = {
        "rollout/turns": float(np.mean([row.num_turns + row.dropped_turns for row in rows])),
        "rollout/chains": float(np.mean([row.num_chains for row in rows])),
        "rollout/sampled_tokens": float(np.mean([sum(row.sampled) for row in rows])),
        "rollout/response_tokens": float(np.mean([row.response_tokens for row in rows])),
        "prefix/broken_frac": sum(row.prefix_break is not None for row in rows) / len(rows),
        "prefix/overflow_frac": sum(row.dropped_turns > 0 for row in rows) / len(rows),
        **{f"rollout/unused_turns/{cause}": float(count) for cause, count in unused.items()},
    }
    for cause, count in Counter(row.prefix_break for row in rows if row.prefix_break).items():
        metrics[f"prefix/break/{cause}"] = float(count)
    return metrics


def lag_metrics(results: Sequence[Rollout], step: int) -> dict[str, float]:
    """Compute by how many train steps rows are older than the weights that they train.

    A row counts with its oldest turn. Rows whose server does not say with which weights it sampled are left out.

    Args:
        results: the rollouts that a train step takes.
        step: its number; it trains the weights of the step before.
    """
    ages = [step - 1 - min(result.weights) for result in results if result.weights]
    asked_again = float(sum(result.asked_again for result in results))
    return {"lag/asked_again": asked_again} | (
        {"lag/mean": float(np.mean(ages)), "lag/max": float(max(ages))} if ages else {}
    )


def clip_metrics(results: Sequence[Rollout], max_prompt_tokens: int, max_response_tokens: int) -> dict[str, float]:
    """Compute verl's `clip_ratio`s against the limits; they replace verl's own in a step's metrics.

    verl (trainer/ppo/metric_utils.py, `compute_data_metrics`) compares the length of a row with the width of the
    batch. Our batch is as wide as its longest row, so verl would always count that row as clipped.

    Args:
        results: of the rows of the batch; those without a row are left out.
    Returns:
        For responses, the share of rollouts that a limit cut: a chain is at the limit after its first prompt, or a
        turn did not fit and was left out. For prompts, the share at the limit. NaN if no row has a trajectory.
    """
    rows = [result.row for result in results if result.row is not None]
    full = [row.dropped_turns > 0 or max(_response_lengths(row)) >= max_response_tokens for row in rows]
    prompts = [row.prompt_tokens >= max_prompt_tokens for row in rows]
    clipped = float(np.mean(full)) if rows else float("nan")
    return {
        "response_length/clip_ratio": clipped,
        "response_length_non_aborted/clip_ratio": clipped,
        "prompt_length/clip_ratio": float(np.mean(prompts)) if rows else float("nan"),
    }


def _response_lengths(row: Row) -> list[int]:
    # of each chain, after its first prompt, which the chain's first sampled token follows
    first, *others = pairwise((row.prompt_tokens, *row.starts, len(row.ids)))
    return [first[1] - first[0], *(end - row.sampled.index(1, start) for start, end in others)]


def _group_metrics(results: Sequence[Rollout]) -> dict[str, float]:
    """Compute the metrics of groups of at least two rows; validation has one row per task, so {}."""
    trained = [result for result in results if result.filtered is None]
    groups: defaultdict[str, list[Rollout]] = defaultdict(list)
    for result in trained:
        groups[result.group].append(result)
    grouped = [members for members in groups.values() if len(members) > 1]
    if not grouped:
        return {}
    causes = Counter(zero_variance(group) for group in grouped)
    right_or_wrong = {f"group/{cause}_frac": causes[cause] / len(grouped) for cause in ("all_right", "all_wrong")}
    judged = any(result.success is not None for result in trained)
    return {
        **_score_only(trained),
        **(right_or_wrong if judged else {}),  # a score above 0 is not right
        "group/count": float(len(grouped)),
        "group/zero_std_frac": sum(causes[cause] for cause in causes if cause) / len(grouped),
        "group/lone_frac": sum(sum(r.reward is not None for r in group) < 2 for group in grouped) / len(grouped),
        **_filtered_metrics(results, len(grouped)),
    }


def _filtered_metrics(results: Sequence[Rollout], trained: int) -> dict[str, float]:
    """Count the filtered groups by cause; every rollout of a filtered group carries the cause."""
    causes = Counter((r.group, r.task_id, r.filtered) for r in results if r.filtered)
    by_cause = Counter(cause for _, _, cause in causes)
    played = trained + sum(by_cause.values())
    return {
        "group/played": float(played),
        "group/set_aside_frac": sum(by_cause.values()) / played,
        **{f"group/set_aside/{cause}": float(count) for cause, count in by_cause.items()},
    }


def skill_metrics(results: Sequence[Rollout]) -> dict[str, float]:
    """Compute success and the number of judged rollouts per skill; a task with several skills counts under each."""
    success: defaultdict[str, list[float]] = defaultdict(list)
    for result in results:
        if result.success is not None:
            for skill in result.skills:
                success[skill].append(result.success)
    return {
        name: value
        for skill, values in success.items()
        for name, value in (
            (f"skill/{skill}/success", float(np.mean(values))),
            (f"skill/{skill}/count", float(len(values))),
        )
    }


def _score_only(results: Sequence[Rollout]) -> dict[str, float]:
    """Compute the share of groups whose rewards differ only in the reward model's score; {} without a reward model."""
    groups: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for result in results:
        groups[result.group]  # one that lost all its rollouts counts as well
        if result.reward is not None and "base" in result.earned.parts:
            groups[result.group].append((result.reward, result.earned.parts["base"]))
    if not any(groups.values()):
        return {}
    alone = [len({reward for reward, _ in g}) > 1 and len({base for _, base in g}) == 1 for g in groups.values()]
    return {"group/score_only_frac": sum(alone) / len(alone)}


# Train steps.
WINDOW = 10
TREND = 2.0
SCORE, CORRECT = "reward_model/score_mean", "rollout/success"


class RewardHackingAlarm:
    """Remembers the steps so far, including those before a resume.

    Args:
        earlier: metrics of the steps before, in order, each with its `train_step`.
    """

    def __init__(self, earlier: Iterable[Mapping[str, float]] = ()) -> None:
        self._steps: dict[int, tuple[float, float]] = {}
        for metrics in earlier:
            self.look(int(metrics["train_step"]), metrics)

    def look(self, train_step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Add one step's metrics and return `reward_model/alarm`, 1 or 0, once the window is full.

        Remembered metrics of this step and later ones are dropped, because a resumed run takes these steps again.
        """
        self._steps = {step: both for step, both in self._steps.items() if step < train_step}
        if SCORE in metrics and CORRECT in metrics:
            self._steps[train_step] = metrics[SCORE], metrics[CORRECT]
            if len(self._steps) >= WINDOW:
                scores, correct = zip(*list(self._steps.values())[-WINDOW:], strict=True)
                return {"reward_model/alarm": float(trend(scores) >= TREND and trend(correct) <= -TREND)}
        return {}


def trend(values: Sequence[float]) -> float:
    """The slope of the least-squares line through equally spaced values, in its standard errors.

    Args:
        values: at least three.
    Returns:
        The slope's t value: 0 for a flat line, infinite for points exactly on a rising or falling line.
    """
    x = np.arange(len(values)) - (len(values) - 1) / 2
    y = np.asarray(values) - np.mean(values)
    slope = float(x @ y / (x @ x))
    error = math.sqrt(max(0.0, float(y @ y) - slope**2 * float(x @ x)) / (len(values) - 2) / float(x @ x))
    if abs(slope) < 1e-12:
        return 0.0
    return slope / error if error > 1e-12 else math.copysign(math.inf, slope)

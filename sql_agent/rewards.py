"""From the verdict of a rollout (`Score`, by the environment's judge) to its `Reward`. Pure functions.

Correctness comes first. The reward model's score enters centred and through tanh, so it is bounded: a correct rollout
gains or loses at most `reward_model.weight`, a wrong one nothing, a partly right one that part of it. An environment
may give the reward itself (`OWN_REWARD`): then no preset applies. Where there is no judge, the bounded score is the
reward. Within a group either every reward contains the score or none (`without_score`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sql_agent.datatypes import OWN_REWARD, Reward, RewardModelConfig, RolloutRecord, ScorerResult

OUT_OF_LIMITS = frozenset({"max_turns", "max_tokens"})
"""Ends in which the policy spent its turns or its tokens without committing an answer; wall clock costs nothing."""
NO_JUDGE = "no_judge"
"""The verdict's reason on tasks that have no judge: nothing is lost, the score is the reward."""
NO_ANSWER = -1.0
"""The reward on such a task for a rollout without an answer: the lower bound of tanh, which no answer goes below."""


@dataclass(frozen=True)
class RewardPreset:
    """One value per outcome; a verdict between 0 and 1 lies as far between them. A correct end state counts as correct
    however the rollout ended."""

    correct: float
    incorrect: float
    out_of_limits: float
    malformed: float
    """The conversation could not go on because of what the policy wrote; calls it recovered from cost nothing."""


REWARDS: dict[str, RewardPreset] = {
    "agentbench": RewardPreset(correct=1.0, incorrect=0.0, out_of_limits=0.0, malformed=0.0),
    "agent_peft": RewardPreset(correct=1.0, incorrect=-0.1, out_of_limits=-0.3, malformed=-0.1),
    "rllm": RewardPreset(correct=1.0, incorrect=-1.0, out_of_limits=-0.8, malformed=-0.2),
}
"""Keyed by the config's `rollout.reward`; the first is DB-Bench's own (AgentBench, function-calling version).

Agent-PEFT's -0.3 is called `timeout` there; here it is for a policy that is out of turns or tokens. A rollout that our
wall clock ended is lost and gets no preset's value.
"""


def reward(
    record: RolloutRecord,
    preset: RewardPreset,
    scorer: ScorerResult | None = None,
    shaping: RewardModelConfig = RewardModelConfig(),  # noqa: B008  frozen
) -> Reward:
    """Turn a rollout's verdict, and the reward model's score where a run has one, into its reward.

    Args:
        record: a judged rollout, one of a task without a judge, or one that could not be judged.
        preset: an entry of `REWARDS`.
        scorer: what the reward model said; None in a run without one.
        shaping: weight, centre and scale of the score.
    Returns:
        The reward under the verdict's reason, the verdict itself in `parts["correctness"]`; with a reward model
        also `parts["base"]`, what the reward is without the score, and `parts["shaping"]`, what the score adds: 0 where
        the score is missing. The value is None, with its reason, for a rollout that nobody could judge; on a task
        without a judge that is a rollout whose score is missing.
    Raises:
        ValueError: the verdict is no number in [0, 1].
    """
    verdict = record.score
    if verdict.reason == NO_JUDGE:
        return _without_judge(record, scorer, shaping)
    if verdict.value is None:
        return Reward(None, verdict.reason, verdict.parts)
    if verdict.reason == OWN_REWARD:
        value, correctness, parts = verdict.value, record.success or 0.0, verdict.parts
    else:
        value, correctness = _value(record, preset), verdict.value
        parts = {**verdict.parts, "correctness": correctness}
    if scorer is None:
        return Reward(value, verdict.reason, parts)
    added = correctness * shaping.weight * (bounded_score(scorer, shaping) or 0.0)
    return Reward(value + added, verdict.reason, parts | {"base": value, "shaping": added})


def without_score(reward: Reward, why: str) -> Reward:
    """The reward of a rollout in a group that lost a score, its own or another rollout's.

    No rollout of such a group uses its score. If only correct rollouts with a missing score were dropped, wrong ones
    would be over-represented, since a score adds nothing to those and they would stay. Correctness is known of all, so
    the base reward remains. On a task without a judge nothing but the score is known, and the whole group has no
    reward.

    Args:
        why: how the score was lost.
    """
    if reward.value is None:
        return reward
    if "correctness" not in reward.parts and reward.reason != OWN_REWARD:
        return Reward(None, why, reward.parts)
    return Reward(reward.parts["base"], reward.reason, reward.parts | {"shaping": 0.0})


def answered(record: RolloutRecord) -> bool:
    """Whether the policy itself ended the rollout, and with a reply that is not empty."""
    return record.stop_reason == "answered" and bool(str(record.messages[-1].get("content") or "").strip())


def bounded_score(scorer: ScorerResult, shaping: RewardModelConfig) -> float | None:
    """tanh of the centred, scaled score, in [-1, 1]; None without a finite score."""
    if scorer.score is None or not math.isfinite(scorer.score):
        return None
    return math.tanh((scorer.score - shaping.center) / shaping.scale)


def _without_judge(record: RolloutRecord, scorer: ScorerResult | None, shaping: RewardModelConfig) -> Reward:
    if scorer is None:
        return Reward(None, record.score.reason, record.score.parts)
    if not answered(record):
        return Reward(NO_ANSWER, "no_answer", {"base": NO_ANSWER, "shaping": 0.0})
    bounded = bounded_score(scorer, shaping)
    if bounded is None:
        return Reward(None, scorer.failure or scorer.reason)
    return Reward(bounded, "scored", {"base": 0.0, "shaping": bounded})


def _value(record: RolloutRecord, preset: RewardPreset) -> float:
    verdict = record.score.value
    if verdict is None or not 0.0 <= verdict <= 1.0:
        raise ValueError(
            f"task {record.task_id!r} was judged {verdict!r} ({record.score.reason}); expected a number from 0, wrong, "
            "to 1, right, or None under NO_JUDGE; correct the environment's `judge`"
        )
    # both ends are the preset's own numbers to the last bit, which wrong + verdict * (correct - wrong) would not be
    return (1.0 - verdict) * _wrong(record.stop_reason, preset) + verdict * preset.correct


def _wrong(stop_reason: str, preset: RewardPreset) -> float:
    if stop_reason in OUT_OF_LIMITS:
        return preset.out_of_limits
    return preset.malformed if stop_reason == "malformed" else preset.incorrect

"""Rewards of a rollout: presets over the verdict, and what a reward model's score may add. Pure functions.

Correctness comes first. The score enters centred and through tanh, so it is bounded; a correct rollout gains or loses
at most `reward_model.weight`, a wrong one nothing. Where nobody can judge, the bounded score is the reward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dbbench_adapter.types import Score
from sql_agent.types import RewardModelConfig, RolloutRecord

OUT_OF_LIMITS = frozenset({"max_turns", "max_tokens"})
"""Ends in which the policy spent its turns or its tokens without committing an answer; wall clock costs nothing."""
NO_JUDGE = "no_judge"
"""The verdict's reason on tasks that have no judge: nothing is lost, the score is the reward."""
NO_ANSWER = -1.0
"""The reward on such a task for a rollout without an answer: the lower bound of tanh, which no answer goes below."""


@dataclass(frozen=True)
class RewardPreset:
    """One value per outcome. A correct end state counts as correct however the rollout ended."""

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


@dataclass(frozen=True)
class Opinion:
    """What the reward model said of a rollout's conversation."""

    score: float | None
    """A logit; None where it could not be had."""
    reason: str = "scored"
    """`scored`; without a score `scorer_unavailable`, `scorer_refused` or `no_answer`: it was not asked."""
    truncated: bool = False
    """The beginning of the conversation was cut."""


def reward(
    record: RolloutRecord,
    preset: RewardPreset,
    opinion: Opinion | None = None,
    shaping: RewardModelConfig = RewardModelConfig(),  # noqa: B008  frozen
) -> Score:
    """Turn a rollout's verdict, and the reward model's opinion where a run has one, into its reward.

    Args:
        record: a judged rollout, one of a task without a judge, or one that could not be judged.
        preset: an entry of `REWARDS`.
        opinion: None in a run without a reward model.
        shaping: weight, centre and scale of the score.
    Returns:
        The reward under the verdict's reason, the verdict itself in `parts["correctness"]`; with an opinion also
        `parts["base"]`, what the reward is without the score, and `parts["shaping"]`, what the score adds.
        What could not be judged, and a correct rollout whose score could not be had, is `None` with its reason.
    """
    verdict = record.score
    if verdict.reason == NO_JUDGE:
        return _without_judge(record, opinion, shaping)
    if verdict.value is None:
        return verdict
    value = _value(record, preset)
    parts = {**verdict.parts, "correctness": verdict.value}
    if opinion is None:
        return Score(value, verdict.reason, parts)
    added = 0.0
    if verdict.value == 1.0:
        bounded = bounded_score(opinion, shaping)
        if bounded is None:
            return Score(None, _reason(opinion))
        added = shaping.weight * bounded
    return Score(value + added, verdict.reason, parts | {"base": value, "shaping": added})


def answered(record: RolloutRecord) -> bool:
    """Whether the policy itself ended the rollout and said something with it."""
    return record.stop_reason == "answered" and bool(str(record.messages[-1].get("content") or "").strip())


def bounded_score(opinion: Opinion, shaping: RewardModelConfig) -> float | None:
    """tanh of the centred, scaled score, in [-1, 1]; None without a finite score."""
    if opinion.score is None or not math.isfinite(opinion.score):
        return None
    return math.tanh((opinion.score - shaping.center) / shaping.scale)


def _without_judge(record: RolloutRecord, opinion: Opinion | None, shaping: RewardModelConfig) -> Score:
    if opinion is None:
        return record.score
    if not answered(record):
        return Score(NO_ANSWER, "no_answer", {"base": NO_ANSWER, "shaping": 0.0})
    bounded = bounded_score(opinion, shaping)
    if bounded is None:
        return Score(None, _reason(opinion))
    return Score(bounded, "scored", {"base": 0.0, "shaping": bounded})


def _reason(opinion: Opinion) -> str:
    return opinion.reason if opinion.score is None else "score_not_finite"


def _value(record: RolloutRecord, preset: RewardPreset) -> float:
    if record.score.value == 1.0:
        return preset.correct
    if record.stop_reason in OUT_OF_LIMITS:
        return preset.out_of_limits
    return preset.malformed if record.stop_reason == "malformed" else preset.incorrect

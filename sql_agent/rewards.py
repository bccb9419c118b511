"""Rewards of a rollout: presets over the verdict, and what a reward model's score may add. Pure functions.

Correctness comes first. The score enters centred and through tanh, so it is bounded; a correct rollout gains or loses
at most `reward_model.weight`, a wrong one nothing, one that is right in part that part of it. Where nobody can judge,
the bounded score is the reward. Within a group the score is in every reward or in none (`without_score`).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from dbbench_adapter.datatypes import Score
from sql_agent.datatypes import RewardModelConfig, RolloutRecord
from sql_agent.rollouts.stitch import RolloutOutcome

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


@dataclass(frozen=True)
class Opinion:
    """What the reward model said of a rollout's conversation."""

    score: float | None
    """A logit; None where it could not be had."""
    reason: str = "scored"
    """`scored`; without a score `scorer_unavailable`, `scorer_refused` or `no_answer`: it was not asked."""
    truncated: bool = False
    """The beginning of the conversation was cut."""

    @property
    def failure(self) -> str | None:
        """Why there is no usable score though one was asked for; None where there is one, and where nobody asked."""
        if self.reason == "no_answer":
            return None
        if self.score is None:
            return self.reason
        return None if math.isfinite(self.score) else "score_not_finite"


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
        `parts["base"]`, what the reward is without the score, and `parts["shaping"]`, what the score adds: nothing
        where it could not be had. What nobody could judge is `None` with its reason; without a judge, that is a
        rollout whose score could not be had.
    Raises:
        ValueError: the verdict is no number in [0, 1].
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
    added = verdict.value * shaping.weight * (bounded_score(opinion, shaping) or 0.0)
    return Score(value + added, verdict.reason, parts | {"base": value, "shaping": added})


def success(verdict: Score) -> float | None:
    """1 where the task is solved, which is a verdict of 1 and nothing less; 0 below it; None without a verdict."""
    if verdict.value is None or not 0.0 <= verdict.value <= 1.0:
        return None
    return float(verdict.value == 1.0)


def score_failure(outcome: RolloutOutcome) -> str | None:
    """Why the score that this rollout asked for could not be had; None where it could, and where it did not ask."""
    opinion = outcome.record.get("reward_model")
    return Opinion(**opinion).failure if opinion else None


def without_score(outcome: RolloutOutcome, why: str) -> RolloutOutcome:
    """What a rollout comes to in a group that lost a score, its own or another's.

    All rollouts of such a group do without: right and wrong ones ask for a score and lose it alike, but only the right
    ones have something to lose, so dropping those would leave a group with too many wrong ones. Correctness is known
    of all, and the base reward is what is left. Without a judge nothing is known but the score and who gave no answer:
    there the whole group has no reward.
    """
    if outcome.reward is None:
        return outcome
    if "reward_correctness" not in outcome.metrics:
        return dataclasses.replace(outcome, reward=None, reason=why)
    metrics = outcome.metrics | {"reward_shaping": 0.0}
    return dataclasses.replace(outcome, reward=metrics["reward_base"], metrics=metrics)


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
        return Score(None, opinion.failure or opinion.reason)
    return Score(bounded, "scored", {"base": 0.0, "shaping": bounded})


def _value(record: RolloutRecord, preset: RewardPreset) -> float:
    verdict = record.score.value
    if verdict is None or not 0.0 <= verdict <= 1.0:
        raise ValueError(
            f"task {record.task_id!r} was judged {verdict!r} ({record.score.reason}); expected a number from 0, wrong, "
            "to 1, right, or None under NO_JUDGE: mend the environment's judge"
        )
    # both ends are the preset's own numbers to the last bit, which wrong + verdict * (correct - wrong) would not be
    return (1.0 - verdict) * _wrong(record.stop_reason, preset) + verdict * preset.correct


def _wrong(stop_reason: str, preset: RewardPreset) -> float:
    if stop_reason in OUT_OF_LIMITS:
        return preset.out_of_limits
    return preset.malformed if stop_reason == "malformed" else preset.incorrect

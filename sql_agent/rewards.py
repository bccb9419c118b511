"""Rewards of a rollout, as presets: pure functions of its record. Shaping by a reward model is not in here."""

from __future__ import annotations

from dataclasses import dataclass

from dbbench_adapter.types import Score
from sql_agent.types import RolloutRecord

OUT_OF_LIMITS = frozenset({"max_turns", "max_tokens", "timeout"})
"""Ends in which the policy spent its turns, its tokens or its time without committing an answer."""


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
"""Keyed by the config's `rollout.reward`; the first is DB-Bench's own (AgentBench, function-calling version)."""


def reward(record: RolloutRecord, preset: RewardPreset) -> Score:
    """Turn a rollout's verdict into its reward.

    Args:
        record: a judged rollout, or one that could not be judged.
        preset: an entry of `REWARDS`.
    Returns:
        The reward under the verdict's reason, the verdict itself in `parts["correctness"]`.
        What could not be judged stays `None` with its reason.
    """
    verdict = record.score
    if verdict.value is None:
        return verdict
    return Score(_value(record, preset), verdict.reason, {**verdict.parts, "correctness": verdict.value})


def _value(record: RolloutRecord, preset: RewardPreset) -> float:
    if record.score.value == 1.0:
        return preset.correct
    if record.stop_reason in OUT_OF_LIMITS:
        return preset.out_of_limits
    return preset.malformed if record.stop_reason == "malformed" else preset.incorrect

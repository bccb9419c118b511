"""Turns the verdict of a rollout (`Score`, from the environment's judge) into its `Reward`. Pure functions.

The reward is a preset's value (`reward`), or the weighted sum of presets and the results of reward functions
(`summed_reward`; `sql_agent.reward_functions` calls those).

Correctness comes first. The reward model's score is centred and goes through tanh, so its effect is bounded: a correct
rollout gains or loses at most `reward_model.weight`, a wrong one nothing, and a partly right one that part of it. If an
environment gives the reward itself (`OWN_REWARD`), no preset applies. Without a judge, the bounded score is the reward.
Within a group either every reward contains the score or none (`without_score`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dbbench_adapter.datatypes import Score
from dbbench_adapter.interaction import ENDS, Stop
from sql_agent.datatypes import LIKENESS, OWN_REWARD, FunctionReward, Reward, RolloutRecord, ScorerResult
from sql_agent.names import functions, label
from sql_agent.settings.groups import RewardModelConfig

# The verdict's reason on tasks without a judge; the rollout is not lost, and the score is the reward.
NO_JUDGE = "no_judge"
# The reward on such a task for a rollout without an answer: the lower bound of tanh, so no answer gets less.
NO_ANSWER = -1.0
# Verdicts on a query of a user's database (`TextToSql.judge`): one that ran, and none at all.
RAN = frozenset({"wrong_result", "too_many_rows"})
NOTHING_HANDED_IN = "no_answer"


@dataclass(frozen=True)
class RewardPreset:
    """One value per outcome; a verdict between 0 and 1 is interpolated between wrong and correct.

    A correct end state counts as correct however the rollout ended.
    """

    correct: float
    incorrect: float
    out_of_limits: float
    malformed: float
    """The policy's text made it impossible to continue; malformed calls from which it recovered cost nothing."""
    out_of_tokens: float | None = None
    """A reply was cut, or the context was full; None: as `out_of_limits`."""
    ran: float | None = None
    """A query was handed in and ran, and its result is wrong; None: as `incorrect`."""
    no_answer: float | None = None
    """Nothing was handed in; None: as `incorrect`."""
    for_likeness: float = 0.0
    """The most that a wrong result gains by being like the right one (`parts["likeness"]`, from 0 to 1)."""


# Presets by the config's `rollout.reward`; the first is DB-Bench's own (AgentBench, function-calling version).
#
# Agent-PEFT calls its -0.3 `timeout`; here it applies to a policy that is out of turns or tokens. A rollout that
# reached our wall-clock deadline is lost and has no preset's value.
REWARDS: dict[str, RewardPreset] = {
    "agentbench": RewardPreset(correct=1.0, incorrect=0.0, out_of_limits=0.0, malformed=0.0),
    "agent_peft": RewardPreset(correct=1.0, incorrect=-0.1, out_of_limits=-0.3, malformed=-0.1),
    "rllm": RewardPreset(correct=1.0, incorrect=-1.0, out_of_limits=-0.8, malformed=-0.2),
    # Arctic-Text2SQL-R1 (arXiv:2505.20315)
    "execution": RewardPreset(correct=1.0, incorrect=0.0, out_of_limits=0.0, malformed=0.0, ran=0.1),
    "partial": RewardPreset(correct=1.0, incorrect=0.0, out_of_limits=0.0, malformed=0.0, ran=0.1, for_likeness=0.4),
    # SkyRL-SQL (skyrl_gym/envs/sql/utils.py): -1 for what hands in nothing in the right form
    "skyrl_sql": RewardPreset(correct=1.0, incorrect=0.0, out_of_limits=-1.0, malformed=-1.0, no_answer=-1.0),
}

# Reasons why a reward function gave no number that concern only the one rollout.
OWN_LOSSES = frozenset({"reward_none", "reward_error", "reward_deadline"})
# Said at the first of them.
MASKED = (
    "rollouts on which a reward function fails are masked, not punished, so a policy learns to write what it fails on; "
    "return a number for every answer, or give failures one: rollout.reward_on_error=NUMBER"
)


def reward(
    record: RolloutRecord,
    preset: RewardPreset,
    scorer: ScorerResult | None = None,
    shaping: RewardModelConfig = RewardModelConfig(),  # noqa: B008  frozen
) -> Reward:
    """Turn a rollout's verdict, and the reward model's score if a run has one, into its reward.

    Args:
        record: a judged rollout, one of a task without a judge, or one that could not be judged.
        preset: an entry of `REWARDS`.
        scorer: the reward model's result; None in a run without one.
        shaping: weight, centre and scale of the score.
    Returns:
        The reward with the verdict's reason, and the verdict itself in `parts["correctness"]`. With a reward model
        `parts["base"]` is the reward without the score, and `parts["shaping"]` the score's part, 0 if the score is
        missing. The value is None, with a reason, for a rollout that could not be judged; on a task without a judge
        that is a rollout whose score is missing.
    Raises:
        ValueError: the verdict is not a number in [0, 1].
    """
    verdict = record.score
    if verdict.reason == NO_JUDGE:
        return _without_judge(record, scorer, shaping)
    if verdict.value is None:
        return Reward(None, verdict.reason, verdict.parts)
    value, parts = _value(record, preset), _verdict_parts(record)
    if scorer is None:
        return Reward(value, verdict.reason, parts)
    added = _added(record, scorer, shaping)
    return Reward(value + added, verdict.reason, parts | {"base": value, "shaping": added})


def with_success(score: Score, reward: float | None, least: float | None) -> Score:
    """The score of a rollout with success by its reward, where nothing else says whether it succeeded.

    Args:
        reward: what the rollout earned; None if it is lost.
        least: the reward from which it succeeded (`rollout.success_reward`); None: its success stays unknown.
    """
    if least is None or reward is None or score.reason not in (OWN_REWARD, NO_JUDGE) or "correctness" in score.parts:
        return score
    value = reward if score.value is None else score.value
    return Score(value, OWN_REWARD, {**score.parts, "correctness": float(reward >= least)})


def summed_reward(
    record: RolloutRecord,
    weights: Mapping[str, float],
    given: Mapping[str, FunctionReward],
    scorer: ScorerResult | None = None,
    shaping: RewardModelConfig = RewardModelConfig(),  # noqa: B008  frozen
) -> Reward:
    """Compute the weighted sum of presets and reward functions, plus the reward model's score if a run has one.

    Args:
        record: as in `reward`.
        weights: `rollout.reward`, weights by the name of a preset or a function.
        given: the result of each function, by its label; not read for a rollout that could not be judged.
        scorer: the reward model's result; None in a run without one.
        shaping: as in `reward`. On a task without a judge the score adds tanh, -1 without an answer.
    Returns:
        The reward with the verdict's reason, each entry's number in `parts` and its weighted term in `terms`. The value
        is None for a rollout that could not be judged, for one that a function could not reward (`OWN_LOSSES`), and if
        no entry gave a number. A function that was unavailable is left out of the sum and named in `lacking`
        (`without_function` does the same to the rest of the group). Presets do not apply to tasks without a judge.
    Raises:
        ValueError: the verdict is not a number in [0, 1].
    """
    verdict = record.score
    judged = verdict.reason != NO_JUDGE
    if not judged and not functions(weights):
        return _without_judge(record, scorer, shaping)  # as with one preset
    if judged and verdict.value is None:
        return Reward(None, verdict.reason, verdict.parts)
    values = {name: _value(record, REWARDS[name]) for name in weights if name in REWARDS and judged}
    values |= {name: value for name in functions(weights) if (value := given[label(name)].value) is not None}
    lacking = {name: said.reason for name, said in given.items() if said.reason != "rewarded"}
    parts = _verdict_parts(record) | {label(name): value for name, value in values.items()}
    for said in given.values():
        if said.value is None and said.reason in OWN_LOSSES:
            return Reward(None, said.reason, parts, lacking=lacking, error=said.error)
    terms = {label(name): weights[name] * values[name] for name in weights if name in values}
    turn_terms = {
        label(name): [weights[name] * turn for turn in turns]
        for name in functions(weights)
        if (turns := given[label(name)].turns) is not None
    }
    errors = "\n".join(said.error for said in given.values() if said.error) or None
    if not terms:
        return Reward(None, next(iter(lacking.values()), verdict.reason), parts, lacking=lacking, error=errors)
    base = sum(terms.values())
    added = 0.0 if scorer is None else _added(record, scorer, shaping)
    if not math.isfinite(base + added):
        shown = ", ".join(f"{name} {value:g}" for name, value in terms.items())
        return Reward(None, "reward_error", parts, lacking=lacking, error=f"the sum of {shown} is not finite")
    if scorer is not None:
        parts |= {"base": base, "shaping": added}
    return Reward(base + added, verdict.reason, parts, terms, turn_terms, lacking, errors)


def without_function(reward: Reward, name: str, why: str) -> Reward:
    """The reward without a function, for all rollouts of a group in which the function was unavailable for one.

    The reason is that of `without_score`: otherwise sums of different terms would be compared within the group, and
    which ones would depend on the rollouts that were asked while its service was down. If no other term is known, the
    whole group has no reward.

    Args:
        name: the function's label.
        why: the reason for which it was unavailable.
    """
    if reward.value is None:
        return reward
    terms = {other: term for other, term in reward.terms.items() if other != name}
    if not terms:
        return replace(reward, value=None, reason=why, terms={}, turn_terms={})
    base = sum(terms.values())
    parts = reward.parts | ({"base": base} if "base" in reward.parts else {})
    turn_terms = {other: term for other, term in reward.turn_terms.items() if other != name}
    value = base + reward.parts.get("shaping", 0.0)
    return replace(reward, value=value, parts=parts, terms=terms, turn_terms=turn_terms)


def with_term(reward: Reward, name: str, value: float, weight: float) -> Reward:
    """The reward with another value of one entry that it has a term of, as a ranking that comes late."""
    terms = reward.terms | {name: weight * value}
    added = terms[name] - reward.terms[name]
    parts = reward.parts | {name: value}
    if "base" in parts:
        parts["base"] += added
    return replace(reward, value=(reward.value or 0.0) + added, parts=parts, terms=terms)


def unavailable(reward: Reward) -> dict[str, str]:
    """The functions whose number is missing for a reason that concerns the whole group."""
    missing = {name: why for name, why in reward.lacking.items() if name not in reward.terms}
    return {name: why for name, why in missing.items() if why not in OWN_LOSSES}


def without_score(reward: Reward, why: str) -> Reward:
    """The reward without the score, for all rollouts of a group in which one score is missing.

    No rollout of such a group uses its score. If only correct rollouts with a missing score were dropped, wrong ones
    would be over-represented: a score adds nothing to them, so they would stay. Correctness is known for all, so the
    base reward remains. On a task without a judge only the score is known, so the whole group has no reward.

    Args:
        why: the reason for which the score is missing.
    """
    if reward.value is None:
        return reward
    if "correctness" not in reward.parts and not reward.terms and reward.reason != OWN_REWARD:
        return replace(reward, value=None, reason=why)
    return replace(reward, value=reward.parts["base"], parts=reward.parts | {"shaping": 0.0})


def answered(record: RolloutRecord) -> bool:
    """Whether the policy itself ended the rollout with a reply that is not empty."""
    return record.stop_reason == "answered" and bool(str(record.messages[-1].get("content") or "").strip())


def bounded_score(scorer: ScorerResult, shaping: RewardModelConfig) -> float | None:
    """tanh of the centred, scaled score, in [-1, 1]; None without a finite score."""
    if scorer.score is None or not math.isfinite(scorer.score):
        return None
    return math.tanh((scorer.score - shaping.center) / shaping.scale)


def _added(record: RolloutRecord, scorer: ScorerResult, shaping: RewardModelConfig) -> float:
    """What the score adds to a sum; 0 if it is missing."""
    bounded = bounded_score(scorer, shaping) or 0.0
    if record.score.value is not None:
        correctness = record.success or 0.0 if record.score.reason == OWN_REWARD else record.score.value
        return correctness * shaping.weight * bounded
    return bounded if answered(record) else NO_ANSWER


def _without_judge(record: RolloutRecord, scorer: ScorerResult | None, shaping: RewardModelConfig) -> Reward:
    if scorer is None:
        return Reward(None, record.score.reason, record.score.parts)
    if not answered(record):
        return Reward(NO_ANSWER, NOTHING_HANDED_IN, {"base": NO_ANSWER, "shaping": 0.0})
    bounded = bounded_score(scorer, shaping)
    if bounded is None:
        return Reward(None, scorer.failure or scorer.reason)
    return Reward(bounded, "scored", {"base": 0.0, "shaping": bounded})


def _verdict_parts(record: RolloutRecord) -> dict[str, float]:
    verdict = record.score
    if verdict.value is None or verdict.reason == OWN_REWARD:
        return dict(verdict.parts)
    return {**verdict.parts, "correctness": verdict.value}


def _value(record: RolloutRecord, preset: RewardPreset) -> float:
    """A preset's value for the verdict; the reward that an environment gives itself is not changed."""
    verdict = record.score.value
    if verdict is not None and record.score.reason == OWN_REWARD:
        return verdict
    if verdict is None or not 0.0 <= verdict <= 1.0:
        raise ValueError(
            f"task {record.task_id!r} was judged {verdict!r} ({record.score.reason}); expected a number from 0, wrong, "
            "to 1, right, or None under NO_JUDGE; correct the environment's `judge`"
        )
    # verdicts 0 and 1 give exactly the preset's numbers; wrong + verdict * (correct - wrong) would round
    return (1.0 - verdict) * _wrong(record.stop_reason, record.score, preset) + verdict * preset.correct


def _wrong(stop_reason: Stop, score: Score, preset: RewardPreset) -> float:
    if stop_reason == "max_tokens" and preset.out_of_tokens is not None:
        return preset.out_of_tokens
    if ENDS[stop_reason] == "truncated":  # out of turns or tokens without an answer; time costs nothing
        return preset.out_of_limits
    if stop_reason == "malformed":
        return preset.malformed
    if score.reason in RAN and preset.ran is not None:
        return preset.ran + preset.for_likeness * score.parts.get(LIKENESS, 0.0)
    if score.reason == NOTHING_HANDED_IN and preset.no_answer is not None:
        return preset.no_answer
    return preset.incorrect

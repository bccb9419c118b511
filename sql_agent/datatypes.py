"""What a player left behind (`RolloutRecord`), and what it earned (`Reward`).

Importing this is instant. All that a trainer knows of a rollout is `sql_agent.source.datatypes.Rollout`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from dbbench_adapter.datatypes import Score
from dbbench_adapter.interaction import Stop

# The verdict's reason if an environment gives the reward itself: its value is the reward and may be any finite number.
# `parts["correctness"]`, 1 or 0, says whether the task is solved, if the environment tells it.
OWN_REWARD = "own_reward"
# The part of a wrong verdict on a query that says how like its result is to the right one, from 0 to 1.
LIKENESS = "likeness"
# Argument of a request to verl's vLLM (`vllm_xargs`): the number of tokens, prompt and reply together, at which the
# rollout's row is full (`sql_agent.verl_side.plugin.model_server`).
ROW_END = "row_end"


@dataclass(frozen=True)
class RolloutRecord:
    """One run of the agent on one task, first prompt to stop, with the verdict.

    The gold answer is in `comparison` alone, which leaves the record before that enters a span.
    """

    task_id: str
    kind: str
    stop_reason: Stop
    score: Score
    num_turns: int = 0
    """Replies of the model, the last one included."""
    malformed_calls: int = 0
    """Calls, or with `text` and `lab` replies, that the protocol cannot parse."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """The conversation as it was sent, in chat-completions form: tool calls and results, never the gold answer."""
    prompt_tokens: int = 0
    """Summed over the turns, as the endpoint counts them; a shared prefix counts once per turn."""
    completion_tokens: int = 0
    seconds: float = 0.0
    error: str | None = None
    """The message of the failure that ended it, if there was one."""
    output: Any = None
    """The answer of a user's own agent as JSON values; None for the built-in agent."""
    replies: list[int] | None = None
    """Indices in `messages` of the model's replies in this rollout, in the order of the calls. None: the last
    `num_turns` assistant messages. An agent of several conversations has them one after another in `messages`."""
    tools: list[dict[str, Any]] | None = None
    """Schemas of the tools that the policy was offered, in chat-completions form; None for a user's own agent, whose
    calls may offer different ones."""
    comparison: dict[str, Any] | None = None
    """What the judge compared (`Comparison.to_dict`), solution included; None if there is no verdict or the environment
    does not say."""
    refused_statements: int = 0
    """Statements that the embedded SQLite refused because only MariaDB or MySQL answer them with certainty."""
    cached_tokens: int = 0
    """Those of `prompt_tokens` that the endpoint says it took from its prefix cache; the main job's servers do."""

    @property
    def tool_calls(self) -> int:
        return sum(len(message.get("tool_calls") or ()) for message in self.messages)

    @property
    def success(self) -> float | None:
        """1 if the task is solved, which means a verdict of exactly 1, and 0 for a lower verdict.

        None if there is no verdict, or if the environment gives a reward without saying whether the task is solved.
        """
        return success_of(self.score)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, which every line of a trajectories file has."""
        return asdict(self)


def success_of(score: Score) -> float | None:
    """`RolloutRecord.success` of a verdict."""
    if score.reason == OWN_REWARD:
        return score.parts.get("correctness")
    return None if score.value is None or not 0.0 <= score.value <= 1.0 else float(score.value == 1.0)


@dataclass(frozen=True)
class ScorerResult:
    """The reward model's result for a rollout's conversation."""

    score: float | None
    """A logit; None if there is none."""
    reason: str = "scored"
    """`scored`; without a score `scorer_unavailable`, `scorer_refused`, or `no_answer` if it was not asked."""
    truncated: bool = False
    """The beginning of the conversation was cut."""

    @property
    def failure(self) -> str | None:
        """Why a requested score is missing or unusable; None if there is one, or if none was requested."""
        if self.reason == "no_answer":
            return None
        if self.score is None:
            return self.reason
        return None if math.isfinite(self.score) else "score_not_finite"


@dataclass(frozen=True)
class Reward:
    """A rollout's reward for training, which `sql_agent.rewards` computes from its verdict and other parts."""

    value: float | None
    """None: the rollout is lost."""
    reason: str
    """The verdict's reason, or why there is no value."""
    parts: dict[str, float] = field(default_factory=dict)
    """Its parts, logged as `reward/NAME`: `correctness`, with a reward model `base` and `shaping`, and if several
    rewards are summed the number of each one, before its weight."""
    terms: dict[str, float] = field(default_factory=dict)
    """Contribution of each entry of `rollout.reward` to the value, weight included, by its label; {} if the reward is
    one preset."""
    turn_terms: dict[str, list[float]] = field(default_factory=dict)
    """Contributions of each turn, weight included, for those terms that are sums over the turns."""
    lacking: dict[str, str] = field(default_factory=dict)
    """Labels of the reward functions that gave no number of their own, with the reason of each."""
    error: str | None = None
    """The traceback of the reward function that failed, or what it returned."""

    def by_turn(self, num_turns: int) -> list[float] | None:
        """The reward of each turn; a term that is one number belongs to the last turn. None if all terms are.

        Args:
            num_turns: replies of the model.
        """
        if self.value is None or not self.turn_terms:
            return None
        turns = [sum(term[turn] for term in self.turn_terms.values()) for turn in range(num_turns)]
        turns[-1] += sum(term for name, term in self.terms.items() if name not in self.turn_terms)
        turns[-1] += self.parts.get("shaping", 0.0)
        return turns


@dataclass(frozen=True)
class FunctionReward:
    """The result of one reward function for a rollout."""

    value: float | None
    """A finite number; None: it gave no number."""
    reason: str = "rewarded"
    """Why the function gave no number: `reward_none`, `reward_error`, `reward_deadline`, or a reason of
    `RewardUnavailable`. A number beside it stands in: `rollout.reward_on_error`, or 0 where an LLM cannot judge."""
    error: str | None = None
    """A traceback, or what is wrong with the returned value."""
    turns: list[float] | None = None
    """A number per turn, whose sum is the value; None where the function gave one number."""

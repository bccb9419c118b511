"""What a reward function gets and may raise. Importing this is instant.

`RewardRecord` and `RewardUnavailable` are public; the changelog names every change to them.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dbbench_adapter.interaction import Stop
from sql_agent.datatypes import RolloutRecord
from sql_agent.rewards import OWN_LOSSES


@dataclass(frozen=True)
class RewardRecord:
    """One rollout that has ended, as a reward function sees it; each function gets its own copy.

    Wall-clock time is left out, because the speed of the machine must not decide what is trained on.
    """

    task: dict[str, Any]
    """The task as in the run's data, gold answer included: `id`, and the environment's own fields."""
    messages: list[dict[str, Any]]
    """The conversation in chat-completions form, with first prompt, tool calls and results, never the gold answer."""
    verdict: float | None
    """The judge's verdict: 1 right, 0 wrong, in between partly right; None if the task has no judge. With the reason
    `own_reward` it is the reward of a user's own environment, which may be any number."""
    verdict_reason: str
    """The judge's reason: `match`, `wrong_rows`, `no_answer`, ..."""
    stop_reason: Stop
    """How the rollout ended; `answered` unless it was cut short."""
    num_turns: int
    """Replies of the model."""
    malformed_calls: int
    """Tool calls that could not be parsed."""
    prompt_tokens: int
    """Summed over the turns; a shared prefix counts once per turn."""
    completion_tokens: int
    """Sampled tokens of all turns."""
    output: Any = None
    """The answer of a user's own agent (`--agent`) as JSON values; for an `agents.Agent` its final output. None for the
    built-in agent, and for an agent that ended without an answer."""
    error: str | None = None
    """What ended the rollout without an answer, for example a guardrail of the user's agent."""
    said_at: list[int] | None = None
    """Indices of `replies` in `messages`, if that has several conversations one after another; else None."""

    @property
    def replies(self) -> list[dict[str, Any]]:
        """The model's messages in order, without the examples in the first prompt."""
        if self.said_at is not None:
            return [self.messages[place] for place in self.said_at]
        said = [message for message in self.messages if message.get("role") == "assistant"]
        return said[len(said) - self.num_turns :] if self.num_turns else []

    @property
    def answer(self) -> str:
        """The text of the model's last reply; empty if that is a tool call without text."""
        return str(self.replies[-1].get("content") or "") if self.replies else ""

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Name and arguments (JSON text) of every tool call, in order."""
        made = [call.get("function") or {} for reply in self.replies for call in reply.get("tool_calls") or ()]
        return [(str(call.get("name")), str(call.get("arguments"))) for call in made]

    @staticmethod
    def of(record: RolloutRecord, task: dict[str, Any]) -> RewardRecord:
        return RewardRecord(
            task=task,
            messages=record.messages,
            verdict=record.score.value,
            verdict_reason=record.score.reason,
            stop_reason=record.stop_reason,
            num_turns=record.num_turns,
            malformed_calls=record.malformed_calls,
            prompt_tokens=record.prompt_tokens,
            completion_tokens=record.completion_tokens,
            output=record.output,
            error=record.error,
            said_at=record.replies,
        )

    def copy(self) -> RewardRecord:
        return copy.deepcopy(self)


class RewardUnavailable(Exception):
    """A reward function has no number now, for any rollout: a service is down, a budget is spent.

    All rollouts of the group are then rewarded without the function, so that the result does not depend on which of
    them were asked in time. A function that cannot rate this one rollout returns None instead.

    Args:
        reason: one word for the metrics (`rollout/unshaped/REASON`), such as `judge_unavailable`.
        what: text for the log and the trajectory.
    Raises:
        ValueError: the reason is not a word, or is one that says how a single rollout is lost.
    """

    def __init__(self, reason: str, what: str = "") -> None:
        if not reason.isidentifier() or reason in OWN_LOSSES:
            raise ValueError(
                f"{reason!r} is no reason of RewardUnavailable; write one word of your own, as linter_away"
            )
        super().__init__(what or reason)
        self.reason = reason


class UnscorableError(RewardUnavailable):
    """What the policy wrote keeps an LLM from judging it; it is worth 0, the least, or policies would learn to write
    it."""


# One number for the rollout, or one for each of its `num_turns` turns.
RewardValue = float | int | Sequence[float] | None
Function = Callable[[RewardRecord], RewardValue | Awaitable[RewardValue]]


@dataclass(frozen=True)
class LoadedReward:
    label: str
    call: Function
    file: Path
    """The file that defines it; for the LLM as judge its rubric."""
    sha256: str
    """The hash of that file when it was read."""
    timeout_s: float = 30.0
    on_error: float | None = None
    """`rollout.reward_on_error`"""

"""What a reward function gets and may raise. Importing this is instant.

`RewardRecord` and `RewardUnavailable` are public: CHANGELOG names every change to them.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sql_agent.datatypes import RolloutRecord, StopReason
from sql_agent.rewards import OWN_LOSSES


@dataclass(frozen=True)
class RewardRecord:
    """One rollout that has ended, as a reward function sees it; each function gets a copy of its own.

    Wall clock is left out: the speed of the machine must not choose what is trained on.
    """

    task: dict[str, Any]
    """The task as it stands in the run's data, gold included: `id`, and what the environment keeps."""
    messages: list[dict[str, Any]]
    """The conversation in chat-completions form, first prompt included: tool calls and results, never gold."""
    verdict: float | None
    """The environment's judge: 1 right, 0 wrong, between them right in part; None on tasks that nobody judges. Under
    the reason `own_reward` it is the reward that an environment of the user's own gave, any number."""
    verdict_reason: str
    """`match`, `wrong_rows`, `no_answer`, ... as the judge names it."""
    stop_reason: StopReason
    """How the rollout ended; `answered` unless it was cut short."""
    num_turns: int
    """Replies of the model."""
    malformed_calls: int
    """Calls that could not be read."""
    prompt_tokens: int
    """Summed over the turns; a shared prefix counts once per turn."""
    completion_tokens: int
    """Sampled tokens of all turns."""
    output: Any = None
    """What an agent of the user's own answered (`--agent`), as JSON values: of an `agents.Agent` its final output. None
    of the built-in agent, and of one that ended without an answer."""
    error: str | None = None
    """What ended the rollout without an answer, for example a guardrail of the user's agent."""
    said_at: list[int] | None = None
    """Places of `replies` in `messages`, where several conversations stand there one after another; else None."""

    @property
    def replies(self) -> list[dict[str, Any]]:
        """The model's messages, the examples of the first prompt left out, in order."""
        if self.said_at is not None:
            return [self.messages[place] for place in self.said_at]
        said = [message for message in self.messages if message.get("role") == "assistant"]
        return said[len(said) - self.num_turns :] if self.num_turns else []

    @property
    def answer(self) -> str:
        """The text of the model's last reply; empty where that is a call without a text."""
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
        """A record whose messages and task may be changed without harm."""
        return copy.deepcopy(self)


class RewardUnavailable(Exception):
    """A reward function's way to say that its number cannot be had now, whatever the rollout is like: a service is
    away, a budget is spent. All rollouts of the group then do without the function, so that nothing depends on which of
    them were asked meanwhile. A function that cannot tell about this rollout returns None instead.

    Args:
        reason: one word for the metrics (`rollout/unshaped/REASON`), as `judge_unavailable`.
        what: for the log and the trajectory.
    Raises:
        ValueError: the reason is no word, or one that says how a single rollout is lost.
    """

    def __init__(self, reason: str, what: str = "") -> None:
        if not reason.isidentifier() or reason in OWN_LOSSES:
            raise ValueError(
                f"{reason!r} is no reason of RewardUnavailable; write one word of your own, as linter_away"
            )
        super().__init__(what or reason)
        self.reason = reason


RewardValue = float | int | Sequence[float] | None
"""One number for the rollout, or one for each of its `num_turns` turns."""
Function = Callable[[RewardRecord], RewardValue | Awaitable[RewardValue]]


@dataclass(frozen=True)
class LoadedReward:
    """A function that was found."""

    label: str
    call: Function
    file: Path
    """The file that defines it; the rubric of the LLM as judge."""
    sha256: str
    """The hash of that file as it was read."""
    timeout_s: float = 30.0

"""Defines what a user's own agent gets, and how its rollout ended. Importing this is instant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from agentgrpo.json_text import JsonObject
from dbbench_adapter.interaction import Stop


@dataclass(frozen=True)
class Policy:
    base_url: str
    """Address up to and including `/v1`; every call under it is traced as part of this rollout."""
    model: str
    temperature: float
    """Every call samples at this temperature, whatever the agent asks for."""
    max_tokens: int
    turn_timeout_s: float
    """The longest that the LLM proxy takes for a call."""
    max_turns: int | None
    """Limit of replies, if the framework counts them; None: the framework's own limit."""
    rollout: Any
    """agent-lightning's `AttemptedRollout`."""
    api_key: str = "none-is-needed"
    """A placeholder, because clients want a key; the signed address itself permits the calls."""


@dataclass(frozen=True)
class AgentEnd:
    output: Any = None
    """The agent's answer; for an `agents.Agent` its final output."""
    reward: Any = None
    """The reward that the agent itself gives; None if it gives none."""
    stop_reason: Stop = "answered"
    error: str | None = None
    """What the policy did, if it ended the rollout without an answer."""


class UserAgent(Protocol):
    rewards_itself: bool

    def check_row(self, row: JsonObject) -> None:
        """Check that a task has what the agent needs.

        Raises:
            ValueError: something is missing; the message continues a sentence that begins with the task's place.
        """
        ...

    def try_out(self) -> None:
        """Raises UserFileError: what the agent needs in a runner cannot be started."""
        ...

    async def play(self, row: JsonObject, policy: Policy) -> AgentEnd:
        """Raises Exception: any error of the user's code."""
        ...

    def close(self) -> None: ...

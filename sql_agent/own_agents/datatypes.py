"""What an agent of the user's own gets, and what is left of its rollout. Importing this is instant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from sql_agent.datatypes import StopReason


@dataclass(frozen=True)
class Policy:
    """The policy as one rollout reaches it."""

    base_url: str
    """Up to and including `/v1`; every call under it is traced as this rollout's."""
    model: str
    temperature: float
    """Every call samples at it, whatever the agent asks for."""
    max_tokens: int
    turn_timeout_s: float
    max_turns: int | None
    """Replies, where a framework counts them; None: its own limit."""
    rollout: Any
    """agent-lightning's `AttemptedRollout`."""
    api_key: str = "none-is-needed"
    """Clients want one; the address itself is the right to ask."""


@dataclass(frozen=True)
class AgentEnd:
    """How an agent ended that was neither lost nor late."""

    output: Any = None
    """What it answered: of an `agents.Agent` its final output."""
    reward: Any = None
    """What the agent itself says it is worth; None where it says nothing."""
    stop_reason: StopReason = "answered"
    error: str | None = None
    """What the policy did that ended it, where that is no answer."""


class OwnAgent(Protocol):
    rewards_itself: bool
    """Whether a rollout brings its reward."""

    def check_row(self, row: dict[str, Any]) -> None:
        """
        Raises:
            ValueError: a task without what the agent needs; the end of a sentence that begins with its place.
        """
        ...

    async def play(self, row: dict[str, Any], policy: Policy) -> AgentEnd:
        """
        Raises:
            Exception: whatever the user's code raises.
        """
        ...

    def close(self) -> None: ...

"""Where a reply meets the world: the environment's side of a rollout, and the ends that a rollout can have.

Who writes the replies, and what an end is worth, is left out.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Literal, Protocol

# A message in chat-completions form.
Message = dict[str, Any]

# How a rollout ended.
Stop = Literal[
    "answered",
    "malformed",
    "max_turns",
    "max_tokens",
    "max_sql_time",
    "timeout",
    "model_unavailable",
    "db_unavailable",
    "mcp_unavailable",
    "table_error",
    "environment_error",
]

# What an end means for the rollout's row: the judge scores what the policy did itself; it also scores what the policy
# had done when a limit truncated it, and a reward may pay that otherwise (`sql_agent.rewards`); the policy did not
# cause the other ends, so these rollouts have no verdict.
ENDS: dict[Stop, Literal["scored", "truncated", "lost"]] = {
    "answered": "scored",
    "malformed": "scored",
    "max_turns": "truncated",
    "max_tokens": "truncated",
    "max_sql_time": "truncated",
    "timeout": "lost",
    "model_unavailable": "lost",
    "db_unavailable": "lost",
    "mcp_unavailable": "lost",
    "table_error": "lost",
    "environment_error": "lost",
}

# The outcome of an episode in the words of the original: AgentBench uses blanks, LifelongAgentBench underscores. The
# last one is ours: the originals limit no more than one statement.
Status = Literal[
    "running",
    "completed",
    "agent validation failed",
    "task limit reached",
    "task error",
    "unknown",
    "agent_validation_failed",
    "task_limit_reached",
    "task_environment_error",
    "statement time used up",
]

STOPS: dict[Status, Stop | None] = {
    "running": None,
    "completed": "answered",
    "task limit reached": "max_turns",
    "task_limit_reached": "max_turns",
    "agent validation failed": "malformed",
    "agent_validation_failed": "malformed",
    "task error": "malformed",
    "task_environment_error": "malformed",
    "unknown": "malformed",
    "statement time used up": "max_sql_time",
}

# The statements of a rollout take together at most so many times the limit of one. Deadlines nest (three tries of a
# turn fit the rollout's, and a statement's fits a turn's), so this ends a rollout before its deadline, which loses it.
STATEMENTS_TOGETHER = 3


class Timed(Protocol):
    """A database that counts what statements used (`engines.base.Database`)."""

    statement_timeout_s: float
    used_s: float


class Episode(ABC):
    """Every method may block; one thread at a time may use it."""

    status: Status = "running"
    malformed_calls: int = 0
    """The number of replies, or of calls in a reply, that could not be read."""
    refused_statements: int = 0
    """Statements that the embedded engine does not run and MariaDB does."""

    @abstractmethod
    def answer(self, reply: Message) -> Iterator[Message]:
        """Yield the messages that answer a reply.

        Each message is yielded before the next call runs, so that those before a failure or a deadline are known.

        Args:
            reply: the policy's message, with `content` and, if it calls tools, `tool_calls`.
        """

    @property
    def done(self) -> bool:
        return self.status != "running"

    @property
    def stop(self) -> Stop | None:
        """None if the episode goes on."""
        return STOPS[self.status]

    def _end_if_spent(self, database: Timed) -> None:
        """End the episode, out of its limits, once its statements have taken as long as all of them may.

        A policy that could make its statements last until the rollout's deadline would lose what it cannot solve.
        """
        if not self.done and database.used_s >= STATEMENTS_TOGETHER * database.statement_timeout_s:
            self.status = "statement time used up"

    @abstractmethod
    def close(self) -> None: ...


class MalformedCallError(Exception):
    """A call cannot be answered as the policy wrote it; the message is for the policy."""


def read_arguments(name: str, arguments: Any) -> object:
    """The value of a call's arguments, a JSON text.

    Raises:
        MalformedCallError: the text is none.
    """
    try:
        return json.loads(arguments)
    except (ValueError, TypeError, RecursionError):
        raise MalformedCallError(f"the arguments of {name} do not parse; they are a JSON object") from None


class CallingEpisode(Episode):
    def answer(self, reply: Message) -> Iterator[Message]:
        """Run the calls in the reply's order, up to the one that ends the episode, whose result is yielded too."""
        calls = reply.get("tool_calls")
        if not calls:
            yield from self.without_call(reply.get("content") or "")
            return
        for call in calls if isinstance(calls, list) else [calls]:
            if not isinstance(call, dict):
                self.status = "task error"
                return
            function = call.get("function")
            function = function if isinstance(function, dict) else {"arguments": None}
            content = self.call_tool(str(function.get("name", "")), function.get("arguments", "{}"))
            yield {"role": "tool", "tool_call_id": call.get("id", ""), "content": content}
            if self.done:
                return

    def call_tool(self, name: str, arguments: object) -> str:
        """Answer one call; a malformed one is answered with an error message and counted."""
        try:
            return self._answer_call(name, arguments)
        except MalformedCallError as error:
            self.malformed_calls += 1
            return self._error_text(str(error))

    def _error_text(self, reason: str) -> str:
        return f"Error: {reason}."

    @abstractmethod
    def _answer_call(self, name: str, arguments: object) -> str:
        """
        Args:
            arguments: as the policy wrote them (`read_arguments`).
        Raises:
            MalformedCallError: there is no such tool, or it takes other arguments.
        """

    def without_call(self, reply: str) -> list[Message]:
        """Answer a reply without a call, which ends the episode."""
        self.status = "completed"
        return []

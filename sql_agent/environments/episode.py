"""Implements the episode of an environment with one tool: a reply without a call is the answer and ends it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from dbbench_adapter.protocols import Message, Status


def tool(name: str, description: str, arguments: Mapping[str, str]) -> dict[str, Any]:
    """A tool in chat-completions form.

    Args:
        arguments: what each is, by name; all are texts, and all are needed.
    """
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string", "description": words} for argument, words in arguments.items()},
        "required": list(arguments),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


class OneToolEpisode(ABC):
    """Implements `sql_agent.environments.base.CallingEpisode`; a subclass names its tool and says what a call does."""

    tool_name: ClassVar[str]
    argument: ClassVar[str]
    """Name of the tool's only argument, a text."""
    example: ClassVar[str]
    """A value of that argument, for the message that says what the tool takes."""

    def __init__(self, max_rounds: int) -> None:
        self.max_rounds = max_rounds
        self.malformed_calls = 0
        self.status: Status = "running"
        self.answer: str | None = None
        """The reply that ended the episode."""

    @abstractmethod
    def use_tool(self, value: str) -> str:
        """Return the result of a call; it may block."""

    @property
    def done(self) -> bool:
        return self.status != "running"

    def call_tool(self, name: str, arguments: Any) -> str:
        if name != self.tool_name:
            return self.malformed(f"unknown tool {name!r}; call {self.tool_name}")
        try:
            values = json.loads(arguments)
        except (ValueError, TypeError, RecursionError):
            return self.malformed(f"the arguments of {name} do not parse; they are a JSON object")
        value = values.get(self.argument) if isinstance(values, dict) else None
        return self.use_tool(value) if isinstance(value, str) else self.wrong_argument()

    def without_call(self, reply: str) -> list[Message]:
        self.status, self.answer = "completed", reply
        return []

    def close(self) -> None:  # noqa: B027  some hold nothing
        pass

    def wrong_argument(self) -> str:
        return self.malformed(f'{self.tool_name} takes {{"{self.argument}": "{self.example}"}}')

    def malformed(self, reason: str) -> str:
        self.malformed_calls += 1
        return f"Error: {reason}."

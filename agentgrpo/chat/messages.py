"""The records of a conversation in chat-completions form. Importing this module is instant."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from agentgrpo.json_text import parse_json


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FunctionCall(Record):
    name: str = Field(min_length=1)
    arguments: str
    """A JSON object as text, as in OpenAI's chat completions; an object is read too, and becomes its text."""

    @field_validator("arguments", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value

    @property
    def as_object(self) -> dict[str, Any] | str:
        # A text with NaN or with half a surrogate pair, which no JSON file can hold, stays a text too. For a rollout's
        # prompt `template.for_template` makes an object of it, as vLLM's chat endpoints do.
        try:
            value = parse_json(self.arguments, parse_constant=_refuse)
            json.dumps(value, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            return self.arguments
        return value if isinstance(value, dict) else self.arguments


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


class ToolCall(Record):
    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Record):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = Field(default=(), strict=False, fail_fast=True)
    """Only an assistant message has calls. A list, as in JSON, is accepted."""
    tool_call_id: str | None = None
    """The id of the call that a tool message answers."""

    @model_validator(mode="after")
    def _only_an_assistant_calls_tools(self) -> Message:
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"a {self.role} message has tool_calls; only an assistant calls tools")
        return self

    @property
    def is_empty(self) -> bool:
        return not self.content.strip() and not self.tool_calls

    def to_dict(self, *, objects: bool = False) -> dict[str, Any]:
        """Empty fields are left away; `content` is always there.

        Args:
            objects: whether arguments of calls are objects, as chat templates read them, instead of texts, as in
            OpenAI's chat completions.
        """
        plain = self.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
        for call, own in zip(plain.get("tool_calls", ()), self.tool_calls, strict=True):
            call["type"] = "function"
            if objects:
                call["function"]["arguments"] = own.function.as_object
        return {"role": self.role, "content": self.content, **plain}


def num_chars(messages: Sequence[Message]) -> int:
    """Length without a template's additions: contents, tool names and arguments."""
    calls = (call.function for message in messages for call in message.tool_calls)
    return sum(len(m.content) for m in messages) + sum(len(call.name) + len(call.arguments) for call in calls)


def num_tool_calls(messages: Sequence[Message]) -> int:
    return sum(len(message.tool_calls) for message in messages)

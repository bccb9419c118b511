"""The records of `reward_model`: messages, preferences, scores. Importing this module is instant."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FunctionCall(Record):
    name: str = Field(min_length=1)
    arguments: str
    """A JSON object as text, as OpenAI's chat completions have it."""


class ToolCall(Record):
    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Record):
    """One message of a conversation, in chat-completions form."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = Field(default=(), strict=False, fail_fast=True)
    """Of an assistant; JSON's lists are taken."""
    tool_call_id: str | None = None
    """Of a tool's message: the call that it answers."""

    @model_validator(mode="after")
    def _calls_are_the_assistants(self) -> Message:
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"a {self.role} message has tool_calls; only an assistant calls tools")
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, without what is empty; `content` is always there."""
        said = self.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
        for call in said.get("tool_calls", ()):
            call["type"] = "function"
        return {"role": self.role, "content": self.content, **said}


class Preference(Record):
    """Two ways on from one prompt, the better one first: a row of TRL's conversational preference form."""

    prompt: tuple[Message, ...] = Field(min_length=1, strict=False)
    chosen: tuple[Message, ...] = Field(min_length=1, strict=False)
    """Follows `prompt`; ends with the assistant."""
    rejected: tuple[Message, ...] = Field(min_length=1, strict=False)
    tools: str | None = None
    """The tools' JSON schemas as a JSON list in a text, the form that TRL reads back from any file."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Where the row comes from; no part of what is scored."""

    @model_validator(mode="after")
    def _assistant_speaks_last(self) -> Preference:
        for name in ("chosen", "rejected"):
            role = getattr(self, name)[-1].role
            if role != "assistant":
                raise ValueError(f"{name} ends with a {role} message; what is scored has to end with the assistant")
        return self

    def to_dict(self) -> dict[str, Any]:
        """One line of a converted file; `Preference.model_validate` is the inverse."""
        sides = {side: [m.to_dict() for m in getattr(self, side)] for side in ("prompt", "chosen", "rejected")}
        return (
            sides
            | ({"tools": self.tools} if self.tools else {})
            | ({"metadata": self.metadata} if self.metadata else {})
        )


@dataclass(frozen=True)
class Encoded:
    """A conversation as the model reads it."""

    ids: tuple[int, ...]
    truncated: bool = False
    """Longer than the model's limit: the first tokens were cut, the end is what is scored."""


@dataclass(frozen=True)
class Score:
    """What the reward model says of one conversation: a logit, any finite real number."""

    value: float
    truncated: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"the reward model gave {self.value}; its weights hold NaN or overflow")

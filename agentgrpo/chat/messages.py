"""The records of a conversation in chat-completions form, and whether a message was written by a chat template already.

Importing this module is instant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from agentgrpo.json_text import parse_json


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class FunctionCall(Record):
    name: str = Field(min_length=1)
    arguments: str
    """A JSON object as text, as in OpenAI's chat completions; an object is read too, and becomes its text."""

    @field_validator("arguments", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value

    @property
    def as_object(self) -> dict[str, object] | str:
        # A text with NaN or with half a surrogate pair, which no JSON file can hold, stays a text too. For a rollout's
        # prompt `template.for_template` makes an object of it, as vLLM's chat endpoints do.
        try:
            value = parse_json(self.arguments, parse_constant=_refuse)
            json.dumps(value, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            return self.arguments
        return value if isinstance(value, dict) else self.arguments


def _refuse(constant: str) -> object:
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


# Marks of chat templates ----------------------------------------------------------------------------------------------

# A text with one of these has been rendered already. A template would render it once more, as one message that holds a
# whole conversation, and the tokenizer of its family makes control tokens of it: a reply with `<|im_end|>` in it
# teaches to end there. So a message with one is refused. Tags that a model writes itself, as in `<think>` or
# `<tool_call>`, are text. Anthropic's transcripts (`\n\nHuman:`) have a reader of their own among the forms of pairs.
_MARKERS = (
    r"<\|[A-Za-z][A-Za-z0-9_]{0,40}\|>",  # ChatML, Llama 3, Phi, GLM, gpt-oss, Granite, Cohere
    r"<｜[^｜<>\n]{1,40}｜>",  # DeepSeek
    r"</?(?:start|end)_of_turn>|<(?:bos|eos)>",  # Gemma
    r"\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\]|<</?SYS>>",  # Llama 2, Mistral
    r"\n\n(?:Human|Assistant):",  # Anthropic's transcripts
    r"(?<=\n)### (?:Response|Assistant):|\A### (?:Instruction|Human|User):",  # Alpaca, Vicuna 0
    r"(?:\A|\s)USER: (?=.*\sASSISTANT:)",  # Vicuna
)
_MARKER = re.compile("|".join(_MARKERS), re.DOTALL)
# The end token of Llama 2 and Mistral; with `<s>` before it, it is HTML.
_LAST = re.compile(r"</s>\s*\Z")
_TAG = r"<(image|video|audio)>"
# Where a processor of LLaVA, LLaMA-Factory, ms-swift or Gemma 3 puts an image; elsewhere it is HTML.
_MEDIUM = re.compile(
    r"<(image|video|audio)[ _]?\d+>|<(start_of_image)>"
    # before a text, as LLaVA, LLaMA-Factory and Qwen-VL have it; but not "<video> is", "<video>," and "<video><source>"
    rf"|\A\s*{_TAG}(?![ \t]+[a-z]|\s*(?:[,.;:!?)/&|]|\Z|</?(?!(?:image|video|audio)>)))"
    # as the last line behind a text, perhaps with more tags
    rf"|(?<=\S)[ \t]*\n\s*{_TAG}(?=(?:\s*<(?:image|video|audio)>){{0,15}}\s*\Z)"
    # alone on a line between texts, as rows with several images have it; the other two are elements of HTML
    r"|\n[ \t]*<(image)>[ \t]*(?=\n)"
)


def marker_in(text: str) -> str | None:
    found = _MARKER.search(text) or (None if "<s>" in text.removeprefix("<s>") else _LAST.search(text))
    return found and found.group().strip()


def medium_in(text: str) -> str | None:
    found = _MEDIUM.search(text)
    name = found and next(filter(None, found.groups()))
    return None if found is None or f"</{name}>" in text else found.group().strip()


def why_rendered(message: Message) -> str | None:
    # A tool's result is left alone: it may hold any text.
    if message.role == "tool":
        return None
    if (medium := medium_in(message.content)) is not None:
        return why_no_medium(medium)
    marker = marker_in(message.content)
    return marker and (
        f"holds {marker!r}, a mark of a chat format, which the model's template would write once more; give the "
        "conversation as messages with roles, or remove the mark"
    )


def why_no_medium(marker: str) -> str:
    return f"holds {marker!r}, the place of an image or of sound, and only texts are read; leave the row out"

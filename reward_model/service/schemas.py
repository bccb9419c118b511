"""Bodies of requests and answers. Tags of unions begin with `#`; `describe_errors` leaves them out of the field's
name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    model_validator,
)

from agentgrpo.chat.messages import Message
from reward_model.datatypes import Preference
from reward_model.service.strict_json import field_name, read_strict_json

# The most conversations of one request.
MAX_ITEMS = 128
MAX_MESSAGES = 512
# The most token ids of one conversation before it is cut.
MAX_IDS = 1 << 17


class Form(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, populate_by_name=False, use_attribute_docstrings=True
    )


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("empty or blank; there is nothing to score")
    return text


def _schemas(tools: object) -> object:
    if isinstance(tools, str):
        tools = read_strict_json(tools)
    if tools is None:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError("expected a list of tool schemas")
    return json.dumps(tools, allow_nan=False) if tools else None


def _assistant_said_something(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    last = messages[-1]
    if last.role != "assistant":
        raise ValueError(f"the last message is a {last.role}'s; expected the assistant's, which is what is scored")
    if last.is_empty:
        raise ValueError("the last message is empty or blank; there is nothing to score")
    return messages


Text = Annotated[str, AfterValidator(_not_blank)]
Tools = Annotated[str | None, BeforeValidator(_schemas)]
# A list is read up to its first error: a body has room for 100,000, and pydantic makes all before ten are shown.
Turns = Annotated[tuple[Message, ...], Field(strict=False, min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
Messages = Annotated[Turns, AfterValidator(_assistant_said_something)]
Many = Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)


class TextItem(Form):
    prompt: Text
    response: Text


class ChatItem(Form):
    messages: Messages
    tools: Tools = None


class TextPair(Form):
    prompt: Text
    chosen: Text
    rejected: Text


class ChatPair(Preference):
    """A row of TRL's conversational preference form; `metadata` is ignored."""

    prompt: Turns
    chosen: Turns
    rejected: Turns
    tools: Tools = None

    @model_validator(mode="after")
    def _both_say_something(self) -> ChatPair:
        _assistant_said_something(self.chosen)
        _assistant_said_something(self.rejected)
        return self


class VllmOptions(Form):
    """The options of vLLM's pooling routes that have a meaning here; the others are refused, not ignored."""

    model: str | None = None
    """The name is ignored, because one model is served."""
    user: str | None = None
    """The value is ignored."""
    use_activation: bool | None = None
    """False returns the raw logit. True, or no value, applies a sigmoid, as vLLM does."""
    truncate_prompt_tokens: int | None = Field(None, ge=-1)
    """Tokens to keep, -1 for the model's limit. Without it, a text that is too long loses its beginning, and
    `truncated` says so (vLLM answers 400)."""
    truncation_side: Literal["left", "right"] | None = None
    """The side that `truncate_prompt_tokens` cuts. Without it the tokenizer decides, mostly right, as in vLLM."""


VLLM_FIRST, VLLM_SECOND = ("text_1", "queries", "data_1"), ("text_2", "documents", "items", "data_2")
TextOrTexts = Annotated[
    Annotated[Text, Tag("#one")] | Annotated[list[Text], Many, Tag("#many")],
    Discriminator(lambda value: "#many" if isinstance(value, list) else "#one"),
]


class VllmPairs(VllmOptions):
    """VLLM's lists of two texts (1:1, 1:N or N:N), which it tokenises as a pair, without the chat template."""

    text_1: TextOrTexts = Field(validation_alias=AliasChoices(*VLLM_FIRST))
    text_2: TextOrTexts = Field(validation_alias=AliasChoices(*VLLM_SECOND))

    def pairs(self) -> list[tuple[str, str]]:
        first, second = self._lists()
        return list(zip(first * len(second) if len(first) == 1 else first, second, strict=True))

    def _lists(self) -> list[list[str]]:
        return [[texts] if isinstance(texts, str) else texts for texts in (self.text_1, self.text_2)]

    @model_validator(mode="after")
    def _lengths_fit(self) -> VllmPairs:
        first, second = map(len, self._lists())
        if first not in (1, second):
            raise ValueError(f"text_1 holds {first} texts and text_2 {second}; expected 1:1, 1:N or N:N")
        return self


TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=MAX_IDS, fail_fast=True)]


class VllmInput(VllmOptions):
    """Texts as they are, or token ids; no chat template is applied."""

    input: (
        Annotated[Text, Tag("#text")]
        | Annotated[list[Text], Many, Tag("#texts")]
        | Annotated[TokenIds, Tag("#ids")]
        | Annotated[list[TokenIds], Many, Tag("#id_lists")]
    ) = Field(discriminator=Discriminator(lambda value: _input_form(value)))
    add_special_tokens: bool = True

    def inputs(self) -> list[str] | list[list[int]]:
        if not isinstance(self.input, list):
            return [self.input]
        return [self.input] if isinstance(self.input[0], int) else self.input  # type: ignore[list-item]


class TemplateKwargs(Form):
    tools: Tools = None


class VllmChat(VllmOptions):
    messages: Messages
    chat_template_kwargs: TemplateKwargs = TemplateKwargs()
    add_special_tokens: Literal[False] = False
    add_generation_prompt: Literal[False] = False
    """The model was not trained with an open turn of the assistant after its answer."""
    continue_final_message: Literal[False] = False


# The keys of a request decide its form, so that errors are those of one form ------------------------------------------


def _input_form(value: object) -> str:
    if not isinstance(value, list):
        return "#text"
    first = value[0] if value else None
    return "#id_lists" if isinstance(first, list) else "#ids" if isinstance(first, int) else "#texts"


def _item_form(value: object) -> str:
    return "#chat" if isinstance(value, dict) and "messages" in value else "#text"


def _side_form(value: object) -> str:
    sides = [value.get(key) for key in ("prompt", "chosen", "rejected")] if isinstance(value, dict) else []
    return "#chat" if any(isinstance(side, list) for side in sides) else "#text"


def _score_form(value: object) -> str:
    if isinstance(value, dict) and not value.keys().isdisjoint(VLLM_FIRST + VLLM_SECOND):
        return "#vllm"
    return "#list" if isinstance(value, list) else _item_form(value)


def _pair_form(value: object) -> str:
    return "#list" if isinstance(value, list) else _side_form(value)


Item = Annotated[Annotated[TextItem, Tag("#text")] | Annotated[ChatItem, Tag("#chat")], Discriminator(_item_form)]
Pair = Annotated[Annotated[TextPair, Tag("#text")] | Annotated[ChatPair, Tag("#chat")], Discriminator(_side_form)]

ScoreBody = Annotated[
    Annotated[TextItem, Tag("#text")]
    | Annotated[ChatItem, Tag("#chat")]
    | Annotated[list[Item], Many, Tag("#list")]
    | Annotated[VllmPairs, Tag("#vllm")],
    Discriminator(_score_form),
]
PairBody = Annotated[
    Annotated[TextPair, Tag("#text")]
    | Annotated[ChatPair, Tag("#chat")]
    | Annotated[list[Pair], Field(min_length=1, max_length=MAX_ITEMS // 2, fail_fast=True), Tag("#list")],
    Discriminator(_pair_form),
]
ClassifyBody = Annotated[
    Annotated[VllmChat, Tag("#chat")] | Annotated[VllmInput, Tag("#text")], Discriminator(_item_form)
]


class Answer(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class ScoreAnswer(Answer):
    score: float
    truncated: bool = False
    """The field is present only when true."""


class PairAnswer(Answer):
    chosen_score: float
    rejected_score: float
    preference: Literal["chosen", "rejected", "tie"]
    score_diff: float
    """chosen_score - rejected_score."""
    truncated: bool = False
    """The field is present only when one of the sides was cut."""


class Usage(BaseModel):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: None = None
    completion_tokens_details: None = None


class VllmAnswer(BaseModel):
    """vLLM's ClassificationResponse (index, label, probs, num_classes) or ScoreResponse (index, object, score)."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[dict[str, JsonValue]]
    usage: Usage


class Fault(BaseModel):
    field: str
    message: str


class Refusal(BaseModel):
    detail: list[Fault]


def describe_errors(errors: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Pydantic's errors as field and message, without the input that they repeat; ten at most."""
    return [
        {
            "field": field_name([part for part in error["loc"] if not str(part).startswith("#")]) or "body",
            "message": error["msg"].removeprefix("Value error, ")[:300],
        }
        for error in errors[:10]
    ]

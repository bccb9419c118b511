"""What the service is asked and answers. A request's form is told by its keys, so an error names one field of one form.

Tags of unions begin with `#`; `faults_of` leaves them out of the field's name.
"""

from __future__ import annotations

import json
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

from core.messages import Message
from reward_model.datatypes import Preference
from reward_model.service.strict_json import read_json, shown

MAX_ITEMS = 128
"""Conversations of one request."""
MAX_MESSAGES = 512
MAX_IDS = 1 << 17
"""Token ids of one conversation, before it is cut."""


class UnreadableError(ValueError):
    """The form is right, but the model cannot read what it holds; `field` says where."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=False)


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("empty or blank; there is nothing to score")
    return text


def _schemas(tools: Any) -> Any:
    """A list of schemas as the text that `Preference.tools` holds; a text is read, so that what is no list is found."""
    if isinstance(tools, str):
        tools = read_json(tools)
    if tools is None:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError("expected a list of tool schemas")
    return json.dumps(tools) if tools else None


def _assistant_said_something(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    last = messages[-1]
    if last.role != "assistant":
        raise ValueError(f"the last message is a {last.role}'s; what is scored is what the assistant says last")
    if not last.content.strip() and not last.tool_calls:
        raise ValueError("the last message is empty or blank; there is nothing to score")
    return messages


Text = Annotated[str, AfterValidator(_not_blank)]
Tools = Annotated[str | None, BeforeValidator(_schemas)]
# Lists end at their first error: each one is expanded before ten are told, and a body has room for 100,000.
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
    """The options of vLLM's pooling routes that mean something here; the others are refused, not ignored."""

    model: str | None = None
    """Ignored: one model is served."""
    user: str | None = None
    """Ignored."""
    use_activation: bool | None = None
    """False: the raw logit. True or not given: through a sigmoid, as vLLM does."""
    truncate_prompt_tokens: int | None = Field(None, ge=-1)
    """Tokens to keep, -1 for the model's limit. Not given: too long a text loses its beginning, and `truncated` says so
    (vLLM answers 400)."""
    truncation_side: Literal["left", "right"] | None = None
    """Where `truncate_prompt_tokens` cuts; not given: where the tokenizer's settings say, mostly right, as in vLLM."""


FIRST_TEXTS = AliasChoices("text_1", "queries", "data_1")
SECOND_TEXTS = AliasChoices("text_2", "documents", "items", "data_2")
VLLM_PAIR_KEYS = {"text_1", "queries", "data_1", "text_2", "documents", "items", "data_2"}


class VllmPairs(VllmOptions):
    """vLLM's lists of two texts, which it tokenises as a pair, without the chat template. 1:1, 1:N or N:N."""

    text_1: Annotated[Text, Tag("#one")] | Annotated[list[Text], Many, Tag("#many")] = Field(
        validation_alias=FIRST_TEXTS, discriminator=Discriminator(lambda v: _one(v))
    )
    text_2: Annotated[Text, Tag("#one")] | Annotated[list[Text], Many, Tag("#many")] = Field(
        validation_alias=SECOND_TEXTS,
        discriminator=Discriminator(lambda v: _one(v)),
    )

    def pairs(self) -> list[tuple[str, str]]:
        first = [self.text_1] if isinstance(self.text_1, str) else self.text_1
        second = [self.text_2] if isinstance(self.text_2, str) else self.text_2
        return list(zip(first * len(second) if len(first) == 1 else first, second, strict=True))

    @model_validator(mode="after")
    def _lengths_fit(self) -> VllmPairs:
        first, second = (1 if isinstance(texts, str) else len(texts) for texts in (self.text_1, self.text_2))
        if first not in (1, second):
            raise ValueError(f"text_1 holds {first} texts and text_2 {second}; expected 1:1, 1:N or N:N")
        return self


TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=MAX_IDS, fail_fast=True)]


class VllmInput(VllmOptions):
    """Texts as they are, or token ids; no chat template."""

    input: (
        Annotated[Text, Tag("#text")]
        | Annotated[list[Text], Many, Tag("#texts")]
        | Annotated[TokenIds, Tag("#ids")]
        | Annotated[list[TokenIds], Many, Tag("#id_lists")]
    ) = Field(discriminator=Discriminator(lambda v: _input(v)))
    add_special_tokens: bool = True


class TemplateKwargs(Form):
    tools: Tools = None


class VllmChat(VllmOptions):
    messages: Messages
    chat_template_kwargs: TemplateKwargs = TemplateKwargs()
    add_special_tokens: Literal[False] = False
    add_generation_prompt: Literal[False] = False
    """An open turn of the assistant after its answer is not what the model was trained on."""
    continue_final_message: Literal[False] = False


def _one(value: Any) -> str:
    return "#many" if isinstance(value, list) else "#one"


def _input(value: Any) -> str:
    if not isinstance(value, list):
        return "#text"
    first = value[0] if value else None
    return "#id_lists" if isinstance(first, list) else "#ids" if isinstance(first, int) else "#texts"


def _score_form(value: Any) -> str:
    if isinstance(value, list):
        return "#list"
    if isinstance(value, dict) and not VLLM_PAIR_KEYS.isdisjoint(value):
        return "#vllm"
    return _item_form(value)


def _item_form(value: Any) -> str:
    return "#chat" if isinstance(value, dict) and "messages" in value else "#text"


def _pair_form(value: Any) -> str:
    return "#list" if isinstance(value, list) else _side_form(value)


def _side_form(value: Any) -> str:
    sides = [value.get(key) for key in ("prompt", "chosen", "rejected")] if isinstance(value, dict) else []
    return "#chat" if any(isinstance(side, list) for side in sides) else "#text"


def _classify_form(value: Any) -> str:
    return "#chat" if isinstance(value, dict) and "messages" in value else "#input"


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
    Annotated[VllmChat, Tag("#chat")] | Annotated[VllmInput, Tag("#input")], Discriminator(_classify_form)
]


class ScoreAnswer(BaseModel):
    score: float
    truncated: bool = False
    """Only there when true."""


class PairAnswer(BaseModel):
    chosen_score: float
    rejected_score: float
    preference: Literal["chosen", "rejected", "tie"]
    score_diff: float
    """chosen_score - rejected_score."""
    truncated: bool = False
    """Only there when true: of either side."""


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


def faults_of(errors: list[Any]) -> list[dict[str, str]]:
    """Pydantic's errors as field and message, without the input they echo; ten at most."""
    return [
        {
            "field": shown([part for part in error["loc"] if not str(part).startswith("#")]) or "body",
            "message": error["msg"].removeprefix("Value error, ")[:300],
        }
        for error in errors[:10]
    ]

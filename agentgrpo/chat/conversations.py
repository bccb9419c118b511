"""Conversations of users' files: OpenAI's and ShareGPT's forms, and every common spelling of tool calls.

`normalize_tool_call_ids` gives tool calls new ids, so that equal conversations compare equal. Every change beyond
spelling is counted by name in `changes`. A message with images or sound is refused.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from agentgrpo.chat.calls import numbered_id, plain_schemas
from agentgrpo.chat.messages import FunctionCall, Message, ToolCall
from agentgrpo.json_text import JsonObject, parse_json

_ROLES = {
    "system": ["system", "developer"],
    "user": ["user", "human"],
    "assistant": ["assistant", "gpt", "bot", "model", "ai", "chatbot", "function_call"],
    "tool": ["tool", "function", "observation", "ipython"],
}
ROLES: dict[str, Any] = {spelling: role for role, spellings in _ROLES.items() for spelling in spellings}
_READ = {"role", "from", "content", "value", "tool_calls", "function_call", "tool_call_id"}
# OpenAI, Llama, LangChain and Anthropic give these names to a call's arguments.
_ARGUMENTS = ("arguments", "parameters", "args", "input")
# Columns of a row with the schemas of its tools; `functions` is that of OpenAI's first tool interface.
TOOL_COLUMNS = ("tools", "functions")
# Fields of a message that would be lost, and where their contents are read.
_ELSEWHERE = {
    "tools": "the row's tools", "functions": "the row's tools", "available_tools": "the row's tools",
    "function_calls": "tool_calls", "tool_call": "tool_calls",
}  # fmt: skip
_CALL_READ = {"id", "type", "name", "function", *_ARGUMENTS}
_MAX_REPR_CHARS = 60


class RowError(ValueError):
    def __init__(self, field: str, reason: str, form: str | None = None) -> None:
        super().__init__(f"{field}: {reason}")
        self.field, self.reason, self.form = field, reason, form


def short_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_REPR_CHARS else f"{text[:_MAX_REPR_CHARS]}..."


def read_text(value: object, field: str, changes: Counter[str]) -> str:
    """Half of a surrogate pair (a cut emoji) becomes U+FFFD, because UTF-8 cannot encode it.

    Raises:
        RowError: the value is not a text.
    """
    if not isinstance(value, str):
        raise RowError(field, f"expected a text, found {short_repr(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        changes["texts with half a surrogate pair, replaced by U+FFFD"] += 1
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def read_conversation(value: object, field: str, changes: Counter[str]) -> list[Message]:
    """Raises RowError: a message cannot be read; the first such message is named."""
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        raise RowError(field, f"expected a list of messages, found {short_repr(value)}")
    if not value:
        raise RowError(field, "expected messages, found an empty list")
    return [read_message(message, f"{field}.{number}", changes) for number, message in enumerate(value)]


# Columns with a conversation in the forms of TRL, OpenAI, ShareGPT and our logs.
CONVERSATIONS = (
    "messages", "conversations", "prompt", "completion", "chosen", "rejected", "chosen_messages", "rejected_messages",
    "chosen_response", "rejected_response",
)  # fmt: skip


def without_json_texts(row: JsonObject, changes: Counter[str]) -> dict[str, object]:
    """The row with conversations, and messages in them, that exported tables and parquet files hold as JSON in a text.

    Every reader of rows begins here, so that no command learns the JSON. `datasets` writes single messages so if their
    fields differ (its type `Json`, `on_mixed_types="use_json"`).

    Raises:
        RowError: messages are in Python's notation instead of JSON.
    """
    read = dict(row)
    for name in row.keys() & CONVERSATIONS:
        held = row[name]
        if isinstance(held, str) and (messages := _messages_in(held, name)) is not None:
            changes["conversations that were JSON in a text"] += 1
            read[name] = held = messages
        if isinstance(held, list):
            read[name] = [_object_in(each, changes) if isinstance(each, str) else each for each in held]
    return read


def _messages_in(text: str, field: str) -> list[object] | None:
    if text.lstrip().startswith("[{'") and re.search(r"'(role|from)': ", text):
        raise RowError(field, "messages in Python's notation; export the table with messages as JSON or as lists")
    value = _json_in(text) if text.lstrip().startswith("[") else None
    return value if isinstance(value, list) and value and all(map(_has_role, value)) else None


def _has_role(message: object) -> bool:
    message = _json_in(message) if isinstance(message, str) else message
    return isinstance(message, dict) and str(message.get("role") or message.get("from")).strip().lower() in ROLES


def _object_in(text: str, changes: Counter[str]) -> object:
    raw = _json_in(text)
    if not isinstance(raw, dict):
        return text
    changes["messages that were JSON in a text"] += 1
    return raw


def _json_in(text: str) -> object:
    try:
        return parse_json(text)
    except ValueError:
        return None


def read_message(raw: object, field: str, changes: Counter[str]) -> Message:
    """Read one message with `role` and `content`, or `from` and `value`.

    Raises:
        RowError: the role is unknown, the content is not a text, a call names no function, or two fields disagree.
    """
    if not isinstance(raw, dict):
        raise RowError(field, f"expected a message object, found {short_repr(raw)}")
    role_key, content_key = _filled_key(raw, "role", "from"), _filled_key(raw, "content", "value")
    said = raw.get(role_key)
    role = ROLES.get(said.strip().lower()) if isinstance(said, str) else None
    if role is None:
        raise RowError(f"{field}.{role_key}", f"unknown role {short_repr(said)}; known are {', '.join(ROLES)}")
    if role_key == "role" and raw.get("from") and ROLES.get(str(raw["from"]).strip().lower()) != role:
        raise RowError(f"{field}.from", f"{short_repr(raw['from'])} contradicts role {short_repr(said)}; keep one")
    if content_key == "content" and raw.get("value") and raw["value"] != raw["content"] and raw["content"]:
        raise RowError(f"{field}.value", "differs from content; keep one of them")
    if said != role and role_key == "role":
        changes[f"role {said!r} read as {role!r}"] += 1
    for name in raw.keys() - _READ:
        if raw[name] not in (None, "", [], {}):
            _refuse_lost(name, f"{field}.{name}")
            changes[f"message field {name!r} left out"] += 1
    content, calls = raw.get(content_key), _calls(raw, field, changes)
    if said == "function_call":
        if calls:
            raise RowError(f"{field}.{content_key}", "holds a call, and tool_calls holds another; keep one of them")
        content, calls = "", _calls_in_text(content, f"{field}.{content_key}", changes)
    text = _content(content, f"{field}.{content_key}", changes)
    if role in ("user", "system") and not text.strip():
        raise RowError(f"{field}.{content_key}", f"a {role} message without a text; write one, or leave it out")
    answered = raw.get("tool_call_id")
    if answered is not None:
        answered = read_text(answered, f"{field}.tool_call_id", changes)
    try:
        return Message(role=role, content=text, tool_calls=tuple(calls), tool_call_id=answered or None)
    except ValidationError as error:
        raise RowError(field, error.errors()[0]["msg"]) from None


def _refuse_lost(name: str, field: str) -> None:
    if name in _ELSEWHERE:
        raise RowError(field, f"is not read in a message; move it to {_ELSEWHERE[name]}")


def _filled_key(raw: JsonObject, key: str, other: str) -> str:
    # In data sets merged from two schemas the other key exists but is empty.
    return next((name for name in (key, other) if raw.get(name)), key if key in raw else other)


def _content(content: object, field: str, changes: Counter[str]) -> str:
    if content is None:
        return ""
    if not isinstance(content, list):
        return read_text(content, field, changes)
    texts = []
    for number, part in enumerate(content):
        if take_mark(part, f"{field}.{number}")[1] is not None:
            raise RowError(f"{field}.{number}", f"marks a part of a message; {_WRITE_WEIGHT}")
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(part, dict) and (text is None or not str(part.get("type") or "text").endswith("text")):
            raise RowError(
                f"{field}.{number}", f"expected a part with a text, found {short_repr(part.get('type', part))}"
            )
        texts.append(read_text(text, f"{field}.{number}", changes))
    return "".join(texts)


# Marks of what is learnt ----------------------------------------------------------------------------------------------

# Names of which 1 says that a message or row is learnt, without case and separators: OpenAI, Mistral and Together write
# `weight`, ms-swift, XTuner and AgentInstruct `loss`, axolotl `train` and `training`, slime `step_loss_mask`.
_LEARNT = frozenset(("weight", "loss", "train", "training", "lossmask", "steplossmask"))
# torchtune's, of which 1 says that it is not learnt.
_NOT_LEARNT = frozenset(("masked",))
# A field with one of these in its name may be a mark. What it means is not guessed, because a reply that is learnt
# against its mark shows nowhere.
_MARK = re.compile(
    r"loss|mask|train(?!t)|weight|learn|supervis|grad(?!e)|backprop|ignore|skip|exclude|frozen|label$|kto|desirable",
    re.IGNORECASE,
)
_WRITE_WEIGHT = "write `weight` 0 or 1 into the assistant's messages instead, or remove it"


def take_mark(raw: object, field: str) -> tuple[object, tuple[str, bool] | None]:
    """Split a message, or a row, into what is read and its mark: the mark's name, and whether it says `learnt`.

    Raises:
        RowError: a field may be a mark, and what it means is not certain; or two marks disagree.
    """
    if not isinstance(raw, dict):
        return raw, None
    marks = {name: mark for name in raw if (mark := _mark(name, raw[name], f"{field}.{name}".lstrip("."))) is not None}
    if len({*marks.values()}) > 1:
        raise RowError(field or "row", f"{' and '.join(marks)} disagree about what is learnt; keep one of them")
    return {name: raw[name] for name in raw if name not in marks}, next(iter(marks.items()), None)


def _mark(name: object, value: object, field: str) -> bool | None:
    plain = re.sub(r"[\W_]+", "", str(name)).lower()
    if value in (None, "", [], {}):
        return None
    if plain in _LEARNT | _NOT_LEARNT:
        if not isinstance(value, int | float) or value not in (0, 1):
            raise RowError(field, f"expected 0 or 1, found {short_repr(value)}; {_WRITE_WEIGHT}")
        return bool(value) == (plain in _LEARNT)
    numbers = value if isinstance(value, list) else [value]
    if _MARK.search(str(name)) and all(isinstance(each, int | float | list) for each in numbers):
        raise RowError(field, f"may say what is learnt, and trainers read it differently; {_WRITE_WEIGHT}")
    return None


def is_context(mark: tuple[str, bool] | None, role: str, field: str, changes: Counter[str]) -> bool:
    """Whether the message is a reply that is not learnt.

    Raises:
        RowError: another message than a reply is marked as learnt.
    """
    if mark is None or (role == "assistant") == mark[1]:
        return False
    if mark[1]:
        raise RowError(
            f"{field}.{mark[0]}", f"says that a {role} message is learnt; only the assistant's are: remove the field"
        )
    changes[f"replies that {mark[0]!r} marks as not to be learnt"] += 1
    return True


# Tool calls -----------------------------------------------------------------------------------------------------------


def _calls(raw: JsonObject, field: str, changes: Counter[str]) -> list[ToolCall]:
    calls = raw.get("tool_calls") or []
    if raw.get("function_call"):
        if calls:
            raise RowError(f"{field}.function_call", "both function_call and tool_calls are given; keep one of them")
        calls = [raw["function_call"]]
    if not isinstance(calls, list):
        raise RowError(f"{field}.tool_calls", f"expected a list of calls, found {short_repr(calls)}")
    return [_call(call, f"{field}.tool_calls.{number}", changes) for number, call in enumerate(calls)]


def _calls_in_text(content: object, field: str, changes: Counter[str]) -> list[ToolCall]:
    # The text of ShareGPT's `function_call` message is one call or a list of calls.
    try:
        calls = json.loads(content) if isinstance(content, str) else content
    except (ValueError, RecursionError):
        raise RowError(field, f"expected a call as JSON, found {short_repr(content)}") from None
    return [_call(call, field, changes) for call in (calls if isinstance(calls, list) else [calls])]


def _call(raw: Any, field: str, changes: Counter[str]) -> ToolCall:
    function = raw.get("function", raw) if isinstance(raw, dict) else raw
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        raise RowError(field, f"expected a call that names a function, found {short_repr(raw)}")
    arguments = _arguments(raw, function, field, changes)
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    call_id = raw.get("id")
    return ToolCall(
        id=read_text(call_id, f"{field}.id", changes) if call_id is not None else "",
        function=FunctionCall(
            name=read_text(name, f"{field}.name", changes),
            arguments=read_text(arguments, f"{field}.arguments", changes),
        ),
    )


def _arguments(raw: JsonObject, function: JsonObject, field: str, changes: Counter[str]) -> object:
    here = [key for key in _ARGUMENTS if key in function]
    filled = [key for key in here if function[key]]
    if len(filled) > 1:
        raise RowError(field, f"{' and '.join(filled)} could both be the arguments; keep one of them")
    known = _CALL_READ if function is raw else _CALL_READ - set(_ARGUMENTS)
    left_out = [key for key in raw if key not in known and raw[key]]
    left_out += [key for key in function if function is not raw and key not in _CALL_READ and function[key]]
    if left_out and not here:
        names = ", ".join(map(short_repr, left_out))
        raise RowError(field, f"expected the arguments as one of {', '.join(_ARGUMENTS)}, found only {names}")
    for key in left_out:
        changes[f"field {key!r} of a call left out"] += 1
    return function[(filled or here)[0]] if here else None


def read_tools(value: object, field: str, changes: Counter[str]) -> str | None:
    """The text of a JSON list, each schema in OpenAI's wrapping; None if there are none.

    Raises:
        RowError: the value is neither a list of objects nor the JSON text of one.
    """
    try:
        tools = json.loads(value) if isinstance(value, str) and value.strip() else value
    except (ValueError, RecursionError):
        raise RowError(field, f"expected a JSON list of tools, found {short_repr(value)}") from None
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RowError(field, f"expected a list of tools, found {short_repr(value)}")
    if not isinstance(value, str):
        tools = plain_schemas(tools, changes)  # a text went through no table
    wrapped = [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools]
    return read_text(json.dumps(wrapped, ensure_ascii=False), field, changes)


def tools_of(row: JsonObject, changes: Counter[str]) -> str | None:
    """Raises RowError: the column cannot be read, or there are two that differ."""
    found = {name: tools for name in TOOL_COLUMNS if (tools := read_tools(row.get(name), name, changes)) is not None}
    if len(set(found.values())) > 1:
        raise RowError("functions", "differ from tools; keep one of them")
    return next(iter(found.values()), None)


# Whole conversations --------------------------------------------------------------------------------------------------


def normalize_tool_call_ids(conversation: Sequence[Message], field: str, *, num_prompt: int = 0) -> list[Message]:
    """Number the tool calls from 1. A result without an id answers the oldest open call of the reply before it.

    Args:
        field: the name of the conversation in error messages.
        num_prompt: the first `num_prompt` messages are called `prompt` in error messages.
    Raises:
        RowError: a system message is not the first message, or a tool result answers no call.
    """
    numbered: list[Message] = []
    open_calls: list[tuple[str, str]] = []
    count = 0
    for number, message in enumerate(conversation):
        where = f"prompt.{number}" if number < num_prompt else f"{field}.{number - num_prompt}"
        if message.role == "system" and number > 0:
            raise RowError(where, "a system message that is not the first; put it first")
        if message.tool_calls:
            open_calls = [(call.id, numbered_id(index)) for index, call in enumerate(message.tool_calls, count + 1)]
            new_ids = zip(message.tool_calls, open_calls, strict=True)
            calls = tuple(call.model_copy(update={"id": new}) for call, (_, new) in new_ids)
            message = message.model_copy(update={"tool_calls": calls})
            count += len(calls)
        elif message.role == "tool":
            asked = message.tool_call_id
            answered = next((pair for pair in open_calls if asked in (None, pair[0]) or not pair[0]), None)
            if answered is None:
                raise RowError(where, "a tool's result that answers no call; put it after its call, or leave it out")
            open_calls.remove(answered)
            message = message.model_copy(update={"tool_call_id": answered[1]})
        numbered.append(message)
    return numbered


def without_tools(conversation: Sequence[Message], changes: Counter[str]) -> list[Message]:
    """Remove calls and results; join replies that then follow each other, with a blank line between them."""
    kept: list[Message] = []
    for message in conversation:
        changes["tool calls dropped, on both sides"] += len(message.tool_calls)
        changes["tool results dropped, on both sides"] += message.role == "tool"
        bare = message.model_copy(update={"tool_calls": ()})
        if message.role == "tool" or (message.tool_calls and not message.content.strip()):
            continue
        if kept and bare.role == kept[-1].role == "assistant":
            changes["replies joined, with only dropped tools between them"] += 1
            bare = bare.model_copy(update={"content": f"{kept.pop().content}\n\n{bare.content}"})
        kept.append(bare)
    return kept

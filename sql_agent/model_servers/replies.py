"""Reads what a model server answered to a chat completion, and gives it the form that OpenAI defines. Pure.

Servers differ in that form: arguments are objects, content comes in parts, a call has no type, counts are null. What
has a meaning is read; anything else is a `ReplyError`, which costs one rollout at most.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from typing import Any

from agentgrpo.chat.calls import arguments_of
from agentgrpo.json_text import JsonObject, parse_json

Json = dict[str, Any]

# Other servers' words for the finish reason `length`.
FULL = ("max_tokens", "MAX_TOKENS", "model_length")
# Finish reasons of a reply that the server did not finish: vLLM's for a request that was ended from outside, and that
# of routers for a provider that failed.
SERVERS_FAULT = ("abort", "error")
# Fields of a message that are texts beside its content.
TEXTS = ("refusal", "reasoning_content", "reasoning")
SHOWN_CHARS = 200
# An escape of half a surrogate pair, most often of a whole pair.
_HALF = re.compile(rb"\\ud[89a-f]", re.IGNORECASE)


class ReplyError(ValueError):
    """The message says why a server's answer holds no reply that can be read."""


def read_reply(body: str | bytes, taken: Collection[str] = ()) -> Json:
    """A chat completion with one choice.

    Its content is a text or null; each call has an id, the type `function`, a name, and arguments as a text; the old
    `function_call` is a call. `usage` has all three counts, or is null. Other fields are kept.

    Args:
        body: the answer of status 200.
        taken: ids of the conversation's earlier calls. A call without an id, or with one of these, gets an id of its
        own: clients take a call whose id they have seen for one that has run.
    Raises:
        ReplyError: the answer holds no reply, or a part of it has no meaning.
    """
    try:
        answer = parse_json(body)
    except ValueError as error:
        raise ReplyError(f"it is no JSON ({error}): {_shown(body)}") from None
    if _HALF.search(body if isinstance(body, bytes) else body.encode("utf-8", "replace")):
        answer = _whole_characters(answer)
    choices = answer.get("choices") if isinstance(answer, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    said = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(said, dict):
        raise ReplyError(f"it is no chat completion: {_shown(body)}; is the base URL the server's address up to /v1?")
    end = _end(choice)
    return {
        **answer,
        "id": str(answer.get("id") or ""),
        "object": "chat.completion",
        "created": _count(answer.get("created")) or 0,
        "model": str(answer.get("model") or ""),
        "choices": [{**choice, "index": 0, "finish_reason": end, "message": _message(said, taken)}],
        "usage": _usage(answer.get("usage")),
    }


def call_ids(messages: object) -> set[str]:
    # Another program may have written the conversation.
    said = [message for message in messages if isinstance(message, dict)] if isinstance(messages, list) else []
    calls = [message.get("tool_calls") for message in said]
    return {
        str(call.get("id"))
        for of_message in calls
        if isinstance(of_message, list)
        for call in of_message
        if isinstance(call, dict)
    }


def _end(choice: JsonObject) -> str | None:
    end, error = choice.get("finish_reason"), choice.get("error")
    if error or end in SERVERS_FAULT:
        why = f": {_shown(json.dumps(error))}" if error else ""
        raise ReplyError(f"the model server aborted its reply (finish_reason {end}){why}; look at its log")
    if end in FULL:
        return "length"
    return end if isinstance(end, str) else None


def _message(said: Json, taken: Collection[str]) -> Json:
    content, parts = said.get("content"), {}
    if isinstance(content, dict) and "type" in content:
        content = [content]
    if isinstance(content, list):
        content, parts = _joined(content)
    content = _as_text(content)  # a server in JSON mode may answer with the value
    rest = {name: value for name, value in said.items() if name not in ("tool_calls", "function_call")}
    rest |= {name: _as_text(rest[name]) for name in TEXTS if name in rest}
    calls = _with_ids(_calls(said), taken)
    return {**rest, **parts, "role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}


def _as_text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _joined(parts: list[Any]) -> tuple[str, Json]:
    """The text of a content in parts, and the message's fields that its other parts are."""
    text, fields = "", {}
    for place, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, str):
            text += part
        elif kind in ("thinking", "reasoning"):
            fields["reasoning_content"] = fields.get("reasoning_content", "") + _thought(part)
        elif kind == "refusal":
            fields["refusal"] = str(part.get("refusal") or "")
        elif isinstance(part, dict) and isinstance(part.get("text", 0), str | None):
            text += part["text"] or ""
        else:
            raise ReplyError(f"content[{place}] is no text: {_shown(json.dumps(part))}")
    return text, fields


def _thought(part: JsonObject) -> str:
    said = part.get("thinking", part.get("text"))
    return _joined(said)[0] if isinstance(said, list) else str(said or "")


def _calls(said: Json) -> list[Json]:
    calls, old = said.get("tool_calls"), said.get("function_call")
    if isinstance(calls, dict):
        calls = [calls]
    if not calls and isinstance(old, dict) and any(old.values()):  # some servers always write an empty one
        calls = [{"function": old}]
    if calls and not isinstance(calls, list):
        raise ReplyError(f"its tool_calls are no list: {_shown(json.dumps(calls))}")
    return [_call(call, f"tool_calls[{place}]") for place, call in enumerate(calls or [])]


def _call(call: object, where: str) -> Json:
    """A tool of another kind becomes a function, of which the rollout says that it is unknown.

    Raises:
        ReplyError: the call names no function.
    """
    written = call if isinstance(call, dict) else {}
    function = next((f for f in (written.get("function"), written.get("custom")) if isinstance(f, dict)), written)
    if not isinstance(function.get("name"), str):
        raise ReplyError(f"{where} names no function: {_shown(json.dumps(call))}")
    arguments = next((function[n] for n in ("arguments", "input", "parameters") if function.get(n) is not None), {})
    own = {"id", "index", "type", "function", "custom", *(function if function is written else ())}
    rest = {name: value for name, value in written.items() if name not in own}
    named = {"name": function["name"], "arguments": arguments_of(arguments)}
    return {"id": str(written.get("id", "") or ""), "type": "function", "function": named, **rest}


def _with_ids(calls: list[Json], taken: Collection[str]) -> list[Json]:
    used = set(taken)
    for place, call in enumerate(calls):
        if not call["id"] or call["id"] in used:
            # nine letters and digits, which is what Mistral's templates ask for
            call["id"] = hashlib.sha256(json.dumps([place, sorted(used)]).encode()).hexdigest()[:9]
        used.add(call["id"])
    return calls


def _usage(said: object) -> Json | None:
    # A count that is unknown is not 0.
    if not isinstance(said, dict):
        return None
    prompt, completion = (_count(said.get(name)) for name in ("prompt_tokens", "completion_tokens"))
    if prompt is None or completion is None:
        return None
    details = {name: value for name, value in said.items() if isinstance(value, dict)}
    return {**details, "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _count(value: Any) -> int | None:
    whole = not isinstance(value, bool) and isinstance(value, int | float) and value >= 0 and value == value // 1
    return int(value) if whole else None


def _whole_characters(value: Any) -> Any:
    # UTF-8 cannot encode half of a surrogate pair.
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_whole_characters(each) for each in value]
    if isinstance(value, dict):
        return {_whole_characters(name): _whole_characters(each) for name, each in value.items()}
    return value


def _shown(body: str | bytes) -> str:
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."

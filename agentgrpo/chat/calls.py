"""Tools and calls in chat-completions form, and the repair of arguments that went through a table.

Data libraries give every struct of a column the fields of all rows, so that a call of one tool has the parameters of
the others too, as nulls; and a text of JSON that is encoded once more is a text in quotes. A policy would learn to
write both. Rollouts of a policy are not mended, because what it wrote is what is scored.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from agentgrpo.chat.messages import Message, ToolCall
from agentgrpo.json_text import MAX_DEPTH, JsonObject, depth, parse_json, structure


def tool(name: str, description: str, arguments: Mapping[str, str | JsonObject]) -> dict[str, Any]:
    """In chat-completions form.

    Args:
        arguments: what each is, by name: a text's description, or a schema; all are needed.
    """
    properties = {
        argument: about if isinstance(about, dict) else {"type": "string", "description": about}
        for argument, about in arguments.items()
    }
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(arguments),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def numbered_id(number: int) -> str:
    # Mistral's chat templates are the strictest: they require nine letters and digits
    return f"call{number:05}"


def call(name: str, arguments: str | JsonObject, call_id: str = numbered_id(0)) -> dict[str, object]:
    """Arguments that are a text are used unchanged."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def arguments_of(written: object) -> str:
    """What a policy wrote as the arguments of a call, as a text; `{}` if its brackets are nested too deep.

    openai-agents, chat templates and servers parse it in their turn, and each fails at another depth, with an error
    that would look like one of the machine's. Without its arguments the call is malformed for all of them.
    """
    try:
        text = written if isinstance(written, str) else json.dumps(written, ensure_ascii=False)
    except RecursionError:
        return "{}"
    return "{}" if depth(structure(text.encode("utf-8", "replace"))) > MAX_DEPTH else text


def calls(*tool_calls: JsonObject) -> dict[str, object]:
    return {"role": "assistant", "content": None, "tool_calls": list(tool_calls)}


def repair_tool_calls(messages: Sequence[Message], tools: str | None, changes: Counter[str]) -> list[Message]:
    """Undo what a table did to arguments: a null goes unless the tool's schema allows it or requires its parameter.

    Args:
        tools: the schemas as JSON in a text (`agentgrpo.chat.conversations.read_tools`), or None.
    """
    functions = [tool["function"] for tool in json.loads(tools or "[]") if isinstance(tool.get("function"), dict)]
    schemas = {function.get("name"): function.get("parameters") for function in functions}
    mended = []
    for message in messages:
        kept = tuple(_mended(each, schemas.get(each.function.name), changes) for each in message.tool_calls)
        mended.append(message.model_copy(update={"tool_calls": kept}))
    return mended


def _mended(asked: ToolCall, schema: object, changes: Counter[str]) -> ToolCall:
    given, times = _decoded(asked.function.arguments)
    if not isinstance(given, dict):
        return asked
    left_out: Counter[str] = Counter()
    arguments = _without_nulls(given, schema, left_out)
    if times > 1:
        changes["arguments of calls that were encoded twice, decoded"] += 1
    for name, count in left_out.items():
        changes[f"null as argument {name!r} of a call left out"] += count
    if times < 2 and not left_out:
        return asked
    text = json.dumps(arguments, ensure_ascii=False)
    return asked.model_copy(update={"function": asked.function.model_copy(update={"arguments": text})})


def _decoded(text: str) -> tuple[object, int]:
    value: Any = text
    for times in range(1, 4):
        try:
            value = parse_json(value)
        except ValueError:
            return None, 0
        if not isinstance(value, str):
            return value, times
    return None, 0


def _without_nulls(value: object, schema: object, left_out: Counter[str]) -> object:
    schema = schema if isinstance(schema, dict) else {}
    if isinstance(value, list):
        return [_without_nulls(each, schema.get("items"), left_out) for each in value]
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties") or {}
    kept = {}
    for name, held in value.items():
        if held is None and not (name in (schema.get("required") or ()) or _allows_null(properties.get(name))):
            left_out[name] += 1
        else:
            kept[name] = _without_nulls(held, properties.get(name), left_out)
    return kept


def plain_schemas(value: Any, changes: Counter[str]) -> Any:
    # A null in a schema comes from a table; only the default or constant of what may be null is one in earnest.
    if isinstance(value, list):
        return [plain_schemas(each, changes) for each in value]
    if not isinstance(value, dict):
        return value
    own = {"default", "const"} if _allows_null(value) else set()
    kept = {name: plain_schemas(held, changes) for name, held in value.items() if held is not None or name in own}
    if len(kept) < len(value):
        changes["nulls in the schemas of tools left out"] += len(value) - len(kept)
    return kept


def _allows_null(schema: object) -> bool:
    if not isinstance(schema, dict):
        return False
    kinds = schema.get("type")
    choices = [*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())]
    return (
        kinds == "null"
        or (isinstance(kinds, list) and "null" in kinds)
        or bool(schema.get("nullable"))
        or None in (schema.get("enum") or ())
        or any(map(_allows_null, choices))
    )

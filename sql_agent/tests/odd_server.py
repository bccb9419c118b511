"""A model server on loopback whose answers have the manners of real ones, to play with and to read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from sql_agent import oracle

ARGUMENTS = {"query": "SELECT 'é'"}


def call(**changes: Any) -> dict[str, Any]:
    """A call of execute_sql with these changes; ... leaves a field out, `function` changes the function's fields."""
    function = {"name": "execute_sql", "arguments": json.dumps(ARGUMENTS, ensure_ascii=False)}
    function |= changes.pop("function", {})
    whole = {"id": "a", "type": "function", "function": function} | changes
    whole["function"] = {name: value for name, value in function.items() if value is not ...}
    return {name: value for name, value in whole.items() if value is not ...}


def reply(message: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A chat completion; the changes are of the answer, `choice` those of its choice."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"} | changes.pop(
        "choice", {}
    )
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    } | changes


AS_OBJECT, AS_TEXT = call(function={"arguments": ARGUMENTS}), call()
OLD_CALL = {"name": "execute_sql", "arguments": json.dumps(ARGUMENTS, ensure_ascii=False)}
CALLS: dict[str, dict[str, Any]] = {
    "arguments_as_an_object": {"tool_calls": [AS_OBJECT]},
    "type_missing": {"tool_calls": [call(type=...)]},
    "type_null": {"tool_calls": [call(type=None)]},
    "type_of_another_word": {"tool_calls": [call(type="tool_call")]},
    "id_missing": {"tool_calls": [call(id=...)]},
    "id_null": {"tool_calls": [call(id=None)]},
    "id_a_number": {"tool_calls": [call(id=7)]},
    "an_index": {"tool_calls": [call(index=None)]},
    "one_call_without_a_list": {"tool_calls": AS_TEXT},
    "flat": {"tool_calls": [{"id": "a", "type": "function", **OLD_CALL}]},
    "flat_with_parameters": {"tool_calls": [{"name": "execute_sql", "parameters": ARGUMENTS}]},
    "function_call": {"function_call": OLD_CALL},
    "function_call_and_no_tool_calls": {"function_call": OLD_CALL, "tool_calls": None},
    "function_call_beside_tool_calls": {"function_call": OLD_CALL, "tool_calls": [AS_TEXT]},
    "empty_function_call": {"function_call": {"name": "", "arguments": ""}, "tool_calls": [AS_TEXT]},
    "content_in_parts": {"content": [{"type": "text", "text": "I look."}], "tool_calls": [AS_TEXT]},
    "role_missing": {"role": None, "tool_calls": [AS_TEXT]},
}
"""Messages that all make the same call."""
CONTENTS: dict[str, tuple[Any, str | None]] = {
    "text": ("4", "4"),
    "null": (None, None),
    "parts": ([{"type": "text", "text": "4"}, {"type": "output_text", "text": "2"}], "42"),
    "texts": (["4", "2"], "42"),
    "a_part_without_text": ([{"type": "text", "text": None}], ""),
    "no_parts": ([], ""),
    "one_part": ({"type": "text", "text": "4"}, "4"),
    "thinking_first": ([{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"text": "4"}], "4"),
    "a_number": (4, "4"),
    "an_object": ({"score": 0.5}, '{"score": 0.5}'),
    "half_a_surrogate_pair": ("cut \ud83d", "cut \ufffd"),
}
"""Contents of servers, and the text that each of them is."""
USAGES: dict[str, Any] = {
    "nulls": {"prompt_tokens": None, "completion_tokens": None, "total_tokens": None},
    "total_alone": {"total_tokens": 15},
    "null": None,
    "a_list": [],
    "texts": {"prompt_tokens": "10", "completion_tokens": "5"},
    "negative": {"prompt_tokens": -1, "completion_tokens": 5},
}
"""Usages whose counts are not known."""
UNREADABLE: dict[str, Any] = {
    "no_json": b"<html>busy</html>",
    "no_utf8": b'{"choices": "\xff"}',
    "nested_deep": b"[" * 100_000,
    "a_list": [],
    "null": None,
    "no_choices": reply({}, choices=[]),
    "choices_null": reply({}, choices=None),
    "an_error": {"error": {"message": "Provider returned error", "code": 502}},
    "choice_null": reply({}, choices=[None]),
    "message_null": reply({}, choice={"message": None}),
    "message_a_text": reply({}, choice={"message": "4"}),
    "a_picture": reply({"content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
    "a_part_that_is_a_number": reply({"content": [4]}),
    "calls_as_a_text": reply({"tool_calls": "execute_sql"}),
    "a_call_that_is_a_text": reply({"tool_calls": ["execute_sql"]}),
    "a_call_without_a_name": reply({"tool_calls": [call(function={"name": ...})]}),
    "a_name_that_is_null": reply({"tool_calls": [call(function={"name": None})]}),
    "function_null": reply({"tool_calls": [call() | {"function": None}]}),
    "aborted": reply({"content": "SEL"}, choice={"finish_reason": "abort"}),
    "provider_failed": reply({"content": ""}, choice={"finish_reason": "error", "error": {"message": "overloaded"}}),
}
"""Answers of status 200 that hold no reply."""


@contextmanager
def serving(answer: Callable[[dict[str, Any]], Any], models: Any = None):
    """Serve `answer`, which maps a request to a body or to a status and a body; yields the base URL.

    Args:
        models: what `/models` answers; a number: the status that it answers.
    """

    def response(said: Any) -> Response:
        status, body = said if isinstance(said, tuple) else (200, said)
        return Response(body if isinstance(body, bytes) else json.dumps(body), status, media_type="application/json")

    async def complete(request):
        return response(answer(await request.json()))

    async def listed(_request):
        if isinstance(models, int):
            return response((models, {"error": {"message": "no such route"}}))
        return response({"object": "list", "data": [{"id": "m"}]} if models is None else models)

    routes = [Route("/v1/chat/completions", complete, methods=["POST"]), Route("/v1/models", listed)]
    with oracle.serve(Starlette(routes=routes)) as url:
        yield url


@contextmanager
def dripping(models: bool = False):
    """Serve an answer that never ends: a blank every 20 ms, which JSON may begin with; yields the base URL.

    Args:
        models: whether the list of models is such an answer too.
    """

    async def blanks():
        while True:
            yield b" "
            await asyncio.sleep(0.02)

    async def drip(_request):
        return StreamingResponse(blanks(), media_type="application/json")

    async def listed(request):
        return await drip(request) if models else Response('{"data": [{"id": "m"}]}')

    routes = [Route("/v1/chat/completions", drip, methods=["POST"]), Route("/v1/models", listed)]
    with oracle.serve(Starlette(routes=routes)) as url:
        yield url


def refusal(words: str, status: int = 400) -> tuple[int, dict[str, Any]]:
    return status, {"error": {"message": words, "type": "invalid_request_error"}}


def wrapped(inner: Any, **beside: Any) -> dict[str, Any]:
    """An error as a router passes it on, in which that of the server behind it is a text."""
    raw = inner if isinstance(inner, str) else json.dumps(inner)
    metadata = {"raw": raw, "provider_name": "DeepInfra", **beside}
    return {"error": {"message": "Provider returned error", "code": 400, "metadata": metadata}}

"""Translates OpenAI's Responses API to chat completions and back, by the converters of openai-agents.

The policy is asked by chat completions alone, so both APIs are traced and trained alike. It leaves out what a server
would have to keep or run: earlier responses, conversations, stored prompts, background calls and hosted tools.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from agents.exceptions import UserError
from agents.models.chatcmpl_converter import Converter
from agents.models.chatcmpl_stream_handler import ChatCmplStreamHandler
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseCompletedEvent, ResponseIncompleteEvent, ResponseUsage
from openai.types.responses.response import IncompleteDetails
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

from agentgrpo.json_text import parse_json

KEPT_ELSEWHERE = ("previous_response_id", "conversation", "prompt", "background")
# Fields that both APIs call the same.
_SAME = ("model", "parallel_tool_calls", "temperature", "top_p", "stream", "user")


def chat_request(request: dict[str, Any]) -> dict[str, Any]:
    """The chat completion that asks the same.

    Raises:
        ValueError: it needs what only OpenAI's servers keep or run.
    """
    if kept := [name for name in KEPT_ELSEWHERE if request.get(name)]:
        raise ValueError(f"{kept[0]} names what no server here keeps; send the whole conversation as `input`")
    try:
        messages = Converter.items_to_messages(request.get("input") or [])
    except (UserError, LookupError) as error:
        raise ValueError(f"input: {error}") from None
    if request.get("instructions"):
        messages = [{"role": "system", "content": request["instructions"]}, *messages]
    chosen = request.get("tool_choice")
    return (
        {name: request[name] for name in _SAME if request.get(name) is not None}
        | {"messages": messages, "tools": [_tool(tool) for tool in request.get("tools") or ()]}
        | ({"tool_choice": chosen} if isinstance(chosen, str) else {})
        | ({"max_tokens": limit} if (limit := request.get("max_output_tokens")) else {})
    )


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise ValueError(f"a tool of the type {tool.get('type')!r} runs on OpenAI's servers; expected function tools")
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def response_of(request: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """
    Args:
        request: the call.
        answer: the chat completion that answered it.
    """
    completion = ChatCompletion.model_validate(answer)
    choice, usage = completion.choices[0], completion.usage
    response = _begun(request, completion.id)
    response.output = Converter.message_to_output_items(choice.message)
    _end(response, answer)
    if usage is not None:
        response.usage = ResponseUsage(
            input_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            total_tokens=usage.total_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=0, cache_write_tokens=0),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
        )
    return response.model_dump(mode="json")


def _end(response: Response, answer: dict[str, Any]) -> None:
    response.status = "completed"
    if answer["choices"][0].get("finish_reason") == "length":
        response.status, response.incomplete_details = "incomplete", IncompleteDetails(reason="max_output_tokens")


def _begun(request: dict[str, Any], completion_id: str) -> Response:
    return Response(
        id=f"resp_{completion_id}",
        created_at=time.time(),
        model=str(request.get("model", "")),
        object="response",
        output=[],
        tool_choice="auto",
        tools=request.get("tools") or [],
        parallel_tool_calls=bool(request.get("parallel_tool_calls", True)),
        status="in_progress",
    )


async def events_of(request: dict[str, Any], answer: dict[str, Any], chunks: AsyncIterator[str]) -> AsyncIterator[str]:
    """
    Args:
        chunks: the answer as a stream of chat completion chunks, each as a server-sent event.
    """
    begun = _begun(request, str(answer.get("id", "")))

    async def parsed() -> AsyncIterator[ChatCompletionChunk]:
        async for chunk in chunks:
            data = chunk.removeprefix("data: ").strip()
            if data != "[DONE]":
                yield ChatCompletionChunk.model_validate(parse_json(data))

    stream: Any = parsed()  # the handler only iterates over it
    async for event in ChatCmplStreamHandler.handle_stream(begun, stream):
        if isinstance(event, ResponseCompletedEvent):
            _end(event.response, answer)
            if event.response.status == "incomplete":
                number = event.sequence_number
                event = ResponseIncompleteEvent(
                    response=event.response, sequence_number=number, type="response.incomplete"
                )
        yield f"event: {event.type}\ndata: {event.model_dump_json()}\n\n"

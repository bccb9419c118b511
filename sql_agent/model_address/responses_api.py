"""Translates OpenAI's Responses API to chat completions and back, by the converters of openai-agents.

The policy is asked by chat completions alone, so both APIs are traced and trained alike. It leaves out what a server
would have to keep or run: earlier responses, conversations, stored prompts, background calls and hosted tools.
"""

from __future__ import annotations

import json
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
from sql_agent.model_address.call_log import stream_of

KEPT_ELSEWHERE = ("previous_response_id", "conversation", "prompt", "background")
_FINISHES = ("stop", "length", "tool_calls", "content_filter", "function_call")
# Fields that both APIs call the same.
_SAME = ("model", "parallel_tool_calls", "temperature", "top_p", "stream", "user")


def chat_request(request: dict[str, Any]) -> dict[str, Any]:
    """The chat completion that asks the same.

    Raises:
        ValueError: it needs what only OpenAI's servers keep or run.
    """
    if kept := [name for name in KEPT_ELSEWHERE if request.get(name)]:
        raise ValueError(f"{kept[0]} names what no server here keeps; send the whole conversation as `input`")
    items: Any = request.get("input") or []
    try:
        items = items if isinstance(items, str) else [_item(item) for item in items]
        messages = Converter.items_to_messages(items)
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


def _item(item: dict[str, Any]) -> dict[str, Any]:
    # The converter takes a reply's parts only in an item with an id, and OpenAI's guide writes them without.
    if item.get("role") == "assistant" and isinstance(item.get("content"), list):
        return {"type": "message", "id": "", **item}
    return item


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
    completion = ChatCompletion.model_validate(_with_known_finish(answer))
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
    return _with_ids(response.model_dump(mode="json"))


def _with_known_finish(answer: dict[str, Any]) -> dict[str, Any]:
    # A server may have other words for how a reply ended, which the client's types refuse.
    (choice, *_) = answer["choices"]
    reason = choice.get("finish_reason")
    return answer | {"choices": [choice | {"finish_reason": reason if reason in _FINISHES else "stop"}]}


def _with_ids(response: dict[str, Any]) -> dict[str, Any]:
    # The converter gives all items one id, by which LangChain would join them.
    for place, item in enumerate(response["output"]):
        item["id"] = _item_id(response["id"], place)
    return response


def _item_id(response_id: str, place: int) -> str:
    return f"{response_id}_{place}"


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
        tools=[],
        parallel_tool_calls=bool(request.get("parallel_tool_calls", True)),
        status="in_progress",
    )


async def events_of(request: dict[str, Any], answer: dict[str, Any]) -> AsyncIterator[str]:
    """The events of the Responses API, each as a server-sent event; the whole reply is in one delta."""
    begun = _begun(request, str(answer.get("id", "")))

    async def chunks() -> AsyncIterator[ChatCompletionChunk]:
        async for chunk in stream_of(_with_known_finish(answer), usage=True):
            if (data := chunk.removeprefix("data: ").strip()) != "[DONE]":
                yield ChatCompletionChunk.model_validate(parse_json(data))

    stream: Any = chunks()  # the handler only iterates over it
    async for event in ChatCmplStreamHandler.handle_stream(begun, stream):
        if isinstance(event, ResponseCompletedEvent):
            _end(event.response, answer)
            if event.response.status == "incomplete":
                number = event.sequence_number
                event = ResponseIncompleteEvent(
                    response=event.response, sequence_number=number, type="response.incomplete"
                )
        said = event.model_dump(mode="json")
        if "output_index" in said:
            id = _item_id(begun.id, said["output_index"])
            said |= {"item_id": id} if "item_id" in said else {"item": said["item"] | {"id": id}}
        if "response" in said:
            said["response"] = _with_ids(said["response"])
        yield f"event: {event.type}\ndata: {json.dumps(said)}\n\n"

"""The one way to a server of chat completions, for rollouts, the optimiser of APO (both with `ChatClient`) and the LLM
proxy. Retries after a failure are the clients' own.

An assistant's message is sent back with the fields that OpenAI's requests have, and with the reasoning that the server
wrote itself, because some chat templates and servers need it in the turns after a tool call. A server that refuses one
of these is asked once more without it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from openai import APIStatusError

from sql_agent.model_servers.refusals import (
    CONTEXT_FULL,
    REFUSED,
    UNREAD_CALL,
    error_text,
    is_overflow,
    is_too_large,
    is_unread_call,
    true_status,
)
from sql_agent.model_servers.replies import Json, ReplyError, call_ids, read_reply

MESSAGE_FIELDS = ("role", "content", "name", "tool_calls", "function_call", "refusal", "audio")
REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")
OPTIONAL_FIELDS = (*REASONING_FIELDS, "refusal", "name")
CALL_FIELDS = ("id", "type", "function")
# What Gemini's servers write beside a call, its thought's signature, and want back.
CALL_EXTRA = "extra_content"
# Stands among the refused fields for the content of messages with calls. Servers of Mistral's models refuse both in one
# message.
CONTENT_BESIDE_CALLS = "content beside tool_calls"
_NOT_BOTH = re.compile(
    r"content\b.{0,40}\btool_?\s?calls?\b.{0,40}\b(both|together|same time|at once)"
    r"|\bboth\b.{0,40}\bcontent\b.{0,20}\btool_?\s?calls?\b|\bboth\b.{0,40}\btool_?\s?calls?\b.{0,20}\bcontent\b",
    re.IGNORECASE | re.DOTALL,
)


def sendable(messages: Sequence[object], refused: frozenset[str] = frozenset()) -> list[object]:
    """Messages of the assistant have only fields that a server may know.

    Args:
        refused: fields that the server does not take; a refused `content` is an empty text instead of null, and
        `CONTENT_BESIDE_CALLS` leaves the content of a message with calls out.
    """
    return [
        _returned(message, refused) if isinstance(message, dict) and message.get("role") == "assistant" else message
        for message in messages
    ]


def refused_fields(words: str, messages: Sequence[object], refused: frozenset[str]) -> frozenset[str]:
    """Fields without which a refused conversation is to be sent once more; none if nothing can be left out.

    Args:
        words: the server's answer. Of the fields that may be left out it names some; if none, all of them are.
        refused: fields that were left out already.
    """
    sent = [m for m in sendable(messages, refused) if isinstance(m, dict) and m.get("role") == "assistant"]
    if _NOT_BOTH.search(words) and any("content" in m and "tool_calls" in m for m in sent):
        return frozenset({CONTENT_BESIDE_CALLS} - refused)
    there = {name for message in sent for name in OPTIONAL_FIELDS if name in message}
    there |= {"content" for message in sent if message.get("content", "") is None}
    there |= {CALL_EXTRA for message in sent for call in message.get("tool_calls", ()) if CALL_EXTRA in call}
    named = {name for name in there if re.search(rf"(?<!\w){name}(?!\w)", words)}
    return frozenset(named or there)


def _returned(message: Json, refused: frozenset[str]) -> Json:
    fields = [name for name in (*MESSAGE_FIELDS, *REASONING_FIELDS) if name not in refused - {"content"}]
    kept = {name: value for name, value in message.items() if name in fields and value not in (None, [])}
    if isinstance(calls := kept.get("tool_calls"), list):
        of_call = CALL_FIELDS if CALL_EXTRA in refused else (*CALL_FIELDS, CALL_EXTRA)
        kept["tool_calls"] = [
            {name: value for name, value in call.items() if name in of_call} if isinstance(call, dict) else call
            for call in calls
        ]
    if "tool_calls" in kept and CONTENT_BESIDE_CALLS in refused:
        return {name: value for name, value in kept.items() if name != "content"}
    nothing = "" if "content" in refused or "tool_calls" not in kept else None
    return {"role": "assistant", "content": nothing, **kept}


# Sends a request and returns the status and the body of the answer.
Send = Callable[[Json], Awaitable[tuple[int, bytes]]]


class ChatServers:
    def __init__(self) -> None:
        self._refused: dict[str, frozenset[str]] = {}

    async def ask(self, server: str, request: Json, send: Send) -> tuple[int, Json | bytes]:
        """Ask once more, after a refusal of a conversation, without what the server does not take.

        Args:
            server: what servers are told apart by.
        Returns:
            200 and the reply as `read_reply` has it; 502 and an error if it cannot be read; 400 and an error with
            OpenAI's code `context_length_exceeded` if the context is full, or with `unreadable_tool_call` if the server
            could not parse a call that the model wrote; else the server's own status and body. Of a refusal that came
            under 200, the status that it names, and an error with code `refused`.
        """
        messages = request.get("messages")
        if not isinstance(messages, list):
            return await send(request)
        refused = self._refused.get(server, frozenset())
        while True:
            answered, body = await send({**request, "messages": sendable(messages, refused)})
            status = true_status(answered, body)
            if status in REFUSED and is_too_large(body):
                return status, body
            words = "" if status == 200 else error_text(body)
            if code := _code_of(status, words):
                return 400, error_of(words, code)
            more = refused_fields(words, messages, refused) if status in REFUSED else None
            if not more:
                break
            refused |= more
        if status != 200:
            return status, body if status == answered else error_of(words, "refused")
        self._refused[server] = refused  # what helped; a refusal may have had another cause
        try:
            return 200, read_reply(body, call_ids(messages))
        except ReplyError as error:
            return 502, error_of(f"the reply of the model server cannot be read: {error}", "unreadable_reply")


def _code_of(status: int, words: str) -> str | None:
    """Code of a failure that the model's own words caused; None for any other answer."""
    if is_unread_call(status, words):  # first, because its words may hold those of the model
        return UNREAD_CALL
    return CONTEXT_FULL if is_overflow(status, words) else None


def error_of(message: str, code: str) -> Json:
    return {"error": {"message": message, "type": "model_server", "code": code}}


def failure_text(failure: Exception, *, hide: str = "") -> str:
    """The failure, of a refusal in one line with the texts of the server's answer.

    Args:
        hide: a secret that the server may repeat.
    """
    words = str(failure)
    if isinstance(failure, APIStatusError):  # its own words are one sentence of the server at most
        content = b""
        with suppress(RuntimeError):  # a streamed answer that nobody has read
            content = failure.response.content
        said = error_text(content.replace(hide.encode(), b"***") if hide else content)
        said = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in said)
        words = f"Error code: {failure.status_code}" + (f" - {said}" if said else "")
    words = words.replace(hide, "***") if hide else words
    return f"{type(failure).__name__}: {words}"

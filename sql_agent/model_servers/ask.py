"""The one way to a server of chat completions, for rollouts, the optimiser of APO (both with `ChatClient`) and the LLM
proxy. Retries after a failure are the clients' own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx2
from openai import APIStatusError, DefaultAsyncHttpxClient

from sql_agent.model_servers.histories import refused_fields, sendable
from sql_agent.model_servers.refusals import (
    CONTEXT_FULL,
    REFUSED,
    UNREAD_CALL,
    is_overflow,
    is_too_large,
    is_unread_call,
    true_status,
    words_of,
)
from sql_agent.model_servers.replies import ReplyError, call_ids, read_reply
from sql_agent.model_servers.turns import with_turn

Json = dict[str, Any]
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
            words = "" if status == 200 else words_of(body)
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
        said = words_of(content.replace(hide.encode(), b"***") if hide else content)
        said = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in said)
        words = f"Error code: {failure.status_code}" + (f" - {said}" if said else "")
    words = words.replace(hide, "***") if hide else words
    return f"{type(failure).__name__}: {words}"


class ChatClient(DefaultAsyncHttpxClient):
    """The HTTP client of an `AsyncOpenAI`.

    The client's timeout, which it has to send with each request as `AsyncOpenAI` does, is the deadline of a whole call;
    of an `httpx2.Timeout`, the one to read. httpx2's own begins anew with every byte that arrives. Who asks for token
    ids gets them as `turns.TURN`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._servers = ChatServers()

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        limit_s = request.extensions["timeout"]["read"]
        try:
            async with asyncio.timeout(limit_s):
                if request.url.path.endswith("/chat/completions"):
                    return await self._ask(request, **options)
                return await super().send(request, **options)
        except TimeoutError:
            raise httpx2.ReadTimeout(f"no whole answer within {limit_s:g} s", request=request) from None

    async def _ask(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        asked, last = json.loads(request.content), httpx2.Response(502)

        async def send(body: Json) -> tuple[int, bytes]:
            nonlocal last
            last = await super(ChatClient, self).send(_with_body(request, body), **options)
            return last.status_code, await last.aread()

        status, answer = await self._servers.ask(f"{request.url.netloc} {asked['model']}", asked, send)
        if isinstance(answer, bytes):
            return last
        if status == 200 and asked.get("return_token_ids"):
            answer = with_turn(answer)
        content, kind = json.dumps(answer).encode(), {"content-type": "application/json"}
        return httpx2.Response(status, content=content, headers=kind, request=request)


def _with_body(request: httpx2.Request, body: Json) -> httpx2.Request:
    headers = {name: value for name, value in request.headers.items() if name != "content-length"}
    content = json.dumps(body).encode()
    return httpx2.Request(request.method, request.url, headers=headers, content=content, extensions=request.extensions)

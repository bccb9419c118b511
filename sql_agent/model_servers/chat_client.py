"""The HTTP client of rollouts and of the optimiser of APO, which asks a server of chat completions (`ask`)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
from openai import DefaultAsyncHttpxClient

from sql_agent.model_servers.ask import ChatServers
from sql_agent.model_servers.replies import Json
from sql_agent.model_servers.turns import with_turn


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

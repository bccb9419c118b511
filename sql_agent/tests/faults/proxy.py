"""A reverse proxy on loopback that fails as it is told to: it stands before a real server."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import aiohttp
from aiohttp import web

Kind = Literal["500", "lost", "half", "slow", "nothing", "outage"]


@dataclass(eq=False)
class Fault:
    """
    500: the request does not arrive, the answer is a 500. lost: it arrives, and the answer is a 500 all the same.
    half: the answer breaks off in the middle. slow: it arrives late. nothing: no answer, ever. outage: connections are
    closed at once.
    """

    kind: Kind
    requests: int = 1
    """How many requests it hits; an outage hits all."""
    seconds: float = 0.0
    """Of an outage, and of the delay of `slow`."""
    path: str = ""
    """Regular expression that is searched for in the path."""
    after: int = 0
    """Requests of that path that pass before."""
    hits: int = 0
    since: float | None = None
    """When it first hit."""

    @property
    def over(self) -> bool:
        if self.kind == "outage":
            return self.since is not None and time.monotonic() - self.since > self.seconds
        return self.hits >= self.requests

    def takes(self, path: str) -> bool:
        if self.over or not re.search(self.path, path):
            return False
        if self.after > 0:
            self.after -= 1
            return False
        self.since = self.since or time.monotonic()
        self.hits += 1
        return True


class FaultProxy:
    def __init__(self, target: str) -> None:
        self.target, self.url = target.rstrip("/"), ""
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()

    def inject(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def calm(self) -> None:
        with self._lock:
            self._faults.clear()

    def _next(self, path: str) -> Fault | None:
        with self._lock:
            return next((fault for fault in self._faults if fault.takes(path)), None)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body, fault = await request.read(), self._next(request.path)
        kind = fault.kind if fault else None
        if kind == "500":
            return web.json_response({"detail": "injected"}, status=500)
        if kind == "nothing":
            await asyncio.sleep(3600)
        if kind == "outage":
            return _hang_up(request)
        if kind == "slow" and fault:
            await asyncio.sleep(fault.seconds)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        try:
            call = self._session.request(request.method, self.target + request.path_qs, data=body, headers=headers)
            async with call as upstream:
                content, kept = await upstream.read(), dict(upstream.headers)
        except (aiohttp.ClientError, OSError):
            return _hang_up(request)
        if kind == "lost":
            return web.json_response({"detail": "injected"}, status=500)
        answer_type = {"Content-Type": kept.get("Content-Type", "application/json")}
        if kind == "half":
            answer = web.StreamResponse(
                status=upstream.status, headers={**answer_type, "Content-Length": str(len(content))}
            )
            await answer.prepare(request)
            await answer.write(content[: len(content) // 2])
            return _hang_up(request, answer)
        return web.Response(body=content, status=upstream.status, headers=answer_type)

    async def _start(self) -> None:
        self._session = aiohttp.ClientSession(
            auto_decompress=True, connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=120)
        )
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.5, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _stop(self) -> None:
        await self._session.close()
        await self._runner.cleanup()

    @contextmanager
    def serving(self) -> Iterator[FaultProxy]:
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(10)


_HOP = {"host", "content-length", "transfer-encoding", "connection", "accept-encoding"}


def _hang_up(request: web.Request, answer: web.StreamResponse | None = None) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return answer or web.Response()

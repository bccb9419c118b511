"""What every request passes before the application: token, size and time of its body, media type, its place in the
metrics; and what no request gets past: a client that went away is not worked for, an unforeseen error shows no text.

A pure ASGI wrapper and a protocol class, because Starlette's middlewares read no body and uvicorn waits for slow
headers without end. Leaves out TLS and rate limits; a proxy in front has those.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
import traceback
from typing import Any

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from reward_model.service import metrics

log = logging.getLogger(__name__)

MAX_BODY = 1 << 20
BODY_S = 10.0
"""A body has to be complete by then."""
HEAD_S = 10.0
"""A request's line and headers have to be."""
MAX_HEAD = 1 << 16
OPEN_PATHS = frozenset({"/livez", "/readyz", "/health"})
"""What a probe asks, without a token."""
ROUTES = frozenset(
    {"/score", "/score-pair", "/classify", "/healthz", "/metrics", "/openapi.json", "/docs"} | OPEN_PATHS
)


class RefusedError(Exception):
    def __init__(self, status: int, reason: str, field: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.field = status, reason, field


class Edge:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, *, token: str | None) -> None:
        self._app = app
        self._expected = token.encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started, status = time.perf_counter(), 499  # 499: nobody was there any more to be answered
        route = scope["path"] if scope["path"] in ROUTES else "other"

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._guarded(scope, receive, noting)
        except RefusedError as error:
            metrics.REJECTED.labels(error.reason).inc()
            await _refuse(noting, error.status, error.field, str(error))
        except asyncio.CancelledError:  # by uvicorn, which ends and would log it as an error of the application
            if status == 499:
                metrics.REJECTED.labels("draining").inc()
                await _refuse(noting, 503, "", "the service is ending; ask the one that follows it")
        except Exception as error:
            log.error("%s failed with %s at %s", route, type(error).__name__, _where(error))
            if status == 499:
                await _refuse(noting, 500, "", f"{type(error).__name__}; the log of the service says where")
        finally:
            metrics.REQUESTS.labels(route, status).inc()
            metrics.SECONDS.labels(route).observe(time.perf_counter() - started)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        self._check_token(scope["path"], headers)
        if scope["method"] != "POST":
            return await self._app(scope, receive, send)
        body = await _read_body(headers, receive)
        if body is None:
            return None
        media = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if media != b"application/json":
            raise RefusedError(415, "media_type", "content-type", "expected application/json")
        await _unless_gone(self._app, scope, body, receive, send)

    def _check_token(self, path: str, headers: dict[bytes, bytes]) -> None:
        if self._expected is None or path in OPEN_PATHS:
            return
        scheme, _, sent = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(sent, self._expected):
            raise RefusedError(401, "token", "authorization", "expected `Authorization: Bearer TOKEN`")


async def _read_body(headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
    """The whole body, or None when the client has gone."""
    too_large = RefusedError(413, "body_too_large", "body", f"larger than {MAX_BODY} bytes")
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length[:20]) > MAX_BODY:
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_S):
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > MAX_BODY:
                    raise too_large
                more = message.get("more_body", False)
    except TimeoutError:
        raise RefusedError(408, "slow_body", "body", f"not complete within {BODY_S:g} s") from None
    return b"".join(parts)


async def _unless_gone(app: ASGIApp, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
    """Run the application until it has answered, or until the client has gone."""
    told = asyncio.Event()

    async def replay() -> Message:
        if told.is_set():  # nothing asks a second time but for the disconnect, which is watched here
            await asyncio.Event().wait()
        told.set()
        return {"type": "http.request", "body": body, "more_body": False}

    answering = asyncio.ensure_future(app(scope, replay, send))
    gone = asyncio.ensure_future(receive())
    try:
        await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            answering.result()
        else:
            metrics.REJECTED.labels("client_gone").inc()
    finally:
        for task in (answering, gone):
            task.cancel()


async def _refuse(send: Send, status: int, field: str, message: str) -> None:
    """Answer and end the connection: what else the client is sending is not read."""
    body = json.dumps({"detail": [{"field": field, "message": message}]}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 503:
        headers.append((b"retry-after", b"1"))
    if status in (408, 413, 503):
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _where(error: BaseException) -> str:
    """The innermost place of ours, without the message, which may hold what a client sent."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno}" if frames else "?"


class _Parser(httptools.HttpRequestParser):
    """Reads on after a request that offers another protocol (`curl --http2`): httptools stops there, before the body,
    for the protocol that it expects next. None is spoken here, so it is a request as any other (RFC 9110, 7.8)."""

    def __init__(self, protocol: PromptProtocol) -> None:
        super().__init__(protocol)
        self._protocol = protocol

    def feed_data(self, data: bytes | memoryview) -> None:
        parser = self
        while True:
            try:
                return super(_Parser, parser).feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                data = memoryview(data)[offer.args[0] :]
                parser = self._protocol.read_without_offer()


class PromptProtocol(HttpToolsProtocol):
    """Closes a connection whose next request has not shown all its headers after `HEAD_S` or `MAX_HEAD` bytes."""

    _limit: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser: _Parser = _Parser(self)

    def read_without_offer(self) -> _Parser:
        """Begin the request again whose headers have just been read, without what it offers; its body comes next."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":  # no offer, and nothing without it
            raise httptools.HttpParserInvalidMethodError("CONNECT")
        lines = [method + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + (value or b"") for name, value in self.headers if name != b"upgrade"]
        self.parser = _Parser(self)
        httptools.HttpRequestParser.feed_data(self.parser, b"\r\n".join(lines) + b"\r\n\r\n")
        return self.parser

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._limit is None and (self.cycle is None or self.cycle.response_complete):
            self._await_head()
        self._head_bytes += len(data)
        super().data_received(data)
        if self._limit is not None and self._head_bytes > MAX_HEAD:
            metrics.REJECTED.labels("head_too_large").inc()
            self.transport.close()

    def on_headers_complete(self) -> None:
        self._stop()
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._limit = self.loop.call_later(HEAD_S, self._too_slow)

    def _stop(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _too_slow(self) -> None:
        self._limit = None
        metrics.REJECTED.labels("slow_head").inc()
        self.transport.close()

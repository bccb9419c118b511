"""Limits of requests that are only begun, added to uvicorn's HTTP protocol.

Headers that are slow, many or huge and bodies that are slow end their connection, an offer to upgrade is ignored, and
connections that have not shown who they are by a whole request are limited in number (`GuardedHttpProtocol`). uvicorn
keeps all header lines of a request in memory until the last one is there, so no application could do this. Below are
what every application checks: the token, the length of a body, and whether the client is still there.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import httptools
import uvicorn.config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope

T = TypeVar("T")
HEADERS_S = 10.0
# The body of a request has to arrive within this many seconds behind its headers. While the application reads nothing
# it may take longer.
BODY_S = 30.0
MAX_HEADER_BYTES = 1 << 16
# Header lines of one request, those behind a chunked body included.
MAX_HEADERS = 256
# Connections that may wait unknown for longer than `UNKNOWN_S`; beyond it the oldest of them is closed.
MAX_UNKNOWN = 128
# Unknown connections of any age; beyond it a new one is closed. A process may open 1,024 files by default.
MAX_NEW_UNKNOWN = 512
# A client of a run shows its token in the first request, within milliseconds.
UNKNOWN_S = 1.0
# Bytes of a body that is too long which are still received and dropped: many clients read no answer before.
DROPPED_BYTES = 1 << 28
# Key of an ASGI scope's extensions with the function that makes the connection known.
_TRUST = "agentgrpo.trust"


class LimitedHttpProtocol(HttpToolsProtocol):
    """Closes a connection whose next request has not sent its headers, or its body, within the limits above."""

    _timer: asyncio.TimerHandle | None = None
    _in_head = True
    _head_bytes = 0
    _heads = 0
    """Requests whose headers were complete."""
    _header_lines = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser: _Parser = _Parser(self)

    def refuse(self, reason: str) -> None:
        """
        Args:
            reason: `head_too_large`, `slow_head`, `slow_body` or `too_many_unknown`.
        """
        self._stop_timer()
        self.transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._start_timer(HEADERS_S, self.refuse, "slow_head")

    def data_received(self, data: bytes) -> None:
        if self._in_head and self._timer is None:
            self._start_timer(HEADERS_S, self.refuse, "slow_head")
        in_head, heads = self._in_head, self._heads
        super().data_received(data)
        # headers that began in the middle of these bytes are counted from the next ones on
        self._head_bytes = self._head_bytes + len(data) if in_head and heads == self._heads else 0
        if self._head_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self.refuse("head_too_large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_lines = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_lines += 1
        if self._header_lines > MAX_HEADERS:  # uvicorn answers 400 and closes the connection
            raise httptools.HttpParserError(f"more than {MAX_HEADERS} header lines")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._start_timer(BODY_S, self._end_body)
        self._in_head, self._heads = False, self._heads + 1
        if not self.parser.should_upgrade():
            super().on_headers_complete()
            if self.scope["method"] != "HEAD":  # uvicorn writes no body behind the head of its answer
                self.cycle.transport = _HeadWithBody(self.transport)

    def on_message_complete(self) -> None:
        self._stop_timer()
        self._in_head = True
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _end_body(self) -> None:
        if self.flow.read_paused:
            self._start_timer(BODY_S, self._end_body)
        else:
            self.refuse("slow_body")

    def _start_timer(self, seconds: float, ended: Callable[..., None], *reason: str) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, ended, *reason)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def restart_without_upgrade(self) -> _Parser:
        """Parse the headers that were just read once more, without the offer to upgrade; the body follows."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":  # CONNECT asks for a tunnel, and without one nothing is left of the request
            raise httptools.HttpParserInvalidMethodError("CONNECT")
        lines = [method + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + (value or b"") for name, value in self.headers if name != b"upgrade"]
        self.parser = _Parser(self)
        httptools.HttpRequestParser.feed_data(self.parser, b"\r\n".join(lines) + b"\r\n\r\n")
        return self.parser


class GuardedHttpProtocol(LimitedHttpProtocol):
    """Limits the connections of which the application has accepted no whole request yet (`trust`).

    Each request begins anew, so that a connection that was known counts again while its next request is unfinished.
    """

    _accepted = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if len(self._with_room()) >= MAX_NEW_UNKNOWN:
            return self.refuse("too_many_unknown")
        self._with_room()[self] = time.monotonic()

    def refuse(self, reason: str) -> None:
        super().refuse(reason)
        self._forget()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._accepted = False
        self.scope["extensions"] = {_TRUST: self._accept}  # type: ignore[typeddict-item]
        if self not in _unknown.get(self.server_state, {}):
            self._with_room()[self] = time.monotonic()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self._accepted:
            self._forget()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _accept(self) -> None:
        self._accepted = True
        if self._in_head:  # the request is whole, and the next one may follow
            self._forget()

    def _with_room(self) -> dict[GuardedHttpProtocol, float]:
        # Those that have been unknown for too long are closed first.
        unknown = _unknown.setdefault(self.server_state, {})
        while len(unknown) >= MAX_UNKNOWN:
            oldest, since = next(iter(unknown.items()))
            if time.monotonic() - since <= UNKNOWN_S:
                break
            oldest.refuse("too_many_unknown")
        return unknown

    def _forget(self) -> None:
        _unknown.get(self.server_state, {}).pop(self, None)


# The unknown connections of each server of this process, the oldest first, and since when they are open.
_unknown: WeakKeyDictionary[ServerState, dict[GuardedHttpProtocol, float]] = WeakKeyDictionary()


def trust(scope: Scope) -> None:
    """Make the connection of an accepted request known; other servers than these do not count connections."""
    if known := (scope.get("extensions") or {}).get(_TRUST):
        known()


def has_token(authorization: bytes, expected: bytes) -> bool:
    scheme, _, token = authorization.partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(token, expected)


async def read_body(receive: Receive, most: int, too_long: Callable[[int], Exception]) -> bytes | None:
    """The body of an ASGI request; None if the client is gone.

    Args:
        most: bytes; no more are kept.
        too_long: makes the error that is raised, of the number of bytes.
    """
    body, size, more = bytearray(), 0, True
    while more and size <= DROPPED_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part = message.get("body", b"")
        size += len(part)
        if size <= most:
            body += part
        more = message.get("more_body", False)
    if size > most:
        raise too_long(size)
    return bytes(body)


def from_beginning(body: bytes, receive: Receive) -> Receive:
    """A `receive` for the application, of a request whose body was read."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again


async def unless_gone(work: Coroutine[None, None, T] | asyncio.Future[T], receive: Receive) -> T | None:
    """None if `work` was cancelled, or if the client disconnected first, which cancels `work`.

    Args:
        receive: of the ASGI request, after its body was read, so that the next message is the disconnect.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() and not task.cancelled() else None
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def guard_upstreams_servers() -> None:
    """Let every server that an upstream library starts in this process speak `GuardedHttpProtocol`."""
    uvicorn.config.HTTP_PROTOCOLS["auto"] = f"{__name__}:{GuardedHttpProtocol.__name__}"


class _HeadWithBody(asyncio.Transport):
    """Keeps an answer's head until the first piece of its body is there. uvicorn writes them one after the other, and
    each write takes a system call and wakes the client. The head of an answer without a length goes at once."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None  # none yet; empty once it is sent

    def write(self, data: bytes) -> None:  # type: ignore[override]
        if self._head is None and b"\r\ncontent-length: " in data:
            self._head = data
            return
        self._transport.writelines([self._head, data] if self._head else [data])
        self._head = b""

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        if self._head and not self.is_closing():  # the application failed between head and body
            self._transport.write(self._head)
        self._transport.close()


class _Parser(httptools.HttpRequestParser):
    """Continues after a request that offers another protocol (`curl --http2`). httptools stops there, before the body,
    because it expects the other protocol next. This server has none, so it ignores the offer (RFC 9110, 7.8)."""

    def __init__(self, protocol: LimitedHttpProtocol) -> None:
        super().__init__(protocol)
        self._protocol = protocol

    def feed_data(self, data: bytes | memoryview) -> None:
        parser = self
        while True:
            try:
                return super(_Parser, parser).feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                data = memoryview(data)[offer.args[0] :]
                parser = self._protocol.restart_without_upgrade()

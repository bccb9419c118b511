"""Adds to uvicorn's HTTP protocol that slow or huge headers close the connection, and that an offer to upgrade is
ignored. Leaves out the body (`middleware`), TLS and rate limits; a proxy in front provides the latter two."""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from reward_model.service import metrics

HEADERS_S = 10.0
"""The request line and all headers of a request have to arrive within this many seconds."""
MAX_HEADER_BYTES = 1 << 16


class LimitedHttpProtocol(HttpToolsProtocol):
    """Closes a connection whose next request has not sent all its headers after `HEADERS_S` or `MAX_HEADER_BYTES`."""

    _timer: asyncio.TimerHandle | None = None
    _header_bytes = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser: _Parser = _Parser(self)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._expect_headers()
        self._header_bytes += len(data)
        super().data_received(data)
        if self._timer is not None and self._header_bytes > MAX_HEADER_BYTES:
            metrics.REJECTED.labels("head_too_large").inc()
            self.transport.close()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _expect_headers(self) -> None:
        self._header_bytes = 0
        self._timer = self.loop.call_later(HEADERS_S, self._close_slow)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_slow(self) -> None:
        self._timer = None
        metrics.REJECTED.labels("slow_head").inc()
        self.transport.close()

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

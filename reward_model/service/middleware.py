"""The checks of every request before the application sees it: token, media type, size and time limit of the body. Work
stops when the client disconnects, and an unexpected error shows no text of a request.

It is a plain ASGI middleware, because Starlette's neither limit the time of a body nor answer with our error body.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentgrpo.http_protocol import GuardedHttpProtocol, from_beginning, has_token, read_body, trust, unless_gone
from reward_model.service import metrics

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 1 << 20
# A body has to be complete within this many seconds.
BODY_S = 10.0
# These health checks need no token.
OPEN_PATHS = frozenset({"/livez", "/readyz", "/health"})
ROUTES = OPEN_PATHS | {"/score", "/score-pair", "/classify", "/healthz", "/metrics", "/openapi.json", "/docs"}
EXTRA_HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    408: {"Connection": "close"},  # the rest of what the client sends is not read
    413: {"Connection": "close"},
    503: {"Connection": "close", "Retry-After": "1"},
}


class RefusedError(Exception):
    def __init__(self, status: int, reason: str, field: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.field = status, reason, field


class CountedHttpProtocol(GuardedHttpProtocol):
    """The connections that are refused before any request are counted too."""

    def refuse(self, reason: str) -> None:
        metrics.REJECTED.labels(reason).inc()
        super().refuse(reason)


class RequestMiddleware:
    def __init__(self, app: ASGIApp, *, token: str | None) -> None:
        self._app = app
        self._token = token.encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started, status = time.perf_counter(), 499  # 499 means that the client left before the answer
        route = scope["path"] if scope["path"] in ROUTES else "other"

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        async def refuse(status: int, field: str, message: str) -> None:
            body = {"detail": [{"field": field, "message": message}]}
            await JSONResponse(body, status, EXTRA_HEADERS.get(status))(scope, receive, send_and_note)

        try:
            await self._handle(scope, receive, send_and_note)
        except RefusedError as error:
            metrics.REJECTED.labels(error.reason).inc()
            await refuse(error.status, error.field, str(error))
        except asyncio.CancelledError:  # uvicorn cancels requests at its end and would log errors
            if status == 499:
                metrics.REJECTED.labels("draining").inc()
                await refuse(503, "", "the service is ending; ask its successor")
        except Exception as error:  # the outermost code of a request; uvicorn's own would log texts
            log.error("%s failed with %s at %s", route, type(error).__name__, _location(error))
            if status == 499:
                await refuse(500, "", f"{type(error).__name__}; the service's log says where")
        finally:
            metrics.REQUESTS.labels(route, status).inc()
            metrics.SECONDS.labels(route).observe(time.perf_counter() - started)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if scope["path"] not in OPEN_PATHS:
            sent = headers.get("authorization", "").encode("latin-1")
            if self._token is not None and not has_token(sent, self._token):
                raise RefusedError(401, "token", "authorization", "expected `Authorization: Bearer TOKEN`")
            trust(scope)
        if scope["method"] != "POST":
            return await self._app(scope, receive, send)
        try:
            async with asyncio.timeout(BODY_S):
                body = await read_body(receive, MAX_BODY_BYTES, _too_large)
        except TimeoutError:
            raise RefusedError(408, "slow_body", "body", f"not complete within {BODY_S:g} s") from None
        if body is None:
            return None
        if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise RefusedError(415, "media_type", "content-type", "expected application/json")

        async def answer() -> bool:
            await self._app(scope, from_beginning(body, receive), send)
            return True

        if await unless_gone(answer(), receive) is None:
            metrics.REJECTED.labels("client_gone").inc()


def _too_large(size: int) -> RefusedError:
    return RefusedError(413, "body_too_large", "body", f"larger than {MAX_BODY_BYTES} bytes")


def _location(error: BaseException) -> str:
    # The message is left out; it may hold what a client sent.
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno}" if frames else "?"

"""The checks of every request to a server of a run: the host name it asks for, the page it comes from, and its token.

Store, LLM proxy and model servers listen on loopback, which every process of the machine can reach, including those of
other users and browsers. A web page can reach them under its own host name (DNS rebinding), so unknown host names are
refused. Requests that a foreign page may send without permission (a form, text, an embedded resource) are refused too.
No answer allows other pages to read it. Connections whose requests were all refused are limited in number
(`agentgrpo.http_protocol`), and a model server reads no chat completion that could not fit its context
(`request_limits`).

There is no TLS: whoever can read loopback packets can also read the environment.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Collection
from typing import TYPE_CHECKING

from agentgrpo.checks import UsageError
from agentgrpo.http_protocol import from_beginning, has_token, read_body, trust
from agentgrpo.machine import ip_address, is_loopback
from sql_agent.model_address.request_limits import CONTEXT_TOKENS, RequestLimits, error_body

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Variable with the token of the LLM proxy and the model servers of a run, and of the store that the run keeps.
RUN_TOKEN = "AGENTGRPO_TOKEN"
# Variable with the store's token. An external store asks for none if it is unset.
STORE_TOKEN = "AGENTGRPO_STORE_TOKEN"
# The health check that the launcher of the store polls; its answer holds no other information.
OPEN_PATHS = frozenset({"/v1/agl/health"})
# Body types that our clients and OpenTelemetry send. A page cannot send them to another origin without a preflight.
MEDIA_TYPES = frozenset({"application/json", "application/x-protobuf"})
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?")
_TOKEN = re.compile(r"[!-~]{16,}")


def give_token(*, shared: bool, own_store: bool) -> None:
    """Put the token of a run into the environment, where every process that the run starts finds it.

    Args:
        shared: another command takes part in the run (AGL_CURRENT_ROLE), so the token has to exist already.
        own_store: the run serves its store itself.
    Raises:
        UsageError: the token has to exist and does not.
    """
    if not shared:
        os.environ[RUN_TOKEN] = secrets.token_urlsafe(32)
    elif not _TOKEN.fullmatch(os.environ.get(RUN_TOKEN, "")):
        raise UsageError(
            f"AGL_CURRENT_ROLE splits a run over commands, whose servers ask for one token: expected {RUN_TOKEN} in "
            "the environment of each, 16 printable characters or more; `export "
            f"{RUN_TOKEN}=$(openssl rand -hex 32)` before the first makes one"
        )
    if own_store:
        os.environ[STORE_TOKEN] = os.environ[RUN_TOKEN]


def authorization(variable: str) -> dict[str, str]:
    """{} if the variable is unset."""
    token = os.environ.get(variable)
    return {"Authorization": f"Bearer {token}"} if token else {}


# Values of Sec-Fetch-Site that requests of foreign pages never have (W3C Fetch Metadata).
_OWN_SITES = frozenset([b"same-origin", b"none"])


class _RefusedError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class RequestGuard:
    """
    Args:
        token: the token that every request has to show; None: no request needs one.
        names: host names that are accepted besides those of loopback and the address that a connection came to.
    """

    def __init__(self, app: ASGIApp, token: str | None, names: Collection[str] = ()) -> None:
        self._app = app
        self._expected = token.encode() if token else None
        self._names = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":  # no client of ours opens a web socket
            return await send({"type": "websocket.close", "code": 1008})

        async def to_nobody_else(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [
                    each for each in message.get("headers", ()) if not each[0].lower().startswith(b"access-control-")
                ]
                message = {**message, "headers": kept}
            await send(message)

        try:
            self._check(scope)
        except _RefusedError as error:
            await _answer(send, error)
        else:
            if scope["path"] not in OPEN_PATHS:
                trust(scope)
            await self._pass_on(scope, receive, to_nobody_else)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        """Raises _RefusedError: host name, origin, token or media type are wrong."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        host = self._host(headers.get(b"host", []), scope.get("server"))
        own_origin = f"{scope.get('scheme', 'http')}://{host}".lower()
        foreign = any(origin.decode("latin-1").lower() != own_origin for origin in headers.get(b"origin", []))
        # pages load images and frames without an Origin header; only a person follows a link (navigate, document)
        fetch = headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")
        if foreign or (
            fetch != ([b"navigate"], [b"document"]) and not _OWN_SITES.issuperset(headers.get(b"sec-fetch-site", []))
        ):
            raise _RefusedError(403, "a page of another origin sent this; none may")
        if not self._needs_no_token(scope):
            self._check_token(headers.get(b"authorization", []))
        if headers.get(b"content-length", [b"0"]) != [b"0"] or b"transfer-encoding" in headers:
            (media, *more) = headers.get(b"content-type", [b""])
            if more or media.split(b";")[0].strip().lower().decode("latin-1") not in MEDIA_TYPES:
                raise _RefusedError(415, f"a body has to be {' or '.join(sorted(MEDIA_TYPES))}, and its header say so")

    def _host(self, sent: list[bytes], server: tuple[str, int | None] | None) -> str:
        text = sent[0].decode("latin-1") if len(sent) == 1 else ""
        match = _HOST.fullmatch(text)
        if match is None or not self._is_ours(match[1].strip("[]").lower(), server[0] if server else None):
            raise _RefusedError(421, f"the Host header names no address of this server: {text[:100]!r}; ask for its IP")
        return text

    def _is_ours(self, name: str, server: str | None) -> bool:
        return name in self._names or is_loopback(name) or (ip_address(name) or name) == ip_address(server or "")

    def _needs_no_token(self, scope: Scope) -> bool:
        return scope["method"] in ("GET", "HEAD") and scope["path"] in OPEN_PATHS

    def _check_token(self, sent: list[bytes]) -> None:
        if self._expected is None:
            return
        if len(sent) != 1 or not has_token(sent[0], self._expected):
            raise _RefusedError(401, "expected `Authorization: Bearer TOKEN` with the token of this server")


class RunRequestGuard(RequestGuard):
    """Guards the LLM proxy and the model servers of a run.

    Raises:
        UsageError: the environment has no token; a server without one does not start.
    """

    def __init__(self, app: ASGIApp) -> None:
        if not os.environ.get(RUN_TOKEN):
            raise UsageError(f"{RUN_TOKEN} is not in the environment; a server of a run asks for the run's token")
        super().__init__(app, os.environ[RUN_TOKEN])


class ModelServerGuard(RunRequestGuard):
    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app)
        self._limits = RequestLimits(int(os.environ[CONTEXT_TOKENS]))

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            return await self._app(scope, receive, send)
        try:
            body = await read_body(receive, self._limits.body_bytes, self._limits.too_long)
            request = self._limits.parse(body) if body else None
            if scope["path"].endswith("/chat/completions"):
                self._limits.check(request)
        except ValueError as error:
            return await _send_json(send, 400, error_body(error), [_CLOSE])
        if body is not None:
            await self._app(scope, from_beginning(body, receive), send)


# The request's body may follow, and nothing reads it.
_CLOSE = (b"connection", b"close")


async def _answer(send: Send, error: _RefusedError) -> None:
    bearer = [(b"www-authenticate", b"Bearer")] if error.status == 401 else []
    await _send_json(send, error.status, {"detail": str(error)}, [_CLOSE, *bearer])


async def _send_json(send: Send, status: int, answer: object, headers: list[tuple[bytes, bytes]]) -> None:
    body = json.dumps(answer).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

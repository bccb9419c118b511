"""Replaces openai-agents' default client by one that calls the policy of the current rollout.

A tool, a guardrail or a function that calls `Runner.run` by itself passes no address on and uses the default client of
the process. So that client finds the rollout's address in a context variable, and the name of the calling agent in
openai-agents' own tracing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from urllib.parse import quote

import httpx
from agents import (
    UserError,
    set_default_openai_api,
    set_default_openai_client,
    set_trace_processors,
    set_tracing_disabled,
)
from agents.tracing import AgentSpanData, Span, Trace, TracingProcessor, TurnSpanData, get_current_span
from openai import AsyncOpenAI

from sql_agent.model_address.signed_address import AGENT_HEADER
from sql_agent.own_agents.datatypes import Policy

GRACE_S = 5.0
"""Seconds that a client waits for a call after the LLM proxy has given it up."""
_NOWHERE = "http://policy.invalid/v1"
_policy: ContextVar[Policy] = ContextVar("policy")


class RolloutTransport(httpx.AsyncBaseTransport):
    """Sends a request to the policy of the rollout that makes it. Event loops do not share connections."""

    def __init__(self) -> None:
        self._transports: dict[asyncio.AbstractEventLoop, httpx.AsyncHTTPTransport] = {}
        self._lock = threading.Lock()  # synchronous agents run loops in threads

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        policy = _policy.get(None)
        if policy is None:
            raise UserError("the policy was asked outside of a rollout; ask it in what the rollout awaits")
        request.url = httpx.URL(policy.base_url + str(request.url).removeprefix(_NOWHERE))
        request.headers["host"] = request.url.netloc.decode()
        # the proxy's own deadline comes first and is counted as an infrastructure failure
        patience = httpx.Timeout(policy.turn_timeout_s + GRACE_S).as_dict()
        request.extensions = {**request.extensions, "timeout": patience}
        if (name := AGENTS.current()) is not None:
            request.headers[AGENT_HEADER] = quote(name)
        return await self._transport().handle_async_request(request)

    def _transport(self) -> httpx.AsyncHTTPTransport:
        """Return the transport of the running event loop; those of ended loops are dropped with their connections."""
        loop = asyncio.get_running_loop()
        with self._lock:
            for ended in [other for other in self._transports if other.is_closed()]:
                del self._transports[ended]
            if loop not in self._transports:
                # a TLS context takes 20 ms to make, and http:// needs none
                self._transports[loop] = httpx.AsyncHTTPTransport(verify=False)
            return self._transports[loop]


class AgentNames(TracingProcessor):
    """Keeps the agent's name for every open span of openai-agents' tracing: its own, or that of its parent span."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def current(self) -> str | None:
        span = get_current_span()
        return None if span is None else self._names.get(span.span_id)

    def on_span_start(self, span: Span[Any]) -> None:
        data = span.span_data
        own = data.agent_name if isinstance(data, TurnSpanData) else None
        name = data.name if isinstance(data, AgentSpanData) else own or self._names.get(span.parent_id or "")
        if name is not None:
            self._names[span.span_id] = name

    def on_span_end(self, span: Span[Any]) -> None:
        self._names.pop(span.span_id, None)

    def on_trace_start(self, trace: Trace) -> None:
        pass

    def on_trace_end(self, trace: Trace) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def force_flush(self) -> None:
        pass


AGENTS = AgentNames()


def install_default_client() -> AsyncOpenAI:
    """Make our client the default of this process and return it."""
    set_trace_processors([AGENTS])  # replaces the one that uploads traces
    set_tracing_disabled(False)
    http_client = httpx.AsyncClient(transport=RolloutTransport())
    client = AsyncOpenAI(base_url=_NOWHERE, api_key="-", http_client=http_client)
    set_default_openai_client(client, use_for_tracing=False)
    set_default_openai_api("chat_completions")
    return client


@contextmanager
def asking(policy: Policy) -> Iterator[None]:
    """Make `policy` the default for code that starts within, in this thread or in one that gets its context."""
    token = _policy.set(policy)
    try:
        yield
    finally:
        _policy.reset(token)

"""Clients of the openai package that call the policy of the rollout in which they are used.

A tool, a guardrail or a node of a graph passes no address on. So these clients find the rollout's address in a context
variable, which coroutines, tasks and the threads of asyncio, LangChain and LangGraph inherit.

LangChain, AutoGen and others make their clients when a model object is made, long before a rollout, so an address that
is set later reaches none of them. So a call of a client of theirs is made by ours where the rollout takes it. This is
one mechanism for every framework that stands on the openai package.

For `--train-agents` a call names the agent that makes it: by openai-agents' own tracing, or the node of a graph.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import httpx2
from agents import (
    UserError,
    set_default_openai_api,
    set_default_openai_client,
    set_trace_processors,
    set_tracing_disabled,
)
from agents.tracing import AgentSpanData, Span, SpanData, Trace, TracingProcessor, TurnSpanData, get_current_span
from openai import AsyncOpenAI, OpenAI
from openai._base_client import AsyncAPIClient, SyncAPIClient

from sql_agent.model_address.signed_address import AGENT_HEADER
from sql_agent.user_agents.datatypes import Policy


class AgentNames(TracingProcessor):
    """The agent's name for every open span of openai-agents' tracing: its own, or that of its parent span."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def current(self) -> str | None:
        span = get_current_span()
        return None if span is None else self._names.get(span.span_id)

    def on_span_start(self, span: Span[SpanData]) -> None:
        data = span.span_data
        own = data.agent_name if isinstance(data, TurnSpanData) else None
        name = data.name if isinstance(data, AgentSpanData) else own or self._names.get(span.parent_id or "")
        if name is not None:
            self._names[span.span_id] = name

    def on_span_end(self, span: Span[SpanData]) -> None:
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


def calling_agent() -> str | None:
    """The name of the agent or of the graph's node whose code runs here; None if it has no name."""
    return AGENTS.current() or _calling_node()


def _calling_node() -> str | None:
    runnables = sys.modules.get("langchain_core.runnables.config")
    config = None if runnables is None else runnables.var_child_runnable_config.get()
    metadata = (config or {}).get("metadata") or {}
    # `create_agent(name=...)` names its agent; the node in which it calls its model is `model` in all of them
    return metadata.get("lc_agent_name") or metadata.get("langgraph_node")


# Seconds that a client waits for a call after the LLM proxy has given it up.
GRACE_S = 5.0
# Where the openai package and LangChain find an address that the code does not name.
ADDRESS_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
_NOWHERE = "http://policy.invalid/v1"


def no_client(client: object) -> bool:
    return False


def unaddressed_client(client: OpenAI | AsyncOpenAI) -> bool:
    """Take the calls of a client that names no address, so that it has OpenAI's or that of the environment."""
    usual = (os.environ.get(name, "").rstrip("/") for name in ADDRESS_VARIABLES)
    return asks_openai(client) or str(client.base_url).rstrip("/") in filter(None, usual)


def asks_openai(client: OpenAI | AsyncOpenAI) -> bool:
    return urlsplit(str(client.base_url)).hostname == "api.openai.com"


def every_client(client: object) -> bool:
    return True


class _Asked(NamedTuple):
    policy: Policy
    takes: Callable[[OpenAI | AsyncOpenAI], bool]


_asked: ContextVar[_Asked] = ContextVar("asked")


@contextmanager
def asking(policy: Policy, takes: Callable[[OpenAI | AsyncOpenAI], bool] = no_client) -> Iterator[None]:
    """Make `policy` the default for code that starts within, in this thread or in one that gets its context.

    Args:
        takes: whether the policy answers the calls of a client that the user's code made.
    """
    token = _asked.set(_Asked(policy, takes))
    try:
        yield
    finally:
        _asked.reset(token)


def is_taken(client: OpenAI | AsyncOpenAI) -> bool:
    """Whether the policy answers this client's call.

    Raises:
        UserError: the client would ask OpenAI with our placeholder for a key, outside of a rollout.
    """
    asked = _asked.get(None)
    if asked is None and client.api_key == Policy.api_key and asks_openai(client):
        raise _outside()
    return asked is not None and asked.takes(client)


class RolloutTransport(httpx2.AsyncBaseTransport):
    """Sends a request to the policy of the rollout that makes it. Event loops do not share connections."""

    def __init__(self) -> None:
        self._transports: dict[asyncio.AbstractEventLoop, httpx2.AsyncHTTPTransport] = {}
        self._lock = threading.Lock()  # synchronous agents run loops in threads

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        _address(request)
        return await self._transport().handle_async_request(request)

    def _transport(self) -> httpx2.AsyncHTTPTransport:
        # The transports of ended loops are dropped with their connections.
        loop = asyncio.get_running_loop()
        with self._lock:
            for ended in [other for other in self._transports if other.is_closed()]:
                del self._transports[ended]
            if loop not in self._transports:
                # a TLS context takes 20 ms to make, and http:// needs none
                self._transports[loop] = httpx2.AsyncHTTPTransport(verify=False)
            return self._transports[loop]


class ThreadTransport(httpx2.HTTPTransport):
    """Does the same for clients that block their thread."""

    def __init__(self) -> None:
        super().__init__(verify=False)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        _address(request)
        return super().handle_request(request)


def _address(request: httpx2.Request) -> None:
    asked = _asked.get(None)
    if asked is None:
        raise _outside()
    if not str(request.url).startswith(_NOWHERE):  # a path that the code wrote out with its host
        raise UserError(
            f"{request.url} was not asked; a client's calls go to the policy here, which has no such address"
        )
    policy = asked.policy
    request.url = httpx2.URL(policy.base_url + str(request.url).removeprefix(_NOWHERE))
    request.headers["host"] = request.url.netloc.decode()
    # the proxy's own deadline comes first and is counted as an infrastructure failure
    patience = httpx2.Timeout(policy.turn_timeout_s + GRACE_S).as_dict()
    request.extensions = {**request.extensions, "timeout": patience}
    if (name := calling_agent()) is not None:
        request.headers[AGENT_HEADER] = quote(name)


def _outside() -> UserError:
    return UserError(
        "the policy was asked outside of a rollout; ask it in what the rollout awaits, and give a thread that you "
        "start its context: Thread(target=contextvars.copy_context().run, args=(function,))"
    )


ASYNC_CLIENT = AsyncOpenAI(
    base_url=_NOWHERE, api_key=Policy.api_key, http_client=httpx2.AsyncClient(transport=RolloutTransport())
)
CLIENT = OpenAI(base_url=_NOWHERE, api_key=Policy.api_key, http_client=httpx2.Client(transport=ThreadTransport()))


def install_default_client() -> AsyncOpenAI:
    set_trace_processors([AGENTS])  # replaces the one that uploads traces
    set_tracing_disabled(False)
    set_default_openai_client(ASYNC_CLIENT, use_for_tracing=False)
    set_default_openai_api("chat_completions")
    _take_calls(SyncAPIClient, CLIENT)
    _take_calls(AsyncAPIClient, ASYNC_CLIENT)
    return ASYNC_CLIENT


def _take_calls(kind: Any, ours: Any) -> None:
    upstream = kind.request
    if hasattr(upstream, "by_agentgrpo"):
        return

    def request(self: OpenAI | AsyncOpenAI, *args: object, **kwargs: object) -> object:
        client = ours if self is not ours and is_taken(self) else self
        return upstream(client, *args, **kwargs)

    request.by_agentgrpo = True  # type: ignore[attr-defined]
    kind.request = request

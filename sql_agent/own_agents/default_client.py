"""Lets the policy answer the clients of the openai package that the user's code makes, and openai-agents' default.

LangChain, AutoGen and others make their clients when a model object is made, long before a rollout, so an address that
is set later reaches none of them. So a call is made by our client instead of theirs where the rollout takes it
(`policy_client`). This is one mechanism for every framework that stands on the openai package.
"""

from __future__ import annotations

from typing import Any

from agents import set_default_openai_api, set_default_openai_client, set_trace_processors, set_tracing_disabled
from openai import AsyncOpenAI
from openai._base_client import AsyncAPIClient, SyncAPIClient

from sql_agent.own_agents.agent_names import AGENTS
from sql_agent.own_agents.policy_client import ASYNC_CLIENT, CLIENT, is_taken


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

    def request(self: Any, *args: Any, **kwargs: Any) -> Any:
        client = ours if self is not ours and is_taken(self) else self
        return upstream(client, *args, **kwargs)

    request.by_agentgrpo = True  # type: ignore[attr-defined]
    kind.request = request

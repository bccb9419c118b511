"""Tells which agent of the user's code makes a call of the policy, for `--train-agents`.

The name is the one that openai-agents' own tracing has, or the name of the node of a LangGraph graph.
"""

from __future__ import annotations

import sys
from typing import Any

from agents.tracing import AgentSpanData, Span, Trace, TracingProcessor, TurnSpanData, get_current_span


class AgentNames(TracingProcessor):
    """The agent's name for every open span of openai-agents' tracing: its own, or that of its parent span."""

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


def calling_agent() -> str | None:
    """The name of the agent or of the graph's node whose code runs here; None if it has no name."""
    return AGENTS.current() or _calling_node()


def _calling_node() -> str | None:
    runnables = sys.modules.get("langchain_core.runnables.config")
    config = None if runnables is None else runnables.var_child_runnable_config.get()
    metadata = (config or {}).get("metadata") or {}
    # `create_agent(name=...)` names its agent; the node in which it calls its model is `model` in all of them
    return metadata.get("lc_agent_name") or metadata.get("langgraph_node")

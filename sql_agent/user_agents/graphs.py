"""Plays a compiled graph of LangGraph, which is also what LangChain's `create_agent` returns.

The row's prompt becomes its input messages, and its last message is the output. Whatever model its nodes name, the
policy answers (`default_client`).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

from agents import UserError

from agentgrpo.user_files import UserFileError
from sql_agent.user_agents.datatypes import AgentEnd, Policy
from sql_agent.user_agents.policy_client import asking, every_client


def is_graph(thing: object) -> bool:
    state = sys.modules.get("langgraph.graph.state")
    return state is not None and isinstance(thing, state.CompiledStateGraph)


def check_graph(name: str, graph: Any) -> None:
    """Check that a graph can be played.

    Args:
        name: where the user named it.
    Raises:
        UserFileError: it takes no messages, or its models are no clients of the openai package.
    """
    keys = graph.builder.schemas[graph.builder.input_schema]  # its JSON schema refuses `typing.TypedDict` on 3.11
    if "messages" not in keys:
        raise UserFileError(
            f"{name} is a graph whose input is {', '.join(keys) or 'no dictionary'}; expected `messages`, which a "
            "task's prompt becomes. Give a function of the task that runs the graph and returns the answer"
        )
    from sql_agent.user_agents.graph_calls import is_client, other_model

    models = _chat_models()
    if models and not any(is_client(type(model).__name__) for model in models):
        raise UserFileError(f"{name}: {other_model(type(models[0]).__name__)}")


def _chat_models() -> list[object]:
    from langchain_core.language_models import BaseChatModel

    # `isinstance` of an abstract class takes a microsecond for each of a million objects
    return [thing for thing in gc.get_objects() if BaseChatModel in type(thing).__mro__]


async def run_graph(graph: Any, prompt: Any, policy: Policy, context: Any = None) -> AgentEnd:
    """
    Args:
        prompt: a text or messages.
        context: the graph's runtime context.
    Raises:
        Exception: any error of the user's code.
    """
    from langchain_core.exceptions import OutputParserException
    from langgraph.errors import GraphRecursionError
    from langsmith import tracing_context

    from sql_agent.user_agents.graph_calls import GraphCalls

    calls = GraphCalls(policy.max_turns)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    ids = f"{policy.rollout.rollout_id}-{policy.rollout.attempt.attempt_id}"
    # a checkpointer keeps a conversation for each rollout
    config = {"callbacks": [calls], "configurable": {"thread_id": ids}}
    try:
        with asking(policy, every_client), tracing_context(enabled=False):
            state = await graph.ainvoke({"messages": messages}, config, context=context)
    except GraphRecursionError as error:
        return AgentEnd(stop_reason="max_turns", error=str(error))
    except (OutputParserException, *_structured_output_errors()) as error:
        return AgentEnd(stop_reason="malformed", error=f"{type(error).__name__}: {error}")
    except Exception as error:  # a framework of the user's may raise anything over a misfit reply
        if calls.misfit is None:
            raise
        return AgentEnd(stop_reason="malformed", error=f"{calls.misfit}; then {type(error).__name__}: {error}")
    return _end(state)


def _structured_output_errors() -> Iterator[type[Exception]]:
    # LangChain's error for a reply in another form than `create_agent(response_format=...)` asks for.
    langchain = sys.modules.get("langchain.agents.structured_output")
    if langchain is not None:
        yield langchain.StructuredOutputError


def _end(state: dict[str, Any]) -> AgentEnd:
    from langchain_core.messages import AIMessage, convert_to_messages

    if interrupts := state.get("__interrupt__"):
        raise UserError(f"the graph waits for a person ({interrupts[0].value}), and nobody is there; leave that out")
    if not state.get("messages"):
        return AgentEnd(state)
    [last] = convert_to_messages(state["messages"][-1:])
    if isinstance(last, AIMessage) and last.invalid_tool_calls and not last.tool_calls:
        call = last.invalid_tool_calls[0]
        return AgentEnd(stop_reason="malformed", error=f"its call of {call['name']} cannot be read: {call['args']}")
    return AgentEnd(state.get("structured_response", last.text))

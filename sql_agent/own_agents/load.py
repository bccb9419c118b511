from __future__ import annotations

import os
import sys
from typing import Any

from agentgrpo.own_files import OwnFileError, find, place
from sql_agent.environments.rows import short
from sql_agent.own_agents.datatypes import OwnAgent, Policy


def load_agent(name: str) -> OwnAgent:
    """Raises OwnFileError: the agent cannot be imported, or is not an agent that can be played."""
    from agents import Agent  # takes a second and a half

    from agentgrpo.agl_without_litellm import agl
    from sql_agent.own_agents.graphs import check_graph, is_graph
    from sql_agent.own_agents.lit_agents import LightningAgent
    from sql_agent.own_agents.objects import ObjectAgent

    os.environ.setdefault("OPENAI_API_KEY", Policy.api_key)  # a client that is made without any key raises
    thing, _ = find(name)
    if isinstance(thing, type) and issubclass(thing, agl.LitAgent):
        thing = _made(thing)
    if isinstance(thing, agl.LitAgent):
        return LightningAgent(thing)
    if is_graph(thing):
        check_graph(name, thing)
    if is_graph(thing) or isinstance(thing, Agent) or (callable(thing) and not isinstance(thing, type)):
        return ObjectAgent(thing)
    raise OwnFileError(
        f"{name} is {_said(thing)}; expected an agents.Agent, a compiled graph of LangGraph (also LangChain's "
        "create_agent), a function of the task that returns one of these or the answer, or an agent of "
        "agent-lightning (@agentlightning.rollout, @agentlightning.llm_rollout, a LitAgent)"
    )


def _said(thing: Any) -> str:
    langgraph = sys.modules.get("langgraph.graph.state")
    if langgraph is not None and isinstance(thing, langgraph.StateGraph):
        return "a StateGraph that is not compiled, name the result of its compile()"
    return short(thing, 60)


def _made(kind: Any) -> Any:
    try:
        return kind()
    except Exception as error:  # the user's code may raise anything
        raise OwnFileError(
            f"{place(kind)}: {kind.__name__}() raised {type(error).__name__}: {error}; make the object in the file and "
            "name that, as agent = MyAgent(...)"
        ) from None

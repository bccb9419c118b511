"""Finds a user's own agent and wraps it for its framework. Leaves out the import (`core.own_files`)."""

from __future__ import annotations

from typing import Any

from core.own_files import OwnFileError, find, place
from sql_agent.environments.rows import short
from sql_agent.own_agents.datatypes import OwnAgent


def load_agent(name: str) -> OwnAgent:
    """Load the agent that `FILE.py:NAME` or `module:NAME` names, ready to play.

    Raises:
        OwnFileError: it cannot be imported, or is not an agent that can be played.
    """
    from agents import Agent  # takes a second and a half

    from core.agl_without_litellm import agl
    from sql_agent.own_agents.lit_agents import LightningAgent
    from sql_agent.own_agents.openai_agents import OpenAIAgent

    thing, _ = find(name)
    if isinstance(thing, type) and issubclass(thing, agl.LitAgent):
        thing = _made(thing)
    if isinstance(thing, agl.LitAgent):
        return LightningAgent(thing)
    if isinstance(thing, Agent) or (callable(thing) and not isinstance(thing, type)):
        return OpenAIAgent(thing)
    raise OwnFileError(
        f"{name} is {short(thing, 60)}; expected an agents.Agent, a function of the task that returns one, or an agent "
        "of agent-lightning (@agentlightning.rollout, @agentlightning.llm_rollout, a LitAgent)"
    )


def _made(kind: Any) -> Any:
    try:
        return kind()
    except Exception as error:
        raise OwnFileError(
            f"{place(kind)}: {kind.__name__}() raised {type(error).__name__}: {error}; make the object in the file and "
            "name that, as agent = MyAgent(...)"
        ) from None

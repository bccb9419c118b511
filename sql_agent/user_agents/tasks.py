"""A user's own agent as it is found by its name, and its tasks: rows of a file, of any shape."""

from __future__ import annotations

import os
import sys
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from agentgrpo.user_files import SourceFile, UserFileError, load_object, place
from dbbench_adapter.protocols import Message
from sql_agent.environments.rows import RowTask, RowTaskset, read_placed_tasks, short
from sql_agent.settings.groups import EnvironmentSettings
from sql_agent.user_agents.datatypes import Policy, UserAgent


class AgentTasks(RowTaskset):
    """Tasks of an agent that plays them itself (`play`), in a world that only it knows.

    Raises:
        UserFileError: see `load_agent`.
    """

    name: ClassVar[str] = "agent"
    opening: ClassVar[bool] = True
    _without_file = "an agent of your own brings no tasks"

    def __init__(self, agent: UserAgent) -> None:
        self.agent = agent
        self.judged = agent.rewards_itself  # pyright: ignore[reportAttributeAccessIssue]  depends on the agent
        self.tools = []

    @classmethod
    def from_settings(cls, settings: EnvironmentSettings) -> Self:
        if settings.agent is None:
            raise UserFileError("env.type=agent needs an agent; give one with --agent FILE.py:NAME")
        return cls(load_agent(settings.agent))

    def check_episodes(self) -> None:
        self.agent.try_out()

    def messages(self, task: RowTask) -> list[Message]:
        """A stand-in for the first prompt, which the agent writes itself."""
        return [{"role": "user", "content": task.id}]

    def read_tasks(self, file: Path) -> list[RowTask]:
        placed = read_placed_tasks(file, "task")
        for each in placed:
            try:
                self.agent.check_row(each.task.row)
            except ValueError as error:
                raise ValueError(f"{each.place}: {error}") from None
        return [each.task for each in placed]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.agent.close()


def load_agent(name: str) -> UserAgent:
    """Raises UserFileError: the agent cannot be imported, or is not an agent that can be played."""
    from agents import Agent  # takes a second and a half

    from agentgrpo.agl_without_litellm import agl
    from sql_agent.user_agents.graphs import check_graph, is_graph
    from sql_agent.user_agents.mcp_servers import agent_of_file
    from sql_agent.user_agents.objects import LightningAgent, ObjectAgent

    os.environ.setdefault("OPENAI_API_KEY", Policy.api_key)  # a client that is made without any key raises
    if name.endswith(".json"):
        return ObjectAgent(agent_of_file(Path(name)))
    thing, _ = load_object(name)
    if isinstance(thing, type) and issubclass(thing, agl.LitAgent):
        thing = _build(thing)
    if isinstance(thing, agl.LitAgent):
        return LightningAgent(thing)
    if is_graph(thing):
        check_graph(name, thing)
    if is_graph(thing) or isinstance(thing, Agent) or (callable(thing) and not isinstance(thing, type)):
        return ObjectAgent(thing)
    raise UserFileError(
        f"{name} is {_format_object(thing)}; expected an agents.Agent, a compiled graph of LangGraph (also LangChain's "
        "create_agent), a function of the task that returns one of these or the answer, or an agent of "
        "agent-lightning (@agentlightning.rollout, @agentlightning.llm_rollout, a LitAgent)"
    )


def source_of_agent(name: str) -> SourceFile:
    if name.endswith(".json"):
        return SourceFile(Path(name), sha256(Path(name).read_bytes()).hexdigest())
    return load_object(name)[1]


def _format_object(thing: object) -> str:
    langgraph = sys.modules.get("langgraph.graph.state")
    if langgraph is not None and isinstance(thing, langgraph.StateGraph):
        return "a StateGraph that is not compiled, name the result of its compile()"
    return short(thing, 60)


def _build(kind: type) -> object:
    try:
        return kind()
    except Exception as error:  # the user's code may raise anything
        raise UserFileError(
            f"{place(kind)}: {kind.__name__}() raised {type(error).__name__}: {error}; make the object in the file and "
            "name that, as agent = MyAgent(...)"
        ) from None

"""Reads the tasks of a user's own agent: rows of a file, of any shape."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from agentgrpo.own_files import OwnFileError
from dbbench_adapter.protocols import Message
from sql_agent.environments.rows import RowTask, RowTaskset, read_rows
from sql_agent.own_agents.datatypes import OwnAgent
from sql_agent.own_agents.load import load_agent
from sql_agent.settings.groups import EnvironmentSettings


class AgentTasks(RowTaskset):
    """Tasks of an agent that plays them itself (`play`), in a world that only it knows.

    Raises:
        OwnFileError: see `load_agent`.
    """

    name: ClassVar[str] = "agent"
    opening: ClassVar[bool] = True
    _without_file = "an agent of your own brings no tasks"

    def __init__(self, agent: OwnAgent) -> None:
        self.agent = agent
        self.judged = agent.rewards_itself  # pyright: ignore[reportAttributeAccessIssue]  depends on the agent
        self.tools = []

    @classmethod
    def from_settings(cls, settings: EnvironmentSettings) -> Self:
        if settings.agent is None:
            raise OwnFileError("env.type=agent needs an agent; give one with --agent FILE.py:NAME")
        return cls(load_agent(settings.agent))

    def messages(self, task: RowTask) -> list[Message]:
        """A stand-in for the first prompt, which the agent writes itself."""
        return [{"role": "user", "content": task.id}]

    def read_tasks(self, file: Path) -> list[RowTask]:
        placed = read_rows(file, "task")
        for each in placed:
            try:
                self.agent.check_row(each.task.row)
            except ValueError as error:
                raise ValueError(f"{each.place}: {error}") from None
        return [each.task for each in placed]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.agent.close()

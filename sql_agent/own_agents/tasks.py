"""Reads the tasks of a user's own agent: rows of a file, of any shape."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from agentgrpo.own_files import OwnFileError
from dbbench_adapter.datatypes import Score
from dbbench_adapter.protocols import Message
from sql_agent.environments.base import Environment, Split, digest
from sql_agent.environments.rows import RowTask, read_rows, said_by, split_rows
from sql_agent.own_agents.datatypes import OwnAgent
from sql_agent.own_agents.load import load_agent
from sql_agent.rewards import NO_JUDGE
from sql_agent.settings.groups import AgentConfig, DataConfig, EnvironmentSettings


class AgentTasks(Environment):
    """Provides the tasks of a user's own agent; it opens no episodes, because the agent plays its rollouts itself.

    Raises:
        OwnFileError: see `load_agent`.
    """

    name: ClassVar[str] = "agent"
    opening: ClassVar[bool] = True

    def __init__(self, agent: OwnAgent) -> None:
        self.agent = agent
        self.judged = agent.rewards_itself  # pyright: ignore[reportAttributeAccessIssue]  depends on the agent
        self.tools: list[dict[str, Any]] = []  # only the agent knows its tools

    @classmethod
    def from_settings(cls, settings: EnvironmentSettings) -> Self:
        if settings.agent is None:
            raise OwnFileError("env.type=agent needs an agent; give one with --agent FILE.py:NAME")
        return cls(load_agent(settings.agent))

    def messages(self, task: RowTask) -> list[Message]:
        """A stand-in for the first prompt, which the agent writes itself."""
        return [{"role": "user", "content": task.id}]

    def open(self, task: Any, limits: AgentConfig) -> Any:
        raise TypeError("an agent of the user's own plays its rollouts itself (`own_agents.play`)")

    def judge(self, episode: Any) -> Score:
        return Score(None, NO_JUDGE)

    def max_replies(self, limits: AgentConfig) -> int:
        return 1_000_000  # the number of its calls is not known

    def read_split(self, data: DataConfig, seed: int) -> Split:
        if data.train_file is None:
            raise ValueError("an agent of your own brings no tasks; give a file of rows, --train-file ROWS.jsonl")
        train = self.read_tasks(data.train_file)
        if data.val_file is not None:
            return Split(train, self.read_tasks(data.val_file))
        return Split(*split_rows(train, data.held_out_fraction))

    def fingerprint(self, task: RowTask) -> str:
        return digest(said_by(task))

    def read_tasks(self, file: Path) -> list[RowTask]:
        placed = read_rows(file, "task")
        for each in placed:
            try:
                self.agent.check_row(each.task.row)
            except ValueError as error:
                raise ValueError(f"{each.place}: {error}") from None
        return [each.task for each in placed]

    def row(self, task: RowTask) -> dict[str, Any]:
        return task.row

    def task(self, fields: dict[str, Any]) -> RowTask:
        return RowTask.from_dict(fields)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.agent.close()

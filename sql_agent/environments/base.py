"""The interface of an environment: to the agent it offers prompts, tools and episodes, to a training run its tasks.

Leaves out the reward (`sql_agent.rewards`) and who calls the model (`sql_agent.agent`, `sql_agent.local.rollouts`).
"""

from __future__ import annotations

import json
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from dbbench_adapter.datatypes import Score
from dbbench_adapter.protocols import Message, Status
from sql_agent.datatypes import AgentConfig, EnvironmentSettings
from sql_agent.environments.registry import ENVIRONMENTS, OWN

if TYPE_CHECKING:
    from sql_agent.config import DataConfig


class EpisodeLostError(RuntimeError):
    """The episode cannot go on, which the policy did not cause: its rollout is lost.

    Args:
        reason: a name, counted as `rollout/lost/REASON`.
        error: what happened, for the trajectory; a traceback for example.
    """

    def __init__(self, reason: str, error: str) -> None:
        super().__init__(error)
        self.reason = reason


class EnvironmentTask(Protocol):
    """One question; its other fields are known to its environment only."""

    @property
    def id(self) -> str: ...

    @property
    def kind(self) -> str: ...

    def to_dict(self) -> dict[str, Any]: ...


class Episode(Protocol):
    """The environment's side of a rollout. Every method may block; one thread at a time."""

    max_rounds: int
    """Replies that the policy may give."""
    malformed_calls: int
    status: Status

    @property
    def done(self) -> bool: ...

    def close(self) -> None: ...


class CallingEpisode(Episode, Protocol):
    """The episode of an environment that offers tools."""

    def call_tool(self, name: str, arguments: Any) -> str:
        """Answer one call; a call that the policy got wrong is answered with an error message and counted."""
        ...

    def without_call(self, reply: str) -> list[Message]:
        """Take a reply without a call; returns the answer, unless the episode has ended. Does not block."""
        ...


class WritingEpisode(Episode, Protocol):
    """The episode of an environment whose policy writes its actions as text."""

    def step(self, reply: str) -> list[Message]:
        """Take a reply; returns the answer, unless the episode has ended."""
        ...


@dataclass(frozen=True)
class Split:
    train: list[Any]
    val: list[Any]
    too_long: int = 0
    """Tasks left out because their first prompt is longer than data.max_prompt_tokens."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Tasks that the environment left out, by reason."""


class Playable(Protocol):
    """What playing an episode needs of an environment."""

    tools: list[dict[str, Any]]
    """Tools in chat-completions form; empty if the policy writes its actions as text."""

    @abstractmethod
    def messages(self, task: Any) -> list[Message]:
        """The first prompt."""
        ...

    @abstractmethod
    def history(self, messages: Sequence[Message]) -> list[Message]:
        """What the policy reads of the conversation so far."""
        ...

    @abstractmethod
    def open(self, task: Any, limits: AgentConfig) -> Any:
        """A fresh `CallingEpisode`, or a `WritingEpisode` where there are no tools. May block.

        Raises:
            TableError, BackendUnavailable, EpisodeLostError: it cannot be opened; the last two also while it goes on.
        """
        ...

    @abstractmethod
    def judge(self, episode: Any) -> Score:
        """The verdict on an episode as it stands, a number in [0, 1]: 1 where the task is solved, which is what counts
        as success, less where it is solved in part; or, under `OWN_REWARD`, the reward itself. May block."""
        ...

    @abstractmethod
    def max_replies(self, limits: AgentConfig) -> int:
        """Replies that a rollout may take."""
        ...


class Environment(Playable, ABC):
    """One per process. It is entered where episodes are opened; everything else works without."""

    name: ClassVar[str]
    """Its key in `ENVIRONMENTS`."""
    judged: ClassVar[bool] = True
    """Whether there is a judge; without one, `judge` returns None under `rewards.NO_JUDGE`."""

    @classmethod
    @abstractmethod
    def from_settings(cls, settings: EnvironmentSettings) -> Self:
        """
        Raises:
            ValueError: a setting does not fit.
        """

    def history(self, messages: Sequence[Message]) -> list[Message]:
        return list(messages)

    @property
    def prepared(self) -> bool:
        """Whether everything that `prepare` makes is there."""
        return True

    def prepare(self, say: Callable[[str], None]) -> None:
        """Make what this machine can make by itself; called before anything else.

        Raises:
            ValueError: with what is missing and how to get it.
        """

    def check_episodes(self) -> None:
        """Find out whether episodes can be opened on this machine; called before anything that takes long.

        Raises:
            ValueError: with what is missing and how to get it.
            BackendUnavailable: the same, of a database that is not there.
        """

    @abstractmethod
    def load_split(self, data: DataConfig, seed: int) -> Split:
        """Tasks to train on and all held-out ones; `sql_agent.data.drawn` takes `data.val_limit` of those.

        Raises:
            ValueError: a file is missing, or names a row that does not parse.
        """

    def shortened(self, task: Any, prompt_tokens: Callable[[Any], int], limit: int) -> Any:
        """The task with a first prompt of at most `limit` tokens, where the environment can shorten it."""
        return task

    def describe(self, tasks: Sequence[Any]) -> list[str]:
        """Lines about the tasks of a run, for the person who starts it."""
        return []

    def reference_replies(self, task: Any) -> list[Message]:
        """The replies of an assistant that knows the solution, in order; empty if no solution is known."""
        return []

    def read_tasks(self, file: Path) -> list[Any]:
        """Every task of a file, as `python -m sql_agent.evaluate --tasks` takes it.

        Raises:
            ValueError: the file is missing, or names a row that does not parse.
        """
        raise ValueError(f"environment {self.name} reads no file of tasks")

    def row(self, task: Any) -> dict[str, Any]:
        """The task as a row of such a file."""
        return task.to_dict()

    @abstractmethod
    def task(self, fields: dict[str, Any]) -> Any:
        """The inverse of a task's `to_dict`."""

    def verl_rows(self, tasks: Sequence[Any]) -> list[dict[str, Any]]:
        """Rows of verl's parquet; `extra_info.task` is the task as JSON."""
        from dbbench_adapter.export import AGENT_NAME

        return [
            {
                "data_source": self.name,
                "prompt": self.messages(task),
                "ability": task.kind,
                "reward_model": {"style": "rule", "ground_truth": ""},
                "extra_info": {"index": index, "task": json.dumps(task.to_dict())},
                "agent_name": AGENT_NAME,
            }
            for index, task in enumerate(tasks)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass


def with_observation(messages: list[Message], episode: Episode) -> list[Message]:
    """The first prompt as the policy reads it: what the episode's opening showed follows in its last message."""
    observation = getattr(episode, "observation", "")
    if not observation:
        return messages
    *earlier, last = messages
    return [*earlier, {**last, "content": f"{last['content']}{observation}"}]


def make_environment(settings: EnvironmentSettings) -> Environment:
    """The environment that `settings.type` names: a registered one, or one of the user's own.

    Raises:
        ValueError: a file, a class or its tools, or another setting does not fit.
    """
    if settings.type in ENVIRONMENTS:
        return pkgutil.resolve_name(ENVIRONMENTS[settings.type]).from_settings(settings)
    return pkgutil.resolve_name(OWN)(settings)

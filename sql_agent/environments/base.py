"""Defines the interface of an environment: prompts, tools and episodes for the agent, and tasks for a training run.

Leaves out the reward (`sql_agent.rewards`) and who writes the replies (`sql_agent.play`).
"""

from __future__ import annotations

import copy
import hashlib
import json
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self

from dbbench_adapter.datatypes import Score
from dbbench_adapter.interaction import Episode, Message
from sql_agent.comparison import Comparison
from sql_agent.names import OWN
from sql_agent.settings.groups import AgentConfig, DataConfig, EnvironmentSettings

ALSO_HELD_OUT = "also_held_out"
"""The reason under which tasks to train on are left out because they are held out too."""


class EpisodeLostError(RuntimeError):
    """Says that the episode cannot go on, through no fault of the policy; its rollout is lost.

    Args:
        reason: a name, counted as `rollout/lost/REASON`.
        error: what happened, for the trajectory; a traceback for example.
    """

    def __init__(self, reason: str, error: str) -> None:
        super().__init__(error)
        self.reason = reason


class InstructionsError(ValueError):
    """Says why instructions cannot be played; the message says what to change."""


class EnvironmentTask(Protocol):
    """Describes one question; only its environment knows the other fields."""

    @property
    def id(self) -> str: ...

    @property
    def kind(self) -> str: ...

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Split:
    train: list[Any]
    val: list[Any]
    too_long: int = 0
    """Tasks left out because their first prompt is longer than its limit (`sql_agent.prompts`)."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Tasks that the environment left out, by reason."""


@dataclass(frozen=True)
class LeftOut:
    """Names what a first prompt leaves out to be short."""

    of: str
    """What was cut, e.g. `the schema of shop`."""
    parts: tuple[tuple[str, tuple[str, ...]], ...]
    """Kinds of parts, each with the names of those that are left out, e.g. `("columns", ("customer.fax",))`; a kind
    without names is left out as a whole."""


class Playable(Protocol):
    """Offers what is needed to play an episode of an environment."""

    tools: list[dict[str, Any]]
    """Tools in chat-completions form; empty if the policy writes its actions as text."""

    @abstractmethod
    def messages(self, task: Any) -> list[Message]:
        """Return the first prompt."""
        ...

    @abstractmethod
    def history(self, messages: Sequence[Message]) -> list[Message]:
        """Return the part of the conversation that the policy reads."""
        ...

    @abstractmethod
    def open(self, task: Any, limits: AgentConfig) -> Any:
        """Open a new `Episode`. It may block.

        Raises:
            TableError, BackendUnavailable, EpisodeLostError: it cannot be opened; its methods may raise the last two.
        """
        ...

    @abstractmethod
    def judge(self, episode: Any) -> Score:
        """Return the verdict on an episode in its current state; it may block.

        The verdict is a number in [0, 1]: 1 if the task is solved, which alone counts as success, and less if it is
        solved in part. With the reason `OWN_REWARD` the number is the reward itself.
        """
        ...

    def comparison(self, episode: Any) -> Comparison | None:
        """Return what `judge`, which has returned a number before, compared; None if there is nothing to show.

        It may block and raises nothing, because an explanation must not change what is trained on.
        """
        return None

    @abstractmethod
    def max_replies(self, limits: AgentConfig) -> int:
        """Return the number of replies that a rollout may take."""
        ...


class Environment(Playable, ABC):
    """Provides tasks and episodes, one environment per process. It must be entered before episodes are opened."""

    name: ClassVar[str]
    """Its key in `ENVIRONMENTS`."""
    judged: ClassVar[bool] = True
    """Whether there is a judge; without one, `judge` returns None with the reason `rewards.NO_JUDGE`."""
    instructions: str = ""
    """How to act: the part of the first prompt that is the same for all tasks and may be replaced; "" if there is none,
    because the tasks bring their whole prompt."""
    opening: ClassVar[bool] = False
    """Whether the opening of an episode, or the user's own agent, adds to the first prompt of `messages`."""
    marks: tuple[str, ...] = ()
    """Words that instructions have to hold, since no reply can be right without them."""

    @classmethod
    @abstractmethod
    def from_settings(cls, settings: EnvironmentSettings) -> Self:
        """Make the environment from its settings.

        Raises:
            ValueError: a setting does not fit.
        """

    def history(self, messages: Sequence[Message]) -> list[Message]:
        return list(messages)

    def with_instructions(self, text: str) -> Self:
        """Return this environment with other instructions; all else is shared with it, open databases too.

        Raises:
            InstructionsError: they lack one of `marks`, or the environment has no instructions to replace.
        """
        if not self.instructions:
            raise InstructionsError(
                f"the tasks of environment {self.name} bring their whole prompt; change it there. Instructions can be "
                "replaced in dbbench, and with a database of your own (text2sql)"
            )
        if lacking := [mark for mark in self.marks if mark not in text]:
            raise InstructionsError(
                f"instructions have to name {', '.join(self.marks)}, or no reply can be right; not named: "
                f"{', '.join(lacking)}"
            )
        other = copy.copy(self)
        other.instructions = text.strip()
        return other

    @property
    def prepared(self) -> bool:
        """Return whether everything that `prepare` makes exists."""
        return True

    def prepare(self, say: Callable[[str], None]) -> None:
        """Make files that this machine can make by itself; called before anything else.

        Raises:
            ValueError: something is missing; the message says how to get it.
        """

    def check_episodes(self) -> None:
        """Check that episodes can be opened on this machine; called before anything that takes long.

        Raises:
            ValueError: something is missing; the message says how to get it.
            BackendUnavailable: a database is missing; the message says how to get it.
        """

    def load_split(self, data: DataConfig, seed: int) -> Split:
        """Load the tasks to train on and all held-out ones; every command that takes a file of tasks asks this.

        A task that is in both halves is held out: it is left out of training and counted as `also_held_out`, so that
        what is measured stays the same, whatever the training file contains.

        Args:
            seed: makes generated tasks and may order the others; it never decides which half a row of a file is in.
        Raises:
            ValueError: a file is missing, a row does not parse, or every task to train on is held out too.
        """
        split = self.read_split(data, seed)
        held_out = set(map(self.fingerprint, split.val))
        train = [task for task in split.train if self.fingerprint(task) not in held_out]
        if len(train) == len(split.train):
            return split
        if not train:
            raise ValueError(
                f"all {len(split.train)} tasks of {data.train_file} are held out too, in {data.val_file}, so nothing "
                "is left to train on; name other held-out tasks, or none: a share of the first file is held out then"
            )
        return replace(split, train=train, left_out={**split.left_out, ALSO_HELD_OUT: len(split.train) - len(train)})

    @abstractmethod
    def read_split(self, data: DataConfig, seed: int) -> Split:
        """Read or make the two halves for `load_split`.

        Raises:
            ValueError: a file is missing, or a row does not parse; the message names it.
        """

    def fingerprint(self, task: Any) -> str:
        """Return 16 hex digits that tell this task from others, whatever its id, its file and its place there are."""
        return digest({name: value for name, value in task.to_dict().items() if name != "id"})

    def shorter(self, task: Any) -> Sequence[Any]:
        """Return the task with ever shorter first prompts, longest first; () if it cannot be shortened.

        References have no part in it (`missed` is for people).
        """
        return ()

    def left_out(self, task: Any) -> LeftOut | None:
        """Return what the task's first prompt leaves out; None if it is whole."""
        return None

    def missed(self, task: Any) -> tuple[str, ...]:
        """Return the names among what is left out that the task's reference uses."""
        return ()

    def reference_replies(self, task: Any) -> list[Message]:
        """Return the replies of an assistant that knows the solution, in order; [] if no solution is known."""
        return []

    def typed(self, id: str, question: str, like: Any | None) -> Any:
        """Return a task without a solution for a question that a person types.

        Args:
            id: the task's id.
            like: the task that was asked last; None if there is none.
        Raises:
            ValueError: it takes more than a question to make a task.
        """
        raise ValueError("this environment takes no questions of your own; ask its tasks, :task N")

    def read_tasks(self, file: Path) -> list[Any]:
        """Read every task of a file, in the form of `agentgrpo evaluate --tasks`.

        Raises:
            ValueError: the file is missing, or a row does not parse; the message names it.
        """
        raise ValueError(f"environment {self.name} reads no file of tasks")

    def row(self, task: Any) -> dict[str, Any]:
        """Return the task as a row of such a file."""
        return task.to_dict()

    @abstractmethod
    def task(self, fields: dict[str, Any]) -> Any:
        """Return the task with these fields; the inverse of a task's `to_dict`."""

    def verl_rows(self, tasks: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the rows of verl's parquet file; `extra_info.task` is the task as JSON."""
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


def digest(content: Any) -> str:
    """Return 16 hex digits of the sha256 of JSON values; two of 100,000 tasks share them once in four billion files."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def with_observation(messages: list[Message], episode: Episode) -> list[Message]:
    """Return the first prompt with the observation of the episode's opening appended to its last message."""
    observation = getattr(episode, "observation", "")
    if not observation:
        return messages
    *earlier, last = messages
    return [*earlier, {**last, "content": f"{last['content']}{observation}"}]


def make_environment(settings: EnvironmentSettings) -> Environment:
    """Make the environment that `settings.type` names, a registered one or one of the user's own.

    Raises:
        ValueError: a file, a class or its tools, or another setting does not fit.
    """
    environment = pkgutil.resolve_name(OWN)(settings)
    if settings.instructions is None:
        return environment
    try:
        return environment.with_instructions(settings.instructions.read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError, InstructionsError) as fault:
        raise InstructionsError(f"the instructions of {settings.instructions}: {fault}") from None

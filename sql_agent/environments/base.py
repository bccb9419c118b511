"""What can be asked (`Taskset`) and where it is played (`World`); an `Environment` is both.

Leaves out the reward (`sql_agent.rewards`) and who writes the replies (`sql_agent.play`).
"""

from __future__ import annotations

import copy
import hashlib
import json
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self

from dbbench_adapter.datatypes import Score
from dbbench_adapter.interaction import Episode, Message
from sql_agent.comparison import Comparison
from sql_agent.names import USER
from sql_agent.settings.groups import AgentConfig, DataConfig, EnvironmentSettings

# The reason under which tasks to train on are left out because they are held out too.
ALSO_HELD_OUT = "also_held_out"


class EpisodeLostError(RuntimeError):
    """The episode cannot go on, through no fault of the policy; its rollout is lost.

    Args:
        reason: a name, counted as `rollout/lost/REASON`.
        error: what happened, for the trajectory; a traceback for example.
    """

    def __init__(self, reason: str, error: str) -> None:
        super().__init__(error)
        self.reason = reason


class InstructionsError(ValueError):
    """These instructions cannot be played; the message says what to change."""


class EnvironmentTask(Protocol):
    """One question, of which only its environment knows the other fields."""

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
    """What a first prompt leaves out to be short."""

    of: str
    """What was cut, e.g. `the schema of shop`."""
    parts: tuple[tuple[str, tuple[str, ...]], ...]
    """Kinds of parts, each with the names of those that are left out, e.g. `("columns", ("customer.fax",))`; a kind
    without names is left out as a whole."""


class World(Protocol):
    """Where a task is played: first prompts, tools and episodes."""

    tools: list[dict[str, Any]]
    """Tools in chat-completions form; empty if the policy writes its actions as text."""

    @abstractmethod
    def messages(self, task: Any) -> list[Message]:
        """The first prompt."""
        ...

    @abstractmethod
    def history(self, messages: Sequence[Message]) -> list[Message]:
        """The part of the conversation that the policy reads."""
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
        """The verdict on an episode in its current state; it may block.

        It is a number in [0, 1]: 1 if the task is solved, which alone counts as success, and less if it is
        solved in part. With the reason `OWN_REWARD` the number is the reward itself.
        """
        ...

    def comparison(self, episode: Any) -> Comparison | None:
        """What `judge`, which has returned a number before, compared; None if there is nothing to show.

        It may block and raises nothing, because an explanation must not change what is trained on.
        """
        return None

    @abstractmethod
    def max_replies(self, limits: AgentConfig) -> int:
        """The number of replies that a rollout may take."""
        ...


class Taskset(ABC):
    """What can be asked: tasks, their first prompts and their solutions, in the form of every command."""

    name: ClassVar[str]
    """Its key in `ENVIRONMENTS`."""
    judged: ClassVar[bool] = True
    """Whether rollouts come with a verdict or a reward; else a verdict is None with the reason `rewards.NO_JUDGE`."""
    tools: list[dict[str, Any]]
    """Tools in chat-completions form; empty if the policy writes its actions as text, or if an agent has its own."""
    instructions: str = ""
    """How to act: the part of the first prompt that is the same for all tasks and may be replaced; "" if there is none,
    because the tasks bring their whole prompt."""
    opening: ClassVar[bool] = False
    """Whether the opening of an episode, or the user's own agent, adds to the first prompt of `messages`."""
    marks: tuple[str, ...] = ()
    """Words that instructions have to hold, since no reply can be right without them."""
    _loaded: tuple[Any, Split] | None = None

    @classmethod
    @abstractmethod
    def from_settings(cls, settings: EnvironmentSettings) -> Self:
        """Make it from its settings.

        Raises:
            ValueError: a setting does not fit.
        """

    @abstractmethod
    def messages(self, task: Any) -> list[Message]:
        """The first prompt."""

    def with_instructions(self, text: str) -> Self:
        """A copy with other instructions; all else is shared with it, open databases too.

        Raises:
            InstructionsError: they lack one of `marks`, or the environment has no instructions to replace.
        """
        if not self.instructions:
            raise InstructionsError(
                f"the tasks of environment {self.name} bring their whole prompt; change it there. Instructions can be "
                "replaced in dbbench, and with a database of your own (text2sql)"
            )
        if missing := [mark for mark in self.marks if mark not in text]:
            raise InstructionsError(
                f"instructions have to name {', '.join(self.marks)}, or no reply can be right; not named: "
                f"{', '.join(missing)}"
            )
        other = copy.copy(self)
        other.instructions = text.strip()
        return other

    def check_episodes(self) -> None:  # noqa: B027  most need nothing
        """Check that episodes can be opened on this machine; called before anything that takes long.

        Raises:
            ValueError: something is missing; the message says how to get it.
            BackendUnavailable: a database is missing; the message says how to get it.
        """

    def load_split(self, data: DataConfig, seed: int) -> Split:
        """Load the tasks to train on and all held-out ones; every command that takes a file of tasks asks this.

        A task that is in both halves is held out: it is left out of training and counted as `also_held_out`, so that
        what is measured stays the same, whatever the training file contains. The same split is loaded once, because a
        `load_split` of the user's may be slow, or draw anew at each call.

        Args:
            seed: makes generated tasks and may order the others; it never decides which half a row of a file is in.
        Raises:
            ValueError: a file is missing, a row does not parse, or every task to train on is held out too.
        """
        if self._loaded is None or self._loaded[0] != (data, seed):
            self._loaded = (data, seed), self._without_held_out(self.read_split(data, seed), data)
        return self._loaded[1]

    def _without_held_out(self, split: Split, data: DataConfig) -> Split:
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
        """16 hex digits that tell this task from others, whatever its id, its file and its place there are."""
        return digest({name: value for name, value in task.to_dict().items() if name != "id"})

    def shorter(self, task: Any) -> Sequence[Any]:
        """The task with ever shorter first prompts, longest first; () if it cannot be shortened.

        References have no part in it (`missed` is for people).
        """
        return ()

    def left_out(self, task: Any) -> LeftOut | None:
        """None if the task's first prompt is whole."""
        return None

    def missed(self, task: Any) -> tuple[str, ...]:
        """The names among what is left out that the task's reference uses."""
        return ()

    def reference_replies(self, task: Any) -> list[Message]:
        """The replies of an assistant that knows the solution, in order; [] if no solution is known."""
        return []

    def read_tasks(self, file: Path) -> list[Any]:
        """Read every task of a file, in the form of `agentgrpo evaluate --tasks`.

        Raises:
            ValueError: the file is missing, or a row does not parse; the message names it.
        """
        raise ValueError(f"environment {self.name} reads no file of tasks")

    def row(self, task: Any) -> dict[str, Any]:
        """The task as a row of such a file."""
        return task.to_dict()

    @abstractmethod
    def task(self, fields: dict[str, Any]) -> Any:
        """The inverse of a task's `to_dict`."""

    def verl_rows(self, tasks: Sequence[Any]) -> list[dict[str, Any]]:
        """The rows of verl's parquet file; `extra_info.task` is the task as JSON."""
        from dbbench_adapter.export import verl_rows

        return verl_rows(tasks, self.messages, self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(  # noqa: B027  most have nothing to close
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        pass


class Environment(Taskset, World, ABC):
    """Provides tasks and the world of their episodes. It must be entered before episodes are opened."""

    def history(self, messages: Sequence[Message]) -> list[Message]:
        return list(messages)

    def typed(self, id: str, question: str, like: Any | None) -> Any:
        """A task without a solution for a question that a person types.

        Args:
            id: the task's id.
            like: the task that was asked last; None if there is none.
        Raises:
            ValueError: it takes more than a question to make a task.
        """
        raise ValueError("this environment takes no questions of your own; ask its tasks, :task N")


def digest(content: Any) -> str:
    # 64 bits: two of 100,000 tasks share them once in four billion files
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def with_observation(messages: list[Message], episode: Episode) -> list[Message]:
    """The first prompt with the observation of the episode's opening appended to its last message."""
    observation = getattr(episode, "observation", "")
    if not observation:
        return messages
    *earlier, last = messages
    return [*earlier, {**last, "content": f"{last['content']}{observation}"}]


def make_taskset(settings: EnvironmentSettings) -> Taskset:
    """Make what `settings.type` names: an environment, registered or the user's own, or the tasks of the user's agent.

    A command makes it once and passes it on.

    Raises:
        ValueError: a file, a class or its tools, or another setting does not fit.
    """
    tasks = pkgutil.resolve_name(USER)(settings)
    if settings.instructions is None:
        return tasks
    try:
        return tasks.with_instructions(settings.instructions.read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError, InstructionsError) as fault:
        raise InstructionsError(f"the instructions of {settings.instructions}: {fault}") from None


def make_environment(settings: EnvironmentSettings) -> Environment:
    """Make the environment of a command that plays no agent of the user's; errors are those of `make_taskset`."""
    environment = make_taskset(settings)
    assert isinstance(environment, Environment)
    return environment

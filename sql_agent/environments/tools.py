"""The public base class of your own environments: TRL's form, and what TRL lacks.

    from sql_agent.environments.tools import Lost, ToolEnvironment

In TRL's form (`GRPOTrainer(environment_factory=...)`, TRL 1.16), every public method is a tool, `reset(**row)` starts
an episode, and `get_reward()` ends it. A class of that form needs no base class. Everything here is an attribute, a
classmethod or a method that TRL does not offer as a tool, so a subclass also runs in TRL. Imports nothing heavy.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sql_agent.settings.groups import DataConfig

CLASSMETHODS = ("prompt", "load_split", "reference", "typed")
Verdict = float | bool | None | tuple[float | None, str]


class Lost(Exception):
    """The rollout is lost and not trained on; raise it in a tool, `reset`, `judge` or `get_reward`.

    Args:
        reason: a name such as `server_down`, counted as `rollout/lost/REASON`.
    """

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason


class Hidden:
    """Hides a method from TRL, which offers all public functions of a class as tools."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self.function, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class ToolEnvironment:
    """Plays one episode after the other; several objects play at once. Each object's code runs in its own thread.

    A subclass defines its tools as public methods with type hints and a Google-style docstring, and `judge` or
    `get_reward`. It may set `done` to end the episode after a tool, and its own `max_turns`.
    """

    max_turns: int | None = None
    """Replies per rollout; None: 10. The setting `agent.max_turns` has precedence."""
    done: bool = False
    """A tool sets it to end the episode; otherwise a reply without a call ends it."""
    solved: bool | None = None
    """With `get_reward`, whether the task is solved; None: unknown, and the rollout is in no success rate."""
    reply: str | None = None
    """The reply without a call that ended the episode, set before `judge` or `get_reward`; None if there was none. TRL
    does not set it."""
    row: dict[str, Any]
    """The task as in its file."""
    strict_tools: bool = False
    """Whether the schemas forbid arguments that a tool does not have (`additionalProperties: false`). TRL's do not."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("judge", "close"):
            if inspect.isfunction(method := cls.__dict__.get(name)):
                setattr(cls, name, Hidden(method))
        for name in CLASSMETHODS:
            if inspect.isfunction(cls.__dict__.get(name)):
                raise TypeError(f"{cls.__name__}.{name} has to be a classmethod, since there is no object yet")

    @classmethod
    def prompt(cls, row: dict[str, Any]) -> str | list[dict[str, Any]]:
        """A task's first prompt: messages, or a text, which becomes a user message. TRL reads the column."""
        return row["prompt"]

    @classmethod
    def load_split(cls, data: DataConfig, seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]] | None:
        """The rows to train on and the held-out rows; None: they are those of the task files.

        Override it where the environment makes its rows, finds them elsewhere, or splits a file in its own way. A row
        without an `id` is named by its place. TRL reads a dataset.

        Args:
            data: `train_file` and `val_file`, None if not given; if there is no file, `generate` and `val_limit` are
                the numbers of rows to make; `held_out_fraction` is the share to hold out of a file.
            seed: the same seed has to give the same rows, and every seed the same split of a file: fine-tuning,
                training and `evaluate` may have different ones.
        """
        return None

    @classmethod
    def reference(cls, row: dict[str, Any]) -> list[Any]:
        """The replies that solve a task, in order, for `check_env` and fine-tuning; [] if none are known.

        A reply is a text, or a call `{"name": ..., "arguments": {...}}`, with a text before it as `content`.
        """
        return row.get("reference") or []

    @classmethod
    def typed(cls, question: str) -> dict[str, Any] | None:
        """The row of a question that a person types in `agentgrpo interactive`; None: it takes none."""
        return None

    def reset(self, **row: Any) -> str | None:
        """Start an episode; a returned text is appended to the prompt."""
        self.row = row
        return None

    def get_reward(self) -> float | None:
        """The reward, any finite number, which is used unchanged; None: the rollout is lost."""
        verdict = self.judge()
        return verdict[0] if isinstance(verdict, tuple) else verdict

    @Hidden
    def judge(self) -> Verdict:
        """A number in [0, 1], 1 if the task is solved; None if that is unknown.

        A pair adds a reason, `(0.0, "wrong_rows")`. The preset `rollout.reward` turns the verdict into a reward.
        """
        return None

    @Hidden
    def close(self) -> None:
        """Release what `reset` opened; called once after every episode."""

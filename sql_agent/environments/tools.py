"""The public base class of environments of your own: TRL's form, and what TRL lacks.

    from sql_agent.environments.tools import Lost, ToolEnvironment

TRL's form (`GRPOTrainer(environment_factory=...)`, TRL 1.16): every public method is a tool, `reset(**row)` starts an
episode, `get_reward()` ends it. A class of that form needs no base class. Everything here is an attribute, a
classmethod or a method that TRL takes for no tool, so a subclass runs in TRL as well. Imports nothing heavy.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

Verdict = float | bool | None | tuple[float | None, str]


class Lost(Exception):
    """Raised in a tool, `reset`, `judge` or `get_reward`: the rollout is lost, and nothing is learned from it.

    Args:
        reason: a name such as `server_down`, counted as `rollout/lost/REASON`.
    """

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason


class Hidden:
    """A method that is no tool: TRL takes the public functions of a class for tools, and does not see this one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self.function, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class ToolEnvironment:
    """One object plays one episode after the other; several play at once. All its code runs in one thread of its own.

    A subclass defines its tools as public methods with type hints and a Google-style docstring, and `judge` or
    `get_reward`. It may set `done` to end the episode after a tool, and `max_turns` for itself.
    """

    max_turns: int | None = None
    """Replies per rollout; None: 10. The setting `agent.max_turns` wins."""
    done: bool = False
    """The episode ends after the tool that sets it; otherwise with a reply without a call."""
    solved: bool | None = None
    """With `get_reward`, whether the task is solved; None: nobody knows, and the rollout is in no rate of success."""
    reply: str | None = None
    """The reply without a call that ended the episode, set before `judge` or `get_reward`; None if there was none. TRL
    does not set it."""
    row: dict[str, Any]
    """The task, as its file has it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("judge", "close"):
            if inspect.isfunction(method := cls.__dict__.get(name)):
                setattr(cls, name, Hidden(method))
        if inspect.isfunction(cls.__dict__.get("prompt")):
            raise TypeError(f"{cls.__name__}.prompt has to be a classmethod, since there is no object yet")

    @classmethod
    def prompt(cls, row: dict[str, Any]) -> str | list[dict[str, Any]]:
        """The first prompt of a task: a text, which becomes a user message, or messages. TRL reads the column."""
        return row["prompt"]

    def reset(self, **row: Any) -> str | None:
        """Start an episode; a text that it returns is appended to the prompt."""
        self.row = row
        return None

    def get_reward(self) -> float | None:
        """The reward, any finite number; it is taken as it is. None: the rollout is lost."""
        verdict = self.judge()
        return verdict[0] if isinstance(verdict, tuple) else verdict

    @Hidden
    def judge(self) -> Verdict:
        """A verdict: a number in [0, 1], 1 where the task is solved; None where nobody can tell. With a reason as a
        pair, `(0.0, "wrong_rows")`. The preset `rollout.reward` makes it a reward."""
        return None

    @Hidden
    def close(self) -> None:
        """Give back what `reset` opened; called once after every episode."""

"""Runs a user's own environment as one of ours: a class in TRL's form, or a subclass of `base.Environment`.

It does what TRL does with such a class (trl/trainer/grpo_trainer.py, 1.16): objects are made once and reused,
`reset(**row)` starts an episode and may add to the prompt, every public method is a tool, an exception of a tool is
answered as `{'error': ...}`, and `get_reward()` is called once at the end, however the rollout ended. Leaves out TRL's
dict of several environments, images, and reward functions beside the class.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import math
import re
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from agentgrpo.chat.calls import call, numbered_id
from agentgrpo.user_files import UserFileError, place
from dbbench_adapter.datatypes import Score
from dbbench_adapter.interaction import CallingEpisode, MalformedCallError, Message, read_arguments
from sql_agent.datatypes import OWN_REWARD
from sql_agent.environments.base import Environment, EpisodeLostError, Split, Taskset
from sql_agent.environments.rows import (
    PlacedTask,
    RowTask,
    RowTaskset,
    as_messages,
    placed_tasks,
    read_placed_tasks,
    short,
    text_of,
)
from sql_agent.environments.tools import Hidden, Lost, ToolEnvironment
from sql_agent.environments.user_class import named, tool_methods, tool_schemas
from sql_agent.environments.user_thread import DeadlineError, RaisedError, UserThread
from sql_agent.names import ENVIRONMENTS
from sql_agent.rewards import NO_JUDGE
from sql_agent.settings.groups import AgentConfig, DataConfig, EnvironmentSettings

logger = logging.getLogger(__name__)

# Replies per rollout if neither the class nor `agent.max_turns` says how many.
MAX_TURNS = 10
# Errors of tools that this process has logged; each is logged once.
_reported: set[str] = set()


def open_user(settings: EnvironmentSettings) -> Taskset:
    """Make what `settings.type` names.

    Raises:
        UserFileError: it cannot be imported, or is not an environment.
    """
    thing, _ = named(settings.type)
    if isinstance(thing, type) and issubclass(thing, Taskset):
        interface = f"{Environment.__module__}.{Environment.__name__}"
        missing = set(getattr(thing, "__abstractmethods__", ()))
        if settings.type not in ENVIRONMENTS and not issubclass(thing, Environment):
            missing |= {name for name in Environment.__abstractmethods__ if not hasattr(thing, name)}
            lacks = f"; it lacks {', '.join(sorted(missing))}" if missing else ""
            raise UserFileError(
                f"{place(thing)}: class {thing.__name__} says what can be asked (Taskset) and not where it is played; "
                f"derive it from {interface}{lacks}"
            )
        if missing:
            raise UserFileError(
                f"{place(thing)}: class {thing.__name__} lacks {', '.join(sorted(missing))} of {interface}"
            )
        return thing.from_settings(settings)
    if isinstance(thing, dict):
        raise UserFileError(f"{settings.type} is a dict of environments; name one of them, a run has one environment")
    if not callable(thing):
        raise UserFileError(
            f"{settings.type} is {short(thing, 60)}, expected a class, or a function that makes objects"
        )
    name = settings.type if settings.type in ENVIRONMENTS else None
    return UserEnvironment(thing, timeout_s=settings.call_timeout_s, name=name)


class Instance:
    """An object of the user's class, and the thread in which all of its code runs.

    Raises:
        EpisodeLostError: making the object raised or hung.
    """

    def __init__(self, factory: Callable[[], Any], timeout_s: float) -> None:
        self._worker, self._timeout_s, self.given_up = UserThread(), timeout_s, False
        weakref.finalize(self, self._worker.stop)  # in case an episode was not closed
        try:
            self.object = self.run("construction", factory)
        except EpisodeLostError:
            self.stop()
            raise

    def call(self, what: str, function: Callable[[], Any]) -> Any:
        """Run `function`; its own exceptions arrive as RaisedError.

        Raises:
            EpisodeLostError: it hung, called for the end of the interpreter, or raised `Lost`.
            RaisedError: it raised anything else.
        """
        try:
            return self._worker.call(function, self._timeout_s)
        except DeadlineError as late:
            self.given_up = True
            raise EpisodeLostError(f"{what}_deadline", f"{what}: {late} (env.call_timeout_s)") from None
        except RaisedError as raised:
            if isinstance(raised.error, Lost):
                reason = re.sub(r"\W+", "_", str(raised.error.reason))[:60]
                raise EpisodeLostError(reason or "lost", str(raised)) from None
            if not isinstance(raised.error, Exception):
                raise EpisodeLostError(f"{what}_error", str(raised)) from None
            raise

    def run(self, what: str, function: Callable[[], Any]) -> Any:
        """As `call`, but every exception becomes an EpisodeLostError."""
        try:
            return self.call(what, function)
        except RaisedError as raised:
            raise EpisodeLostError(f"{what}_error", str(raised)) from None

    def stop(self) -> None:
        self._worker.stop()


class UserEnvironment(RowTaskset, Environment):
    """Plays a class in TRL's form.

    Args:
        factory: the class, or a function that makes its objects.
        timeout_s: limit of each call of the user's code, in seconds.
        name: the registered name; None: tasks are named by the class.
    Raises:
        UserFileError: the class has no `reset`, or a public method that cannot be a tool.
    """

    name: ClassVar[str] = "own"
    opening: ClassVar[bool] = True

    def __init__(self, factory: Callable[[], Any], *, timeout_s: float = 30.0, name: str | None = None) -> None:
        self._factory, self._timeout_s = factory, timeout_s
        self.kind = factory if isinstance(factory, type) else _build_and_type(factory, timeout_s)
        self.name = name or UserEnvironment.name  # pyright: ignore[reportAttributeAccessIssue]  depends on the class
        self._tasks_kind = name or self.kind.__name__
        self._without_file = f"environment {self.kind.__name__} makes no tasks"
        self.tools = tool_schemas(self.kind)
        self.methods = frozenset(tool_methods(self.kind))
        self.says = frozenset(name for name in ("done", "solved") if _declares(self.kind, name))
        self._verdict_from = _verdict_method(self.kind)
        self.judged = self._verdict_from is not None  # pyright: ignore[reportAttributeAccessIssue]  depends on the class
        self.on_raise: Callable[[RaisedError], None] = _log_once
        """Called with each exception of a tool, which the policy reads as a result."""
        self._idle: list[Instance] = []
        self._lock = threading.Lock()

    @classmethod
    def from_settings(cls, settings: EnvironmentSettings) -> Self:
        raise TypeError("made by `open_user`, which knows the class")

    def messages(self, task: RowTask) -> list[Message]:
        """Raises ValueError: the task has no valid prompt."""
        return self._prompt(PlacedTask(task, f"task {task.id!r}"))

    def open(self, task: RowTask, limits: AgentConfig) -> UserEpisode:
        instance = self._instance()
        try:
            return UserEpisode(self, instance, copy.deepcopy(task.row))
        except BaseException:  # Ctrl-C too leaves no thread of the user's code behind
            instance.stop()
            raise

    def judge(self, episode: UserEpisode) -> Score:
        """The verdict of `judge`, or the number of `get_reward` with the reason `OWN_REWARD`.

        None has the reason `no_reward`, the class's own reason, or `NO_JUDGE` if the class has neither method.

        Raises:
            EpisodeLostError: the method raised, hung, or did not return a number.
        """
        if self._verdict_from is None:
            return Score(None, NO_JUDGE)
        value = episode.verdict(self._verdict_from)
        where = f"{place(getattr(self.kind, self._verdict_from))}: {self._verdict_from}"
        return _score(value, where) if self._verdict_from == "judge" else _reward(value, episode.solved(), where)

    def max_replies(self, limits: AgentConfig) -> int:
        own = inspect.getattr_static(self.kind, "max_turns", None)
        return limits.max_turns or (own if isinstance(own, int) and own > 0 else MAX_TURNS)

    def check_episodes(self) -> None:
        try:
            Instance(self._factory, self._timeout_s).stop()
        except EpisodeLostError as lost:
            raise UserFileError(f"{place(self.kind)}: {self.kind.__name__}() cannot be made\n{lost}") from None

    def read_split(self, data: DataConfig, seed: int) -> Split:
        """The rows that the class's `load_split` gives, or else those of the files."""
        return self._own_split(data, seed) or super().read_split(data, seed)

    def read_tasks(self, file: Path) -> list[RowTask]:
        """Read every row, and check that it has a prompt and that `reset` takes its columns."""
        return self._checked(read_placed_tasks(file, self._tasks_kind))

    def reference_replies(self, task: RowTask) -> list[Message]:
        """The replies that the class's `reference` gives, or else those of the row's column `reference`.

        A reply is a text, or a call, `{"name": ..., "arguments": {...}}`, with a text before it as `content`.
        """
        reference = getattr(self.kind, "reference", None)
        steps = reference(copy.deepcopy(task.row)) if inspect.ismethod(reference) else task.row.get("reference")
        return [_reference(step, k) for k, step in enumerate(steps)] if isinstance(steps, list) else []

    def typed(self, id: str, question: str, like: RowTask | None) -> RowTask:
        typed = getattr(self.kind, "typed", None)
        row = typed(question) if inspect.ismethod(typed) else None
        return super().typed(id, question, like) if row is None else RowTask(id, self._tasks_kind, row)

    def give_back(self, instance: Instance) -> None:
        if instance.given_up:
            return
        with self._lock:
            self._idle.append(instance)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for instance in idle:
            instance.stop()

    def _instance(self) -> Instance:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return Instance(self._factory, self._timeout_s)

    def _own_split(self, data: DataConfig, seed: int) -> Split | None:
        """None if the class has no `load_split`, or leaves the files to us.

        Raises:
            ValueError: it raised, or did not return two lists of rows.
        """
        load = getattr(self.kind, "load_split", None)
        if not inspect.ismethod(load):
            return None
        try:
            halves = load(data, seed)
        except ValueError:
            raise  # the environment's own words
        except Exception as error:  # the user's own code
            raise UserFileError(f"{place(load)}: load_split raised {type(error).__name__}: {error}") from error
        if halves is None:
            return None
        if not isinstance(halves, tuple) or len(halves) != 2 or not all(isinstance(half, list) for half in halves):
            raise UserFileError(
                f"{place(load)}: load_split returned {short(halves, 60)}, expected two lists of rows, to train on and "
                "held out, or None"
            )
        train, held_out = (
            self._checked(placed_tasks(_numbered(half, name, place(load)), self._tasks_kind))
            for name, half in zip(("train", "held_out"), halves, strict=True)
        )
        return Split(train, held_out)

    def _checked(self, placed: Sequence[PlacedTask]) -> list[RowTask]:
        for each in placed:
            self._prompt(each)
            self._check_reset(each)
        return [each.task for each in placed]

    def _prompt(self, placed: PlacedTask) -> list[Message]:
        prompt, row = getattr(self.kind, "prompt", None), placed.task.row
        own = inspect.ismethod(prompt) and prompt.__func__ is not ToolEnvironment.prompt.__func__  # pyright: ignore
        if not own and row.get("prompt") is None:
            raise UserFileError(
                f"{placed.place}: no `prompt`; it has {', '.join(row) or 'nothing'}. Add the column, a text or "
                'messages ("" where `reset` returns the whole prompt), or a classmethod `prompt(cls, row)` to '
                f"{self.kind.__name__} ({place(self.kind)})"
            )
        try:
            return as_messages(prompt(copy.deepcopy(row)) if own else copy.deepcopy(row["prompt"]))  # pyright: ignore
        except Exception as error:  # the user's own code
            told = str(error) if isinstance(error, ValueError) else f"raised {type(error).__name__}: {error}"
            at = f" ({place(prompt)})" if own else ""
            raise UserFileError(f"{placed.place}: its prompt{at} {told}") from None

    def _check_reset(self, placed: PlacedTask) -> None:
        reset = self.kind.reset
        try:
            inspect.signature(reset).bind(None, **placed.task.row)
        except TypeError as error:
            raise UserFileError(
                f"{place(reset)}: reset does not take the columns of {placed.place} ({', '.join(placed.task.row)}): "
                f"{error}; it is called as reset(**row), so end its arguments with **row"
            ) from None


class UserEpisode(CallingEpisode):
    """Plays an episode with one of the class's objects.

    Raises:
        EpisodeLostError: `reset` raised, hung, or returned something other than a text or None.
    """

    def __init__(self, environment: UserEnvironment, instance: Instance, row: dict[str, Any]) -> None:
        self._environment, self._instance, self._closed = environment, instance, False
        self._reply: str | None = None
        self.observation: str = instance.run("reset", functools.partial(_reset, instance.object, row))

    def _answer_call(self, name: str, arguments: Any) -> str:
        if name not in self._environment.methods:
            raise MalformedCallError(f"Tool {name} not found.")
        values = read_arguments(name, arguments)
        if not isinstance(values, dict):
            raise MalformedCallError(f"the arguments of {name} are a JSON object, its arguments by name")
        method = getattr(self._instance.object, name)
        fits = _binds(method, values)
        self.malformed_calls += not fits  # answered below with Python's own message, as in TRL
        try:
            result = self._instance.call("tool", functools.partial(method, **values))
            answer = self._instance.call("tool", functools.partial(text_of, result))
        except RaisedError as raised:
            if fits:
                self._environment.on_raise(raised)
            answer = text_of({"error": str(raised.error)})
        if self._says("done"):
            self.status = "completed"
        return answer

    def without_call(self, reply: str) -> list[Message]:
        self._reply = reply
        return super().without_call(reply)

    def verdict(self, method: str) -> Any:
        return self._instance.run(method, functools.partial(_verdict, self._instance.object, method, self._reply))

    def solved(self) -> bool | None:
        return self._says("solved")

    def close(self) -> None:
        """Give the object back, or drop it if its `close` fails."""
        if self._closed:
            return
        self._closed = True
        try:
            if isinstance(inspect.getattr_static(self._environment.kind, "close", None), Hidden):
                self._instance.run("close", self._instance.object.close)
        except EpisodeLostError as lost:
            if not self._instance.given_up:
                logger.warning("an environment did not close: %s", lost)
            self._instance.stop()
        else:
            self._environment.give_back(self._instance)

    def _says(self, name: str) -> bool | None:
        """None if the class does not declare it, or it is None."""
        if name not in self._environment.says:
            return None
        value = self._instance.run(name, functools.partial(getattr, self._instance.object, name))
        return None if value is None else bool(value)

    def _error_text(self, reason: str) -> str:
        return str({"error": reason})


def _build_and_type(factory: Callable[[], Any], timeout_s: float) -> type:
    # one object has to be made to know the class
    try:
        instance = Instance(factory, timeout_s)
    except EpisodeLostError as lost:
        raise UserFileError(f"{place(factory)}: it makes no environment\n{lost}") from None
    instance.stop()
    return type(instance.object)


def _numbered(rows: Sequence[Any], half: str, where: str) -> list[tuple[str, str, Any]]:
    return [(f"{half}-{k}", f"{where}, row {k} of {half}", row) for k, row in enumerate(rows, 1)]


def _binds(method: Callable[..., Any], values: dict[str, Any]) -> bool:
    try:
        inspect.signature(method).bind(**values)
    except TypeError:
        return False
    return True


def _declares(kind: type, name: str) -> bool:
    # as an attribute or a property, which TRL ignores; a method would be a tool
    return hasattr(kind, name) and not inspect.isfunction(getattr(kind, name))


def _verdict_method(kind: type) -> str | None:
    if issubclass(kind, ToolEnvironment):
        if kind.judge is not ToolEnvironment.judge:
            return "judge"
        return None if kind.get_reward is ToolEnvironment.get_reward else "get_reward"
    return "get_reward" if inspect.isfunction(getattr(kind, "get_reward", None)) else None


def _reset(thing: Any, row: dict[str, Any]) -> str:
    if isinstance(thing, ToolEnvironment):
        for name in ("done", "solved", "reply"):  # resets what the previous episode set to the class's values
            vars(thing).pop(name, None)
    observation = thing.reset(**row)
    if inspect.isawaitable(observation):
        raise TypeError("reset is `async`; TRL calls it without awaiting, make it a plain method")
    if observation is not None and not isinstance(observation, str | list):
        raise TypeError(f"reset returned {short(observation, 60)}, expected a text or None")
    return "" if observation is None else text_of(observation)


def _verdict(thing: Any, method: str, reply: str | None) -> Any:
    if isinstance(thing, ToolEnvironment):
        thing.reply = reply
    return getattr(thing, method)()


def _score(value: Any, where: str) -> Score:
    value, reason = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
    if value is None:
        return Score(None, str(reason or "not_judged"))
    number = _number(value, where, "judge_error")
    if not 0.0 <= number <= 1.0:
        raise EpisodeLostError(
            "judge_error",
            f"{where} returned {number:g}, expected a number in [0, 1], 1 if the task is solved; return a reward that "
            "is not a verdict from get_reward",
        )
    return Score(number, str(reason or ("solved" if number == 1.0 else "not_solved")))


def _reward(value: Any, solved: bool | None, where: str) -> Score:
    if value is None:
        return Score(None, "no_reward")
    number = _number(value, where, "get_reward_error")
    return Score(number, OWN_REWARD, {} if solved is None else {"correctness": float(solved)})


def _number(value: Any, where: str, reason: str) -> float:
    try:
        number = float(value)  # numpy's and torch's scalars too
    except (TypeError, ValueError):
        raise EpisodeLostError(reason, f"{where} returned {short(value, 80)}, expected a number or None") from None
    if not math.isfinite(number):
        raise EpisodeLostError("reward_not_finite", f"{where} returned {number}, expected a finite number or None")
    return number


def _reference(step: Any, position: int) -> Message:
    if not isinstance(step, dict):
        return {"role": "assistant", "content": str(step)}
    asked = call(str(step.get("name")), step.get("arguments") or {}, numbered_id(position))
    return {"role": "assistant", "content": step.get("content"), "tool_calls": [asked]}


def _log_once(raised: RaisedError) -> None:
    # once per place: the policy reads the error, but it may be a fault in the file
    frames = str(raised).rpartition("\n")[0]
    if frames not in _reported and len(_reported) < 100:
        _reported.add(frames)
        logger.warning("a tool raised, which the policy reads as a result; logged once per place\n%s", raised)

"""Calls of reward functions for rollouts that have ended, many at once, each within its deadline.

Functions run in threads of their own, so that a slow or hanging one blocks neither the event loop nor databases nor,
since the threads are daemons, the end of the process. The coroutine of an `async def` is awaited in that loop. A
failure loses the rollout, or with `RewardUnavailable` the function's part in the group, but never the runner. A
function that hangs for ever keeps its thread, and when all threads are taken, every later call misses its deadline.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import threading
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from numbers import Real
from typing import Any

from sql_agent.datatypes import FunctionReward
from sql_agent.reward_functions.datatypes import (
    Function,
    LoadedReward,
    RewardRecord,
    RewardUnavailable,
    UnscorableError,
)
from sql_agent.rewards import MASKED

logger = logging.getLogger(__name__)

# What a function raises over the value of an answer. A service that is away raises others, most often an OSError.
_OF_VALUES = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, SyntaxError, TypeError, ValueError),
)
# Only the last characters of a longer traceback are kept.
TRACEBACK_CHARS = 4_000


class RewardFunctions:
    """
    Args:
        functions: the functions of the run.
        threads: calls that may compute at the same time in this process.
    """

    def __init__(self, functions: Sequence[LoadedReward], threads: int) -> None:
        self._functions = functions
        self._free = asyncio.Semaphore(threads)
        self._failures: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._functions)

    async def ask(self, record: RewardRecord) -> dict[str, FunctionReward]:
        said = await asyncio.gather(*(self._ask(function, record) for function in self._functions))
        return {function.label: given for function, given in zip(self._functions, said, strict=True)}

    async def _ask(self, function: LoadedReward, record: RewardRecord) -> FunctionReward:
        deadline = asyncio.timeout(function.timeout_s)
        try:
            async with deadline:
                given = checked_number(function.label, await self._call(function.call, record), record.num_turns)
            if given.reason != "reward_error":
                return given
            self._log(f"{function.label} failed: no number", str(given.error), function.on_error)
            return replace(given, value=function.on_error)
        except UnscorableError as error:
            logger.warning("%s cannot score task %s: %s", function.label, record.task.get("id"), error)
            return FunctionReward(0.0, error.reason, str(error))
        except RewardUnavailable as error:
            logger.warning("reward %s is unavailable: %s", function.label, error)
            return FunctionReward(None, error.reason, str(error))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # the rollout was cancelled, not something in the function
                raise
            return self._failed(function, error)
        except (Exception, SystemExit) as error:
            if isinstance(error, TimeoutError) and deadline.expired():
                what = f"{function.label} gave no number within {function.timeout_s:g} s (rollout.reward_timeout_s)"
                logger.warning("%s", what)
                return FunctionReward(None, "reward_deadline", what)
            return self._failed(function, error)

    async def _call(self, function: Function, record: RewardRecord) -> object:
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        called: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def settle(result: tuple[object, BaseException | None]) -> None:
            self._free.release()  # not before the function has returned, even if nobody waits for it any more
            if not called.done():
                called.set_result(result)

        def run() -> None:
            result = _call(function, record)
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, result)

        threading.Thread(target=run, name="reward", daemon=True).start()
        value, error = await called
        if error is not None:
            raise error
        return await value if inspect.isawaitable(value) else value

    def _failed(self, function: LoadedReward, error: BaseException) -> FunctionReward:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next  # leaves out our own frames
        what = "".join(traceback.format_exception(type(error), error, trace))[-TRACEBACK_CHARS:]
        at = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(trace)[-1:]]
        value = function.on_error if isinstance(error, _OF_VALUES) and not isinstance(error, OSError) else None
        self._log(f"{function.label} failed: " + " at ".join([type(error).__name__, *at]), what, value)
        return FunctionReward(value, "reward_error", what)

    def _log(self, kind: str, what: str, value: float | None) -> None:
        self._failures[kind] += 1
        times = self._failures[kind]
        if times == 1:
            masked = f"{MASKED}\n" if value is None and self._failures.total() == 1 else ""
            logger.error("reward %s\n%s%s", kind, masked, what)
        elif str(times).strip("0") == "1":  # 10, 100, ...; a fault in the function comes once for each rollout
            logger.error("reward %s, %d times so far", kind, times)


def checked_number(label: str, value: Any, num_turns: int) -> FunctionReward:
    """One finite number, one for each turn, or None with a reason."""
    if hasattr(value, "tolist"):
        value = value.tolist()  # a numpy or torch value
    if isinstance(value, list | tuple):
        return _numbers(label, list(value), num_turns)
    if value is None:
        return FunctionReward(None, "reward_none", f"{label} returned None")
    if isinstance(value, Real) and math.isfinite(value):
        return FunctionReward(float(value))
    return _wrong(f"{label} returned {_shown(value)}, expected a finite number, one for each turn, or None")


def _numbers(label: str, values: Sequence[object], num_turns: int) -> FunctionReward:
    if len(values) != num_turns:
        return _wrong(
            f"{label} returned {len(values)} numbers for a rollout of {num_turns} turns, expected one for each"
        )
    turns: list[float] = []
    for turn, value in enumerate(values, 1):
        if value is None:
            return FunctionReward(None, "reward_none", f"{label} returned None for turn {turn}")
        if not isinstance(value, Real) or not math.isfinite(value):
            return _wrong(f"{label} returned {_shown(value)} for turn {turn}, expected a finite number")
        turns.append(float(value))
    if not math.isfinite(sum(turns)):
        return _wrong(f"{label} returned numbers for {num_turns} turns whose sum is not finite")
    return FunctionReward(sum(turns), turns=turns)


def _shown(value: object) -> str:
    return f"{str(value)[:100]!r} ({type(value).__name__})"


def _wrong(what: str) -> FunctionReward:
    return FunctionReward(None, "reward_error", what)


def _call(function: Function, record: RewardRecord) -> tuple[object, BaseException | None]:
    # A future cannot carry StopIteration, and SystemExit would end the loop.
    try:
        return function(record.copy()), None
    except BaseException as error:  # the user's code may raise anything; it loses its rollout, but not the runner
        return None, error

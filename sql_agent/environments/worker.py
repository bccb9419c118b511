"""Runs a stranger's code in a thread of its own, with a deadline for each call.

A thread and not a process: an object's calls all run in one thread, as SQLite's connections and event loops want it,
and sixteen of them cost no memory. Leaves out what only a process could keep off: code that crashes the interpreter
ends the process, and a call that hangs outside of Python keeps its thread until it returns.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import queue
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any


class DeadlineError(RuntimeError):
    """A call did not return in time; its thread was given up."""


class RaisedError(RuntimeError):
    """A call raised `error`; the text is its traceback, from the stranger's code on."""

    def __init__(self, error: BaseException) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename != __file__]
        lines = [*traceback.format_list(own), *traceback.format_exception_only(error)]
        super().__init__("".join(["Traceback (most recent call last):\n", *lines]).strip())
        self.error = error


class _GivenUp(BaseException):
    """Raised inside a call that nobody waits for any more; user code that catches `Exception` does not catch it."""


class Worker:
    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="environment")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread.start()

    def call(self, function: Callable[[], Any], timeout_s: float) -> Any:
        """Run `function` in the thread and wait for what it returns, awaited if it is awaitable.

        Raises:
            RaisedError: it raised anything, `SystemExit` included.
            DeadlineError: `timeout_s` passed. The worker is of no use any more: a loop in Python is broken off, a call
                that hangs in C is left behind.
        """
        done = self.submit(function)
        wait([done], timeout_s)
        if not done.done():
            self.give_up()
            raise DeadlineError(f"it did not return within {timeout_s:g} s")
        if (error := done.exception()) is not None:
            raise RaisedError(error) from error
        return done.result()

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Run `function` after the calls before; the future has what it returns or raises."""
        done: Future[Any] = Future()
        self._calls.put((function, done))
        return done

    def stop(self) -> None:
        """Let the thread end after the calls before; does not wait."""
        self._calls.put(None)

    def give_up(self) -> None:
        """Break off the call that runs now, at its next line of Python; what waits for it waits in vain."""
        if self._thread.ident is not None:  # before it may end: its number could then be another thread's
            identity, raised = ctypes.c_ulong(self._thread.ident), ctypes.py_object(_GivenUp)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, raised)
        self.stop()

    def _serve(self) -> None:
        try:
            while (call := self._calls.get()) is not None:
                function, done = call
                if not done.set_running_or_notify_cancel():  # nobody waits for it any more
                    continue
                try:
                    result = function()
                    done.set_result(self._awaited(result) if inspect.isawaitable(result) else result)
                except _GivenUp:
                    return
                except BaseException as error:  # a stranger's `sys.exit()` ends one rollout, not the run
                    done.set_exception(error)
                del call, function, done  # or the last call would keep its object alive
        except _GivenUp:
            pass  # it came between two calls
        finally:
            if self._loop is not None:
                self._loop.close()

    def _awaited(self, result: Any) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()

        async def value() -> Any:
            return await result

        return self._loop.run_until_complete(value())

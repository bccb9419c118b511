"""Runs the user's code in a thread of its own, with a deadline for each call.

It uses a thread and not a process: all calls of an object run in one thread, as SQLite's connections and event loops
require, and sixteen threads cost no memory. It does not guard against what only a process could: code that crashes the
interpreter ends the process, and a call that hangs outside of Python keeps its thread until it returns.
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
    """A call raised `error`; the text is its traceback, beginning in the user's code."""

    def __init__(self, error: BaseException) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename != __file__]
        lines = [*traceback.format_list(own), *traceback.format_exception_only(error)]
        super().__init__("".join(["Traceback (most recent call last):\n", *lines]).strip())
        self.error = error


class _GivenUp(BaseException):
    """Interrupts a call that nothing waits for any more; user code that catches `Exception` does not catch it."""


class UserThread:
    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="environment")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread.start()

    def call(self, function: Callable[[], Any], timeout_s: float) -> Any:
        """Run `function` in the thread and return its result, awaited if it is awaitable.

        Raises:
            RaisedError: it raised anything, `SystemExit` included.
            DeadlineError: `timeout_s` passed. The worker cannot be used any more: a loop in Python is interrupted, and
                a call that hangs in C is abandoned.
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
        """Run `function` after earlier calls and return a future of its result or exception."""
        done: Future[Any] = Future()
        self._calls.put((function, done))
        return done

    def stop(self) -> None:
        """Let the thread end after earlier calls; this does not wait."""
        self._calls.put(None)

    def give_up(self) -> None:
        """Interrupt the running call at its next line of Python; its future never gets a result."""
        if self._thread.ident is not None:  # before `stop`: after the thread's end, another may have its number
            identity, raised = ctypes.c_ulong(self._thread.ident), ctypes.py_object(_GivenUp)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, raised)
        self.stop()

    def _serve(self) -> None:
        try:
            while (call := self._calls.get()) is not None:
                function, done = call
                if not done.set_running_or_notify_cancel():  # the future was cancelled
                    continue
                try:
                    result = function()
                    done.set_result(self._awaited(result) if inspect.isawaitable(result) else result)
                except _GivenUp:
                    return
                except BaseException as error:  # the user's `sys.exit()` ends one rollout, not the run
                    done.set_exception(error)
                del call, function, done  # otherwise the last call would keep its object alive
        except _GivenUp:
            pass  # it arrived between two calls
        finally:
            if self._loop is not None:
                self._loop.close()

    def _awaited(self, result: Any) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()

        async def value() -> Any:
            return await result

        return self._loop.run_until_complete(value())

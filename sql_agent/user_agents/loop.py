"""Runs the user's coroutines in an event loop of their own, beside the runner's, and functions in threads.

As in agent-lightning, all coroutines share one loop, so they can share the clients and locks of a module. The runner's
own loop stays free: code that blocks delays other rollouts of the user's agent, but not heartbeats and deadlines.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from typing import Generic, TypeVar

from sql_agent.environments.user_thread import UserThread

logger = logging.getLogger(__name__)

T = TypeVar("T")
# Later rollouts get another loop if this one has not answered for so many seconds after a deadline.
STUCK_S = 10.0
# Synchronous tools and nodes that may wait at the same time; asyncio's own limit is 6 on two cores, and a node that
# waits for the policy holds its thread.
THREADS = 64
CLOSE_S = 10.0


class ExitError(RuntimeError):
    """The user's code called `sys.exit()`, which would end the loop."""


class AgentLoop:
    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looking: set[asyncio.Task[None]] = set()

    async def run(self, work: Callable[[], Coroutine[None, None, T]]) -> T:
        """`work()` sees the caller's context variables; cancelling the call cancels it."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop.set_default_executor(ThreadPoolExecutor(THREADS, thread_name_prefix="agent"))
            threading.Thread(target=_serve, args=(self._loop,), daemon=True, name="agents").start()
        loop = self._loop
        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_without_exit(work), loop))
        except asyncio.CancelledError:
            looking = asyncio.create_task(self._look(loop))
            self._looking.add(looking)
            looking.add_done_callback(self._looking.discard)
            raise

    async def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        answered = threading.Event()
        loop.call_soon_threadsafe(answered.set)
        for _ in range(100):
            await asyncio.sleep(STUCK_S / 100)
            if answered.is_set():
                return
        if self._loop is loop:
            logger.error("an agent blocks its event loop, in code that does not await; later rollouts get another loop")
            self._loop = None  # the old loop continues its rollouts once it is free

    def close(self, last: Callable[[], Coroutine[None, None, None]] | None = None) -> None:
        """
        Args:
            last: makes what the loop still runs, for `CLOSE_S` at most.
        """
        if self._loop is not None:
            if last is not None:
                with suppress(Exception):  # the process ends, and what is left has the run's id
                    asyncio.run_coroutine_threadsafe(last(), self._loop).result(CLOSE_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):  # raised by a task within a rollout; its awaiter gets it too
            continue
        return


async def _without_exit(work: Callable[[], Coroutine[None, None, T]]) -> T:
    try:
        return await work()
    except SystemExit as error:
        raise ExitError(f"SystemExit: {error}") from error


async def in_thread(function: Callable[[], T]) -> T:
    """`function` runs in a thread of its own with the caller's context variables. Cancelling the call interrupts it at
    its next line of Python.
    """
    worker, context = UserThread(), contextvars.copy_context()
    try:
        return await asyncio.wrap_future(worker.submit(lambda: context.run(function)))
    except asyncio.CancelledError:
        worker.give_up()
        raise
    finally:
        worker.stop()


class Held(Generic[T]):
    """Enters a context manager once, in a task of its own, which also leaves it: a session of MCP must be left by the
    task that entered it.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._make = make
        self._task: asyncio.Task[None] | None = None
        self._entered: asyncio.Future[T]
        self._end: asyncio.Event

    async def value(self) -> T:
        """Raises Exception: entering it raised; the next call tries again."""
        if self._task is None or self._task.done():
            self._entered, self._end = asyncio.get_running_loop().create_future(), asyncio.Event()
            self._task = asyncio.create_task(self._hold(self._entered, self._end))
        return await asyncio.shield(self._entered)

    async def _hold(self, entered: asyncio.Future[T], end: asyncio.Event) -> None:
        try:
            async with self._make() as value:
                entered.set_result(value)
                await end.wait()
        except (Exception, SystemExit) as error:
            if entered.done():
                raise
            entered.set_exception(ExitError(f"SystemExit: {error}") if isinstance(error, SystemExit) else error)

    async def leave(self) -> None:
        if self._task is not None:
            self._end.set()
            await self._task

"""Runs the user's coroutines in an event loop of their own, beside the runner's.

As in agent-lightning all of them share one loop, so clients and locks of a module are at home in it. The runner's own
loop stays free: code that blocks holds up other rollouts of the user's agent, and neither heartbeats nor deadlines.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")
STUCK_S = 10.0
"""A loop that has not answered for so long after a deadline is left to itself, and later rollouts get another."""


class ExitError(RuntimeError):
    """The code called `sys.exit()`, which would end the loop."""


class AgentLoop:
    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looking: set[asyncio.Task[None]] = set()

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `work()`, which sees the caller's context variables. A cancelled call cancels it."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, daemon=True, name="agents").start()
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
            self._loop = None
            loop.call_soon_threadsafe(loop.stop)

    def close(self) -> None:
        """What still runs is left where it is."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None


async def _without_exit(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        return await work()
    except SystemExit as error:
        raise ExitError(f"SystemExit: {error}") from error

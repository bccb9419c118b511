"""Keeps the time for which new weights held the calls of the policy, so that no deadline counts it.

With `trainer.max_off_policy_steps` rollouts go on while new weights are sent: the open calls are ended, and no server
answers one before it has the weights. The trainer tells the LLM proxy when that begins and ends
(`paused_for_weight_sync`). The proxy lets the deadline of a call wait; who plays a rollout asks the proxy when the
rollout's deadline has come (`ask_held`). What is asked and told are durations, because the clocks of two machines
differ.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp

from sql_agent.model_address.request_guard import RUN_TOKEN, authorization

logger = logging.getLogger(__name__)

PATH = "/weight_sync_pause"
"""The LLM proxy takes POST `{"held": true}` or false there, and GET `?seconds=S` gives the held ones of the last S."""
LONGEST_HOLD_S = 600.0
"""A hold counts no longer than that, so that every wait has an end even where the trainer is gone."""
_KEPT = 256  # holds; there is one a train step, and a rollout takes a few steps at most
_ASK_S = 5.0
_TELL_END_S = 30.0  # so long the end of a hold is told again; if lost, deadlines would not come until the next hold
_PAUSE_S = 0.25  # the least between two questions whether a deadline has passed, and between two tries to tell

HeldS = Callable[[float], Awaitable[float]]
"""How many of the last so many seconds calls were held."""


class WeightSyncPauses:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began = clock, float("nan")
        self._ended = deque[tuple[float, float]](maxlen=_KEPT)
        self.held = False

    def set(self, held: bool) -> None:
        if self.held:
            self._ended.append(self._open())
        self.held, self._began = held, self._clock()

    def seconds(self, of_last_s: float) -> float:
        since = self._clock() - of_last_s
        holds = [*self._ended, *([self._open()] if self.held else [])]
        return sum(max(0.0, end - max(begin, since)) for begin, end in holds)

    def _open(self) -> tuple[float, float]:
        return self._began, min(self._clock(), self._began + LONGEST_HOLD_S)


@asynccontextmanager
async def deadline(limit_s: float, held_s: HeldS | None) -> AsyncIterator[asyncio.Timeout]:
    """`asyncio.timeout` that does not count what `held_s` says; None: nothing holds calls."""
    async with asyncio.timeout(None if held_s else limit_s) as timeout:
        watch = asyncio.create_task(_expire(timeout, limit_s, held_s)) if held_s else None
        try:
            yield timeout
        finally:
            if watch is not None:
                watch.cancel()


async def _expire(timeout: asyncio.Timeout, limit_s: float, held_s: HeldS) -> None:
    began, pause_s = time.monotonic(), limit_s
    try:
        while pause_s > 0:
            await asyncio.sleep(pause_s)
            passed_s = time.monotonic() - began
            left_s = limit_s - passed_s + await held_s(passed_s)
            pause_s = max(left_s, _PAUSE_S) if left_s > 1e-3 else 0.0  # a timer may be some ns early
    except Exception:  # nobody waits for this task, and without it the deadline would never come
        logger.exception("it cannot be told for how long calls were held; the deadline counts all of it")
    timeout.reschedule(asyncio.get_running_loop().time())


async def ask_held(proxy_url: str, of_last_s: float) -> float:
    """0 if the proxy does not say, so that the deadline holds."""
    try:
        async with _session() as session, session.get(f"{proxy_url}{PATH}", params={"seconds": of_last_s}) as response:
            response.raise_for_status()
            return float((await response.json())["seconds"])
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError) as error:
        why = str(error) or type(error).__name__
        logger.warning("the LLM proxy does not say for how long calls were held: %s", why)
        return 0.0


@asynccontextmanager
async def paused_for_weight_sync(proxy_url: str | None) -> AsyncIterator[None]:
    """Tell the LLM proxy that calls are held in this block; None: there is nobody to tell."""
    await _tell(proxy_url, held=True)
    try:
        yield
    finally:
        await _tell(proxy_url, held=False, again_s=_TELL_END_S)


async def _tell(proxy_url: str | None, *, held: bool, again_s: float = 0.0) -> None:
    if proxy_url is None:
        return
    last = time.monotonic() + again_s
    while True:
        try:
            async with _session() as session, session.post(f"{proxy_url}{PATH}", json={"held": held}) as response:
                response.raise_for_status()
            return
        except (aiohttp.ClientError, OSError, TimeoutError) as error:  # the deadlines go on, as they do without a lag
            if time.monotonic() >= last:
                why = str(error) or type(error).__name__
                logger.warning("the LLM proxy was not told that calls are held=%s: %s", held, why)
                return
        await asyncio.sleep(_PAUSE_S)


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ASK_S), headers=authorization(RUN_TOKEN))

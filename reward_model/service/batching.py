"""The queue in front of the model: a bounded number of places, one worker thread, deadlines, and a drain.

The event loop admits, a second thread tokenises, the worker scores. The worker never waits for more to come: it takes
what is there, oldest first, and while it computes the next round gathers. What was given up meanwhile is not scored.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from reward_model.datatypes import Encoded, RewardScore
from reward_model.service import metrics

log = logging.getLogger(__name__)

ROUND_TOKENS = 16384
"""What the worker takes at a time; a request that arrives waits for one such round at most, and for those before it."""


class BusyError(RuntimeError):
    """No place is free, or the service is ending; worth another try."""

    def __init__(self, reason: str, said: str) -> None:
        super().__init__(said)
        self.reason = reason


class Model(Protocol):
    """`forward.Rounds`; tests put others in its place."""

    def score(self, round_: Sequence[Encoded]) -> Iterator[list[tuple[int, RewardScore]]]: ...


@dataclass
class Ask:
    """One request's conversations on their way through."""

    encoded: list[Encoded]
    future: asyncio.Future[list[RewardScore]]
    scores: list[RewardScore | None] = field(init=False)
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.scores, self.left = [None] * len(self.encoded), len(self.encoded)


class Batcher:
    """Scores for many concurrent requests; its methods belong to one event loop."""

    def __init__(self, model: Model, *, max_queue: int) -> None:
        """
        Args:
            max_queue: conversations that may be accepted and not yet answered.
        """
        self._model, self._max_queue = model, max_queue
        self._places = 0
        self._draining = False
        self._waiting: deque[tuple[Ask, int]] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._loop = asyncio.get_running_loop()
        # One thread: a fast tokenizer may not be asked by two at once where a call changes its settings.
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="tokenize")
        self._worker = threading.Thread(target=self._work, name="score", daemon=True)
        self._worker.start()

    async def score(self, count: int, encode: Callable[[], list[Encoded]]) -> list[RewardScore]:
        """The scores of a request's conversations; cancelling gives its places back.

        Args:
            count: how many `encode` returns.
            encode: run in the tokenising thread.
        Raises:
            BusyError: fewer than `count` places are free, or the service is draining.
        """
        with self._seats(count):
            encoded = await self._loop.run_in_executor(self._tokenizing, encode)
            ask = Ask(encoded, self._loop.create_future())
            with self._changed:
                self._waiting.extend((ask, index) for index in range(count))
                self._changed.notify()
            scores = await ask.future
        metrics.SCORED.inc(count)
        metrics.TRUNCATED.inc(sum(score.truncated for score in scores))
        return scores

    @contextmanager
    def _seats(self, count: int) -> Iterator[None]:
        if self._draining:
            raise BusyError("draining", "the service is ending; ask the one that follows it")
        if self._places + count > self._max_queue:
            raise BusyError(
                "queue_full", f"{self._places} of {self._max_queue} places are taken, {count} were asked for"
            )
        self._places += count
        metrics.PLACES.set(self._places)
        try:
            yield
        finally:
            self._places -= count
            metrics.PLACES.set(self._places)

    async def drain(self, timeout_s: float) -> bool:
        """Admit nothing more, answer what was admitted; whether that was done within `timeout_s`."""
        self._draining = True
        deadline = time.monotonic() + timeout_s
        while self._places and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        return not self._places

    def close(self) -> None:
        """Let both threads end; a round under way is finished first."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._tokenizing.shutdown(wait=False, cancel_futures=True)

    def _work(self) -> None:
        while (round_ := self._take()) is not None:
            if round_:
                metrics.ROUND_SIZE.observe(len(round_))
                with metrics.ROUND_SECONDS.time():
                    self._score(round_)

    def _take(self) -> list[tuple[Ask, int]] | None:
        """The oldest conversations that somebody still waits for, up to `ROUND_TOKENS`; None: it is over."""
        with self._changed:
            while not self._waiting and not self._ended:
                self._changed.wait()
            if self._ended:
                return None
            taken, tokens = [], 0
            while self._waiting and tokens < ROUND_TOKENS:
                ask, index = self._waiting.popleft()
                if not ask.future.done():
                    taken.append((ask, index))
                    tokens += len(ask.encoded[index].ids)
            return taken

    def _score(self, round_: list[tuple[Ask, int]]) -> None:
        unscored = dict(enumerate(round_))
        try:
            for part in self._model.score([ask.encoded[index] for ask, index in round_]):
                done = [(*unscored.pop(number), score) for number, score in part]
                self._loop.call_soon_threadsafe(self._deliver, done)
        except Exception as error:
            # One conversation must not fail the others; the message may hold a text and is not logged.
            log.error("a round of %d failed with %s", len(round_), type(error).__name__)
            if len(round_) > 1:
                for one in unscored.values():
                    self._score([one])
            else:
                self._loop.call_soon_threadsafe(self._fail, round_[0][0], error)

    def _deliver(self, done: list[tuple[Ask, int, RewardScore]]) -> None:
        for ask, index, score in done:
            ask.scores[index] = score
            ask.left -= 1
            if not ask.left and not ask.future.done():
                ask.future.set_result([score for score in ask.scores if score is not None])

    def _fail(self, ask: Ask, error: Exception) -> None:
        if not ask.future.done():
            ask.future.set_exception(error)

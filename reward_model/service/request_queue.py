"""Queues requests for the model, with a limited number of slots, one scoring thread, cancellation and draining.

The event loop accepts requests, a second thread tokenises them, a third scores them. The scoring thread never waits for
a batch to fill: it takes the oldest waiting conversations, and the next batch gathers meanwhile. Requests that were
cancelled in the queue are not scored.
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

from reward_model.datatypes import EncodedConversation, RewardScore
from reward_model.service import metrics

log = logging.getLogger(__name__)

# The most tokens of one batch. A new request waits for the batch in progress, and for the requests before it.
BATCH_TOKENS = 16384


class BusyError(RuntimeError):
    """The queue is full or the service is ending; the client should ask again."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Model(Protocol):
    """Scores a batch: `BatchScorer`, or a scripted model in tests."""

    def score(self, batch: Sequence[EncodedConversation]) -> Iterator[list[tuple[int, RewardScore]]]: ...


@dataclass
class Request:
    encoded: list[EncodedConversation]
    future: asyncio.Future[list[RewardScore]]
    scores: dict[int, RewardScore] = field(default_factory=dict)


class RequestQueue:
    """The methods belong to one event loop."""

    def __init__(self, model: Model, *, max_queue: int) -> None:
        """
        Args:
            max_queue: the most conversations that are accepted and not yet answered.
        """
        self._model, self._max_queue = model, max_queue
        self._taken = 0
        self._draining = False
        self._waiting: deque[tuple[Request, int]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._loop = asyncio.get_running_loop()
        # One thread is enough, and two must not call a fast tokenizer while a call changes its settings.
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="tokenize")
        threading.Thread(target=self._work, name="score", daemon=True).start()

    async def score(
        self, count: int, encode: Callable[[], list[EncodedConversation]]
    ) -> tuple[list[EncodedConversation], list[RewardScore]]:
        """Cancelling a call frees its slots.

        Args:
            count: the number of conversations that `encode` returns.
            encode: a function that runs in the tokenising thread.
        Raises:
            BusyError: fewer than `count` slots are free, or the service is draining.
        """
        with self._slots(count):
            encoded = await self._loop.run_in_executor(self._tokenizing, encode)
            request = Request(encoded, self._loop.create_future())
            with self._changed:
                self._waiting.extend((request, index) for index in range(count))
                self._changed.notify()
            scores = await request.future
        metrics.SCORED.inc(count)
        metrics.TRUNCATED.inc(sum(score.truncated for score in scores))
        return encoded, scores

    @contextmanager
    def _slots(self, count: int) -> Iterator[None]:
        if self._draining:
            raise BusyError("draining", "the service is ending; ask its successor")
        if self._taken + count > self._max_queue:
            raise BusyError(
                "queue_full",
                f"{self._taken} of {self._max_queue} queue slots are taken, {count} were asked for; ask again later",
            )
        self._take(count)
        try:
            yield
        finally:
            self._take(-count)

    def _take(self, count: int) -> None:
        self._taken += count
        metrics.QUEUED.set(self._taken)

    async def drain(self, timeout_s: float) -> bool:
        self._draining = True
        deadline = time.monotonic() + timeout_s
        while self._taken and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        return not self._taken

    def close(self) -> None:
        # The batch that is being scored is finished first.
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._tokenizing.shutdown(wait=False, cancel_futures=True)

    # The scoring thread

    def _work(self) -> None:
        while (batch := self._next_batch()) is not None:
            if batch:
                metrics.BATCH_SIZE.observe(len(batch))
                with metrics.BATCH_SECONDS.time():
                    self._score(batch)

    def _next_batch(self) -> list[tuple[Request, int]] | None:
        """The oldest conversations not yet cancelled, up to `BATCH_TOKENS`; None once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            batch, tokens = [], 0
            while self._waiting and tokens < BATCH_TOKENS:
                request, index = self._waiting.popleft()
                if not request.future.done():
                    batch.append((request, index))
                    tokens += len(request.encoded[index].ids)
            return batch

    def _score(self, batch: list[tuple[Request, int]]) -> None:
        unscored = dict(enumerate(batch))
        try:
            for scored in self._model.score([request.encoded[index] for request, index in batch]):
                done = [(*unscored.pop(position), score) for position, score in scored]
                self._loop.call_soon_threadsafe(_deliver, done)
        except Exception as error:  # one conversation must not fail the others
            # its message may hold a text and is not logged
            log.error("a batch of %d conversations failed with %s", len(batch), type(error).__name__)
            if len(batch) > 1:
                for one in unscored.values():
                    self._score([one])
            else:
                self._loop.call_soon_threadsafe(_fail, batch[0][0], error)


def _deliver(done: list[tuple[Request, int, RewardScore]]) -> None:
    for request, index, score in done:
        request.scores[index] = score
        if len(request.scores) == len(request.encoded) and not request.future.done():
            request.future.set_result([request.scores[i] for i in range(len(request.encoded))])


def _fail(request: Request, error: Exception) -> None:
    if not request.future.done():
        request.future.set_exception(error)

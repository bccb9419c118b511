"""Talks to agent-lightning's store, and keeps trying while the store is away. Every part of a run uses this client.

Upstream's client gives up within a second of an outage and on a truncated answer. It queues rollouts a second time when
only the answer to the first request was lost, and queues a cancelled rollout again when its runner reports a failure.
Leaves out a store that comes back empty.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal

import aiohttp

from agentgrpo.agl_without_litellm import agl
from sql_agent.lightning.spans import packed
from sql_agent.model_address.request_guard import STORE_TOKEN, authorization
from sql_agent.store_server import READ

logger = logging.getLogger(__name__)

# Seconds for which one call is repeated.
PATIENCE_S = 60.0
REQUEST_TIMEOUT_S = 15.0
# The longest pause between two tries; the first is 0.1 s, and each further one is twice as long.
LONGEST_PAUSE_S = 2.0
# Seconds that a span waits for others. A step's last rollout is read that much later at most.
HOLD_S = 0.01
# Spans of one request; the store does nothing else while it takes them.
MOST_SPANS = 64
# States of a rollout that a runner may still play.
UNFINISHED: list[Any] = ["queuing", "preparing", "running", "requeuing"]
_ENQUEUE = "/queues/rollouts/enqueue"
# Key of the metadata of a rollout by which a request that is sent again is known; no caller of `RetryingStore` sees it.
# The store keeps nothing else that a client may choose.
_SENT = "agentgrpo_sent"
# Key of the metadata of an attempt that holds what the judge compared, as JSON.
_COMPARISON = "comparison"
# Errors of a call; ValueError means that the answer is not JSON.
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError, ValueError)


class StoreUnavailableError(ConnectionError):
    """Every try of a call failed for `PATIENCE_S`."""


class StoreClient(agl.LightningStoreClient):
    """Extends upstream's client: it sends the store's token if the environment has one."""

    async def _get_session(self) -> aiohttp.ClientSession:
        session = await super()._get_session()
        session.headers.update(authorization(STORE_TOKEN))
        return session


class RetryingStore(StoreClient):
    def __init__(self, address: str) -> None:
        super().__init__(address, retry_delays=(), health_retry_delays=(), request_timeout=REQUEST_TIMEOUT_S)
        self._sender = SpanSender(self._add_packed_spans, super().add_span)
        self._resources: dict[str, Any] = {}
        self._compared: dict[str, dict[str, Any]] = {}
        """Metadata of attempts, by their ids, that are sent when the attempt ends."""

    async def get_resources_by_id(self, resources_id: str) -> Any:
        """Ask once: what a run publishes under an id does not change."""
        if resources_id not in self._resources and (found := await super().get_resources_by_id(resources_id)):
            self._resources[resources_id] = found
        return self._resources.get(resources_id)

    async def add_span(self, span: Any) -> Any:
        """Send it with others; it is in the store when this returns."""
        await self._sender.send(span)
        return span

    async def _add_packed_spans(self, body: bytes) -> None:
        session = await self._get_session()
        # an empty answer would come compressed
        headers = {"Content-Type": "application/x-protobuf", "Accept-Encoding": "identity"}
        async with session.post(self.otlp_traces_endpoint(), data=body, headers=headers) as response:
            response.raise_for_status()

    async def _request_json(self, method: Literal["get", "post"], path: str, **request: Any) -> Any:
        return _without_mark(await self._ask(method, path, **request))

    async def _ask(self, method: Literal["get", "post"], path: str, **request: Any) -> Any:
        patience = _Patience(f"{method} {path} of the store at {self.server_address_root}")
        while True:
            try:
                return await super()._request_json(method, path, **request)
            except _FAILURES as error:
                if path == _ENQUEUE:  # a second try would queue the rollouts twice
                    raise
                await patience.wait(error)

    async def enqueue_rollout(
        self,
        input: Any,
        mode: Literal["train", "val", "test"] | None = None,
        resources_id: str | None = None,
        config: Any | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Any:
        """Queue one rollout once, as `enqueue_many_rollouts` does."""
        request = agl.EnqueueRolloutRequest(
            input=input, mode=mode, resources_id=resources_id, config=config, metadata=metadata
        )
        return (await self.enqueue_many_rollouts([request]))[0]

    async def enqueue_many_rollouts(self, rollouts: Sequence[Any]) -> Sequence[Any]:
        """Queue rollouts once; before they are sent again, the store is asked whether they have arrived.

        If a request arrives after that question, its rollouts are in the store twice. So the caller cancels unfinished
        rollouts once it has all its results.
        """
        sent = uuid.uuid4().hex
        marked = [
            request.model_copy(update={"metadata": {**(request.metadata or {}), _SENT: [sent, number]}})
            for number, request in enumerate(rollouts)
        ]
        patience = _Patience(f"queueing at the store {self.server_address_root}")
        while True:
            try:
                return await super().enqueue_many_rollouts(marked)
            except _FAILURES as error:
                await patience.wait(error)
            arrived = await self._arrived(sent, len(marked))
            if len(arrived) == len(marked):
                return [arrived[number] for number in range(len(marked))]

    async def _arrived(self, sent: str, count: int) -> dict[int, Any]:
        """The rollouts of a request that are in the store, by their place in the request."""
        # two requests that timed out may both arrive late, in order or interleaved
        newest = {"sort_by": "start_time", "sort_order": "desc", "limit": 2 * count}
        found = await self._ask("post", "/rollouts/search", json=newest)
        arrived = {}
        for row in found["items"]:
            request, number = (row["metadata"] or {}).get(_SENT, (None, 0))
            if request == sent:
                arrived[number] = agl.Rollout.model_validate(_without_mark(row))
        return arrived

    async def _dequeue_batch(self, *, limit: int, worker_id: str | None) -> list[Any]:
        batch = await super()._dequeue_batch(limit=limit, worker_id=worker_id)  # upstream does not ask `_request_json`
        for rollout in batch:
            (rollout.metadata or {}).pop(_SENT, None)
        return batch

    async def update_attempt(self, rollout_id: str, attempt_id: str, **changes: Any) -> Any:
        """Update as upstream does, but report no failure of a cancelled rollout; the store would queue it again."""
        metadata = self._compared.pop(attempt_id, None)
        if changes.get("status") == "failed":
            ended = await self.wait_for_rollouts(rollout_ids=[rollout_id], timeout=0)
            if any(rollout.status == "cancelled" for rollout in ended):
                return await self.get_latest_attempt(rollout_id)
        elif metadata is not None:
            changes = {"metadata": metadata, **changes}
        return await super().update_attempt(rollout_id, attempt_id, **changes)

    def keep_comparison(self, attempt: Any, comparison: dict[str, Any]) -> None:
        """Put what the judge compared beside the attempt when it ends, and not in a span: the store has the task's
        solution already."""
        self._compared[attempt.attempt_id] = {**(attempt.metadata or {}), _COMPARISON: json.dumps(comparison)}

    async def read_comparison(self, rollout_id: str) -> dict[str, Any] | None:
        """What was kept of the newest attempt; None if nothing was."""
        attempt = await self.get_latest_attempt(rollout_id)
        text = (attempt.metadata or {}).get(_COMPARISON) if attempt else None
        return json.loads(text) if text else None

    async def mark_read(self, rollouts: Sequence[Any]) -> None:
        """Mark their spans as read, in one request, so that our store frees them; one of `agl store` frees nothing."""
        first, names = rollouts[0], [rollout.rollout_id for rollout in rollouts]
        await self.update_rollout(first.rollout_id, metadata={**(first.metadata or {}), READ: names})


def _without_mark(answer: Any) -> Any:
    """An answer of the store, a rollout or a list or page of them, without `_SENT` in their metadata."""
    rows = answer if isinstance(answer, list) else answer.get("items", [answer]) if isinstance(answer, dict) else []
    for row in rows:
        if isinstance(row, dict) and isinstance(metadata := row.get("metadata"), dict):
            metadata.pop(_SENT, None)
    return answer


class _Patience:
    """Paces the retries of one call: the pause grows after each failure, until `PATIENCE_S` have passed."""

    def __init__(self, call: str) -> None:
        self._call, self._give_up, self._pause_s = call, time.monotonic() + PATIENCE_S, 0.1

    async def wait(self, error: Exception) -> None:
        """Pause before the next try.

        Raises:
            StoreUnavailableError: `PATIENCE_S` have passed.
            aiohttp.ClientResponseError: the store refused the call; another try would get the same answer.
        """
        if isinstance(error, aiohttp.ClientResponseError) and 400 <= error.status < 500 and error.status != 408:
            raise error
        if time.monotonic() + self._pause_s > self._give_up:
            raise StoreUnavailableError(
                f"{self._call} failed for {PATIENCE_S:.0f} s, the last time with {type(error).__name__}: {error}; "
                "start a store that is kept outside again, then this run"
            ) from error
        logger.info("%s: %s: %s; trying again", self._call, type(error).__name__, error)
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)


class SpanSender:
    """Sends spans together: one by itself costs the store a request, its validation and its echo; sixteen cost three.

    It belongs to one event loop.

    Args:
        send_many: sends the body of an OTLP request; what it raises is not repeated.
        send_one: sends one span, and tries again as long as that makes sense.
    """

    def __init__(
        self, send_many: Callable[[bytes], Awaitable[None]], send_one: Callable[[Any], Awaitable[Any]]
    ) -> None:
        self._send_many, self._send_one = send_many, send_one
        self._held: list[tuple[Any, asyncio.Future[None]]] = []
        self._at_work: set[asyncio.Task[None]] = set()
        self._sending = False

    async def send(self, span: Any) -> None:
        """Return when the store has the span; a rollout has ended when all of its spans have returned."""
        stored = asyncio.get_running_loop().create_future()
        self._held.append((span, stored))
        if not self._sending:
            self._sending = True
            self._begin(self._send_held())
        await stored

    async def _send_held(self) -> None:
        # One request at a time: what comes meanwhile is held, so the busier the store, the more goes together.
        try:
            await asyncio.sleep(HOLD_S)
            while self._held:
                batch, self._held = self._held[:MOST_SPANS], self._held[MOST_SPANS:]
                try:
                    await self._send_many(packed([span for span, _ in batch]))
                except Exception as error:  # one unknown rollout, for which a store refuses all, or no store at all
                    logger.info("%d spans go one by one: %s: %s", len(batch), type(error).__name__, error)
                    for of_rollout in _by_rollout(batch):
                        self._begin(self._one_by_one(of_rollout))
                else:
                    for _, stored in batch:
                        _settle(stored)
        finally:
            self._sending = False

    async def _one_by_one(self, batch: Iterable[tuple[Any, asyncio.Future[None]]]) -> None:
        failed: Exception | None = None
        for span, stored in batch:
            if failed is None:
                try:
                    await self._send_one(span)
                except Exception as error:  # its sender hears of it; the rest would wait for the same store again
                    failed = error
            _settle(stored, failed)

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._at_work.add(task)
        task.add_done_callback(self._at_work.discard)


def _settle(stored: asyncio.Future[None], error: Exception | None = None) -> None:
    if stored.done():  # its sender was cancelled
        return
    if error is None:
        stored.set_result(None)
    else:
        stored.set_exception(error)


def _by_rollout(batch: Sequence[tuple[Any, Any]]) -> Iterable[list[tuple[Any, Any]]]:
    found: dict[str, list[tuple[Any, Any]]] = {}
    for entry in batch:
        found.setdefault(entry[0].rollout_id, []).append(entry)
    return found.values()

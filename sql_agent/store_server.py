"""Serves agent-lightning's store from memory and frees spans once they are read, so a long run needs no more memory.

Upstream's store keeps every span of every rollout until a share of the host's memory is full, and no request of its
HTTP interface removes anything. A run's own store is this one, and this command serves one outside of a run:

    python -m sql_agent.store_server --port 9999

It replaces `agl store` and serves the same interface and dashboard, behind `sql_agent.model_address.request_guard`.
Leaves out backends other than memory.
"""

from __future__ import annotations

from agentgrpo.commands import execute, starting

if __name__ == "__main__":
    starting()

import asyncio
import gc
import logging
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import psutil
from pydantic import BaseModel

from agentgrpo.agl_without_litellm import agl
from agentgrpo.flags import Parser
from agentgrpo.http_protocol import guard_upstreams_servers
from agentgrpo.machine import is_loopback, memory_limits, port_number
from sql_agent.model_address.request_guard import STORE_TOKEN, RequestGuard

UNSET = agl.store.base.UNSET  # importing it from agentlightning would load LiteLLM

logger = logging.getLogger(__name__)

# Key of the metadata of a rollout by which a client names the rollouts whose spans it has read.
READ = "spans_read"
# Key of the metadata by which a client lets a rollout pass those that are queued.
FIRST = "first"
# Rollouts that stay listed, without spans, after they were read; older ones are forgotten.
KEPT_ROLLOUTS = 1024
# Seconds after which a finished rollout will not be read any more: it was queued twice, or its run was killed.
UNREAD_S = 3600.0
# Share of the memory limit that unread spans may take; the policy and its sampler may share the container.
SPANS_SHARE = 0.25
_TOUCHED: list[Any] = ["rollouts", "attempts", "spans", "span_sequence_ids"]


class BoundedStore(agl.InMemoryLightningStore):
    """Keeps the spans of a rollout until it is marked as read (`READ`) or cancelled. Hands out `FIRST` ones first."""

    def __init__(self) -> None:
        budget = int(SPANS_SHARE * min([psutil.virtual_memory().total, *memory_limits()]))
        super().__init__(
            thread_safe=True,
            eviction_memory_threshold=budget,
            safe_memory_threshold=int(0.8 * budget),
            span_size_estimator=span_bytes,
        )
        self._closed: dict[str, None] = {}
        """Rollouts whose spans are no longer needed, in the order in which they were closed."""

    async def enqueue_many_rollouts(self, rollouts: Sequence[Any]) -> Sequence[Any]:
        queued = await super().enqueue_many_rollouts(rollouts)
        old = time.time() - UNREAD_S
        finished = await self.collections.rollouts.query({"status": {"within": ["succeeded", "failed"]}})
        for rollout in finished.items:
            if rollout.rollout_id not in self._closed and (rollout.end_time or time.time()) < old:
                await self._close(rollout.rollout_id)
        return queued

    async def wait_for_rollouts(self, *, rollout_ids: list[str], timeout: float | None = None) -> list[Any]:
        """As upstream, which starts a task for each rollout even to say that it has not ended; the trainer asks for all
        rollouts of a batch, twenty times a second."""
        if timeout is None or timeout > 0:
            return await super().wait_for_rollouts(rollout_ids=rollout_ids, timeout=timeout)
        await self._scan_for_unhealthy_rollouts()  # as upstream does before each question
        found = map(self.collections.rollouts._items.get, rollout_ids)
        return [rollout for rollout in found if rollout is not None and agl.store.base.is_finished(rollout)]

    async def _enqueue_many_rollouts(self, rollouts: Sequence[Any]) -> None:
        await super()._enqueue_many_rollouts(rollouts)
        if all((rollout.metadata or {}).get(FIRST) for rollout in rollouts):
            # upstream's queue is first come, first served
            self.collections.rollout_queue._items.rotate(len(rollouts))

    async def _post_update_rollout(self, rollouts: Sequence[Any], skip_enqueue: bool = False) -> None:
        await super()._post_update_rollout(rollouts, skip_enqueue=skip_enqueue)
        for rollout, _ in rollouts:
            read = (rollout.metadata or {}).get(READ, [])
            for name in [rollout.rollout_id, *read] if rollout.status == "cancelled" else read:
                await self._close(name)

    async def _close(self, rollout_id: str) -> None:
        async with self.collections.atomic(mode="rw", labels=_TOUCHED) as collections:
            await self._evict_spans_for_rollout(collections, rollout_id)
            self._closed[rollout_id] = None
            while len(self._closed) > KEPT_ROLLOUTS:
                oldest = next(iter(self._closed))
                del self._closed[oldest]
                await self._forget(collections, oldest)

    async def _unlocked_update_rollout_only(
        self, collections: Any, rollout_id: str, *, status: Any = UNSET, **changes: Any
    ) -> Any:
        """Update a rollout, but keep the status of a closed one; a failed attempt would queue a cancelled one again."""
        if rollout_id in self._closed:
            status = UNSET
        return await super()._unlocked_update_rollout_only(collections, rollout_id, status=status, **changes)

    async def _add_many_spans_helper(self, rollout_id: str, attempt_id: str, spans: Sequence[Any]) -> Sequence[Any]:
        """Add spans, but accept and drop late ones; their sender would take a refusal for a failing store."""
        known = await self.collections.rollouts.get({"rollout_id": {"exact": rollout_id}})
        if known is None:
            await self.collections.span_sequence_ids.pop(rollout_id)
        if known is None or rollout_id in self._closed:
            return []
        return await super()._add_many_spans_helper(rollout_id, attempt_id, spans)

    async def _post_add_spans(self, spans: Sequence[Any], rollout_id: str, attempt_id: str) -> None:
        await super()._post_add_spans(spans, rollout_id, attempt_id)
        if rollout_id in self._closed:  # it was closed while these spans were added
            async with self.collections.atomic(mode="rw", labels=_TOUCHED) as collections:
                await self._evict_spans_for_rollout(collections, rollout_id)

    async def _maybe_evict_spans(self, collections: Any) -> None:
        if self._total_span_bytes > self._eviction_threshold_bytes:
            logger.warning(
                "spans that nobody has read take %.0f MiB, more than %.0f %% of the memory that this process may use: "
                "those of the oldest rollouts are dropped, and these rollouts are lost under missing_spans; ask for "
                "fewer rollouts at a time (data.train_batch_size, rollout.group_size) or give the store more memory",
                self._total_span_bytes / 2**20,
                100 * SPANS_SHARE,
            )
        await super()._maybe_evict_spans(collections)

    async def _evict_spans_for_rollout(self, collections: Any, rollout_id: str) -> None:
        spans = await collections.spans.query({"rollout_id": {"exact": rollout_id}})
        await collections.spans.delete(spans.items)  # upstream's eviction does not reduce the collection's size
        await super()._evict_spans_for_rollout(collections, rollout_id)
        self._evicted_rollout_span_sets.discard(rollout_id)  # a query gets an empty list, not an error

    async def _forget(self, collections: Any, rollout_id: str) -> None:
        rollouts = await collections.rollouts.query({"rollout_id": {"exact": rollout_id}})
        attempts = await collections.attempts.query({"rollout_id": {"exact": rollout_id}})
        await collections.rollouts.delete(rollouts.items)
        await collections.attempts.delete(attempts.items)
        collections.attempts._items.pop(rollout_id, None)  # otherwise the empty container remains
        await collections.span_sequence_ids.pop(rollout_id)
        self._completion_events.pop(rollout_id, None)
        self._start_time_by_rollout.pop(rollout_id, None)
        self._running_rollout_ids.discard(rollout_id)


class StoreServer(agl.LightningStoreServer):
    """Runs upstream's server behind a request guard with the token from the environment; every other server of an
    upstream library in this process gets the same limits of connections."""

    def __init__(self, store: Any, *, host: str, port: int, launch_mode: Any = "thread") -> None:
        guard_upstreams_servers()
        super().__init__(store, host=host, port=port, launch_mode=launch_mode)
        assert self.app is not None
        # Upstream's two wrappers, for a line of debugging and the traceback in a 500, take a third to a half of the
        # CPU of a request (measured); without them an error is a 500 too, and its traceback stays in the log.
        self.app.user_middleware.clear()
        self.app.add_middleware(RequestGuard, token=os.environ.get(STORE_TOKEN), names=(host,))  # type: ignore[arg-type]


def span_bytes(span: BaseModel) -> int:
    """Estimate the memory of a span that arrived as JSON, from its texts and the lengths of its lists.

    Upstream's default adds up the size of every single number, which takes longer than storing the span.
    """
    size = 4096  # an empty span: some thirty small objects
    for value in getattr(span, "attributes", {}).values():
        size += sys.getsizeof(value) + (32 * len(value) if isinstance(value, list) else 0)
    return size


def main() -> None:
    parser = Parser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1", help="interface to listen on (default loopback)")
    parser.add_argument("--port", type=port_number, default=9999, help="default 9999")
    args = parser.parse_args()
    if not is_loopback(args.host) and not os.environ.get(STORE_TOKEN):
        parser.error(
            f"--host {args.host} can be reached from other machines, which needs a token: set {STORE_TOKEN} here and "
            "for the training command; 127.0.0.1 needs none"
        )
    agl.setup_logging("INFO")
    server = StoreServer(BoundedStore(), host=args.host, port=args.port, launch_mode="asyncio")
    gc.collect()
    gc.freeze()  # later collections skip what was imported, which took 0.08 s without answers (measured)
    asyncio.run(server.run_forever())


if __name__ == "__main__":
    execute(main)

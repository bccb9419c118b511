"""Runs many rollouts of the agent (`sql_agent.lightning.agent`) at once in a runner process.

Upstream's runner plays one rollout at a time and polls every five seconds. A sampler batches requests, so this runner
keeps `runner_concurrency` rollouts in flight and asks every `poll_s` for as many as it has room for; one whose
spans are being reported takes no room. A rollout that the store assigned to this runner but that it does not play goes
back into the queue. The runner ends when the store or the trainer is gone, while upstream's keeps polling. Leaves out
the restart of a killed runner (`sql_agent.lightning.runner_processes`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any, Self

import aiohttp

from agentgrpo.agl_without_litellm import agl
from agentgrpo.processes import RUN_ID
from sql_agent.lightning.agent import RolloutLostError, SqlLitAgent
from sql_agent.lightning.heartbeats import TRAINER_GONE_S, TRAINER_WORKER, Heartbeat, look
from sql_agent.lightning.store import RetryingStore, StoreClient
from sql_agent.play.served import size_thread_pool
from sql_agent.settings.main_job import RolloutConfig

logger = logging.getLogger(__name__)

STORE_GONE_S = 30.0
GIVE_BACK_S = 5.0
"""Seconds between two looks for rollouts that are assigned to this runner but not played by it."""
CANCELLED_S = 0.4
"""Seconds between two looks for cancelled rollouts among those that are played."""
END_S = 5.0
"""Seconds that a runner that ends waits for its rollouts to close their databases."""


class PassiveTracer(agl.OtelTracer):
    """Replaces `OtelTracer` and leaves the process-wide tracer provider alone.

    `OtelTracer.trace_context` writes the current rollout's ids into the one provider of the process, which allows only
    one rollout at a time. The LLM proxy or the agent records the turns, so nothing is lost here.
    """

    def init_worker(self, worker_id: int, store: Any = None) -> None:
        self._store = store

    @asynccontextmanager
    async def trace_context(self, name: str | None = None, **_: Any) -> AsyncIterator[None]:  # type: ignore[override]
        yield

    def get_last_trace(self) -> list[Any]:
        return []


class ConcurrentRunner(agl.LitAgentRunner[dict[str, Any]]):
    """Extends agent-lightning's runner: it has many rollouts in flight, and ends when store or trainer are gone."""

    def __init__(self, tracer: Any, *, concurrency: int, poll_s: float, store_url: str) -> None:
        super().__init__(tracer, poll_interval=poll_s)
        self._concurrency, self._poll_s, self._store_url = concurrency, poll_s, store_url
        self._played: set[str] = set()
        """Attempts that have been played and are being reported to the store; others can be played meanwhile."""
        self._room = asyncio.Event()

    @classmethod
    def of_run(cls, rollout: RolloutConfig, store_url: str) -> Self:
        return cls(
            PassiveTracer(),
            concurrency=rollout.runner_concurrency,
            poll_s=rollout.poll_s,
            store_url=store_url,
        )

    def init_worker(self, worker_id: int, store: Any, **kwargs: Any) -> None:
        super().init_worker(worker_id, RetryingStore(self._store_url), **kwargs)

    def get_worker_id(self) -> str:
        """Return an id that no other runner of any run has; a rollout assigned to it is played here or nowhere."""
        return f"{super().get_worker_id()}-{os.environ.get(RUN_ID, os.getpid())}"

    async def _post_process_rollout_result(self, rollout: Any, raw_result: Any) -> Any:
        """As upstream, which sends one span after another; these go together, the reward behind its turns."""
        self._played.add(rollout.attempt.attempt_id)
        self._room.set()
        try:
            await asyncio.gather(*(self.get_store().add_span(span) for span in raw_result))
        except asyncio.CancelledError:  # agent-lightning would report success, whether the spans arrived or not
            raise RolloutLostError("its runner was told to end before the store had its spans") from None
        return raw_result

    async def iter(self, *, event: Any = None) -> None:
        size_thread_pool(2 * self._concurrency)  # a cancelled rollout may hold a thread beside its successor's
        store, playing = self.get_store(), dict[asyncio.Task[str], Any]()
        work = asyncio.create_task(self._work(store, playing, event))
        watch = asyncio.create_task(self._until_alone())
        heartbeat = StoreClient(self._store_url, retry_delays=(), health_retry_delays=())
        stop_heartbeat = self._start_heartbeat_loop(heartbeat)  # in a thread, whose end is waited for
        try:
            done, _ = await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in [*playing, work, watch]:
                if not task.cancelling():
                    task.cancel()
            await asyncio.wait({*playing, work, watch}, timeout=END_S)
            agent = self.get_agent()
            if isinstance(agent, SqlLitAgent):
                await agent.aclose()
            if stop_heartbeat is not None:
                await stop_heartbeat()
            await heartbeat.close()
            await store.close()  # type: ignore[attr-defined]

    async def _work(self, store: Any, playing: dict[asyncio.Task[str], Any], event: Any) -> None:
        """Claim and play rollouts until told to end; `playing` holds the rollouts in flight."""
        next_look = next_cancelled = 0.0
        while not (event is not None and event.is_set()):
            if time.monotonic() > next_look:
                await self._give_back(store, {rollout.attempt.attempt_id for rollout in playing.values()})
                next_look = time.monotonic() + GIVE_BACK_S
            if playing and time.monotonic() > next_cancelled:
                await self._let_go(store, playing)
                next_cancelled = time.monotonic() + CANCELLED_S
            self._room.clear()
            free = self._concurrency - sum(
                not task.cancelling() and rollout.attempt.attempt_id not in self._played
                for task, rollout in playing.items()
            )
            free = min(free, 2 * self._concurrency - len(playing))  # behind a slow store reports would pile up
            claimed = await store.dequeue_many_rollouts(limit=free, worker_id=self.get_worker_id()) if free else []
            for rollout in claimed:
                playing[asyncio.create_task(self._step_impl(rollout))] = rollout
            if playing:
                room = asyncio.create_task(self._room.wait())
                await asyncio.wait({*playing, room}, timeout=self._poll_s, return_when=asyncio.FIRST_COMPLETED)
                room.cancel()
                for task in [task for task in playing if task.done()]:
                    self._played.discard(playing.pop(task).attempt.attempt_id)
            else:
                await asyncio.sleep(self._poll_s)

    async def _let_go(self, store: Any, playing: dict[asyncio.Task[str], Any]) -> None:
        """Stop playing rollouts that have been cancelled.

        A model call ends with its connection, which frees the slot at once. A running statement keeps its thread and
        its database until it ends.
        """
        ended = await store.wait_for_rollouts(rollout_ids=[r.rollout_id for r in playing.values()], timeout=0)
        cancelled = {rollout.rollout_id for rollout in ended if rollout.status == "cancelled"}
        for task, rollout in playing.items():
            if (
                rollout.rollout_id in cancelled and not task.cancelling()
            ):  # a second cancel would interrupt its clean-up
                task.cancel()

    async def _give_back(self, store: Any, playing: Collection[str]) -> None:
        """Fail the attempts that are assigned to this runner but not played, so that the store queues them again.

        Their process was killed, the answer to their claim was lost, or their end could not be reported.

        Args:
            playing: attempts in flight, read before the query and while no claim is pending; otherwise an attempt that
                has just ended would look abandoned.
        """
        for rollout in await store.query_rollouts(status_in=["preparing", "running"]):
            attempt = rollout.attempt
            if attempt.worker_id == self.get_worker_id() and attempt.attempt_id not in playing:
                logger.warning(
                    "rollout %s is not played by the runner that claimed it; it goes back into the queue",
                    rollout.rollout_id,
                )
                await store.update_attempt(rollout.rollout_id, attempt.attempt_id, status="failed")

    async def _until_alone(self) -> None:
        """Return when the store has not answered for STORE_GONE_S, or the trainer has finished or is silent."""
        store, last_answer = self.get_store(), time.monotonic()
        heartbeat: Heartbeat | None = None
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            while True:
                await asyncio.sleep(2.0)
                try:
                    async with session.get(f"{self._store_url}/v1/agl/health") as response:
                        response.raise_for_status()
                    async with asyncio.timeout(5):
                        trainer = await store.get_worker_by_id(TRAINER_WORKER)
                    last_answer = time.monotonic()
                except (aiohttp.ClientError, OSError, TimeoutError):
                    if time.monotonic() - last_answer > STORE_GONE_S:
                        logger.error("store %s has not answered for %.0f s; ending", self._store_url, STORE_GONE_S)
                        return
                    continue
                heartbeat = look(heartbeat, trainer and trainer.last_heartbeat_time, last_answer)
                if not heartbeat.seen:
                    continue  # the trainer is not there yet
                if trainer is not None and (trainer.heartbeat_stats or {}).get("state") != "running":
                    return
                if heartbeat.is_silent(last_answer):
                    logger.error("the trainer has been silent for more than %.0f s; ending", TRAINER_GONE_S)
                    return

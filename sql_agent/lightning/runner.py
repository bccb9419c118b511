"""Makes the agent known to agent-lightning and runs many of its rollouts at once in a runner process.

Upstream's runner plays one rollout at a time and polls every five seconds. A sampler batches requests, so this runner
keeps `runner_concurrency` rollouts in flight and asks every `poll_s` for as many as it has room for; one whose
spans are being reported takes no room. A rollout that the store assigned to this runner but that it does not play goes
back into the queue. The runner ends when the store or the trainer is gone, while upstream's keeps polling. Leaves out
the restart of a killed runner (`sql_agent.lightning.runner_processes`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from typing import Any, Self

import aiohttp

from agentgrpo.agl_without_litellm import agl
from agentgrpo.processes import RUN_ID
from dbbench_adapter.datatypes import Score
from dbbench_adapter.engines import BackendUnavailable
from sql_agent.datatypes import RolloutRecord
from sql_agent.environments.base import Environment, Taskset, make_taskset
from sql_agent.lightning.heartbeats import TRAINER_GONE_S, TRAINER_WORKER, Pulse, look
from sql_agent.lightning.spans import outcome_span, turn_span
from sql_agent.lightning.store import PatientStore, StoreClient
from sql_agent.model_address.held_calls import ask_held
from sql_agent.model_address.request_guard import RUN_TOKEN
from sql_agent.model_servers.replies import TURN
from sql_agent.own_agents.play import play, policy_of
from sql_agent.own_agents.tasks import AgentTasks
from sql_agent.play.served import run_rollout, size_thread_pool
from sql_agent.reward_functions.load import load_functions
from sql_agent.rewards import NO_JUDGE
from sql_agent.settings.train import TrainConfig
from sql_agent.source.datatypes import Rollout
from sql_agent.source.scoring import Rewarder

logger = logging.getLogger(__name__)

STORE_GONE_S = 30.0
RETRY_PAUSE_S = 3.0
"""Pause before a rollout goes back into the queue after an infrastructure failure; a server may be restarting."""
GIVE_BACK_S = 5.0
"""Seconds between two looks for rollouts that are assigned to this runner but not played by it."""
CANCELLED_S = 0.4
"""Seconds between two looks for cancelled rollouts among those that are played."""
END_S = 5.0
"""Seconds that a runner that ends waits for its rollouts to close their databases."""


class RolloutLostError(RuntimeError):
    """Says that the infrastructure failed during a rollout; the store gives the rollout another attempt."""


class SqlLitAgent(agl.LitAgent[dict[str, Any]]):
    """Plays one task of the environment against the endpoint that the resources name, and reports reward and reason.

    The input is the task's `to_dict()`. The metadata names the served model and, for validation, the temperature.
    """

    def __init__(self, cfg: TrainConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.rewarder = Rewarder(
            cfg.rollout,
            cfg.reward_model,
            load_functions(cfg.rollout, cfg.judge, cfg.run_dir),
            threads=cfg.rollout.runner_concurrency,
        )
        self._entering: asyncio.Task[Taskset] | None = None

    @functools.cached_property
    def made(self) -> Taskset:
        """The environment of this process before it is entered, which may fail."""
        return make_taskset(self.cfg.environment)

    async def environment(self) -> Taskset:
        """Return the environment, which the first rollout of the process enters.

        Rollouts that start together share one try.

        Raises:
            BackendUnavailable: this try failed; the next rollout tries again.
        """
        if self._entering is None or (self._entering.done() and self._entering.exception() is not None):
            self._entering = asyncio.create_task(asyncio.to_thread(self.made.__enter__))
        return await asyncio.shield(self._entering)

    async def aclose(self) -> None:
        await self.rewarder.aclose()
        if self._entering is not None:
            with suppress(BackendUnavailable):  # a server may have started meanwhile
                (await self._entering).__exit__(None, None, None)
            self._entering = None
            del self.made

    async def rollout_async(self, task: dict[str, Any], resources: Any, rollout: Any) -> list[Any]:
        try:
            return await self._play(task, resources, rollout)
        except asyncio.CancelledError:  # agent-lightning would report it as success
            raise RolloutLostError("it was cancelled, or its runner was told to end") from None

    async def _play(self, task: dict[str, Any], resources: Any, rollout: Any) -> list[Any]:
        try:
            environment = await self.environment()
        except BackendUnavailable as failure:
            asked, lost = self.made.task(task), Score(None, "db_unavailable")
            record = RolloutRecord(asked.id, asked.kind, "db_unavailable", lost, error=str(failure))
            turns = []
        else:
            record, turns = await self._record(environment, task, resources, rollout)
        return [*turns, await self._ended(record, rollout)]

    async def _record(
        self, environment: Taskset, task: dict[str, Any], resources: Any, rollout: Any
    ) -> tuple[RolloutRecord, list[Any]]:
        """Play the task; returns the spans of its turns too, if the LLM proxy does not write them."""
        metadata = rollout.metadata or {}
        llm = resources["main_llm"]
        agent = self.cfg.agent
        if "temperature" in metadata:
            agent = agent.model_copy(update={"temperature": metadata["temperature"]})
        ids = rollout.rollout_id, rollout.attempt.attempt_id
        held_s = functools.partial(ask_held, llm.endpoint) if self.cfg.trainer.max_lag else None
        if isinstance(environment, AgentTasks):
            model, seed = metadata.get("model", llm.model), metadata.get("seed")
            holds = self.cfg.trainer.max_lag
            policy = policy_of(llm.get_base_url(None, None), model, agent, rollout, seed=seed, holds=holds)
            alone = self.rewarder.rewards_alone
            asked = environment.task(task)
            return await play(environment.agent, asked, policy, agent, others_reward=alone, held_s=held_s), []
        turns: list[Any] = []

        def keep_turn(reply: Any) -> None:
            turns.append(turn_span(reply.model_extra[TURN], *ids, len(turns) + 1))

        assert isinstance(environment, Environment)
        record = await run_rollout(
            environment.task(task),
            environment=environment,
            base_url=metadata.get("base_url") or llm.get_base_url(*ids),
            model=metadata.get("model", llm.model),
            config=agent,
            api_key=os.environ.get(RUN_TOKEN) or "-",
            # The ids are in the answer, so this process writes the spans. The server tells two rollouts apart by `user`
            # that have the same text in different tokens.
            extra_body={"user": rollout.attempt.attempt_id, "return_token_ids": True, "logprobs": True},
            on_reply=keep_turn,
            seed=metadata.get("seed"),
            max_response_tokens=self.cfg.data.max_response_tokens,
            held_s=held_s,
        )
        return record, turns

    async def _ended(self, record: RolloutRecord, rollout: Any) -> Any:
        """The last span of a rollout, with its reward.

        Raises:
            RolloutLostError: the rollout is to be played again.
        """
        last_attempt = rollout.attempt.sequence_id >= self.cfg.rollout.max_attempts
        # a second attempt after a deadline would end after the step's deadline
        ended = record.stop_reason in ("timeout", "environment_error")  # code that raised or hung will do so again
        final = ended or record.score.reason == NO_JUDGE or last_attempt
        if record.score.value is None and not final:
            await asyncio.sleep(RETRY_PAUSE_S)
            raise RolloutLostError(f"{record.score.reason}: {record.error}")
        played = Rollout("", rollout.input, played=record, one_conversation=self.cfg.env.agent is None)
        await self.rewarder(played)
        if record.comparison is not None:
            self.runner.get_store().keep_comparison(rollout.attempt, record.comparison)
        return outcome_span(played, rollout.rollout_id, rollout.attempt.attempt_id)


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
    def of_run(cls, cfg: TrainConfig, store_url: str) -> Self:
        return cls(
            PassiveTracer(),
            concurrency=cfg.rollout.runner_concurrency,
            poll_s=cfg.rollout.poll_s,
            store_url=store_url,
        )

    def init_worker(self, worker_id: int, store: Any, **kwargs: Any) -> None:
        super().init_worker(worker_id, PatientStore(self._store_url), **kwargs)

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
        pulse: Pulse | None = None
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
                pulse = look(pulse, trainer and trainer.last_heartbeat_time, last_answer)
                if not pulse.seen:
                    continue  # the trainer is not there yet
                if trainer is not None and (trainer.heartbeat_stats or {}).get("state") != "running":
                    return
                if pulse.is_silent(last_answer):
                    logger.error("the trainer has been silent for more than %.0f s; ending", TRAINER_GONE_S)
                    return

"""The agent as agent-lightning sees it, and the process that runs many of its rollouts at once.

Upstream's runner plays one rollout at a time and polls every five seconds. A sampler batches, so this one keeps
`runner_concurrency` rollouts in flight, and asks for as many as it has room for every `poll_s`. It ends by itself when
the store or the trainer is gone; upstream's keeps polling.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from dbbench_adapter.types import Score
from sql_agent.agent import MAX_RETRIES, run_rollout
from sql_agent.agl_light import agl
from sql_agent.config import TrainConfig
from sql_agent.environments import make_environment
from sql_agent.environments.base import Environment
from sql_agent.processes import end_with_parent
from sql_agent.rewards import NO_JUDGE, REWARDS, Opinion, reward
from sql_agent.scoring import RolloutScorer
from sql_agent.stitch import OUTCOME, TURN_SPAN, RolloutOutcome, turn_attributes
from sql_agent.types import RolloutRecord

logger = logging.getLogger(__name__)

TRAINER_WORKER = "trainer"
"""Name under which the algorithm sends heartbeats to the store; runners of other processes watch it."""
STORE_GONE_S = 30.0
TRAINER_GONE_S = 60.0


class RolloutLostError(RuntimeError):
    """The infrastructure failed under a rollout; the store gives it another attempt."""


class SqlLitAgent(agl.LitAgent[dict[str, Any]]):
    """Plays one task of the environment against the endpoint the resources name and reports reward and reason.

    The input is the task's `to_dict()`; the metadata names the served model and, for validation, the temperature.
    """

    def __init__(self, cfg: TrainConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self._environment: Environment | None = None
        self._scorer: RolloutScorer | None = None

    @property
    def environment(self) -> Environment:
        """Entered at the first rollout, once per runner process."""
        if self._environment is None:
            self._environment = make_environment(self.cfg).__enter__()
        return self._environment

    @property
    def scorer(self) -> RolloutScorer | None:
        """The reward model's client, once per runner process; None in a run without a reward model."""
        if self._scorer is None and self.cfg.reward_model.url is not None:
            self._scorer = RolloutScorer(self.cfg.reward_model)
        return self._scorer

    async def aclose(self) -> None:
        if self._scorer is not None:
            await self._scorer.aclose()
            self._scorer = None
        if self._environment is not None:
            self._environment.__exit__(None, None, None)
            self._environment = None

    async def rollout_async(self, task: dict[str, Any], resources: Any, rollout: Any) -> list[Any]:
        metadata = rollout.metadata or {}
        llm = resources["main_llm"]
        agent = self.cfg.agent
        if "temperature" in metadata:
            agent = agent.model_copy(update={"temperature": metadata["temperature"]})
        writing: list[asyncio.Task[Any]] = []

        def write_turn(reply: Any) -> None:  # beside the next call, not after the last one
            span = self._span(turn_fields(reply.model_dump()), rollout, len(writing) + 1)
            writing.append(asyncio.create_task(self.runner.get_store().add_span(span)))

        record = await run_rollout(
            self.environment.task(task),
            environment=self.environment,
            base_url=metadata.get("base_url") or llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id),
            model=metadata.get("model", llm.model),
            config=agent,
            # Without the LLM proxy this process traces the turns; the proxy asks for ids and writes spans itself.
            extra_body=None if self.cfg.llm_proxy else {"return_token_ids": True, "logprobs": True},
            on_reply=None if self.cfg.llm_proxy else write_turn,
            seed=metadata.get("seed"),
        )
        await asyncio.gather(*writing)
        last_attempt = rollout.attempt.sequence_id >= self.cfg.rollout.max_attempts
        if record.score.value is None and record.score.reason != NO_JUDGE and not last_attempt:
            raise RolloutLostError(f"{record.score.reason}: {record.error}")
        opinion = await self.scorer.opinion(record) if self.scorer else None
        last = (
            self.environment.max_replies(agent) * (MAX_RETRIES + 1) + 1
        )  # after every call, those that were tried again included
        return [self._span(self._reward_fields(record, opinion), rollout, last)]

    @staticmethod
    def _span(fields: Any, rollout: Any, sequence_id: int) -> Any:
        """A span with its number, which agent-lightning would otherwise ask the store for."""
        ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
        return agl.Span.from_core_fields(fields, **ids, sequence_id=sequence_id)

    def _reward_fields(self, record: RolloutRecord, opinion: Opinion | None) -> Any:
        try:
            score = reward(record, REWARDS[self.cfg.rollout.reward], opinion, self.cfg.reward_model)
        except Exception:  # the reward is the user's own code: its failure loses this rollout, not the run
            logger.exception("the reward of task %s raised", record.task_id)
            score = Score(None, "reward_error")
        outcome = RolloutOutcome(
            reward=score.value,
            reason=score.reason,
            stop_reason=record.stop_reason,
            num_turns=record.num_turns,
            metrics={
                **({} if record.score.value is None else {"success": record.score.value}),
                "malformed_calls": float(record.malformed_calls),
                "seconds": record.seconds,
                "ended_at": time.time(),
                **{f"reward_{name}": value for name, value in score.parts.items()},
                **self._scorer_down(opinion),
            },
            record=record.to_dict() | ({"reward_model": dataclasses.asdict(opinion)} if opinion else {}),
        )
        attributes = {OUTCOME: json.dumps(dataclasses.asdict(outcome))}
        if score.value is None:
            return agl.emit_annotation(attributes, propagate=False)
        return agl.emit_reward(float(score.value), attributes=attributes, propagate=False)

    def _scorer_down(self, opinion: Opinion | None) -> dict[str, float]:
        """Of a rollout that asked for a score and got no answer; the others know nothing new of the service."""
        if self.scorer is None or opinion is None or opinion.reason != "scorer_unavailable":
            return {}
        return {"scorer_down_s": self.scorer.down_s}


def turn_fields(response: dict[str, Any]) -> Any:
    """The span of one model call, as the LLM proxy would have written it."""
    now = time.time()
    status = agl.TraceStatus(status_code="OK")
    attributes = turn_attributes(response)
    return agl.SpanCoreFields(name=TURN_SPAN, attributes=attributes, start_time=now, end_time=now, status=status)


class PassiveTracer(agl.OtelTracer):
    """An `OtelTracer` that leaves the process-wide tracer provider alone.

    `OtelTracer.trace_context` writes the current rollout's ids into the one provider of the process, which allows one
    rollout at a time. Turns are recorded by the LLM proxy or returned with the result, so nothing is lost here.
    """

    def init_worker(self, worker_id: int, store: Any = None) -> None:
        self._store = store

    @asynccontextmanager
    async def trace_context(self, name: str | None = None, **_: Any) -> AsyncIterator[None]:  # type: ignore[override]
        yield

    def get_last_trace(self) -> list[Any]:
        return []


class ConcurrentRunner(agl.LitAgentRunner[dict[str, Any]]):
    """agent-lightning's runner with many rollouts in flight and an end of its own."""

    def __init__(
        self, tracer: Any, *, concurrency: int, poll_s: float, store_url: str, logs: Path | None = None
    ) -> None:
        super().__init__(tracer, poll_interval=poll_s)
        self._concurrency, self._poll_s, self._store_url, self._logs = concurrency, poll_s, store_url, logs

    def init_worker(self, worker_id: int, store: Any, **kwargs: Any) -> None:
        super().init_worker(worker_id, store, **kwargs)
        if self._logs is not None and multiprocessing.parent_process() is not None:  # forked from the command
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            end_with_parent()
            self._logs.mkdir(parents=True, exist_ok=True)
            log = os.open(self._logs / f"runner-{worker_id}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            agl.setup_logging("WARNING")

    async def iter(self, *, event: Any = None) -> None:
        store = self.get_store()
        in_flight: set[asyncio.Task[str]] = set()
        watch = asyncio.create_task(self._until_alone())
        stop_heartbeat = self._start_heartbeat_loop(store)
        try:
            while not watch.done() and not (event is not None and event.is_set()):
                free = self._concurrency - len(in_flight)
                claimed = await store.dequeue_many_rollouts(limit=free, worker_id=self.get_worker_id()) if free else []
                in_flight |= {asyncio.create_task(self._step_impl(rollout)) for rollout in claimed}
                if in_flight:
                    _, in_flight = await asyncio.wait(
                        in_flight, timeout=self._poll_s, return_when=asyncio.FIRST_COMPLETED
                    )
                else:
                    await asyncio.sleep(self._poll_s)
        finally:
            for task in [*in_flight, watch]:
                task.cancel()
            await asyncio.wait({*in_flight, watch})
            if stop_heartbeat is not None:
                await stop_heartbeat()
            agent = self.get_agent()
            if isinstance(agent, SqlLitAgent):
                await agent.aclose()

    async def _until_alone(self) -> None:
        """Return when the store has not answered for STORE_GONE_S or the trainer has said, or shown, that it ended."""
        store, last_answer, trainer_seen = self.get_store(), time.monotonic(), False
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            while True:
                await asyncio.sleep(2.0)
                try:
                    async with session.get(f"{self._store_url}/v1/agl/health") as response:
                        response.raise_for_status()
                    trainer = await store.get_worker_by_id(TRAINER_WORKER)
                    last_answer = time.monotonic()
                except (aiohttp.ClientError, OSError, TimeoutError):
                    if time.monotonic() - last_answer > STORE_GONE_S:
                        logger.error("store %s has not answered for %.0f s; ending", self._store_url, STORE_GONE_S)
                        return
                    continue
                if trainer is None or trainer.last_heartbeat_time is None:
                    continue  # not there yet
                silent = time.time() - trainer.last_heartbeat_time > TRAINER_GONE_S
                running = (trainer.heartbeat_stats or {}).get("state") == "running"
                trainer_seen |= running and not silent
                if not trainer_seen:
                    continue  # what is there is an earlier run's
                if not running:
                    return
                if silent:
                    logger.error("the trainer has been silent for more than %.0f s; ending", TRAINER_GONE_S)
                    return

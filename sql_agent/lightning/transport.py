"""Plays the rollouts that a source asks for through agent-lightning's store, where runners claim them.

It publishes the model's address, enqueues one rollout for each that is asked for, and reads and stitches each one as
soon as it ends. What it cannot read is lost under its reason. All decisions are the source's
(`sql_agent.source.source`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from agentgrpo.agl_without_litellm import agl
from sql_agent.credit.row import Turn, stitch
from sql_agent.lightning.spans import TURN_SPAN, UntrainableCallError, all_there, read_outcome, read_turns
from sql_agent.lightning.store import UNFINISHED, RetryingStore
from sql_agent.model_address.weight_sync_pause import LONGEST_HOLD_S
from sql_agent.settings.main_job import RolloutConfig
from sql_agent.source.datatypes import PendingGroup, Rollout
from sql_agent.source.dynamic_sampling import rollout_seed
from sql_agent.store_server import FIRST

logger = logging.getLogger(__name__)


class StoreTransport:
    """Plays rollouts for one trainer (`sql_agent.source.source.Transport`).

    Args:
        model: the policy's name at its servers.
        backends: addresses of the model servers, http://HOST:PORT.
        proxy_url: the LLM proxy's address; None without one.
        lag: `trainer.max_off_policy_steps`.
        ending_s: the longest that a rollout may take, judgement and reward included.
        max_response_tokens, max_row_tokens: of a row, see `sql_agent.credit.row.stitch`.
    """

    def __init__(
        self,
        rollout: RolloutConfig,
        run_id: str,
        store: RetryingStore,
        model: str,
        backends: list[str],
        proxy_url: str | None,
        *,
        seed: int,
        lag: int,
        ending_s: float,
        max_response_tokens: int,
        max_row_tokens: int,
    ) -> None:
        self.settings, self.run_id, self.store = rollout, run_id, store
        self._seed, self._lag, self._ending_s = seed, lag, ending_s
        self._lengths = {"max_response_tokens": max_response_tokens, "max_row_tokens": max_row_tokens}
        self._model, self._backends, self._proxy_url = model, backends, proxy_url
        self._resources_id: str | None = None
        self._pending: dict[str, Rollout] = {}
        self._reading: dict[asyncio.Task[None], Rollout] = {}
        self._read_ones: list[Any] = []
        """The store's rollouts that were read since it was told the last time."""

    async def collect(self) -> None:
        if self._pending:
            for ended in await self.store.wait_for_rollouts(rollout_ids=list(self._pending), timeout=0):
                rollout = self._pending.pop(ended.rollout_id)
                rollout.end_seen_at = time.monotonic()
                self._reading[asyncio.create_task(self._read(ended, rollout))] = rollout
        for task in self._reading:
            if task.done():
                task.result()  # raises what it raised
        self._reading = {task: rollout for task, rollout in self._reading.items() if not task.done()}
        await self._tell_read()

    async def _tell_read(self) -> None:
        read, self._read_ones = self._read_ones, []
        if read:
            await self.store.mark_read(read)

    async def end(self, slots: Sequence[PendingGroup]) -> None:
        ending = {id(rollout) for slot in slots for rollout in slot.groups[-1]}
        late = {name: rollout for name, rollout in self._pending.items() if id(rollout) in ending}
        for name, rollout in late.items():  # nothing asks for the ids of late rollouts again
            del self._pending[name]
            rollout.lost, rollout.end_seen_at = "step_deadline", time.monotonic()
        await asyncio.gather(*(task for task, rollout in self._reading.items() if id(rollout) in ending))
        await self._tell_read()
        await self._cancel_unfinished(late)

    async def _cancel_unfinished(self, late: Iterable[str]) -> None:
        """Cancel this run's rollouts that are late (they may have ended by now) or were queued twice after a fault."""
        unfinished = await self.store.query_rollouts(status_in=UNFINISHED)
        ours = {r.rollout_id for r in unfinished if (r.metadata or {}).get("run_id") == self.run_id}
        for rollout_id in {*(ours - self._pending.keys()), *late}:
            await self.store.update_rollout(rollout_id, status="cancelled")

    async def _publish(self) -> str:
        """Publish the model's address once a run, because no store removes a resource."""
        if self._resources_id is None:
            resources = await self.store.add_resources({"main_llm": self._resource()})
            self._resources_id = str(resources.resources_id)
        return self._resources_id

    def _resource(self) -> Any:
        if self._proxy_url is None:
            return agl.LLM(endpoint=f"{self._backends[0]}/v1", model=self._model)
        return agl.ProxyLLM(endpoint=self._proxy_url, model="policy-0")

    def _server(self, number: int) -> dict[str, str]:
        """A group stays with one server and its prefix cache."""
        if self._proxy_url is None:
            return {"base_url": f"{self._backends[number]}/v1"}
        return {"model": f"policy-{number}"}

    async def enqueue(self, slots: Sequence[PendingGroup], *, step: int, validate: bool) -> None:
        """Queue the newest group of each slot, all in one request."""
        resources_id = await self._publish()
        retry = agl.RolloutConfig(
            # The runner itself ends a rollout and the wait for its score. This limit is for a runner that died. If it
            # struck a rollout that is still being judged, that rollout would be played a second time. Before the step
            # that trains it, it may meet `max_off_policy_steps` pushes of new weights, each of which may hold its calls
            # so long.
            timeout_seconds=self._ending_s + self._lag * LONGEST_HOLD_S + 30.0,
            max_attempts=self.settings.max_attempts,
            retry_condition=["failed", "timeout", "unresponsive"],
        )
        results = [result for slot in slots for result in slot.groups[-1]]
        requests = [
            agl.EnqueueRolloutRequest(
                input=result.task,
                mode="val" if validate else "train",
                resources_id=resources_id,
                config=retry,
                metadata={
                    "run_id": self.run_id,
                    "train_step": step,
                    "group": result.group,
                    # Batches that are not due yet may stand in the queue. The trainer waits for validations, and for
                    # replacements in groups that are due; the other replacements are of groups that began earlier than
                    # what is queued.
                    **({FIRST: True} if self._lag and (validate or result.draw) else {}),
                    **self._server(slot.number % len(self._backends)),
                    **(
                        {"seed": rollout_seed(self._seed, slot.batch or step, slot.number, result.draw, member)}
                        if result.temperature is None
                        else {"temperature": result.temperature}
                    ),
                },
            )
            for slot in slots
            for member, result in enumerate(slot.groups[-1])
        ]
        rollouts = await self.store.enqueue_many_rollouts(requests)
        self._pending |= {rollout.rollout_id: result for rollout, result in zip(rollouts, results, strict=True)}

    async def _read(self, rollout: Any, result: Rollout) -> None:
        await self._read_spans(rollout, result)
        result.settled = True
        self._read_ones.append(rollout)

    async def _read_spans(self, rollout: Any, result: Rollout) -> None:
        """Read the spans of one finished rollout into `result`; they may arrive a moment after its end."""
        if rollout.status != "succeeded":
            result.lost = f"rollout_{rollout.status}"
            return
        deadline = time.monotonic() + self.settings.span_timeout_s
        try:
            while True:
                spans = await self.store.query_spans(rollout.rollout_id, attempt_id="latest")
                reported = read_outcome(spans, result)
                turns = read_turns(spans, one_conversation=result.one_conversation)
                if reported and all_there(turns, result.record):
                    break
                if time.monotonic() > deadline:
                    result.lost = "missing_spans"
                    return
                await asyncio.sleep(self.settings.poll_s / 2)
        except UntrainableCallError as error:
            logger.error("rollout %s: %s", rollout.rollout_id, error)
            result.lost = error.reason
            return
        record = result.record
        if record.score.value is not None:
            result.played = replace(record, comparison=await self.store.read_comparison(rollout.rollout_id))
        calls = sum(span.name == TURN_SPAN for span in spans)
        result.unused_turns = {"repeated": calls - len(turns), "given_up": len(turns) - record.num_turns}
        result.asked_again = sum(turn.asked_again for turn in turns)
        turns = turns[: record.num_turns]  # a call that the agent gave up may have ended after it
        result.weights = tuple(turn.weights for turn in turns if turn.weights is not None)
        if not turns:
            result.lost = result.lost or "no_turns"
        elif not result.lost:
            self._stitch(result, turns)

    def _stitch(self, result: Rollout, turns: Sequence[Turn]) -> None:
        names = self.settings.train_agents
        result.row = stitch(
            turns,
            **self._lengths,
            one_conversation=result.one_conversation,
            agents=names,
        )
        if names:
            result.unused_turns["other_agent"] = sum(turn.agent not in names for turn in turns)
        if not any(result.row.sampled):
            others = result.unused_turns.get("other_agent") == len(turns)
            result.lost = "no_trained_agent" if others else "response_too_long"

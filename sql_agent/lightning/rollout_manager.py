"""Gets the rollouts that verl asks for from agent-lightning's store.

verl's config names the class (`actor_rollout_ref.rollout.agent.agent_loop_manager_class`); `generate_sequences` returns
one row per prompt row (verl experimental/agent_loop/agent_loop.py, `AgentLoopManager`). It publishes the model's
address, enqueues one rollout per row, reads and stitches each one as soon as it ends, and hands verl the batch. A
rollout that could not be judged comes back as a masked row and is counted under its reason. A training group without
spread is filtered, and the group of another task takes its rows. Leaves out the decisions: `dynamic_sampling` (which
group is trained on), `stops` (when a run ends), `batch` and `metrics`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow.parquet as pq
from tensordict import TensorDict
from verl import DataProto

from agentgrpo.agl_without_litellm import agl
from sql_agent.credit.stitch import stitch, turn_ends
from sql_agent.credit.tables import ESTIMATORS, Credit, made
from sql_agent.lightning.store import UNFINISHED, PatientStore
from sql_agent.source import run_context
from sql_agent.source.batch import to_tensors
from sql_agent.source.datatypes import GroupSlot, RolloutResult, Task
from sql_agent.source.dynamic_sampling import (
    choose_group,
    credit_group,
    draw_replacement,
    needs_redraw,
    replacement_tasks,
    rollout_seed,
)
from sql_agent.source.metrics import batch_metrics, clip_metrics, score_metrics, skill_metrics
from sql_agent.source.spans import TURN_SPAN, UntrainableCallError, all_there, read_outcome, read_turns
from sql_agent.source.stops import PrefixStop, check_lost, check_scorer_down

logger = logging.getLogger(__name__)
T = TypeVar("T")


class LightningRolloutManager:
    """Plays rollouts for one trainer, on an event loop in a thread beside verl's synchronous loop."""

    def __init__(self, config: Any, llm_client: Any, **_: Any) -> None:
        run = run_context.current()
        self.run, self.cfg = run, run.cfg
        self.store = PatientStore(run.store_url)
        self.model_path = str(config.actor_rollout_ref.model.path)
        self.pad_id = run.pad_id
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True, name="rollouts").start()
        addresses = llm_client._load_balancer.addresses  # a `sql_agent.verl_side.server_list.ServerList`
        self.backends = [f"http://{address}" for address in addresses]
        self._scoring_s = self.cfg.reward_wait_s
        self._prefix_stop = PrefixStop(self.cfg.max_broken_fraction)
        self._train_tasks = read_tasks(str(config.data.train_files)) if self.cfg.rollout.redraws else []
        self.proxy_url = run.publish({"model": self.model_path, "backends": self.backends})
        self._resources_id: str | None = None

    @classmethod
    def create(cls, *args: Any, **kwargs: Any) -> LightningRolloutManager:
        return cls(*args, **kwargs)

    @cached_property
    def _estimator(self) -> Credit:
        return made(ESTIMATORS[self.cfg.loss.estimator], self.cfg.loss)

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """Play every row of `prompts` and return verl's batch, rows in the same order."""
        return self._await(self._generate(prompts))

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def _generate(self, prompts: DataProto) -> DataProto:
        validate = bool(prompts.meta_info.get("validate", False))
        step = int(prompts.meta_info.get("global_steps", 0))
        started = time.time()
        tasks = [json.loads(row["task"]) for row in prompts.non_tensor_batch["extra_info"]]
        groups = [str(g) for g in prompts.non_tensor_batch.get("uid", range(len(tasks)))]
        slots = self._slots(tasks, groups, validate=validate, step=step)
        await self._play(slots, validate=validate, step=step)
        results = self._trained(slots, validate=validate)
        played = _results(slots)
        self.run.save_trajectories(played, step=step, validate=validate)
        check_lost(results, self.cfg.rollout.max_lost_fraction)
        batch = self._to_batch(results)
        ready = time.time()
        last_end = max((r.outcome.ended_at for r in played if r.outcome), default=ready)
        limits = self.cfg.data.prompt_tokens, self.cfg.data.max_response_tokens
        metrics = batch_metrics(played) | score_metrics(played)
        metrics |= {"time/rollout_s": ready - started, "time/batch_ready_s": ready - last_end}
        if validate:
            metrics |= skill_metrics(played)
        else:
            metrics |= clip_metrics(results, *limits)
            if self.cfg.rollout.redraws:  # groups that would have been replaced had there been time
                metrics["group/redraw_too_late"] = float(sum(needs_redraw(slot, self._estimator) for slot in slots))
            self._prefix_stop.add(metrics)
        prefix = "val/" if validate else ""
        self.run.step_metrics.update({prefix + name: value for name, value in metrics.items()})
        batch.meta_info = {"timing": {"rollouts": ready - started}, "reward_extra_keys": []}
        return batch

    def _slots(self, tasks: Sequence[Task], groups: Sequence[str], *, validate: bool, step: int) -> list[GroupSlot]:
        rows: dict[str, list[int]] = {}
        for row, group in enumerate(groups):
            rows.setdefault(group, []).append(row)
        slots = [
            GroupSlot(number, members, draws=[[RolloutResult(group, tasks[row]) for row in members]])
            for number, (group, members) in enumerate(rows.items())
        ]
        if not validate:
            replacements = replacement_tasks(
                self._train_tasks,
                {str(task["id"]) for task in tasks},
                slots=len(slots),
                draws=self.cfg.rollout.redraws,
                seed=self.cfg.seed,
                step=step,
            )
            for slot, own in zip(slots, replacements, strict=True):
                slot.replacements = own
        return slots

    def _trained(self, slots: Sequence[GroupSlot], *, validate: bool = False) -> list[RolloutResult]:
        """Return the result of each row, with its advantage unless it validates, in the order of the rows."""
        by_row = dict[int, RolloutResult]()
        for slot in slots:
            group = choose_group(slot, self._estimator)
            if not validate:
                credit_group(group, self._estimator)
            by_row |= zip(slot.rows, group, strict=True)
        return [by_row[row] for row in sorted(by_row)]

    async def _play(self, slots: Sequence[GroupSlot], *, validate: bool, step: int) -> None:
        pending = await self._enqueue(slots, validate=validate, step=step)
        reading: set[asyncio.Task[None]] = set()
        report = _ProgressReport(self.run.progress, step=step, validate=validate)
        deadline = time.monotonic() + self.cfg.rollout.step_timeout_s
        last_redraw = (
            deadline - self.cfg.agent.rollout_timeout_s - self._scoring_s
        )  # a later redraw might not end in time
        while (pending or reading) and time.monotonic() < deadline:
            if pending:
                for rollout in await self.store.wait_for_rollouts(rollout_ids=list(pending), timeout=0):
                    reading.add(asyncio.create_task(self._read(rollout, pending.pop(rollout.rollout_id))))
            reading = _unfinished(reading)
            check_scorer_down(_results(slots), self.cfg.reward_model)
            if time.monotonic() < last_redraw and (
                redrawn := [slot for slot in slots if needs_redraw(slot, self._estimator)]
            ):
                for slot in redrawn:
                    draw_replacement(slot)
                pending |= await self._enqueue(redrawn, validate=validate, step=step)
            report.send(_results(slots))
            if pending or reading:
                await asyncio.sleep(self.cfg.rollout.poll_s)
        for result in pending.values():  # nothing asks for the ids of late rollouts again
            result.lost = "step_deadline"
        await asyncio.gather(*reading)
        report.send(_results(slots))
        await self._cancel_unfinished(pending)
        check_scorer_down(_results(slots), self.cfg.reward_model)

    async def _cancel_unfinished(self, late: Iterable[str]) -> None:
        """Cancel this run's rollouts that are late (they may have ended by now) or were queued twice after a fault."""
        unfinished = await self.store.query_rollouts(status_in=UNFINISHED)
        ours = [r.rollout_id for r in unfinished if (r.metadata or {}).get("run_id") == self.run.run_id]
        for rollout_id in {*ours, *late}:
            await self.store.update_rollout(rollout_id, status="cancelled")

    async def _publish(self) -> str:
        """Return the id of the resource with the model's address, published once because no store removes one."""
        if self._resources_id is None:
            resources = await self.store.add_resources({"main_llm": self._resource()})
            self._resources_id = str(resources.resources_id)
        return self._resources_id

    def _resource(self) -> Any:
        if self.proxy_url is None:
            return agl.LLM(endpoint=f"{self.backends[0]}/v1", model=self.model_path)
        return agl.ProxyLLM(endpoint=self.proxy_url, model="policy-0")

    def _server(self, number: int) -> dict[str, str]:
        """Return metadata that selects a model server; a group stays with one server and its prefix cache."""
        if self.proxy_url is None:
            return {"base_url": f"{self.backends[number]}/v1"}
        return {"model": f"policy-{number}"}

    async def _enqueue(self, slots: Sequence[GroupSlot], *, validate: bool, step: int) -> dict[str, RolloutResult]:
        """Queue the newest group of each slot, all in one request, and return the results by rollout id."""
        resources_id = await self._publish()
        retry = agl.RolloutConfig(
            # The runner itself ends a rollout and the wait for its score. This limit is for a runner that died. If it
            # struck a rollout that is still being judged, that rollout would be played a second time.
            timeout_seconds=self.cfg.agent.rollout_timeout_s + self.cfg.ending_s + self._scoring_s + 30.0,
            max_attempts=self.cfg.rollout.max_attempts,
            retry_condition=["failed", "timeout", "unresponsive"],
        )
        results = [result for slot in slots for result in slot.draws[-1]]
        requests = [
            agl.EnqueueRolloutRequest(
                input=result.task,
                mode="val" if validate else "train",
                resources_id=resources_id,
                config=retry,
                metadata={
                    "run_id": self.run.run_id,
                    "train_step": step,
                    "group": result.group,
                    **self._server(slot.number % len(self.backends)),
                    **(
                        {"temperature": 0.0}
                        if validate
                        else {"seed": rollout_seed(self.cfg.seed, step, slot.number, result.draw, member)}
                    ),
                },
            )
            for slot in slots
            for member, result in enumerate(slot.draws[-1])
        ]
        rollouts = await self.store.enqueue_many_rollouts(requests)
        return {rollout.rollout_id: result for rollout, result in zip(rollouts, results, strict=True)}

    async def _read(self, rollout: Any, result: RolloutResult) -> None:
        await self._read_spans(rollout, result)
        result.settled = True
        await self.store.mark_read(rollout)

    async def _read_spans(self, rollout: Any, result: RolloutResult) -> None:
        """Read the spans of one finished rollout into `result`; they may arrive a moment after its end."""
        if rollout.status != "succeeded":
            result.lost = f"rollout_{rollout.status}"
            return
        deadline = time.monotonic() + self.cfg.rollout.span_timeout_s
        try:
            while True:
                spans = await self.store.query_spans(rollout.rollout_id, attempt_id="latest")
                result.outcome = read_outcome(spans)
                one_conversation = result.outcome is None or result.outcome.one_conversation
                turns = read_turns(spans, one_conversation=one_conversation)
                if result.outcome is not None and all_there(turns, result.outcome):
                    break
                if time.monotonic() > deadline:
                    result.lost = "missing_spans"
                    return
                await asyncio.sleep(self.cfg.rollout.poll_s / 2)
        except UntrainableCallError as error:
            logger.error("rollout %s: %s", rollout.rollout_id, error)
            result.lost = error.reason
            return
        record, reward = result.outcome.record, result.outcome.reward
        if record.score.value is not None:
            result.comparison = await self.store.read_comparison(rollout.rollout_id)
        calls = sum(span.name == TURN_SPAN for span in spans)
        result.unused_turns = {"repeated": calls - len(turns), "given_up": len(turns) - record.num_turns}
        turns = turns[: record.num_turns]  # a call that the agent gave up may have ended after it
        if reward.value is None:
            result.lost = reward.reason
        elif not turns:
            result.lost = "no_turns"
        else:
            result.trajectory = stitch(
                turns,
                max_response_tokens=self.cfg.data.max_response_tokens,
                max_row_tokens=self.cfg.micro_batch_tokens(cpu=os.environ.get("VERL_PLATFORM") == "cpu"),
                one_conversation=one_conversation,
                agents=self.cfg.rollout.train_agents,
            )
            if names := self.cfg.rollout.train_agents:
                result.unused_turns["other_agent"] = sum(turn.agent not in names for turn in turns)
            result.turn_ends = turn_ends(turns, result.trajectory)
            if not any(result.trajectory.sampled):
                others = result.unused_turns.get("other_agent") == len(turns)
                result.lost = "no_trained_agent" if others else "response_too_long"

    def _to_batch(self, results: Sequence[RolloutResult]) -> DataProto:
        tensors = to_tensors([r.trajectory for r in results], [r.reward for r in results], pad_id=self.pad_id)
        others = {
            "multi_modal_inputs": np.array([{} for _ in results], dtype=object),  # verl reads the key for every row
            "__num_turns__": np.array([r.trajectory.num_turns if r.trajectory else 0 for r in results]),
        }
        return DataProto(TensorDict(tensors, batch_size=len(results)), others)


REPORT_S = 1.0
"""Reports of progress are at least so many seconds apart; the last one is always sent."""


class _ProgressReport:
    """Tells the command how many rollouts of a batch are done, lost, and in place of groups without spread."""

    def __init__(self, send: Callable[[dict[str, Any]], None], **batch: Any) -> None:
        self._send, self._batch, self._sent, self._at = send, {"event": "rollouts", **batch}, (-1, -1, -1, -1), 0.0

    def send(self, results: Sequence[RolloutResult]) -> None:
        done = [result for result in results if result.settled or result.lost]
        redrawn = sum(result.draw > 0 for result in results)
        counts = len(done), len(results), sum(result.lost is not None for result in done), redrawn
        soon = time.monotonic() < self._at + REPORT_S and len(done) < len(results)
        if counts != self._sent and not soon:
            self._sent, self._at = counts, time.monotonic()
            self._send({**self._batch, **dict(zip(("done", "of", "lost", "redrawn"), counts, strict=True))})


def read_tasks(parquet: str) -> list[Task]:
    """Read the tasks of verl's data file, in the file's order."""
    return [json.loads(row["task"]) for row in pq.read_table(parquet, columns=["extra_info"])["extra_info"].to_pylist()]


def _results(slots: Iterable[GroupSlot]) -> list[RolloutResult]:
    return [result for slot in slots for group in slot.draws for result in group]


def _unfinished(reading: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Return the asyncio tasks that are not done, and raise the exception of one that is done and failed."""
    for task in reading:
        if task.done():
            task.result()
    return {task for task in reading if not task.done()}

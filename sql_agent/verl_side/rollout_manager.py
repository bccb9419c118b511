"""Hands verl the rollouts that it asks for, as its batch.

verl's config names the class (`actor_rollout_ref.rollout.agent.agent_loop_manager_class`); `generate_sequences` returns
one row per prompt row (verl experimental/agent_loop/agent_loop.py, `AgentLoopManager`). A rollout that could not be
judged comes back as a masked row. A zero-variance group of training is filtered, and another task's group takes its
rows. The decisions are those of `sql_agent.source.source`, the playing is `sql_agent.lightning.transport`.

With `trainer.max_off_policy_steps` k, k more batches are open than verl has asked for. The first step draws their tasks
from the training file; from then on a step begins the tasks that verl gives it, and takes the oldest groups that are
open, which may be of other tasks. The last k steps begin none, so a run plays as many groups as without.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from tensordict import TensorDict
from verl import DataProto

from sql_agent.credit.registry import ESTIMATORS, made
from sql_agent.lightning.store import RetryingStore
from sql_agent.lightning.transport import StoreTransport
from sql_agent.names import RANKING
from sql_agent.reward_functions.ranking import ranker_of
from sql_agent.source import run_context
from sql_agent.source.batch import to_tensors
from sql_agent.source.datatypes import PendingGroup, Rollout, Task
from sql_agent.source.dynamic_sampling import credit_groups
from sql_agent.source.metrics import clip_metrics, lag_metrics
from sql_agent.source.source import Source


class RolloutManager:
    """Plays rollouts for one trainer, on an event loop in a thread beside verl's synchronous loop."""

    def __init__(self, config: Any, llm_client: Any, **_: Any) -> None:
        self.run = run = run_context.current()
        cfg, model = run.cfg, str(config.actor_rollout_ref.model.path)
        addresses = llm_client._load_balancer.addresses  # a `sql_agent.verl_side.servers.ServerList`
        backends = [f"http://{address}" for address in addresses]
        run.proxy_url = run.publish({"model": model, "backends": backends})
        estimator = made(ESTIMATORS[cfg.loss.estimator], cfg.loss)
        self._tasks = (
            read_tasks(str(config.data.train_files))
            if cfg.rollout.max_resamples or cfg.trainer.max_off_policy_steps
            else []
        )
        self._resumed = read_open_groups(config.trainer.resume_from_path)
        self._waiting: list[PendingGroup] = []
        """Slots that no step has begun yet."""
        self._batches: int | None = None
        """Batches of tasks so far, since the run's very first step; None before this process's first step."""
        self._handed_over = time.monotonic()
        run.open_groups = self.open_groups
        transport = StoreTransport(
            cfg.rollout,
            run.run_id,
            RetryingStore(run.store_url),
            model,
            backends,
            run.proxy_url,
            seed=cfg.seed,
            lag=cfg.trainer.max_off_policy_steps,
            ending_s=cfg.agent.rollout_timeout_s + cfg.ending_s + cfg.reward_wait_s,
            max_response_tokens=cfg.data.max_response_tokens,
            max_row_tokens=cfg.micro_batch_tokens(cpu=os.environ.get("VERL_PLATFORM") == "cpu"),
        )
        self.source = Source(
            transport,
            cfg.rollout,
            cfg.reward_model,
            estimator,
            seed=cfg.seed,
            ending_s=cfg.agent.rollout_timeout_s + cfg.reward_wait_s,
            max_broken_fraction=cfg.max_broken_fraction,
            tasks=self._tasks if cfg.rollout.max_resamples else [],
            credit=partial(credit_groups, estimator=estimator, whiten=cfg.loss.whiten),
            keep=run.save_trajectories,
            report=run.progress,
            ranker=ranker_of(cfg.judge, run.run_dir) if RANKING in cfg.rollout.weights else None,
        )
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True, name="rollouts").start()

    @classmethod
    def create(cls, *args: Any, **kwargs: Any) -> RolloutManager:
        return cls(*args, **kwargs)

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """Play every row of `prompts` and return verl's batch, rows in the same order."""
        validate = bool(prompts.meta_info.get("validate", False))
        step = int(prompts.meta_info.get("global_steps", 0))
        started = time.monotonic()
        rows = rows_by_group(prompts)
        slots = slots_of([json.loads(row["task"]) for row in prompts.non_tensor_batch["extra_info"]], rows, validate)
        overlap_s = max(self.source.played_until - self._handed_over, 0.0)
        begun = slots if validate else self._begun(slots, step)
        playing = self.source.batch(begun, step=step, validate=validate, groups=len(slots))
        groups, metrics = asyncio.run_coroutine_threadsafe(playing, self.loop).result()
        results = in_rows(groups, rows)
        batch = to_batch(results, self.run.pad_id)
        ready = time.monotonic()
        last_end = max(started, self.source.last_end)  # with a lag it may have been beside the last update
        metrics |= {"time/rollout_s": ready - started, "time/batch_ready_s": ready - last_end}
        if not validate:
            metrics |= clip_metrics(results, self.run.cfg.data.prompt_tokens, self.run.cfg.data.max_response_tokens)
            self._handed_over = time.monotonic()
        if not validate and self.run.cfg.trainer.max_off_policy_steps:
            metrics |= lag_metrics(results, step) | {
                "lag/open_groups": len(self.source.open),
                "time/overlap_s": overlap_s,
            }
            newest = [all(step - 1 == weights for weights in result.weights) for result in results]
            batch.non_tensor_batch[run_context.NEWEST] = np.array(newest)
        prefix = "val/" if validate else ""
        self.run.step_metrics.update({prefix + name: value for name, value in metrics.items()})
        batch.meta_info = {"timing": {"rollouts": ready - started}, "reward_extra_keys": []}
        return batch

    def _begun(self, given: list[PendingGroup], step: int) -> list[PendingGroup]:
        """The slots that begin in this step.

        They are as many as `max_off_policy_steps` lets be open, and no more than the run still trains.

        Args:
            given: those of the tasks that verl gives the step.
        """
        cfg, groups, members = self.run.cfg, len(given), len(given[0].groups[0])
        if self._batches is None:
            resumed = self._resumed or {"batches": step - 1, "slots": ()}
            self._batches = int(resumed["batches"])
            self._waiting = [new_slot(members=members, **slot) for slot in resumed["slots"]]
        left = groups * max(self.run.steps - step + 1, 1)
        room = max(0, min(groups * (1 + cfg.trainer.max_off_policy_steps), left) - len(self.source.open))
        from_verl = [given]
        while len(self._waiting) < room:
            self._batches += 1
            # only the first step of a run with a lag needs more than verl gives
            self._waiting += from_verl.pop() if from_verl else self._drawn(self._batches, groups, members)
            for slot in self._waiting[-groups:]:
                slot.batch = self._batches
        begun, self._waiting = self._waiting[:room], self._waiting[room:]
        for slot in begun:
            slot.due = step + cfg.trainer.max_off_policy_steps
        return begun

    def _drawn(self, batch: int, groups: int, members: int) -> list[PendingGroup]:
        tasks = random.Random(f"{self.run.cfg.seed} batch {batch}").sample(self._tasks, groups)
        return [new_slot(number, task, batch, members=members) for number, task in enumerate(tasks)]

    def open_groups(self) -> dict[str, Any] | None:
        """What a resumed run plays again, for the checkpoint; None without `trainer.max_off_policy_steps`."""
        slots = [
            {"number": slot.number, "task": slot.groups[0][0].task, "batch": slot.batch}
            for slot in [*self.source.open, *self._waiting]
        ]
        return (
            {"batches": self._batches, "slots": slots} if slots or self.run.cfg.trainer.max_off_policy_steps else None
        )


def rows_by_group(prompts: DataProto) -> dict[str, list[int]]:
    """The rows of each group, by verl's id of the group; a validation gives none, and each row is a group."""
    rows, fields = dict[str, list[int]](), prompts.non_tensor_batch
    for row, group in enumerate(fields.get("uid", range(len(fields["extra_info"])))):
        rows.setdefault(str(group), []).append(row)
    return rows


def new_slot(number: int, task: Task, batch: int, *, members: int) -> PendingGroup:
    group = f"{batch}-{number}"
    return PendingGroup(number, batch=batch, groups=[[Rollout(group, task) for _ in range(members)]])


def read_open_groups(checkpoint: str | None) -> dict[str, Any] | None:
    """What `RolloutManager.open_groups` said when the checkpoint was written; None if it said nothing."""
    file = Path(checkpoint or "") / run_context.OPEN_GROUPS
    return json.loads(file.read_text()) if checkpoint and file.is_file() else None


def slots_of(tasks: Sequence[Task], rows: Mapping[str, Sequence[int]], validate: bool) -> list[PendingGroup]:
    temperature = 0.0 if validate else None
    return [
        PendingGroup(number, groups=[[Rollout(group, tasks[row], temperature=temperature) for row in members]])
        for number, (group, members) in enumerate(rows.items())
    ]


def in_rows(groups: Sequence[Sequence[Rollout]], rows: Mapping[str, Sequence[int]]) -> list[Rollout]:
    """The rollout of each row, in the order of the rows."""
    by_row = dict[int, Rollout]()
    for group, members in zip(groups, rows.values(), strict=True):
        by_row |= zip(members, group, strict=True)
    return [by_row[row] for row in sorted(by_row)]


def to_batch(rollouts: Sequence[Rollout], pad_id: int) -> DataProto:
    tensors = to_tensors([r.row for r in rollouts], [r.reward for r in rollouts], pad_id=pad_id)
    others = {
        "multi_modal_inputs": np.array([{} for _ in rollouts], dtype=object),  # verl reads the key for every row
        "__num_turns__": np.array([r.row.num_turns if r.row else 0 for r in rollouts]),
    }
    return DataProto(TensorDict(tensors, batch_size=len(rollouts)), others)


def read_tasks(parquet: str) -> list[Task]:
    """Read the tasks of verl's data file, in the file's order."""
    return [json.loads(row["task"]) for row in pq.read_table(parquet, columns=["extra_info"])["extra_info"].to_pylist()]

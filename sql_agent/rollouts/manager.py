"""verl asks this class for rollouts; it gets them from agent-lightning's store.

verl's config names it (`actor_rollout_ref.rollout.agent.agent_loop_manager_class`); `generate_sequences` answers prompt
rows one to one (verl experimental/agent_loop/agent_loop.py, `AgentLoopManager`). It publishes the model's address,
enqueues one rollout per row, reads and stitches each one as soon as it ends, and hands verl the batch. What could not
be judged comes back as a masked row and is counted under its reason. A training group without spread is set aside and
another task's takes its rows (`sql_agent.rollouts.dynamic_sampling`); verl reads nothing of a row but what this class
returns.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pyarrow.parquet as pq
import torch
from tensordict import TensorDict
from verl import DataProto

from sql_agent.datatypes import RewardModelConfig
from sql_agent.lightning.agl_light import agl
from sql_agent.lightning.store import UNFINISHED, PatientStore
from sql_agent.rewards import score_failure, without_score
from sql_agent.rollouts import run_context
from sql_agent.rollouts.advantages import masked_group_advantages
from sql_agent.rollouts.batch import to_tensors
from sql_agent.rollouts.dynamic_sampling import NoSpread, Task, no_spread, rollout_seed, spare_tasks
from sql_agent.rollouts.metrics import batch_metrics, clip_metrics, score_metrics, skill_metrics, success_of
from sql_agent.rollouts.prefix_stop import PrefixStop
from sql_agent.rollouts.scoring import start_command
from sql_agent.rollouts.stitch import RolloutOutcome, Trajectory, all_there, read_outcome, read_turns, stitch

logger = logging.getLogger(__name__)
T = TypeVar("T")


class TooManyLostError(RuntimeError):
    """A step lost more of its rollouts than `rollout.max_lost_fraction` allows."""


class ScorerDownError(RuntimeError):
    """The reward model has given no score for `reward_model.give_up_s` seconds."""


@dataclass
class Result:
    """What became of one rollout."""

    group: str
    task_id: str
    skills: tuple[str, ...] = ()
    """What the task exercises: its skills where it names them, else its kind."""
    draw: int = 0
    """Tasks that its place in the batch had drawn before this one."""
    trajectory: Trajectory | None = None
    outcome: RolloutOutcome | None = None
    lost: str | None = None
    """Why it has no reward; None for a judged one."""
    unshaped: str | None = None
    """Why the reward model's score is in no reward of its group; None where it is, or where there is none."""
    settled: bool = False
    """Whether any of the above may still change."""
    set_aside: str | None = None
    """Why its group is not trained on: a `NoSpread`, or `lost`; None for one that is."""
    advantage: float | None = None
    """None where it is not trained on."""

    @property
    def reward(self) -> float | None:
        return None if self.lost or self.outcome is None else self.outcome.reward


@dataclass
class Place:
    """The rows of one group in the batch, and the groups that were played for them."""

    number: int
    rows: list[int]
    spares: list[Task] = field(default_factory=list)
    """Tasks that it may still draw, next one first."""
    draws: list[list[Result]] = field(default_factory=list)

    def choose(self) -> list[Result]:
        """The group that is trained on: the one with spread, else one that lost least. The others are marked."""
        causes = [without_spread(group) for group in self.draws]
        known = [sum(r.reward is not None for r in group) for group in self.draws]
        best = max(range(len(self.draws)), key=lambda draw: (known[draw] > 1 and causes[draw] is None, known[draw]))
        for draw, group in enumerate(self.draws):
            for result in group:
                result.set_aside = None if draw == best else causes[draw] or "lost"
        return self.draws[best]


class LightningRolloutManager:
    """One per trainer; its own event loop runs beside verl's synchronous one."""

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
        self._scoring_s = self.cfg.reward_model.timeout_s if self.cfg.reward_model.url else 0.0
        self._prefix_stop = PrefixStop(self.cfg.rollout.max_broken_fraction)
        self._train_tasks = read_tasks(str(config.data.train_files)) if self.cfg.rollout.redraws else []
        self.proxy_url = run.publish({"model": self.model_path, "backends": self.backends})
        self._resources_id: str | None = None

    @classmethod
    def create(cls, *args: Any, **kwargs: Any) -> LightningRolloutManager:
        return cls(*args, **kwargs)

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
        places = self._places(tasks, groups, validate=validate, step=step)
        await self._play(places, tasks, validate=validate, step=step)
        results = self._trained(places)
        played = _results(places)
        self.run.save_trajectories(played, step=step, validate=validate)
        check_lost(results, self.cfg.rollout.max_lost_fraction)
        batch = self._to_batch(results)
        ready = time.time()
        last_end = max((r.outcome.metrics["ended_at"] for r in played if r.outcome), default=ready)
        limits = self.cfg.data.max_prompt_tokens, self.cfg.data.max_response_tokens
        metrics = (
            batch_metrics(played)
            | score_metrics(played)
            | (skill_metrics(played) if validate else clip_metrics(results, *limits) | self._too_late(places))
            | {
                "time/rollout_s": ready - started,
                "time/batch_ready_s": ready - last_end,
            }
        )
        if not validate:
            self._prefix_stop.add(metrics)
        prefix = "val/" if validate else ""
        self.run.step_metrics.update({prefix + name: value for name, value in metrics.items()})
        batch.meta_info = {"timing": {"rollouts": ready - started}, "reward_extra_keys": []}
        return batch

    def _places(self, tasks: Sequence[Task], groups: Sequence[str], *, validate: bool, step: int) -> list[Place]:
        rows: dict[str, list[int]] = {}
        for row, group in enumerate(groups):
            rows.setdefault(group, []).append(row)
        places = [
            Place(number, members, draws=[[new_result(groups[row], tasks[row]) for row in members]])
            for number, members in enumerate(rows.values())
        ]
        if not validate:
            spares = spare_tasks(
                self._train_tasks,
                {str(task["id"]) for task in tasks},
                places=len(places),
                draws=self.cfg.rollout.redraws,
                seed=self.cfg.seed,
                step=step,
            )
            for place, tasks_left in zip(places, spares, strict=True):
                place.spares = tasks_left
        return places

    def _trained(self, places: Sequence[Place]) -> list[Result]:
        """The result of each row, in the order of the rows."""
        by_row: dict[int, Result] = {}
        for place in places:
            by_row |= zip(place.rows, place.choose(), strict=True)
        results = [by_row[row] for row in sorted(by_row)]
        advantages = masked_group_advantages(
            torch.tensor([r.reward or 0.0 for r in results]),
            torch.tensor([r.reward is not None for r in results]),
            np.array([r.group for r in results]),
            scale=self.cfg.loss.scale,
        )
        for result, advantage in zip(results, advantages.tolist(), strict=True):
            result.advantage = advantage if result.reward is not None else None
        return results

    async def _play(self, places: Sequence[Place], tasks: Sequence[Task], *, validate: bool, step: int) -> None:
        order = _Order(await self._publish(), step, validate)
        firsts = [(place, place.draws[0], [tasks[row] for row in place.rows]) for place in places]
        pending = await self._enqueue(firsts, order)
        reading: set[asyncio.Task[None]] = set()
        deadline = time.monotonic() + self.cfg.rollout.step_timeout_s
        last_redraw = deadline - self.cfg.agent.rollout_timeout_s - self._scoring_s  # a later one might not end in time
        while (pending or reading) and time.monotonic() < deadline:
            if pending:
                for rollout in await self.store.wait_for_rollouts(rollout_ids=list(pending), timeout=0):
                    reading.add(asyncio.create_task(self._read(rollout, pending.pop(rollout.rollout_id))))
            reading = _unfinished(reading)
            check_scorer(_results(places), self.cfg.reward_model)
            if time.monotonic() < last_redraw and (redraws := [r for place in places if (r := self._redraw(place))]):
                pending |= await self._enqueue(redraws, order)
            if pending or reading:
                await asyncio.sleep(self.cfg.rollout.poll_s)
        for result in pending.values():  # late ones are nobody's: their ids are never asked for again
            result.lost = "step_deadline"
        await asyncio.gather(*reading)
        await self._cancel_unfinished(pending)
        check_scorer(_results(places), self.cfg.reward_model)

    async def _cancel_unfinished(self, late: Iterable[str]) -> None:
        """Cancel this run's rollouts that are late (they may have ended since) or were queued twice by a fault."""
        unfinished = await self.store.query_rollouts(status_in=UNFINISHED)
        ours = [r.rollout_id for r in unfinished if (r.metadata or {}).get("run_id") == self.run.run_id]
        for rollout_id in {*ours, *late}:
            await self.store.update_rollout(rollout_id, status="cancelled")

    def _too_late(self, places: Sequence[Place]) -> dict[str, float]:
        """Groups that another task would have replaced had there been time to play it; {} where none ever gives way."""
        late = sum(_gives_way(place) for place in places)
        return {"group/redraw_too_late": float(late)} if self.cfg.rollout.redraws else {}

    def _redraw(self, place: Place) -> tuple[Place, list[Result], list[Task]] | None:
        """The next group of a place whose last one has ended and has no spread; None while, or where, there is none."""
        if not _gives_way(place):
            return None
        last, task = place.draws[-1], place.spares.pop(0)
        place.draws.append([new_result(result.group, task, len(place.draws)) for result in last])
        return place, place.draws[-1], [task] * len(last)

    async def _publish(self) -> str:
        """The id of the resource that names the model's address; it is published once, a store removes none."""
        if self._resources_id is None:
            resources = await self.store.add_resources({"main_llm": self._resource()})
            self._resources_id = str(resources.resources_id)
        return self._resources_id

    def _resource(self) -> Any:
        if self.proxy_url is None:
            return agl.LLM(endpoint=f"{self.backends[0]}/v1", model=self.model_path)
        return agl.ProxyLLM(endpoint=self.proxy_url, model="policy-0")

    def _server(self, number: int) -> dict[str, str]:
        """Rollout metadata that picks one model server; a group keeps to one and its prefix cache."""
        if self.proxy_url is None:
            return {"base_url": f"{self.backends[number]}/v1"}
        return {"model": f"policy-{number}"}

    async def _enqueue(
        self, groups: Sequence[tuple[Place, list[Result], list[Task]]], order: _Order
    ) -> dict[str, Result]:
        """Queue the rollouts of these groups in one request; the result of each, by rollout id."""
        cfg = self.cfg.rollout
        retry = agl.RolloutConfig(
            # The runner ends a rollout, and the wait for its score, by itself; this is for a runner that died.
            timeout_seconds=self.cfg.agent.rollout_timeout_s + self._scoring_s + 30.0,
            max_attempts=cfg.max_attempts,
            retry_condition=["failed", "timeout", "unresponsive"],
        )
        requests = [
            agl.EnqueueRolloutRequest(
                input=task,
                mode="val" if order.validate else "train",
                resources_id=order.resources_id,
                config=retry,
                metadata={
                    "run_id": self.run.run_id,
                    "train_step": order.step,
                    "group": result.group,
                    **self._server(place.number % len(self.backends)),
                    **self._sampling(place, member, order),
                },
            )
            for place, results, tasks in groups
            for member, (result, task) in enumerate(zip(results, tasks, strict=True))
        ]
        rollouts = await self.store.enqueue_many_rollouts(requests)
        results = [result for _, group, _ in groups for result in group]
        return {rollout.rollout_id: result for rollout, result in zip(rollouts, results, strict=True)}

    def _sampling(self, place: Place, member: int, order: _Order) -> dict[str, Any]:
        if order.validate:
            return {"temperature": 0.0}
        return {"seed": rollout_seed(self.cfg.seed, order.step, place.number, len(place.draws) - 1, member)}

    async def _read(self, rollout: Any, result: Result) -> None:
        await self._read_spans(rollout, result)
        result.settled = True
        await self.store.mark_read(rollout)

    async def _read_spans(self, rollout: Any, result: Result) -> None:
        """Read one finished rollout's spans into `result`; spans may arrive a moment after its end."""
        if rollout.status != "succeeded":
            result.lost = f"rollout_{rollout.status}"
            return
        deadline = time.monotonic() + self.cfg.rollout.span_timeout_s
        try:
            while True:
                spans = await self.store.query_spans(rollout.rollout_id, attempt_id="latest")
                result.outcome, turns = read_outcome(spans), read_turns(spans)
                if result.outcome is not None and all_there(turns, result.outcome):
                    break
                if time.monotonic() > deadline:
                    result.lost = "missing_spans"
                    return
                await asyncio.sleep(self.cfg.rollout.poll_s / 2)
        except ValueError as error:
            logger.error("rollout %s: %s", rollout.rollout_id, error)
            result.lost = "no_token_ids"
            return
        turns = turns[: result.outcome.num_turns]  # a call that the agent gave up may have ended after it
        if result.outcome.reward is None:
            result.lost = result.outcome.reason
        elif not turns:
            result.lost = "no_turns"
        else:
            result.trajectory = stitch(turns, max_response_tokens=self.cfg.data.max_response_tokens)
            if not result.trajectory.response_ids:
                result.lost = "response_too_long"

    def _to_batch(self, results: Sequence[Result]) -> DataProto:
        tensors = to_tensors([r.trajectory for r in results], [r.reward for r in results], pad_id=self.pad_id)
        others = {
            "multi_modal_inputs": np.array([{} for _ in results], dtype=object),  # verl reads the key for every row
            "__num_turns__": np.array([r.trajectory.num_turns if r.trajectory else 0 for r in results]),
        }
        return DataProto(TensorDict(tensors, batch_size=len(results)), others)


@dataclass(frozen=True)
class _Order:
    """What the rollouts of one batch have in common."""

    resources_id: str
    step: int
    validate: bool


def read_tasks(parquet: str) -> list[Task]:
    """The tasks of a file that verl reads, in its order."""
    return [json.loads(row["task"]) for row in pq.read_table(parquet, columns=["extra_info"])["extra_info"].to_pylist()]


def new_result(group: str, task: Task, draw: int = 0) -> Result:
    return Result(group, str(task["id"]), tuple(task.get("skills") or [task.get("kind", "")]), draw)


def share_score(group: Sequence[Result]) -> None:
    """Take the reward model's score out of all rewards of a group where any of its scores could not be had."""
    failures = Counter(why for r in group if r.outcome and (why := score_failure(r.outcome)))
    if not failures:
        return
    [(why, _)] = failures.most_common(1)
    for result in group:
        if result.outcome is None or result.reward is None:
            continue
        result.outcome = without_score(result.outcome, why)
        if result.outcome.reward is None:
            result.lost = why
        else:
            result.unshaped = why


def without_spread(group: Sequence[Result]) -> NoSpread | None:
    """Why a group teaches nothing, its rewards made alike first (`share_score`)."""
    share_score(group)
    return no_spread([result.reward for result in group], [success_of(result) for result in group])


def _gives_way(place: Place) -> bool:
    """Whether the last group of a place has ended without spread and there is a task to play instead."""
    last = place.draws[-1]
    return bool(place.spares) and all(result.settled for result in last) and without_spread(last) is not None


def _results(places: Iterable[Place]) -> list[Result]:
    return [result for place in places for group in place.draws for result in group]


def _unfinished(reading: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Those that go on; the failure of one that ended is raised here."""
    for task in reading:
        if task.done():
            task.result()
    return {task for task in reading if not task.done()}


def check_lost(results: Sequence[Result], max_fraction: float) -> None:
    """Stop a step that lost too much of itself.

    Raises:
        TooManyLostError: more than `max_fraction` of the rollouts have no reward, or no score that waiting could bring
            (a service that is away has a limit of its own, `check_scorer`).
    """
    reasons = Counter(why for r in results if (why := r.lost or _refused(r)))
    lost = sum(reasons.values())
    if lost > max_fraction * len(results):
        reason, count = reasons.most_common(1)[0]
        raise TooManyLostError(
            f"{lost} of {len(results)} rollouts were lost or refused a score, more than "
            f"rollout.max_lost_fraction={max_fraction} allows; the most frequent reason is {reason!r} "
            f"({count} times). {_ADVICE.get(reason, _ADVICE['other'])}"
        )


def _refused(result: Result) -> str | None:
    why = score_failure(result.outcome) if result.outcome else None
    return None if why == "scorer_unavailable" else why


def check_scorer(results: Sequence[Result], cfg: RewardModelConfig) -> None:
    """Stop a step whose reward model is gone.

    Raises:
        ScorerDownError: a runner has had no score for `give_up_s`.
    """
    down_s = max((r.outcome.metrics.get("scorer_down_s", 0.0) for r in results if r.outcome), default=0.0)
    if cfg.url is not None and down_s >= cfg.give_up_s:
        raise ScorerDownError(
            f"the reward model at {cfg.url} has given no score for {down_s:.0f} s "
            f"(reward_model.give_up_s={cfg.give_up_s:g}); start one with `{start_command(cfg.url)}`, "
            "then this run again: it goes on from its newest checkpoint"
        )


_ADVICE = {
    "step_deadline": "Raise rollout.step_timeout_s, or start more runners (rollout.n_runners); are any up?",
    "rollout_failed": "The runner's log in the run directory has the exception.",
    "missing_spans": "The LLM proxy did not write its spans; its log is in the run directory.",
    "no_token_ids": "The model server has to answer return_token_ids (vLLM 0.10 or newer).",
    "db_unavailable": "Is the database server up? `python -m scripts.doctor` checks it.",
    "model_deadline": "The model server was too slow for agent.rollout_timeout_s; raise it, or play fewer at once "
    "(rollout.n_runners, rollout.runner_concurrency).",
    "db_deadline": "The database was too slow for agent.rollout_timeout_s; raise it, or play fewer at once.",
    "rollout_deadline": "The machine was too busy for agent.rollout_timeout_s; raise it, or play fewer at once.",
    "model_unavailable": "The model server or the LLM proxy did not answer; their logs are in the run directory.",
    "scorer_unavailable": "The reward model (reward_model.url) did not answer; the runners' logs say how.",
    "scorer_refused": "The reward model takes no such conversations; the runners' logs name the field.",
    "other": "The logs are in the run directory.",
}

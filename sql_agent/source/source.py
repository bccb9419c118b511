"""Answers what a trainer asks for: groups of rollouts that are played, rewarded and credited, for the tasks of a batch.

A `Transport` plays them: agent-lightning's store and runners, or a policy in this process. Everything else is decided
here for every trainer: which group gives way to another task, which is trained on, its advantages, when a run stops,
and what is logged of a batch.

Groups may be opened before the step that trains them (`trainer.max_off_policy_steps`), so that rollouts go on beside
update and validation. Nothing that was played is thrown away for its age: a step waits for what is due.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from sql_agent.credit.registry import Credit
from sql_agent.names import RANKING
from sql_agent.reward_functions.ranking import Ranker
from sql_agent.settings.groups import RewardModelConfig
from sql_agent.settings.main_job import RolloutConfig
from sql_agent.source.datatypes import PendingGroup, Rollout, Task
from sql_agent.source.dynamic_sampling import (
    draw_replacement,
    filter_groups,
    needs_resampling,
    replacement_tasks,
    slots_to_take,
)
from sql_agent.source.metrics import batch_metrics, score_metrics, skill_metrics
from sql_agent.source.scoring import rank_group
from sql_agent.source.stops import MAIN_JOB, PrefixStop, check_lost, check_scorer_down

REPORT_S = 1.0
"""Reports of progress are at least so many seconds apart; the last one is always sent."""


class Transport(Protocol):
    """Plays rollouts. A rollout is `settled` when everything that is known of it is in it, its reward included."""

    async def enqueue(self, slots: Sequence[PendingGroup], *, step: int, validate: bool) -> None:
        """Queue the newest group of each slot."""

    async def collect(self) -> None:
        """Settle the rollouts that have ended meanwhile."""

    async def end(self, slots: Sequence[PendingGroup]) -> None:
        """Settle what has ended of these slots, and lose under `step_deadline` what is still played of them."""


class Source:
    """Plays the batches of one trainer.

    Args:
        ending_s: the longest that a rollout may take, its reward included; a group is not replaced later than that
            before the deadline of its step.
        max_broken_fraction: see `PrefixStop`.
        tasks: those to train on, of which zero-variance groups are replaced; () replaces none.
        keep: receives every rollout of a batch once it is credited, and the batch's `step` and `validate`.
        report: receives how far a batch is: `{"event": "rollouts", "step", "validate", "done", "of", "lost",
            "resampled"}`.
        credit: sets the advantages of the groups of a batch that are trained on.
        names: what a stop calls this trainer's settings and files (`stops.MAIN_JOB`).
        ranker: ranks the rollouts of a group, where `rollout.reward` names `ranking`.
    """

    def __init__(
        self,
        transport: Transport,
        rollout: RolloutConfig,
        reward_model: RewardModelConfig,
        estimator: Credit,
        *,
        seed: int,
        ending_s: float,
        max_broken_fraction: float,
        tasks: Sequence[Task] = (),
        credit: Callable[[Sequence[Sequence[Rollout]]], None],
        keep: Callable[..., None],
        report: Callable[[dict[str, Any]], None] = lambda _: None,
        names: Mapping[str, str] = MAIN_JOB,
        ranker: Ranker | None = None,
    ) -> None:
        self._transport, self._rollout, self._reward_model, self._names = transport, rollout, reward_model, names
        self._estimator, self._seed, self._ending_s, self._tasks = estimator, seed, ending_s, tasks
        self._keep, self._report, self._credit, self._ranker = keep, report, credit, ranker
        self._prefix_stop = PrefixStop(max_broken_fraction)
        self.open: list[PendingGroup] = []
        """The groups to train on that no step has taken yet, the oldest first."""
        self.last_end = 0.0
        """The latest `end_seen_at` of the newest batch."""
        self.played_until = 0.0
        """When (`time.monotonic`) a group that is open was last seen to be still played."""
        self._ranking: dict[PendingGroup, asyncio.Task[None]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._step_begins = asyncio.Event()

    async def batch(
        self, slots: Sequence[PendingGroup], *, step: int, validate: bool = False, groups: int | None = None
    ) -> tuple[list[list[Rollout]], dict[str, float]]:
        """Play the first group of each slot, and others in place of those that teach nothing.

        Args:
            slots: those that begin now; slots that are open already go on.
            validate: every rollout has a temperature of its own, and no open slot is taken.
            groups: how many slots the step takes (`slots_to_take`). None: as many as begin now.
        Returns:
            For each slot that is taken, the oldest first, the group that is trained on, credited unless its rollouts
            are only measured; and metrics.
        Raises:
            TooManyLostError, ScorerDownError, PrefixBrokenError: the run is to stop; the message says why.
        """
        await self._stop_watching()
        self._give_replacements(sampled_of(slots), step)
        for slot in sampled_of(slots) if self._ranker else ():
            slot.ranked = 0
        pool = list(slots) if validate else [*self.open, *slots]
        taken = await self._play(slots, pool, groups or len(slots), step=step, validate=validate)
        for slot in taken:
            slot.groups = filter_groups(slot.groups, self._estimator)
        chosen = [slot.trained for slot in taken]
        self._credit([group for group in chosen if group[0].temperature is None])
        self._keep(rollouts_of(taken), step=step, validate=validate)
        self.last_end = max(rollout.end_seen_at for rollout in rollouts_of(taken))
        if not validate:
            self.open = [slot for slot in pool if slot not in taken]
        if self.open:
            self._step_begins.clear()
            self._watching = asyncio.create_task(self._watch(step))
        check_lost([rollout for group in chosen for rollout in group], self._rollout.max_lost_fraction, self._names)
        return chosen, self._metrics(taken if validate else sampled_of(taken), validate=validate)

    def _metrics(self, slots: Sequence[PendingGroup], *, validate: bool) -> dict[str, float]:
        played = rollouts_of(slots)
        metrics = batch_metrics(played) | score_metrics(played)
        if validate:
            return metrics | skill_metrics(played)
        if self._rollout.max_resamples:  # groups that would have been replaced had there been time
            metrics["group/resampling_too_late"] = float(sum(needs_resampling(slot, self._estimator) for slot in slots))
        self._prefix_stop.add(metrics)
        return metrics

    def _give_replacements(self, slots: Sequence[PendingGroup], step: int) -> None:
        taken = {rollout.task_id for rollout in rollouts_of(slots)}
        most = self._rollout.max_resamples
        found = replacement_tasks(self._tasks, taken, slots=len(slots), max_resamples=most, seed=self._seed, step=step)
        for slot, own in zip(slots, found, strict=True):
            slot.replacements = own

    async def _play(
        self, begun: Sequence[PendingGroup], pool: Sequence[PendingGroup], groups: int, *, step: int, validate: bool
    ) -> list[PendingGroup]:
        """Play until the step has its groups, or until its deadline; return their slots, the oldest first."""
        await self._transport.enqueue(begun, step=step, validate=validate)
        report = _ProgressReport(self._report, step=step, validate=validate)
        deadline = time.monotonic() + self._rollout.step_timeout_s
        while True:
            await self._poll([*self.open, *begun], step, resample_until=deadline - self._ending_s)
            taken = slots_to_take(pool, groups, step)
            report.send(rollouts_of(taken))
            if all(slot.has_ended for slot in taken) or time.monotonic() >= deadline:
                break
            await asyncio.sleep(self._rollout.poll_s)
        await self._transport.end(taken)
        await self._end_ranking(taken)
        report.send(rollouts_of(taken))
        check_scorer_down(rollouts_of(taken), self._reward_model, self._names)
        return taken

    async def _poll(self, slots: Sequence[PendingGroup], step: int, *, resample_until: float = math.inf) -> None:
        """Settle what has ended, and begin replacements; one that begins later than that might not end in time."""
        await self._transport.collect()
        self._rank(slot for slot in slots if slot.is_played)
        if not all(slot.has_ended for slot in self.open):
            self.played_until = time.monotonic()
        check_scorer_down(rollouts_of(slots), self._reward_model, self._names)
        in_time = time.monotonic() < resample_until
        resampled = [slot for slot in slots if in_time and slot.has_ended and needs_resampling(slot, self._estimator)]
        for slot in resampled:
            draw_replacement(slot)
        if resampled:
            await self._transport.enqueue(resampled, step=step, validate=False)

    def _rank(self, slots: Iterable[PendingGroup]) -> None:
        """Begin to rank the newest groups of these slots; others are played meanwhile."""
        for slot in slots:
            if slot.ranked is not None and slot.ranked < len(slot.groups) and slot not in self._ranking:
                self._ranking[slot] = asyncio.create_task(self._rank_newest(slot))

    async def _rank_newest(self, slot: PendingGroup) -> None:
        assert self._ranker is not None
        await rank_group(slot.groups[-1], self._ranker, self._rollout.weights[RANKING])
        slot.ranked = len(slot.groups)
        del self._ranking[slot]

    async def _end_ranking(self, slots: Sequence[PendingGroup]) -> None:
        """Rank what is left of a step's groups, late rollouts apart; the judge's own deadline limits the wait."""
        self._rank(slots)
        await asyncio.gather(*(self._ranking[slot] for slot in slots if slot in self._ranking))

    async def _watch(self, step: int) -> None:
        """Poll open slots while the trainer is busy, so that replacements begin as soon as they are due."""
        while not self._step_begins.is_set():
            await self._poll(self.open, step)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._step_begins.wait(), self._rollout.poll_s)

    async def _stop_watching(self) -> None:
        """Let the last poll end; raise what it raised."""
        if self._watching is not None:
            self._step_begins.set()
            await self._watching
            self._watching = None


class _ProgressReport:
    """Tells the command how many rollouts of a batch are done, lost, and in place of zero-variance groups."""

    def __init__(self, send: Callable[[dict[str, Any]], None], **batch: Any) -> None:
        self._send, self._batch, self._sent, self._at = send, {"event": "rollouts", **batch}, (-1, -1, -1, -1), 0.0

    def send(self, rollouts: Sequence[Rollout]) -> None:
        done = [rollout for rollout in rollouts if rollout.settled or rollout.lost]
        resampled = sum(rollout.draw > 0 for rollout in rollouts)
        counts = len(done), len(rollouts), sum(rollout.lost is not None for rollout in done), resampled
        soon = time.monotonic() < self._at + REPORT_S and len(done) < len(rollouts)
        if counts != self._sent and not soon:
            self._sent, self._at = counts, time.monotonic()
            self._send({**self._batch, **dict(zip(("done", "of", "lost", "resampled"), counts, strict=True))})


def sampled_of(slots: Iterable[PendingGroup]) -> list[PendingGroup]:
    """The slots whose rollouts are trained on; the others are only measured."""
    return [slot for slot in slots if slot.groups[0][0].temperature is None]


def rollouts_of(slots: Iterable[PendingGroup]) -> list[Rollout]:
    """All rollouts of a batch, those of filtered groups included."""
    return [rollout for slot in slots for group in slot.groups for rollout in group]

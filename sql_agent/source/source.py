"""Answers what a trainer asks for: groups of rollouts that are played, rewarded and credited, for the tasks of a batch.

A `Transport` plays them: agent-lightning's store and runners, or a policy in this process. Everything else is decided
here for every trainer: which group gives way to another task, which is trained on, its advantages, when a run stops,
and what is logged of a batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from sql_agent.credit.tables import Credit
from sql_agent.settings.groups import RewardModelConfig
from sql_agent.settings.main_job import RolloutConfig
from sql_agent.source.datatypes import GroupSlot, Rollout, Task
from sql_agent.source.dynamic_sampling import (
    choose_group,
    draw_replacement,
    needs_redraw,
    replacement_tasks,
)
from sql_agent.source.metrics import batch_metrics, score_metrics, skill_metrics
from sql_agent.source.stops import MAIN_JOB, PrefixStop, check_lost, check_scorer_down

REPORT_S = 1.0
"""Reports of progress are at least so many seconds apart; the last one is always sent."""


class Transport(Protocol):
    """Plays rollouts. A rollout is `settled` when everything that is known of it is in it, its reward included."""

    async def enqueue(self, slots: Sequence[GroupSlot], *, step: int, validate: bool) -> None:
        """Queue the newest group of each slot."""

    async def collect(self) -> bool:
        """Settle the rollouts that have ended meanwhile; return whether others are still played."""
        ...

    async def end(self) -> None:
        """Settle what has ended, and lose under `step_deadline` what is still played; nothing of it goes on."""


class Source:
    """Plays the batches of one trainer.

    Args:
        ending_s: the longest that a rollout may take, its reward included; a group is not replaced later than that
            before the deadline of its step.
        max_broken_fraction: see `PrefixStop`.
        tasks: those to train on, of which groups without spread are replaced; () replaces none.
        keep: receives every rollout of a batch once it is credited, and the batch's `step` and `validate`.
        report: receives how far a batch is: `{"event": "rollouts", "step", "validate", "done", "of", "lost",
            "redrawn"}`.
        credit: sets the advantages of the groups of a batch that are trained on.
        names: what a stop calls this trainer's settings and files (`stops.MAIN_JOB`).
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
    ) -> None:
        self._transport, self._rollout, self._reward_model, self._names = transport, rollout, reward_model, names
        self._estimator, self._seed, self._ending_s, self._tasks = estimator, seed, ending_s, tasks
        self._keep, self._report, self._credit = keep, report, credit
        self._prefix_stop = PrefixStop(max_broken_fraction)

    async def batch(
        self, slots: Sequence[GroupSlot], *, step: int, validate: bool = False
    ) -> tuple[list[list[Rollout]], dict[str, float]]:
        """Play the first group of each slot, and others in place of those that teach nothing.

        Args:
            validate: every rollout has a temperature of its own.
        Returns:
            For each slot the group that is trained on, credited unless its rollouts are only measured; and metrics.
        Raises:
            TooManyLostError, ScorerDownError, PrefixBrokenError: the run is to stop; the message says why.
        """
        trained = [slot for slot in slots if slot.draws[0][0].temperature is None]
        self._give_replacements(trained, step)
        await self._play(slots, step=step, validate=validate)
        groups = [choose_group(slot, self._estimator) for slot in slots]
        self._credit([group for group in groups if group[0].temperature is None])
        self._keep(rollouts_of(slots), step=step, validate=validate)
        check_lost([rollout for group in groups for rollout in group], self._rollout.max_lost_fraction, self._names)
        return groups, self._metrics(slots if validate else trained, validate=validate)

    def _metrics(self, slots: Sequence[GroupSlot], *, validate: bool) -> dict[str, float]:
        played = rollouts_of(slots)
        metrics = batch_metrics(played) | score_metrics(played)
        if validate:
            return metrics | skill_metrics(played)
        if self._rollout.redraws:  # groups that would have been replaced had there been time
            metrics["group/redraw_too_late"] = float(sum(needs_redraw(slot, self._estimator) for slot in slots))
        self._prefix_stop.add(metrics)
        return metrics

    def _give_replacements(self, slots: Sequence[GroupSlot], step: int) -> None:
        taken = {rollout.task_id for rollout in rollouts_of(slots)}
        draws = self._rollout.redraws
        found = replacement_tasks(self._tasks, taken, slots=len(slots), draws=draws, seed=self._seed, step=step)
        for slot, own in zip(slots, found, strict=True):
            slot.replacements = own

    async def _play(self, slots: Sequence[GroupSlot], *, step: int, validate: bool) -> None:
        await self._transport.enqueue(slots, step=step, validate=validate)
        report = _ProgressReport(self._report, step=step, validate=validate)
        deadline = time.monotonic() + self._rollout.step_timeout_s
        going = True
        while going and time.monotonic() < deadline:
            going = await self._transport.collect()
            check_scorer_down(rollouts_of(slots), self._reward_model, self._names)
            if time.monotonic() < deadline - self._ending_s and (  # a later one might not end in time
                redrawn := [slot for slot in slots if needs_redraw(slot, self._estimator)]
            ):
                for slot in redrawn:
                    draw_replacement(slot)
                await self._transport.enqueue(redrawn, step=step, validate=validate)
                going = True
            report.send(rollouts_of(slots))
            if going:
                await asyncio.sleep(self._rollout.poll_s)
        await self._transport.end()
        report.send(rollouts_of(slots))
        check_scorer_down(rollouts_of(slots), self._reward_model, self._names)


class _ProgressReport:
    """Tells the command how many rollouts of a batch are done, lost, and in place of groups without spread."""

    def __init__(self, send: Callable[[dict[str, Any]], None], **batch: Any) -> None:
        self._send, self._batch, self._sent, self._at = send, {"event": "rollouts", **batch}, (-1, -1, -1, -1), 0.0

    def send(self, rollouts: Sequence[Rollout]) -> None:
        done = [rollout for rollout in rollouts if rollout.settled or rollout.lost]
        redrawn = sum(rollout.draw > 0 for rollout in rollouts)
        counts = len(done), len(rollouts), sum(rollout.lost is not None for rollout in done), redrawn
        soon = time.monotonic() < self._at + REPORT_S and len(done) < len(rollouts)
        if counts != self._sent and not soon:
            self._sent, self._at = counts, time.monotonic()
            self._send({**self._batch, **dict(zip(("done", "of", "lost", "redrawn"), counts, strict=True))})


def rollouts_of(slots: Iterable[GroupSlot]) -> list[Rollout]:
    """All rollouts of a batch, those of filtered groups included."""
    return [rollout for slot in slots for group in slot.draws for rollout in group]

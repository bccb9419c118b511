"""Plays what a source asks for with a policy in this process, and rewards it (`sql_agent.source.source.Transport`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import torch

from sql_agent.credit.row import Row
from sql_agent.datatypes import RolloutRecord
from sql_agent.local.datatypes import Sampling
from sql_agent.local.rollouts import Player
from sql_agent.source.datatypes import GroupSlot, Rollout, Task
from sql_agent.source.outcomes import Rewarder

# Rollouts that are rewarded side by side; the deadline of a reward begins when it is asked for.
REWARDED_TOGETHER = 16


class InProcess:
    """Plays all that is queued side by side.

    Args:
        sampling: of the rollouts that are trained on.
        task_of: makes a task of its fields (`Environment.task`).
    """

    def __init__(self, player: Player, rewarder: Rewarder, sampling: Sampling, task_of: Callable[[Task], Any]) -> None:
        self._player, self._rewarder, self._sampling, self._task_of = player, rewarder, sampling, task_of
        self._queued: list[Rollout] = []

    async def enqueue(self, slots: Sequence[GroupSlot], *, step: int, validate: bool) -> None:
        self._queued += [rollout for slot in slots for rollout in slot.draws[-1]]

    async def collect(self) -> None:
        queued, self._queued = self._queued, []
        sampling = [self._sampling if r.temperature is None else Sampling(r.temperature) for r in queued]
        played = self._player.play([self._task_of(rollout.task) for rollout in queued], sampling)
        free = asyncio.Semaphore(REWARDED_TOGETHER)
        with torch.random.fork_rng():  # a reward function may set a seed, which must not decide what is sampled next
            await asyncio.gather(
                *(self._settle(rollout, *each, free) for rollout, each in zip(queued, played, strict=True))
            )

    async def end(self, slots: Sequence[GroupSlot]) -> None:
        for rollout in self._queued:
            rollout.lost = "step_deadline"
        self._queued = []

    async def _settle(self, rollout: Rollout, record: RolloutRecord, row: Row | None, free: asyncio.Semaphore) -> None:
        rollout.played, rollout.row = record, row
        async with free:
            await self._rewarder(rollout)
        if row is None and not rollout.lost:
            rollout.lost = "no_turns"
        rollout.settled = True

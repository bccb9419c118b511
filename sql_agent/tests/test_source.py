"""What a trainer gets for the tasks of a batch, whoever plays them: here a script that knows each task's rewards."""

import asyncio
import itertools
import time
from functools import partial

import pytest

from dbbench_adapter.datatypes import Score
from sql_agent.credit.grpo import GroupRelative
from sql_agent.datatypes import Reward
from sql_agent.settings.groups import RewardModelConfig
from sql_agent.settings.main_job import RolloutConfig
from sql_agent.source.datatypes import PendingGroup, Rollout
from sql_agent.source.dynamic_sampling import credit_groups
from sql_agent.source.source import Source
from sql_agent.source.stops import TooManyLostError
from sql_agent.tests.records import ROW, make_record


class Script:
    """Ends every rollout at once with the next reward of its task; None loses it, and "late" never ends."""

    def __init__(self, **rewards) -> None:
        self.rewards = {task: iter(values) for task, values in rewards.items()}
        self.asked, self._queued = list[list[str]](), list[Rollout]()

    async def enqueue(self, slots, *, step, validate):
        self.asked.append([slot.groups[-1][0].task_id for slot in slots])
        self._queued += [rollout for slot in slots for rollout in slot.groups[-1]]

    async def collect(self):
        queued, self._queued = self._queued, []
        for rollout in queued:
            value = next(self.rewards[rollout.task_id])
            if value == "late":
                self._queued.append(rollout)
                continue
            rollout.played, rollout.row, rollout.settled = make_record(Score(value, "db_unavailable")), ROW, True
            rollout.earn(Reward(value, "db_unavailable"))

    async def end(self, slots):
        ending = [id(rollout) for slot in slots for rollout in slot.groups[-1]]
        for rollout in self._queued:
            rollout.lost = "step_deadline" if id(rollout) in ending else None
        self._queued = [rollout for rollout in self._queued if rollout.lost is None]


def slot(number, task, size=2, due=0, **fields):
    return PendingGroup(number, due=due, groups=[[Rollout(str(number), {"id": task}, **fields) for _ in range(size)]])


def source(script, *, tasks=(), kept=None, **settings):
    return Source(
        script,
        RolloutConfig(poll_s=0.01, **settings),
        RewardModelConfig(),
        GroupRelative(),
        seed=0,
        ending_s=0.0,
        max_broken_fraction=1.0,
        tasks=[{"id": task} for task in tasks],
        credit=partial(credit_groups, estimator=GroupRelative()),
        keep=lambda rollouts, *, step, validate: (kept if kept is not None else []).extend(rollouts),
    )


def shown(groups):
    return [[(r.task_id, r.reward, r.advantage and round(r.advantage, 4)) for r in group] for group in groups]


async def test_a_zero_variance_group_gives_way_to_another_task_and_the_others_are_credited():
    script = Script(same=[1.0, 1.0], mixed=[1.0, 0.0], other=[0.0, 1.0])
    slots, kept = [slot(0, "same"), slot(1, "mixed")], []
    asked = source(script, tasks=["same", "mixed", "other"], kept=kept, max_resamples=1)
    groups, metrics = await asked.batch(slots, step=1)
    # mean 0.5, unbiased std 0.7071
    assert shown(groups) == [
        [("other", 0.0, -0.7071), ("other", 1.0, 0.7071)],
        [("mixed", 1.0, 0.7071), ("mixed", 0.0, -0.7071)],
    ]
    assert script.asked == [["same", "mixed"], ["other"]]
    assert [(r.task_id, r.filtered) for r in kept] == [
        *[("same", "all_right")] * 2, *[("other", None)] * 2, *[("mixed", None)] * 2
    ]  # fmt: skip
    assert (metrics["group/played"], metrics["group/set_aside/all_right"], metrics["reward/mean"]) == (3.0, 1.0, 0.75)


async def test_a_group_with_a_temperature_of_its_own_is_measured_beside_the_others_and_in_no_metric():
    script = Script(task=[1.0, 0.0, 0.0], other=[0.0, 1.0])
    slots = [slot(0, "task", 1, temperature=0.0), slot(1, "task")]
    groups, metrics = await source(script, tasks=["other"], max_resamples=1).batch(slots, step=1)
    assert shown(groups) == [[("task", 1.0, None)], [("other", 0.0, -0.7071), ("other", 1.0, 0.7071)]]
    assert script.asked == [["task", "task"], ["other"]]
    assert (metrics["rollout/count"], metrics["rollout/success"]) == (4.0, 0.0)  # success is of the first tasks


async def test_a_validation_is_neither_credited_nor_replaced():
    slots = [slot(0, "task", 1, temperature=0.0), slot(1, "second", 1, temperature=0.0)]
    script = Script(task=[1.0], second=[0.0])
    groups, metrics = await source(script, tasks=["other"], max_resamples=1).batch(slots, step=0, validate=True)
    assert shown(groups) == [[("task", 1.0, None)], [("second", 0.0, None)]]
    assert (metrics["rollout/success"], metrics["rollout/judged"]) == (0.5, 2.0)


async def test_what_does_not_end_in_time_is_lost_and_the_rest_is_kept():
    script = Script(slow=itertools.repeat("late"), quick=[1.0, 0.0])
    slots = [slot(0, "slow"), slot(1, "quick")]
    groups, _ = await source(script, step_timeout_s=0.05, max_resamples=0).batch(slots, step=1)
    assert [[r.lost for r in group] for group in groups] == [["step_deadline"] * 2, [None] * 2]


async def test_a_batch_that_loses_too_much_stops_once_its_rollouts_are_kept():
    kept = []
    with pytest.raises(TooManyLostError, match=r"2 of 2 rollouts were lost .*'db_unavailable'"):
        await source(Script(task=[None, None]), kept=kept, max_resamples=0).batch([slot(0, "task")], step=1)
    assert [rollout.lost for rollout in kept] == ["db_unavailable"] * 2


def tasks_of(groups):
    return [group[0].task_id for group in groups]


async def test_a_step_takes_what_is_due_then_what_has_ended_the_oldest_first():
    late = ["late"] * 2
    script = Script(slow=[*late, *late, 1.0, 0.0], b=[1.0, 0.0], c=[0.0, 1.0], d=[1.0, 0.0], e=itertools.repeat("late"))
    asked = source(script, max_resamples=0)
    first, _ = await asked.batch([slot(0, "slow", due=2), slot(1, "b", due=2), slot(2, "c", due=2)], step=1, groups=2)
    assert tasks_of(first) == ["b", "c"]  # "slow" may be a step late
    second, _ = await asked.batch([slot(0, "d", due=3), slot(1, "e", due=3)], step=2, groups=2)
    assert (tasks_of(second), tasks_of([s.groups[-1] for s in asked.open])) == (["slow", "d"], ["e"])
    assert [r.lost for group in [*first, *second] for r in group] == [None] * 8
    short = source(script, max_resamples=0, step_timeout_s=0.05, max_lost_fraction=1.0)
    third, _ = await short.batch([slot(0, "e", due=3)], step=3)
    assert [r.lost for r in third[0]] == ["step_deadline"] * 2  # what is due is waited for until the step's deadline


async def test_a_group_that_begins_early_has_the_time_of_the_step_that_waits_for_it():
    """Begun with step 1 and due in step 2, which comes later than a step may take."""

    class Timed(Script):
        async def collect(self):
            held = [rollout for rollout in self._queued if rollout.task_id == "slow" and not self.ends.is_set()]
            self._queued = [rollout for rollout in self._queued if rollout not in held]
            await super().collect()
            self._queued += held

    script = Timed(quick=[1.0, 0.0], slow=[0.0, 1.0])
    script.ends = asyncio.Event()
    asked = source(script, max_resamples=0, step_timeout_s=0.5)
    await asked.batch([slot(0, "quick", due=2), slot(1, "slow", due=2)], step=1, groups=1)
    handed_over = time.monotonic()
    await asyncio.sleep(0.6)  # the update
    assert 0.5 < asked.played_until - handed_over < 0.7
    asyncio.get_running_loop().call_later(0.2, script.ends.set)
    groups, _ = await asked.batch([], step=2, groups=1)
    assert shown(groups) == [[("slow", 0.0, -0.7071), ("slow", 1.0, 0.7071)]]


async def test_what_a_run_trains_is_what_it_sampled_however_long_a_group_takes():
    """Eight steps of two groups, of which four more are open; the slowest take ten polls, some steps."""
    lateness = {
        f"{polls}-{number}": polls for number, polls in enumerate([0, 9, 0, 1, 10, 3, 0, 0, 5, 10, 2, 0, 0, 8, 1, 4])
    }
    script = Script(**{name: ["late"] * 2 * polls + [1.0, 0.0] for name, polls in lateness.items()})
    asked, waiting, trained = source(script, max_resamples=0), list(lateness), list[str]()
    for step in range(1, 9):
        begun, waiting = waiting[: 6 if step == 1 else 2], waiting[6 if step == 1 else 2 :]
        slots = [slot(number, name, due=step + 2) for number, name in enumerate(begun)]
        groups, _ = await asked.batch(slots, step=step, groups=2)
        trained += tasks_of(groups)
        await asyncio.sleep(0.03)  # the update: some three polls
    assert sorted(trained) == sorted(lateness)
    assert trained != list(lateness)  # what ended sooner went first
    assert asked.open == []


async def test_a_validation_takes_no_group_that_is_open_and_an_open_group_gets_its_replacement_beside_the_update():
    script = Script(a=[1.0, 0.0], same=["late", "late", 1.0, 1.0], other=[0.0, 1.0], held_out=[1.0])
    asked = source(script, tasks=["other"], max_resamples=1)
    await asked.batch([slot(0, "same", due=2), slot(1, "a", due=2)], step=1, groups=1)
    validated, metrics = await asked.batch([slot(0, "held_out", 1, temperature=0.0)], step=1, validate=True)
    assert (tasks_of(validated), metrics["rollout/count"]) == (["held_out"], 1.0)
    async with asyncio.timeout(5):  # nobody asks for a batch meanwhile
        while script.asked[-1] != ["other"]:
            await asyncio.sleep(0.01)
    ended = time.monotonic()
    await asyncio.sleep(0.3)
    assert asked.played_until - ended < 0.2  # what has ended overlaps with nothing
    groups, metrics = await asked.batch([], step=2, groups=1)
    assert (tasks_of(groups), metrics["group/played"], asked.open) == (["other"], 2.0, [])


async def test_what_fails_beside_the_update_is_raised_at_the_next_step():
    class Broken(Script):
        async def collect(self):
            if len(self.asked) == 1 and not self._queued:
                raise ConnectionError("the store is gone")
            await super().collect()
            self._queued = [r for r in self._queued if r.task_id != "slow"]

    asked = source(Broken(quick=[1.0, 0.0], slow=itertools.repeat("late")), max_resamples=0)
    await asked.batch([slot(0, "quick", due=2), slot(1, "slow", due=2)], step=1, groups=1)
    await asyncio.sleep(0.05)
    with pytest.raises(ConnectionError, match="the store is gone"):
        await asked.batch([], step=2, groups=1)


async def test_what_ends_too_late_for_a_replacement_gets_none():
    class Slow(Script):
        async def collect(self):
            await asyncio.sleep(0.1)  # a store that answers after the step's deadline
            await super().collect()

    script = Slow(same=[1.0, 1.0])
    _, metrics = await source(script, tasks=["other"], max_resamples=1, step_timeout_s=0.05).batch(
        [slot(0, "same")], step=1
    )
    assert (script.asked, metrics["group/resampling_too_late"]) == ([["same"]], 1.0)

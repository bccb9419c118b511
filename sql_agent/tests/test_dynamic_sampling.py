"""`sql_agent.source.dynamic_sampling`: which group is resampled, to what, and which seed a rollout has."""

from random import Random

import pytest

from sql_agent.credit.grpo import GroupRelative
from sql_agent.credit.reinforce import RewardToGo
from sql_agent.datatypes import ScorerResult
from sql_agent.source.datatypes import PendingGroup, Rollout
from sql_agent.source.dynamic_sampling import (
    filter_groups,
    needs_resampling,
    replacement_tasks,
    rollout_seed,
    slots_to_take,
    zero_variance,
)
from sql_agent.tests.records import make_outcome, make_result

TASKS = [{"id": f"t{i}"} for i in range(10)]


@pytest.mark.parametrize(
    ("rewards", "verdicts", "cause"),
    [
        pytest.param([1.0, 1.0], [1, 1], "all_right", id="all_right"),
        pytest.param([0.0, 0.0], [0, 0], "all_wrong", id="all_wrong"),
        pytest.param([-0.8, -0.8], [0, 0], "all_wrong", id="all_wrong_below_zero"),
        pytest.param([0.5, 0.5], [0.5, 0.5], "all_wrong", id="half_right_is_no_success"),
        pytest.param([0.3, 0.3], [None, None], "all_equal", id="a_score_above_0_is_not_right"),
        pytest.param([1.0, 0.0], [1, 0], None, id="spread"),
        pytest.param([0.5, 0.25], [0.5, 0.25], None, id="verdicts_that_differ_are_spread_though_none_is_a_success"),
        pytest.param([0.0, None, 0.0], [0, None, 0], "all_wrong", id="a_lost_rollout_is_no_zero"),
        pytest.param([1.0, None, 1.0], [1, 0, 1], "all_right", id="nor_a_difference"),
        pytest.param([None, 1.0], [None, 1], None, id="a_group_that_was_lost_is_not_zero_variance"),
        pytest.param([None, None], [None, None], None, id="nor_one_that_was_lost_whole"),
    ],
)
def test_a_group_has_no_spread_where_all_known_rewards_are_equal(rewards, verdicts, cause):
    pairs = zip(rewards, verdicts, strict=True)
    group = [make_result("g", make_outcome(reward, verdict=verdict, reason="lost")) for reward, verdict in pairs]
    assert zero_variance(group) == cause


@pytest.mark.parametrize(
    ("rewards", "replacements", "settled", "expected"),
    [
        pytest.param([1.0, 1.0], TASKS[:1], True, True, id="zero_variance"),
        pytest.param([1.0, 0.0], TASKS[:1], True, False, id="spread"),
        pytest.param([1.0, 1.0], [], True, False, id="no_task_is_left"),
        pytest.param([1.0, 1.0], TASKS[:1], False, False, id="one_is_still_played"),
    ],
)
def test_a_settled_zero_variance_group_is_redrawn_while_a_task_is_left(rewards, replacements, settled, expected):
    group = [make_result("g", make_outcome(reward, verdict=reward)) for reward in rewards]
    group[-1].settled = settled
    assert needs_resampling(PendingGroup(0, replacements, [group]), GroupRelative()) is expected


def test_a_group_of_equal_rewards_stays_where_the_estimator_credits_them():
    """REINFORCE without a baseline credits two rewards of 1 with 1 each, and two of 0 with nothing."""
    for reward, resampled in ((1.0, False), (0.0, True)):
        group = [make_result("g", make_outcome(reward, verdict=reward)) for _ in range(2)]
        slot = PendingGroup(0, TASKS[:1], [group])
        assert needs_resampling(slot, RewardToGo()) is resampled
        assert filter_groups(slot.groups, RewardToGo())[0][0].filtered is None


def test_to_ask_whether_a_group_is_redrawn_changes_no_reward():
    """One rollout has no score. Both rewards are 1 without it, and stay as they came until the group is chosen."""
    scores = (1.2, ScorerResult(50.0)), (1.0, ScorerResult(None, "scorer_unavailable"))
    parts = {"correctness": 1.0, "base": 1.0}
    group = [
        make_result("g", make_outcome(reward, verdict=1.0, parts=parts, scorer=score, reason="match"))
        for reward, score in scores
    ]
    slot = PendingGroup(0, TASKS[:1], [group])
    assert needs_resampling(slot, GroupRelative())
    assert [(result.reward, result.unshaped) for result in group] == [(1.2, None), (1.0, None)]
    [chosen] = filter_groups(slot.groups, GroupRelative())
    assert [(result.reward, result.unshaped) for result in chosen] == [(1.0, "scorer_unavailable")] * 2
    assert [(result.reward, result.unshaped) for result in group] == [(1.2, None), (1.0, None)]


def test_no_task_stands_twice_in_a_step():
    found = replacement_tasks(TASKS, {"t0", "t1", "t2"}, slots=3, max_resamples=2, seed=0, step=1)
    assert [len(tasks) for tasks in found] == [2, 2, 2]
    drawn = [task["id"] for tasks in found for task in tasks]
    assert len(set(drawn)) == 6
    assert not {"t0", "t1", "t2"} & set(drawn)


def test_where_tasks_run_out_slots_draw_less():
    found = replacement_tasks(TASKS, {"t0", "t1", "t2"}, slots=3, max_resamples=9, seed=0, step=1)
    assert [len(tasks) for tasks in found] == [3, 2, 2]


def test_draws_depend_on_seed_and_step_alone():
    def draw(**changes):
        return replacement_tasks(TASKS, {"t0"}, **{"slots": 2, "max_resamples": 2, "seed": 0, "step": 1, **changes})

    assert draw() == draw()
    assert draw() != draw(step=2)
    assert draw() != draw(seed=1)


def test_every_rollout_of_a_run_has_a_seed_of_its_own():
    """Neighbours in every direction differ, and all fit what vLLM takes."""
    seeds = [
        rollout_seed(seed, step, slot, draw, member)
        for seed in range(2) for step in range(3) for slot in range(3) for draw in range(3) for member in range(3)
    ]  # fmt: skip
    assert len(set(seeds)) == len(seeds) == 162
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert rollout_seed(0, 1, 2, 0, 3) == rollout_seed(0, 1, 2, 0, 3)


@pytest.mark.parametrize(
    ("draws", "chosen", "causes"),
    [
        pytest.param([[1.0, 0.0]], 0, [None], id="one_with_spread"),
        pytest.param([[1.0, 1.0], [0.0, 1.0]], 1, ["all_right", None], id="the_later_one_has_spread"),
        pytest.param([[1.0, 1.0], [0.0, 0.0]], 0, [None, "all_wrong"], id="none_has_spread"),
        # two known and different teach more than two equal and none lost
        pytest.param([[1.0, 1.0, 1.0], [0.0, 1.0, None]], 1, ["all_right", None], id="spread_before_losses"),
        # a lone rollout has no peer: it is no group with spread
        pytest.param([[0.0, 0.0], [1.0, None]], 0, [None, "lost"], id="one_known_is_no_spread"),
        pytest.param([[None, None], [0.0, None]], 1, ["lost", None], id="the_one_that_lost_least"),
    ],
)
def test_the_group_with_spread_is_chosen_else_the_one_that_lost_least(draws, chosen, causes):
    groups = [
        [make_result("g", make_outcome(reward, verdict=reward, reason="db_unavailable")) for reward in rewards]
        for rewards in draws
    ]
    slot = PendingGroup(0, groups=filter_groups(groups, GroupRelative()))
    assert slot.trained is slot.groups[chosen]
    assert [{r.filtered for r in group} for group in slot.groups] == [{cause} for cause in causes]


def slot_of(number, *, due, ended=True):
    return PendingGroup(number, groups=[[Rollout(str(number), {"id": number}, settled=ended)]], due=due)


def numbers(slots):
    return [slot.number for slot in slots]


def test_a_step_takes_what_is_due_and_then_the_oldest_that_has_ended():
    pool = [slot_of(0, due=5, ended=False), slot_of(1, due=6, ended=False), slot_of(2, due=6), slot_of(3, due=7)]
    assert numbers(slots_to_take(pool, 2, step=5)) == [0, 2]  # and waits for the first
    assert numbers(slots_to_take(pool, 2, step=4)) == [2, 3]


def test_a_step_takes_what_the_steps_until_it_is_due_could_not_take_any_more():
    """Four are due at step 5, so steps 4 and 5 take two each of them, although two younger ones have ended."""
    pool = [*(slot_of(number, due=5, ended=False) for number in range(4)), slot_of(4, due=6), slot_of(5, due=6)]
    assert numbers(slots_to_take(pool, 2, step=4)) == [0, 1]
    pool[2].groups[0][0].settled = True
    assert numbers(slots_to_take(pool, 2, step=4)) == [0, 2]
    assert numbers(slots_to_take(pool[1:], 2, step=4)) == [2, 4]  # of three, one may wait


def test_no_row_gets_older_than_its_slot_is_due_however_long_its_rollouts_take():
    """A run of twenty steps of four groups with a lag of three, in which any group may end at any time."""
    random, pool, ages, lag = Random(0), list[PendingGroup](), [], 3
    for step in range(1, 21):
        room = min((1 + lag) * 4, 4 * (21 - step)) - len(pool)
        pool += [slot_of(step, due=step + lag, ended=False) for _ in range(room)]
        for slot in pool:
            slot.groups[0][0].settled |= random.random() < 0.2
        taken = slots_to_take(pool, 4, step)
        ages += [step - slot.number for slot in taken]
        pool = [slot for slot in pool if slot not in taken]
    assert (len(ages), max(ages), pool) == (80, 3, [])

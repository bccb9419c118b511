"""`sql_agent.rollouts.dynamic_sampling`: which group gives way, to what, and which seed a rollout has."""

import pytest

from sql_agent.rollouts.dynamic_sampling import no_spread, rollout_seed, spare_tasks

TASKS = [{"id": f"t{i}"} for i in range(10)]


@pytest.mark.parametrize(
    ("rewards", "success", "cause"),
    [
        pytest.param([1.0, 1.0], [1, 1], "all_right", id="all_right"),
        pytest.param([0.0, 0.0], [0, 0], "all_wrong", id="all_wrong"),
        pytest.param([-0.8, -0.8], [0, 0], "all_wrong", id="all_wrong_below_zero"),
        pytest.param([0.5, 0.5], [0, 0], "all_wrong", id="half_right_is_no_success"),
        pytest.param([0.3, 0.3], [None, None], "all_equal", id="a_score_above_0_is_not_right"),
        pytest.param([1.0, 0.0], [1, 0], None, id="spread"),
        pytest.param([0.5, 0.25], [0, 0], None, id="verdicts_that_differ_are_spread_though_none_is_a_success"),
        pytest.param([0.0, None, 0.0], [0, None, 0], "all_wrong", id="a_lost_rollout_is_no_zero"),
        pytest.param([1.0, None, 1.0], [1, 0, 1], "all_right", id="nor_a_difference"),
        pytest.param([None, 1.0], [None, 1], None, id="a_group_that_was_lost_is_not_without_spread"),
        pytest.param([None, None], [None, None], None, id="nor_one_that_was_lost_whole"),
    ],
)
def test_a_group_gives_way_where_all_known_rewards_are_equal(rewards, success, cause):
    assert no_spread(rewards, success) == cause


def test_no_task_stands_twice_in_a_step():
    spares = spare_tasks(TASKS, {"t0", "t1", "t2"}, places=3, draws=2, seed=0, step=1)
    assert [len(tasks) for tasks in spares] == [2, 2, 2]
    drawn = [task["id"] for tasks in spares for task in tasks]
    assert len(set(drawn)) == 6
    assert not {"t0", "t1", "t2"} & set(drawn)


def test_where_tasks_run_out_places_draw_less():
    spares = spare_tasks(TASKS, {"t0", "t1", "t2"}, places=3, draws=9, seed=0, step=1)
    assert [len(tasks) for tasks in spares] == [3, 2, 2]


def test_draws_depend_on_seed_and_step_alone():
    def draw(**changes):
        return spare_tasks(TASKS, {"t0"}, **{"places": 2, "draws": 2, "seed": 0, "step": 1, **changes})

    assert draw() == draw()
    assert draw() != draw(step=2)
    assert draw() != draw(seed=1)


def test_every_rollout_of_a_run_has_a_seed_of_its_own():
    """Neighbours in every direction differ, and all fit what vLLM takes."""
    seeds = [
        rollout_seed(seed, step, place, draw, member)
        for seed in range(2) for step in range(3) for place in range(3) for draw in range(3) for member in range(3)
    ]  # fmt: skip
    assert len(set(seeds)) == len(seeds) == 162
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert rollout_seed(0, 1, 2, 0, 3) == rollout_seed(0, 1, 2, 0, 3)

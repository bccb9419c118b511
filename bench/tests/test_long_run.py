"""The benchmark of long runs: what its rows say, and a short one of its parts against a real store."""

import pytest

from bench import long_run
from bench.parts.children import python


def test_growth_counts_from_the_end_of_the_warm_steps():
    seen = [{"runners": 100.0 + min(step, 90)} for step in range(1, 201)]  # grows a MiB a step until step 90
    (row,) = long_run._growth("the chain: ", seen)
    assert (row.what, row.value, row.met) == ("the chain: runners, growth", 10.0, True)  # 190 at the end, 180 after 80
    assert row.limit == "101 MiB after a step, 180 after 80, 190 at the end"


@pytest.mark.slow
def test_a_store_that_frees_what_was_read_stays_as_large_as_it_was(tmp_path):
    # 6 further steps of 16 rollouts of 0.7 MiB would be 67 MiB
    seen = long_run.store_alone(python("sql_agent.store_server"), tmp_path, 10)
    assert seen[-1]["store"] - seen[3]["store"] < 25


@pytest.mark.slow
def test_rollouts_of_a_step_are_played_without_verl(tmp_path):
    assert {row.what for row in long_run.chain(tmp_path, steps=1)} == {
        "the chain: command, with store and rollout manager, growth",
        "the chain: runners, growth",
        "the chain: LLM proxy, growth",
    }

"""`sql_agent.source.stops`: a run does not go on training the first turns of rollouts whose later ones are lost.

`test_trained_rows` has the limits of lost rollouts and lost scores."""

import pytest

from sql_agent.source.stops import PrefixBrokenError, PrefixStop


def step(broken, **causes):
    return {"prefix/broken_frac": broken, **{f"prefix/break/{cause}": float(n) for cause, n in causes.items()}}


def test_three_train_steps_in_a_row_above_the_limit_stop_the_run_with_the_cause():
    stop = PrefixStop(0.1)
    stop.add(step(0.5, template=8))
    stop.add(step(0.25, template=4))
    with pytest.raises(PrefixBrokenError) as stopped:
        stop.add(step(0.75, template=10, tokenisation=2))
    assert str(stopped.value).startswith(
        "75% of the rollouts broke, for 3 train steps in a row more than rollout.max_broken_fraction=0.1 allows"
    )
    assert "'template' (10 times in the last step)" in str(stopped.value)
    assert "agentgrpo doctor --model MODEL" in str(stopped.value)


def test_a_step_at_the_limit_begins_the_count_anew():
    stop = PrefixStop(0.1)
    for broken in (0.5, 0.5, 0.1, 0.5, 0.5):
        stop.add(step(broken, tokenisation=1))
    with pytest.raises(PrefixBrokenError, match=r"sql_agent\.verl_side\.plugin"):
        stop.add(step(0.5, tokenisation=1))


def test_a_step_of_which_nothing_is_known_changes_nothing():
    stop = PrefixStop(0.1)
    for metrics in (step(0.5, template=1), {}, step(0.5, template=1), {}):
        stop.add(metrics)
    with pytest.raises(PrefixBrokenError):
        stop.add(step(0.5, template=1))


def test_a_limit_of_one_never_stops():
    stop = PrefixStop(1.0)
    for _ in range(10):
        stop.add(step(1.0, template=16))

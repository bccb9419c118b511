"""`sql_agent.stats`: intervals worked out by hand from Wilson's formula."""

import pytest

from sql_agent.stats import wilson_interval


@pytest.mark.parametrize(
    ("successes", "n", "expected"),
    [
        # z2 = 3.8415; centre = (0.5 + z2/20) / 1.38415 = 0.5; half = 1.96/1.38415 * sqrt(0.025 + z2/400) = 0.2634
        pytest.param(5, 10, (0.2366, 0.7634), id="half_of_ten"),
        # upper = (3.8415/20 + 1.96 * sqrt(3.8415/400)) / 1.38415 = (0.19207 + 0.19207) / 1.38415
        pytest.param(0, 10, (0.0, 0.2775), id="none_of_ten_is_not_certainly_zero"),
        pytest.param(10, 10, (0.7225, 1.0), id="all_of_ten_mirrors_none_of_ten"),
        # upper = 1; lower = 1 / (1 + 3.8415)
        pytest.param(1, 1, (0.2065, 1.0), id="one_rollout_says_little"),
    ],
)
def test_wilson_interval(successes, n, expected):
    assert wilson_interval(successes, n) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (3, 2), (-1, 4)])
def test_counts_that_contradict_each_other_are_refused(successes, n):
    with pytest.raises(ValueError, match=f"got {successes} of {n}"):
        wilson_interval(successes, n)

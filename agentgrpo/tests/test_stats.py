import pytest

from agentgrpo.stats import cluster_interval, wilson_interval


@pytest.mark.parametrize(
    ("successes", "n", "expected"),
    [
        # z^2 = 3.8415; centre (0.8 + 0.19207) / 1.38415 = 0.71674; half 1.95996 / 1.38415 * sqrt(0.016 + 0.0096036)
        pytest.param(8, 10, (0.4902, 0.9433), id="eight_of_ten"),
        # centre 0.19207 / 1.38415 = 0.13877 = half
        pytest.param(0, 10, (0.0, 0.2775), id="none_of_ten_is_no_certainty"),
        pytest.param(10, 10, (0.7225, 1.0), id="all_of_ten_is_none_either"),
        # a win, a loss and a tie: half of 3; half width 1.95996 / 2.28049 * sqrt(0.25 / 3 + 3.8415 / 36) = 0.37467
        pytest.param(1.5, 3, (0.1253, 0.8747), id="a_tie_counts_half"),
    ],
)
def test_wilson_interval(successes, n, expected):
    assert wilson_interval(successes, n) == pytest.approx(expected, abs=1e-4)


def test_an_interval_holds_its_share_whatever_rounding_does():
    for n in range(1, 301):
        assert wilson_interval(0, n)[0] == 0.0 and wilson_interval(n, n)[1] == 1.0


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (-1, 5), (6, 5)])
def test_a_share_of_nothing_or_more_than_all_is_refused(successes, n):
    with pytest.raises(ValueError, match=f"got {successes} of {n}"):
        wilson_interval(successes, n)


def test_prompts_are_drawn_whole():
    # drawn are aa, ab or ba, bb: means 1, 2/3, 0 with chances 1/4, 1/2, 1/4
    assert cluster_interval([1, 1, 0], ["a", "a", "b"]) == (0.0, 1.0)


def test_a_prompt_of_many_pairs_weighs_as_many():
    # three prompts of four wins, one of one loss; the loss is drawn 4 times of 4 with chance 1/256, 3 or 4 times with
    # 13/256 = 5.1 %, so the 2.5 % quantile is 3 times: 4 wins of 7; never with 81/256
    low, high = cluster_interval([1] * 12 + [0], [0] * 4 + [1] * 4 + [2] * 4 + [3])
    assert (low, high) == (pytest.approx(4 / 7), 1.0)


def test_pairs_that_repeat_within_their_prompt_tell_nothing_new():
    values, prompts = [1.0, 0.0] * 50, list(range(100))
    # the mean of 100 coins has standard deviation 0.05: 0.5 - 1.96 * 0.05 = 0.402
    assert cluster_interval(values, prompts) == pytest.approx((0.402, 0.598), abs=0.015)
    assert cluster_interval(values * 4, prompts * 4) == cluster_interval(values, prompts)


def test_one_prompt_has_its_mean_only():
    assert cluster_interval([1, 0, 0, 0], ["a"] * 4) == (0.25, 0.25)

import math

import pytest

from reward_model.measures import Bin, calibration_bins, expected_calibration_error

# sigmoid(ln 3) = 3/4 and sigmoid(ln(17/3)) = 17/20
MARGINS = [math.log(3), math.log(3), -math.log(3), math.log(17 / 3), 0.0]


def test_pairs_are_grouped_by_how_sure_the_model_is_of_the_side_it_prefers():
    assert calibration_bins(MARGINS, bins=5) == [
        Bin(0.5, 0.6, 1, 0.5, 0.5),  # the tie is half right
        Bin(pytest.approx(0.7), pytest.approx(0.8), 3, pytest.approx(0.75), pytest.approx(2 / 3)),
        Bin(pytest.approx(0.8), pytest.approx(0.9), 1, pytest.approx(0.85), 1.0),
    ]


def test_the_calibration_error_weighs_bins_by_their_pairs():
    # (1 * |0.5 - 0.5| + 3 * |2/3 - 3/4| + 1 * |1 - 0.85|) / 5 = (0.25 + 0.15) / 5
    assert expected_calibration_error(MARGINS, bins=5) == pytest.approx(0.08)


def test_a_model_that_is_sure_and_always_wrong_is_off_by_one():
    assert calibration_bins([-1000.0] * 3) == [Bin(pytest.approx(0.95), 1.0, 3, 1.0, 0.0)]
    assert expected_calibration_error([-1000.0] * 3) == 1.0


def test_as_often_right_as_it_says_is_calibrated():
    assert expected_calibration_error([math.log(3)] * 3 + [-math.log(3)]) == pytest.approx(0.0)

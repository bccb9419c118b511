"""`sql_agent.source.metrics`: the score rises while correctness falls."""

import math

import numpy as np
import pytest

from sql_agent.source.metrics import WINDOW, RewardHackingAlarm, trend


@pytest.mark.parametrize(("values", "expected"), [
    # y - mean = -1.25, .75, -.25, .75 ... worked: x = -1.5, -.5, .5, 1.5; xy = 1.875 - .375 - .125 + 1.125 = 2.5;
    # xx = 5; slope 0.5; yy = 2.75; residual 2.75 - 0.25 x 5 = 1.5; s2 = 0.75; error = sqrt(0.15) = 0.3873; t = 1.291
    pytest.param([0.0, 2.0, 1.0, 2.0], 1.291, id="rising_with_noise"),
    pytest.param([3.0, 2.0, 1.0], -math.inf, id="a_straight_fall"),
    pytest.param([5.0, 5.0, 5.0], 0.0, id="flat"),
])  # fmt: skip
def test_trend(values, expected):
    assert trend(values) == pytest.approx(expected, abs=1e-3)


def steps(scores, correct):
    return [
        {"train_step": step, "reward_model/score_mean": s, "rollout/success": c}
        for step, (s, c) in enumerate(zip(scores, correct, strict=True), 1)
    ]


def looked(watch, steps):
    return [watch.look(step["train_step"], step) for step in steps]


UP, DOWN, FLAT = np.linspace(0, 1, WINDOW), np.linspace(0.9, 0.4, WINDOW), np.full(WINDOW, 0.5)


@pytest.mark.parametrize(("scores", "correct", "alarm"), [
    pytest.param(UP, DOWN, 1.0, id="score_up_correctness_down"),
    pytest.param(UP, UP, 0.0, id="both_up"),
    pytest.param(DOWN, DOWN, 0.0, id="both_down"),
    pytest.param(UP, FLAT, 0.0, id="correctness_stays"),
    pytest.param(FLAT, DOWN, 0.0, id="score_stays"),
])  # fmt: skip
def test_the_alarm_looks_at_both_trends_once_its_window_is_full(scores, correct, alarm):
    watch = RewardHackingAlarm()
    assert looked(watch, steps(scores, correct)) == [{}] * (WINDOW - 1) + [{"reward_model/alarm": alarm}]


def test_it_goes_on_from_the_steps_of_an_earlier_start():
    *earlier, last = steps(UP, DOWN)
    assert RewardHackingAlarm(earlier).look(WINDOW, last) == {"reward_model/alarm": 1.0}


def test_steps_without_a_judge_or_a_reward_model_do_not_count():
    watch = RewardHackingAlarm(steps(UP, DOWN))
    assert watch.look(WINDOW + 1, {"reward/mean": 1.0}) == {}
    assert watch.look(WINDOW + 2, {"reward_model/score_mean": 2.0}) == {}


def test_steps_that_are_played_again_take_the_place_of_those_of_the_earlier_life():
    first_life = steps([*UP, *DOWN], [*DOWN, *UP])  # the alarm's ten steps, then ten that undo them
    *before, last = steps(UP, DOWN)
    alarm = RewardHackingAlarm(first_life)
    assert alarm.look(WINDOW, last) == {"reward_model/alarm": 1.0}  # steps 1 to 9 and the new 10
    assert RewardHackingAlarm(first_life).look(5, before[4]) == {}  # only four come before it


def test_noise_alone_seldom_alarms():
    draw = np.random.default_rng(0)
    watch = RewardHackingAlarm()
    noise = steps(draw.normal(size=5_000), draw.normal(size=5_000))
    alarms = sum(said.get("reward_model/alarm", 0.0) for said in looked(watch, noise))
    assert alarms / len(noise) < 0.01  # 0.04 x 0.04 = 0.0016, and neighbouring windows share steps

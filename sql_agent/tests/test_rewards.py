"""`sql_agent.rewards`: one number per preset and outcome, and what a reward model's score may do to it."""

import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbbench_adapter.types import Score
from sql_agent.rewards import NO_ANSWER, NO_JUDGE, REWARDS, Opinion, reward
from sql_agent.types import RewardModelConfig, RolloutRecord, StopReason


def record(stop_reason, score, last="It is 4."):
    return RolloutRecord(
        task_id="t-0", kind="other", stop_reason=stop_reason, score=score, num_turns=2, malformed_calls=0,
        messages=[{"role": "assistant", "content": last}], prompt_tokens=10, completion_tokens=5, seconds=0.1,
    )  # fmt: skip


RIGHT, WRONG = Score(1.0, "match"), Score(0.0, "wrong_answer")


@pytest.mark.parametrize(("stop_reason", "score", "agentbench", "agent_peft", "rllm"), [
    pytest.param("answered", RIGHT, 1.0, 1.0, 1.0, id="correct"),
    pytest.param("answered", WRONG, 0.0, -0.1, -1.0, id="incorrect"),
    pytest.param("max_turns", WRONG, 0.0, -0.3, -0.8, id="out_of_turns"),
    pytest.param("max_tokens", WRONG, 0.0, -0.3, -0.8, id="out_of_tokens"),
    pytest.param("malformed", WRONG, 0.0, -0.1, -0.2, id="illegal_action"),
    pytest.param("max_turns", RIGHT, 1.0, 1.0, 1.0, id="a_correct_end_state_counts_however_the_rollout_ended"),
])  # fmt: skip
def test_presets(stop_reason, score, agentbench, agent_peft, rllm):
    ended = record(stop_reason, score)
    values = [reward(ended, REWARDS[name]).value for name in ("agentbench", "agent_peft", "rllm")]
    assert values == [agentbench, agent_peft, rllm]


@pytest.mark.parametrize("preset", REWARDS.values(), ids=REWARDS.keys())
@pytest.mark.parametrize("reason", ["model_deadline", "db_deadline", "rollout_deadline"])
def test_wall_clock_costs_no_reward(preset, reason):
    lost = Score(None, reason)
    assert reward(record("timeout", lost), preset) == lost
    assert reward(record("timeout", lost), preset, Opinion(9.0), SHAPING) == lost


@pytest.mark.parametrize("preset", REWARDS.values(), ids=REWARDS.keys())
def test_what_could_not_be_judged_is_none_and_not_a_low_reward(preset):
    assert reward(record("db_unavailable", Score(None, "db_unavailable")), preset) == Score(None, "db_unavailable")


def test_reason_and_verdict_travel_with_the_reward():
    assert reward(record("answered", WRONG), REWARDS["rllm"]) == Score(-1.0, "wrong_answer", {"correctness": 0.0})


# with a reward model --------------------------------------------------------------------------------------------------

SHAPING = RewardModelConfig(weight=0.2, center=1.0, scale=2.0)
UNJUDGED = Score(None, NO_JUDGE)


@pytest.mark.parametrize(("score", "expected"), [
    # (1 - 1) / 2 = 0 -> tanh 0 = 0
    pytest.param(1.0, 1.0, id="the_centre_adds_nothing"),
    # (3 - 1) / 2 = 1 -> tanh 1 = 0.76159 -> 1 + 0.2 x 0.76159
    pytest.param(3.0, 1.152319, id="one_scale_above"),
    # (-1 - 1) / 2 = -1 -> 1 - 0.2 x 0.76159
    pytest.param(-1.0, 0.847681, id="one_scale_below"),
    pytest.param(1e308, 1.2, id="never_more_than_the_weight"),
    pytest.param(-1e308, 0.8, id="never_less"),
])  # fmt: skip
def test_a_correct_rollout_gains_or_loses_a_bounded_part(score, expected):
    given = reward(record("answered", RIGHT), REWARDS["agentbench"], Opinion(score), SHAPING)
    assert given.value == pytest.approx(expected, abs=1e-6)
    assert given.parts == pytest.approx({"correctness": 1.0, "base": 1.0, "shaping": expected - 1.0}, abs=1e-6)


@pytest.mark.parametrize("opinion", [Opinion(50.0), Opinion(-50.0), Opinion(None, "scorer_unavailable")])
def test_a_wrong_rollout_gets_its_preset_whatever_the_score(opinion):
    assert reward(record("max_turns", WRONG), REWARDS["agent_peft"], opinion, SHAPING) == Score(
        -0.3, "wrong_answer", {"correctness": 0.0, "base": -0.3, "shaping": 0.0}
    )


ANY = st.floats(allow_nan=True, allow_infinity=True)
STOPS = st.sampled_from([stop for stop in get_args(StopReason)])
SHAPINGS = st.builds(
    RewardModelConfig,
    weight=st.floats(0, 0.2),
    center=st.floats(allow_nan=False, allow_infinity=False),
    scale=st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False),
)


@given(st.sampled_from(list(REWARDS.values())), STOPS, STOPS, ANY, ANY, SHAPINGS)
def test_a_wrong_rollout_never_earns_as_much_as_a_right_one(preset, how, other, score, other_score, shaping):
    right = reward(record(how, RIGHT), preset, Opinion(score), shaping).value
    wrong = reward(record(other, WRONG), preset, Opinion(other_score), shaping).value
    assert wrong is not None
    assert (right is None) == (not math.isfinite(score))
    assert right is None or wrong < right <= preset.correct + 0.2


@given(STOPS, ANY, SHAPINGS)
def test_without_a_judge_a_reward_is_bounded_and_finite(how, score, shaping):
    value = reward(record(how, UNJUDGED), REWARDS["rllm"], Opinion(score), shaping).value
    assert value is None or NO_ANSWER <= value <= 1.0


@pytest.mark.parametrize("verdict", [RIGHT, UNJUDGED])
@pytest.mark.parametrize(("opinion", "reason"), [
    (Opinion(None, "scorer_unavailable"), "scorer_unavailable"),
    (Opinion(None, "scorer_refused"), "scorer_refused"),
    (Opinion(math.nan), "score_not_finite"),
    (Opinion(-math.inf), "score_not_finite"),
])  # fmt: skip
def test_a_score_that_could_not_be_had_is_none_and_no_number(verdict, opinion, reason):
    assert reward(record("answered", verdict), REWARDS["agentbench"], opinion, SHAPING) == Score(None, reason)


@pytest.mark.parametrize(("stop_reason", "last", "expected"), [
    pytest.param("answered", "It is 4.", Score(math.tanh(1), "scored", {"base": 0.0, "shaping": math.tanh(1)})),
    pytest.param("answered", " \n", Score(-1.0, "no_answer", {"base": -1.0, "shaping": 0.0}), id="an_empty_answer"),
    pytest.param("max_turns", "Let me look.", Score(-1.0, "no_answer", {"base": -1.0, "shaping": 0.0}), id="no_answer"),
])  # fmt: skip
def test_without_a_judge_the_bounded_score_is_the_reward(stop_reason, last, expected):
    assert reward(record(stop_reason, UNJUDGED, last), REWARDS["agentbench"], Opinion(3.0), SHAPING) == expected


def test_without_a_judge_and_a_reward_model_nobody_knows():
    assert reward(record("answered", UNJUDGED), REWARDS["agentbench"]) == UNJUDGED


def test_what_was_lost_stays_lost_whatever_the_score():
    lost = Score(None, "db_unavailable")
    assert reward(record("db_unavailable", lost), REWARDS["agentbench"], Opinion(9.0), SHAPING) == lost

"""`sql_agent.rewards`: one number per preset and outcome, and what a reward model's score may do to it."""

import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbbench_adapter.datatypes import Score
from dbbench_adapter.interaction import Stop
from sql_agent.datatypes import Reward, ScorerResult
from sql_agent.names import PRESETS
from sql_agent.rewards import NO_ANSWER, NO_JUDGE, REWARDS, RewardPreset, reward, without_score
from sql_agent.settings.groups import RewardModelConfig
from sql_agent.tests.records import make_record


def record(stop_reason, score, last="It is 4."):
    return make_record(score, stop_reason=stop_reason, messages=[{"role": "assistant", "content": last}])


RIGHT, WRONG = Score(1.0, "match"), Score(0.0, "wrong_answer")
UNJUDGED = Score(None, NO_JUDGE)
SHAPING = RewardModelConfig(weight=0.2, center=1.0, scale=2.0)
STOPS = st.sampled_from([stop for stop in get_args(Stop)])


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


@pytest.mark.parametrize(("how", "score", "execution", "partial", "skyrl_sql"), [
    pytest.param("answered", RIGHT, 1.0, 1.0, 1.0, id="right"),
    pytest.param("answered", Score(0.0, "wrong_result", {"likeness": 0.25}), 0.1, 0.2, 0.0, id="a_quarter_is_shared"),
    pytest.param("answered", Score(0.0, "wrong_result", {"likeness": 1.0}), 0.1, 0.5, 0.0, id="all_but_the_order"),
    pytest.param("answered", Score(0.0, "too_many_rows"), 0.1, 0.1, 0.0, id="too_many_rows"),
    pytest.param("answered", Score(0.0, "sql_error"), 0.0, 0.0, 0.0, id="it_did_not_run"),
    pytest.param("answered", Score(0.0, "no_answer"), 0.0, 0.0, -1.0, id="nothing_was_handed_in"),
    pytest.param("max_turns", Score(0.0, "no_answer"), 0.0, 0.0, -1.0, id="out_of_turns"),
    pytest.param("malformed", Score(0.0, "no_answer"), 0.0, 0.0, -1.0, id="malformed"),
])  # fmt: skip
def test_presets_for_queries(how, score, execution, partial, skyrl_sql):
    """Arctic-Text2SQL-R1 gives 0.1 to what runs, SkyRL-SQL -1 to what has no solution in its form."""
    ended = record(how, score)
    values = [reward(ended, REWARDS[name]).value for name in ("execution", "partial", "skyrl_sql")]
    assert values == pytest.approx([execution, partial, skyrl_sql])


def test_settings_know_the_presets_by_name():
    assert tuple(REWARDS) == PRESETS


@pytest.mark.parametrize("preset", REWARDS.values(), ids=REWARDS.keys())
@pytest.mark.parametrize("reason", ["model_deadline", "db_deadline", "rollout_deadline"])
def test_wall_clock_costs_no_reward(preset, reason):
    lost = Score(None, reason)
    assert reward(record("timeout", lost), preset) == Reward(None, reason)
    assert reward(record("timeout", lost), preset, ScorerResult(9.0), SHAPING) == Reward(None, reason)


@pytest.mark.parametrize("preset", REWARDS.values(), ids=REWARDS.keys())
def test_what_could_not_be_judged_is_none_and_not_a_low_reward(preset):
    assert reward(record("db_unavailable", Score(None, "db_unavailable")), preset) == Reward(None, "db_unavailable")


# graded verdicts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stop_reason", "verdict", "agentbench", "agent_peft", "rllm"), [
    # wrong + verdict x (correct - wrong): 0 + .75 x 1; -.1 + .75 x 1.1 = .725; -1 + .75 x 2 = .5
    pytest.param("answered", 0.75, 0.75, 0.725, 0.5, id="three_quarters"),
    # -.1 + .99 x 1.1 = .989; -1 + .99 x 2 = .98
    pytest.param("answered", 0.99, 0.99, 0.989, 0.98, id="nearly_right_is_not_wrong"),
    # wrong is what a wrong end of this kind gets: -.3 + .5 x 1.3 = .35; -.8 + .5 x 1.8 = .1
    pytest.param("max_turns", 0.5, 0.5, 0.35, 0.1, id="half_right_out_of_turns"),
    # -.1 + .5 x 1.1 = .45; -.2 + .5 x 1.2 = .4
    pytest.param("malformed", 0.5, 0.5, 0.45, 0.4, id="half_right_and_malformed"),
])  # fmt: skip
def test_a_verdict_between_wrong_and_right_lies_as_far_between_their_rewards(
    stop_reason, verdict, agentbench, agent_peft, rllm
):
    ended = record(stop_reason, Score(verdict, "rows_in_part"))
    values = [reward(ended, REWARDS[name]).value for name in ("agentbench", "agent_peft", "rllm")]
    assert values == pytest.approx([agentbench, agent_peft, rllm])


FINITE = st.floats(-100, 100)


@given(FINITE, FINITE, STOPS)
def test_both_ends_of_the_scale_are_the_presets_own_numbers_to_the_last_bit(correct, wrong, how):
    preset = RewardPreset(correct=correct, incorrect=wrong, out_of_limits=wrong, malformed=wrong)
    assert (reward(record(how, RIGHT), preset).value, reward(record(how, WRONG), preset).value) == (correct, wrong)


def test_what_is_right_in_part_gets_that_part_of_the_score():
    # 0.5 + 0.5 x 0.2 x tanh((3 - 1) / 2) = 0.5 + 0.1 x 0.76159
    given = reward(record("answered", Score(0.5, "half")), REWARDS["agentbench"], ScorerResult(3.0), SHAPING)
    assert given.value == pytest.approx(0.576159, abs=1e-6)
    assert given.parts == pytest.approx({"correctness": 0.5, "base": 0.5, "shaping": 0.076159}, abs=1e-6)


@pytest.mark.parametrize("verdict", [-0.1, 1.1, math.nan, math.inf])
def test_a_verdict_beyond_the_scale_is_refused_and_nobodys_success(verdict):
    with pytest.raises(ValueError, match=r"task 't-0' was judged .* expected a number from 0, wrong, to 1, right"):
        reward(record("answered", Score(verdict, "strange")), REWARDS["agentbench"])
    assert record("answered", Score(verdict, "strange")).success is None


@pytest.mark.parametrize(("verdict", "solved"), [(1.0, 1.0), (0.99, 0.0), (0.0, 0.0), (None, None)])
def test_only_a_whole_verdict_is_a_success(verdict, solved):
    assert record("answered", Score(verdict, "")).success == solved


def test_reason_and_verdict_travel_with_the_reward():
    assert reward(record("answered", WRONG), REWARDS["rllm"]) == Reward(-1.0, "wrong_answer", {"correctness": 0.0})


# with a reward model --------------------------------------------------------------------------------------------------


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
    given = reward(record("answered", RIGHT), REWARDS["agentbench"], ScorerResult(score), SHAPING)
    assert given.value == pytest.approx(expected, abs=1e-6)
    assert given.parts == pytest.approx({"correctness": 1.0, "base": 1.0, "shaping": expected - 1.0}, abs=1e-6)


@pytest.mark.parametrize("scorer", [ScorerResult(50.0), ScorerResult(-50.0), ScorerResult(None, "scorer_unavailable")])
def test_a_wrong_rollout_gets_its_preset_whatever_the_score(scorer):
    assert reward(record("max_turns", WRONG), REWARDS["agent_peft"], scorer, SHAPING) == Reward(
        -0.3, "wrong_answer", {"correctness": 0.0, "base": -0.3, "shaping": 0.0}
    )


ANY = st.floats(allow_nan=True, allow_infinity=True)
SHAPINGS = st.builds(
    RewardModelConfig,
    weight=st.floats(0, 0.2),
    center=st.floats(allow_nan=False, allow_infinity=False),
    scale=st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False),
)


@given(st.sampled_from(list(REWARDS.values())), STOPS, STOPS, ANY, ANY, SHAPINGS)
def test_a_wrong_rollout_never_earns_as_much_as_a_right_one(preset, how, other, score, other_score, shaping):
    right = reward(record(how, RIGHT), preset, ScorerResult(score), shaping).value
    wrong = reward(record(other, WRONG), preset, ScorerResult(other_score), shaping).value
    assert wrong is not None
    assert right is not None and wrong < right <= preset.correct + 0.2
    assert math.isfinite(score) or right == preset.correct


@given(STOPS, ANY, SHAPINGS)
def test_without_a_judge_a_reward_is_bounded_and_finite(how, score, shaping):
    value = reward(record(how, UNJUDGED), REWARDS["rllm"], ScorerResult(score), shaping).value
    assert value is None or NO_ANSWER <= value <= 1.0


FAILURES = pytest.mark.parametrize(("scorer", "reason"), [
    (ScorerResult(None, "scorer_unavailable"), "scorer_unavailable"),
    (ScorerResult(None, "scorer_refused"), "scorer_refused"),
    (ScorerResult(math.nan), "score_not_finite"),
    (ScorerResult(-math.inf), "score_not_finite"),
])  # fmt: skip


@FAILURES
def test_without_a_judge_a_score_that_could_not_be_had_is_none_and_no_number(scorer, reason):
    assert reward(record("answered", UNJUDGED), REWARDS["agentbench"], scorer, SHAPING) == Reward(None, reason)


@FAILURES
def test_where_somebody_judges_correctness_is_known_whatever_became_of_the_score(scorer, reason):
    for verdict, base in ((RIGHT, 1.0), (WRONG, -0.1)):
        parts = {"correctness": verdict.value, "base": base, "shaping": 0.0}
        given = reward(record("answered", verdict), REWARDS["agent_peft"], scorer, SHAPING)
        assert given == Reward(base, verdict.reason, parts)
    assert scorer.failure == reason


def test_in_a_group_that_lost_a_score_no_reward_has_one():
    verdicts = (RIGHT, WRONG)
    given = [reward(record("answered", v), REWARDS["agent_peft"], ScorerResult(3.0), SHAPING) for v in verdicts]
    alike = [without_score(each, "scorer_unavailable") for each in given]
    assert [each.value for each in alike] == [1.0, -0.1]
    assert [each.parts["shaping"] for each in alike] == [0.0, 0.0]


def test_without_a_judge_such_a_group_has_no_reward_at_all():
    answer = reward(record("answered", UNJUDGED), REWARDS["rllm"], ScorerResult(3.0), SHAPING)
    silent = ScorerResult(None, "no_answer")
    silence = reward(record("max_turns", UNJUDGED), REWARDS["rllm"], silent, SHAPING)
    assert [each.value for each in (answer, silence)] == [pytest.approx(math.tanh(1)), -1.0]
    alike = [without_score(each, "scorer_refused") for each in (answer, silence)]
    assert [(each.value, each.reason) for each in alike] == [(None, "scorer_refused")] * 2
    assert silent.failure is None  # it did not ask: nothing was lost there


SILENT = Reward(-1.0, "no_answer", {"base": -1.0, "shaping": 0.0})


@pytest.mark.parametrize(("stop_reason", "last", "expected"), [
    pytest.param("answered", "It is 4.", Reward(math.tanh(1), "scored", {"base": 0.0, "shaping": math.tanh(1)})),
    pytest.param("answered", " \n", SILENT, id="an_empty_answer"),
    pytest.param("max_turns", "Let me look.", SILENT, id="no_answer"),
])  # fmt: skip
def test_without_a_judge_the_bounded_score_is_the_reward(stop_reason, last, expected):
    assert reward(record(stop_reason, UNJUDGED, last), REWARDS["agentbench"], ScorerResult(3.0), SHAPING) == expected


def test_without_a_judge_and_a_reward_model_nobody_knows():
    assert reward(record("answered", UNJUDGED), REWARDS["agentbench"]) == Reward(None, NO_JUDGE)


def test_what_was_lost_stays_lost_whatever_the_score():
    lost = Score(None, "db_unavailable")
    assert reward(record("db_unavailable", lost), REWARDS["agentbench"], ScorerResult(9.0), SHAPING) == Reward(
        None, "db_unavailable"
    )

"""`sql_agent.source.metrics`: what is logged of the reward model."""

import dataclasses
import math

import pytest

from sql_agent.datatypes import ScorerResult
from sql_agent.source.metrics import batch_metrics, clip_metrics, lag_metrics, score_metrics, skill_metrics
from sql_agent.tests.records import make_outcome, make_result, make_row, travelled


def result(group, reward, *, score, success=None, base=None, tokens=10, reason="scored", truncated=False, down_s=0.0):
    parts = ({} if success is None else {"correctness": success}) | ({} if base is None else {"base": base})
    scorer = ScorerResult(score, reason, truncated)
    return make_result(group, make_outcome(
        reward, verdict=success, reason=reason, parts=parts, scorer=scorer, down_s=down_s, completion_tokens=tokens
    ))  # fmt: skip


def test_score_and_correctness_are_correlated_over_right_and_wrong_rollouts():
    results = [
        result("a", 1.1, score=3.0, success=1.0, base=1.0, tokens=10),
        result("a", 1.0, score=1.0, success=1.0, base=1.0, tokens=20),
        result("b", 0.0, score=0.0, success=0.0, base=0.0, tokens=30, truncated=True),
        result("b", 0.0, score=0.0, success=0.0, base=0.0, tokens=40),
        result("b", 1.0, score=None, success=1.0, base=1.0, reason="scorer_unavailable", down_s=7.0),
        result("c", None, score=None, reason="scorer_refused"),
    ]
    # scores 3 1 0 0: mean 1, deviations 2 0 -1 -1, std sqrt(6/4) = 1.2247; success: deviations 1/2 1/2 -1/2 -1/2
    # r = (1 + 0 + .5 + .5) / sqrt(6 x 1) = 0.8165; lengths -15 -5 5 15: (-30 - 5 - 15) / sqrt(6 x 500) = -0.9129
    assert score_metrics(results) == pytest.approx({
        "reward_model/score_mean": 1.0,
        "reward_model/score_std": 1.2247,
        "reward_model/correctness_corr": 0.8165,
        "reward_model/length_corr": -0.9129,
        "reward_model/truncated_frac": 0.25,
        "reward_model/lost_frac": 1 / 6,
        "reward_model/unscored_frac": 2 / 6,
        "reward_model/down_s": 7.0,
    }, abs=1e-4)  # fmt: skip


def test_success_is_that_of_all_the_environment_judged_lost_ones_included():
    results = [
        *(
            make_result("a", make_outcome(1.0, verdict=1.0, refused_statements=3), "response_too_long")
            for _ in range(4)
        ),
        make_result("a", travelled(make_outcome(1.0, verdict=1.0, refused_statements=2))),
        *(judged("b", 0.0) for _ in range(5)),
        make_result("b", None, "rollout_failed"),
    ]
    metrics = batch_metrics(results)
    assert (metrics["rollout/success"], metrics["rollout/judged"]) == (0.5, 10.0)  # not 1 of 6
    assert metrics["reward/mean"] == pytest.approx(1 / 6)
    assert metrics["rollout/refused_statements"] == 2.0  # those of judged rollouts


def test_cached_tokens_are_a_share_of_all_prompts_and_absent_where_no_server_names_them():
    known = [make_outcome(1.0, prompt_tokens=100, cached_tokens=n) for n in (0, 90)]
    results = [make_result("a", each) for each in known]
    assert batch_metrics(results)["rollout/cached_prompt_frac"] == 0.45
    assert "rollout/cached_prompt_frac" not in batch_metrics(results[:1])


def test_rollouts_that_go_without_the_score_are_counted_by_its_failure():
    lost = [result("a", base, score=None, success=base, base=base) for base in (1.0, 0.0)]
    results = [dataclasses.replace(each, unshaped="scorer_unavailable") for each in lost]
    metrics = batch_metrics([*results, result("b", 1.1, score=0.1, success=1.0, base=1.0)])
    assert {name: value for name, value in metrics.items() if "unshaped" in name} == {
        "rollout/unshaped/scorer_unavailable": 2.0
    }


def test_score_and_verdict_are_correlated_by_the_verdicts_own_size():
    results = [result("a", v, score=v, success=v, base=v) for v in (0.25, 0.5, 0.75)]
    assert score_metrics(results)["reward_model/correctness_corr"] == pytest.approx(1.0)
    assert batch_metrics(results)["rollout/success"] == 0.0  # none is solved


def test_a_correlation_that_is_not_defined_is_left_out():
    results = [result("a", 1.0, score=2.0, success=1.0, base=1.0) for _ in range(2)]
    assert {"reward_model/correctness_corr", "reward_model/length_corr"}.isdisjoint(score_metrics(results))


def test_groups_that_differ_by_the_score_alone_are_counted():
    results = [
        *(result("all_right", 1.0 + s, score=s, success=1.0, base=1.0) for s in (0.1, 0.2)),
        *(result("all_wrong", 0.0, score=s, success=0.0, base=0.0) for s in (0.1, 0.2)),
        result("mixed", 1.1, score=0.1, success=1.0, base=1.0),
        result("mixed", 0.0, score=0.1, success=0.0, base=0.0),
        *(result("lost", None, score=None, reason="scorer_refused") for _ in range(2)),
    ]
    assert batch_metrics(results)["group/score_only_frac"] == 0.25


def test_a_task_without_a_judge_has_no_success():
    results = [result("a", s, score=s, base=0.0) for s in (0.1, 0.2)]
    metrics = batch_metrics(results)
    assert "rollout/success" not in metrics
    assert (metrics["reward/mean"], metrics["group/score_only_frac"]) == (pytest.approx(0.15), 1.0)


def test_equal_groups_are_right_or_wrong_only_where_somebody_judges():
    judged = [result("a", 1.0, score=0.1, success=1.0, base=1.0), result("a", 1.0, score=0.1, success=1.0, base=1.0)]
    assert batch_metrics(judged)["group/all_right_frac"] == 1.0
    unjudged = batch_metrics([result("a", 0.5, score=0.1, base=0.0) for _ in range(2)])
    assert unjudged["group/zero_std_frac"] == 1.0
    assert [name for name in unjudged if name.startswith("group/all_")] == []


def test_a_run_without_a_reward_model_logs_nothing_of_one():
    results = [judged("a", 1.0), judged("a", 1.0)]
    assert score_metrics(results) == {}
    assert [name for name in batch_metrics(results) if "score" in name] == []


def judged(group, success, **which):
    return make_result(group, make_outcome(success, verdict=success), **which)


def test_a_rollout_is_clipped_where_its_row_is_full():
    def of(tokens, **left_out):
        row = make_row((1, 2), (3,) * tokens, (1,) * tokens, (0.0,) * tokens, 1, **left_out)
        return judged("a", 1.0, row=row)

    gone = make_result("a", None, "rollout_failed")
    rows = [
        of(7),  # the longest of the others, and whole
        of(8),  # as long as may be
        of(5, dropped_turns=1),  # a turn more would not fit
        # two chains of 3 and 5 tokens after their prompts; the second prompt has 4
        judged(
            "a",
            1.0,
            row=make_row((1, 2), (3,) * 12, (1,) * 3 + (0,) * 4 + (1,) * 5, (0.0,) * 12, 2, starts=(3,)),
        ),
        of(0, dropped_turns=1),  # not even the first one fits
        gone,
    ]
    assert clip_metrics(rows, 3, 8) == {
        "response_length/clip_ratio": 3 / 5,
        "response_length_non_aborted/clip_ratio": 3 / 5,
        "prompt_length/clip_ratio": 0.0,
    }
    assert clip_metrics(rows, 2, 8)["prompt_length/clip_ratio"] == 1.0
    assert all(math.isnan(value) for value in clip_metrics([gone], 3, 8).values())


def test_groups_that_were_filtered_are_counted_by_cause_and_are_no_part_of_the_trained_ones():
    results = [
        *(judged("a", 1.0, task_id="first", filtered="all_right") for _ in range(2)),
        *(judged("a", 0.0, task_id="second", filtered="all_wrong", draw=1) for _ in range(2)),
        judged("a", 1.0, task_id="third", draw=2),
        judged("a", 0.0, task_id="third", draw=2),
        *(judged("b", 0.0) for _ in range(2)),
    ]
    metrics = batch_metrics(results)
    assert {name: value for name, value in metrics.items() if name.startswith("group/")} == {
        "group/count": 2.0,
        "group/zero_std_frac": 0.5,
        "group/all_right_frac": 0.0,
        "group/all_wrong_frac": 0.5,
        "group/lone_frac": 0.0,
        "group/played": 4.0,
        "group/set_aside_frac": 0.5,
        "group/set_aside/all_right": 1.0,
        "group/set_aside/all_wrong": 1.0,
    }
    assert (metrics["rollout/count"], metrics["rollout/success"]) == (8.0, 0.5)  # 2 of the 4 that the batch began with


def test_success_per_skill_leaves_out_what_was_not_judged():
    lost = make_result("c", None, "model_unavailable", skills=("insert",))
    results = [judged("a", 1.0, skills=("select", "order")), judged("b", 0.0, skills=("select",)), lost]
    assert skill_metrics(results) == {
        "skill/select/success": 0.5,
        "skill/select/count": 2.0,
        "skill/order/success": 1.0,
        "skill/order/count": 1.0,
    }


def test_the_age_of_a_row_is_that_of_its_oldest_turn_in_train_steps():
    rows = [make_result("a", None), make_result("a", None), make_result("b", None)]
    rows[0].weights, rows[1].weights, rows[1].asked_again = (4, 4), (2, 3), 2
    # step 5 trains the weights of step 4; the third row's server did not say
    assert lag_metrics(rows, 5) == {"lag/mean": 1.0, "lag/max": 2.0, "lag/asked_again": 2.0}
    assert lag_metrics(rows[2:], 5) == {"lag/asked_again": 0.0}

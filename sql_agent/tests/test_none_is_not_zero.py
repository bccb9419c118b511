"""A rollout that nobody could judge is no wrong one: it has no place in a mean, a group or a success rate."""

import pytest

from dbbench_adapter.datatypes import Score
from sql_agent.lightning.agent import SqlLitAgent
from sql_agent.lightning.spans import outcome_span
from sql_agent.rewards import NO_JUDGE
from sql_agent.settings.load import load_config
from sql_agent.source.datatypes import Rollout
from sql_agent.source.metrics import batch_metrics
from sql_agent.tests.records import ROW, make_outcome, make_record, make_result, make_row, reported


def result(group, reward, row=ROW):
    return make_result(group, make_outcome(reward, verdict=reward), row=row)


def lost(group):
    return make_result(group, make_outcome(None, reason="db_unavailable"))


def test_means_are_over_judged_rollouts():
    gone = make_result("a", None, "step_deadline")  # never came back
    metrics = batch_metrics([result("a", 1.0), result("a", 0.5), lost("a"), gone])
    assert (metrics["reward/mean"], metrics["reward/std"]) == (0.75, 0.25)
    assert metrics["rollout/success"] == 0.5  # half right is no success
    assert (metrics["reward/unjudged_frac"], metrics["rollout/count"]) == (0.5, 4.0)
    assert (metrics["rollout/lost/db_unavailable"], metrics["rollout/lost/step_deadline"]) == (1.0, 1.0)


def test_a_lost_rollout_gives_its_group_no_spread():
    metrics = batch_metrics(
        [result("right", 1.0), result("right", 1.0), lost("right"), result("b", 1.0), result("b", 0.0)]
    )
    assert (metrics["group/count"], metrics["group/zero_std_frac"], metrics["group/all_right_frac"]) == (2.0, 0.5, 0.5)


def test_a_batch_of_lost_rollouts_has_no_mean():
    metrics = batch_metrics([lost("a")] * 2)
    assert metrics == {"reward/unjudged_frac": 1.0, "rollout/count": 2.0, "rollout/lost/db_unavailable": 2.0}


def test_breaks_and_sampled_tokens_are_those_of_the_rows():
    whole = make_row((1,), (2, 9, 3), (1, 0, 1), (0.0,) * 3, num_turns=2)
    broken = make_row(
        (1,), (2, 1, 7, 3), (1, 0, 0, 1), (0.0,) * 4, num_turns=2, prefix_break="tokenisation", starts=(1,)
    )
    cut = make_row((1,), (2,), (1,), (0.0,), num_turns=1, dropped_turns=1)
    metrics = batch_metrics([result("a", 1.0, row) for row in (whole, whole, broken, cut)])
    assert {name: value for name, value in metrics.items() if name.startswith("prefix/")} == {
        "prefix/broken_frac": 0.25,
        "prefix/overflow_frac": 0.25,
        "prefix/break/tokenisation": 1.0,
    }
    assert metrics["rollout/sampled_tokens"] == (2 + 2 + 2 + 1) / 4
    assert metrics["rollout/response_tokens"] == (3 + 3 + 4 + 1) / 4
    assert metrics["rollout/turns"] == (2 + 2 + 2 + 2) / 4
    assert metrics["rollout/chains"] == (1 + 1 + 2 + 1) / 4


def test_calls_that_are_in_no_row_are_counted_by_cause():
    cut = make_row((1,), (2,), (1,), (0.0,), num_turns=1, dropped_turns=2)
    repeated = {"repeated": 1, "given_up": 0}
    results = [
        make_result("a", make_outcome(1.0, verdict=1.0), row=cut, unused_turns=repeated),
        make_result("a", make_outcome(0.0, verdict=0.0), unused_turns={"repeated": 2, "given_up": 0}),
    ]
    metrics = batch_metrics(results)
    assert {name: value for name, value in metrics.items() if name.startswith("rollout/unused_turns/")} == {
        "rollout/unused_turns/too_long": 2.0,
        "rollout/unused_turns/repeated": 3.0,
    }


@pytest.mark.parametrize(
    ("score", "reward", "success"),
    [
        pytest.param(Score(1.0, "match"), 1.0, 1.0, id="right"),
        pytest.param(Score(0.0, "wrong_rows"), 0.0, 0.0, id="wrong"),
        pytest.param(Score(0.75, "rows_in_part"), 0.75, 0.0, id="right_in_part_is_paid_for_and_no_success"),
        pytest.param(Score(1.5, "strange"), None, None, id="no_verdict_at_all"),
        pytest.param(Score(None, "db_unavailable"), None, None, id="nobody_could_judge"),
        pytest.param(Score(None, NO_JUDGE), None, None, id="nobody_judges"),
    ],
)
def test_a_runner_reports_what_was_judged_and_nothing_else(score, reward, success):
    played = Rollout("", {}, played=make_record(score))
    SqlLitAgent(load_config(None)).rewarder.reward(played, {})
    outcome = reported([outcome_span(played, "r", "a")])
    assert (outcome.reward, outcome.success) == (reward, success)
    assert outcome.record == make_record(score)

"""What becomes of a rollout that has ended: what is read of it, which are trained on, in which row, with which
advantage. A scripted store and no model."""

import dataclasses
import json
import math
from types import SimpleNamespace

import pytest

from dbbench_adapter.datatypes import Score
from sql_agent.credit.grpo import GroupRelative
from sql_agent.datatypes import ScorerResult
from sql_agent.lightning.agent import SqlLitAgent
from sql_agent.lightning.spans import OUTCOME, TURN_SPAN, outcome_span, outcome_text
from sql_agent.lightning.transport import StoreTransport
from sql_agent.rewards import NO_JUDGE
from sql_agent.settings.load import load_config
from sql_agent.source.datatypes import Rollout
from sql_agent.source.dynamic_sampling import credit_group, drop_scores_of_group, filter_groups, zero_variance
from sql_agent.source.metrics import batch_metrics
from sql_agent.source.stops import TooManyLostError, check_lost
from sql_agent.tests.records import make_outcome, make_record, make_result, reported

pytestmark = pytest.mark.slow  # imports verl


def rollouts(group, *rewards):
    return [make_result(group, make_outcome(value, verdict=value, reason="db_unavailable")) for value in rewards]


def test_results_stand_in_the_order_of_the_rows_and_lost_ones_have_no_advantage():
    from sql_agent.verl_side.rollout_manager import in_rows

    groups = [trained(rollouts("a", 1.0, 0.0, None)), trained(rollouts("b", None, 1.0, None))]
    results = in_rows(groups, {"a": [0, 2, 4], "b": [1, 3, 5]})
    # a: mean 0.5 and unbiased std 0.7071 over the two that are known; b: one alone has no peer
    assert [(r.group, r.reward, r.advantage) for r in results] == [
        ("a", 1.0, pytest.approx(0.7071, abs=1e-4)),
        ("b", None, None),
        ("a", 0.0, pytest.approx(-0.7071, abs=1e-4)),
        ("b", 1.0, 0.0),
        ("a", None, None),
        ("b", None, None),
    ]


# a reward model that fails for some ----------------------------------------------------------------------------------

GONE, LIKED, PLAIN = ScorerResult(None, "scorer_unavailable"), ScorerResult(2.0), ScorerResult(0.0)
RIGHT, WRONG, UNJUDGED = Score(1.0, "match"), Score(0.0, "wrong_answer"), Score(None, NO_JUDGE)


def scored(*ends, preset="agentbench"):
    """The results of one group, each reported by the runner's own code: pairs of a verdict and what the scorer said."""
    agent = SqlLitAgent(load_config(None, [f"rollout.reward={preset}", "reward_model.url=http://127.0.0.1:1"]))
    results = []
    for verdict, scorer_result in ends:
        stop_reason = "max_turns" if scorer_result.reason == "no_answer" else "answered"
        played = Rollout("", {}, played=make_record(verdict, stop_reason=stop_reason), scorer=scorer_result)
        agent.rewarder.reward(played, {})
        results.append(make_result("g", reported([outcome_span(played, "r", "a")])))
    return results


def trained(results):
    [group] = filter_groups([results], GroupRelative())
    credit_group(group, GroupRelative())
    return group


@pytest.mark.parametrize("ends", [
    pytest.param([(RIGHT, LIKED)] + [(RIGHT, GONE)] * 3 + [(WRONG, PLAIN)] * 4, id="three_right_ones"),
    pytest.param([(RIGHT, LIKED)] * 4 + [(WRONG, GONE)] * 3 + [(WRONG, PLAIN)], id="three_wrong_ones"),
    pytest.param([(RIGHT, GONE)] * 4 + [(WRONG, PLAIN)] * 4, id="all_right_ones"),
    pytest.param([(RIGHT, GONE)] * 4 + [(WRONG, GONE)] * 4, id="all"),
])  # fmt: skip
def test_a_group_that_lost_scores_is_credited_by_correctness_whichever_rollouts_lost_them(ends):
    """Four right, four wrong: mean 1/2, unbiased std sqrt(8 x 1/4 / 7) = 0.5345, so +/- 0.9354. Without the three right
    ones that lost their score it would be mean 1/5, std sqrt(0.8 / 4) = 0.4472: +1.79 for the one, -0.45 for the wrong
    ones; without all four there would be nothing to learn."""
    results = trained(scored(*ends))
    assert [r.advantage for r in results] == pytest.approx([0.9354] * 4 + [-0.9354] * 4, abs=1e-4)
    assert [(r.reward, r.lost, r.unshaped) for r in results] == [
        (reward, None, "scorer_unavailable") for reward in [1.0] * 4 + [0.0] * 4
    ]


def test_a_group_whose_scores_are_all_there_keeps_them():
    first, second = trained(scored((RIGHT, ScorerResult(50.0)), (RIGHT, ScorerResult(-50.0))))
    assert [(r.reward, r.unshaped) for r in (first, second)] == [(1.2, None), (0.8, None)]


def test_a_mixed_group_whose_right_ones_all_lost_their_score_is_not_all_wrong():
    results = scored((RIGHT, GONE), (RIGHT, GONE), (WRONG, ScorerResult(0.0)), (WRONG, ScorerResult(0.0)))
    assert zero_variance(drop_scores_of_group(results)) is None
    metrics = batch_metrics(trained(results))
    assert (metrics["group/all_wrong_frac"], metrics["group/zero_std_frac"]) == (0.0, 0.0)
    assert (metrics["rollout/success"], metrics["reward/mean"], metrics["reward/unjudged_frac"]) == (0.5, 0.5, 0.0)
    all_right = scored((RIGHT, GONE), (RIGHT, ScorerResult(0.5)))
    assert zero_variance(drop_scores_of_group(all_right)) == "all_right"  # the score of the other one is no difference


def test_without_a_judge_a_group_that_lost_scores_is_lost_whole():
    """Four answers, four silences: only answers ask for a score. The one that got it, tanh(1) = 0.76, beside four -1
    would be worth (0.76 + 0.648) / 0.787 = +1.79."""
    silence = (UNJUDGED, ScorerResult(None, "no_answer"))
    answers = [(UNJUDGED, ScorerResult(1.0))] + [(UNJUDGED, GONE)] * 3
    results = trained(scored(*answers, *[silence] * 4))
    assert [(r.reward, r.lost, r.advantage) for r in results] == [(None, "scorer_unavailable", None)] * 8
    whole = trained(scored((UNJUDGED, ScorerResult(1.0)), silence))
    assert [r.reward for r in whole] == [pytest.approx(math.tanh(1)), -1.0]


def test_a_validation_keeps_the_success_of_rollouts_whose_score_is_lost():
    rows = [dataclasses.replace(r, group=f"g{i}") for i, r in enumerate(scored((RIGHT, GONE), (WRONG, GONE)))]
    metrics = batch_metrics([r for row in rows for r in trained([row])])
    assert (metrics["rollout/success"], metrics["rollout/judged"], metrics["rollout/unshaped/scorer_unavailable"]) == (
        0.5, 2.0, 2.0,
    )  # fmt: skip


def test_a_scorer_that_refuses_more_than_its_share_stops_the_step_and_one_that_is_away_has_its_own_limit():
    refused = scored(*[(RIGHT, ScorerResult(None, "scorer_refused"))] * 2, (WRONG, ScorerResult(0.0)))
    with pytest.raises(TooManyLostError, match=r"2 of 3 rollouts were lost or refused a score.*name the field"):
        check_lost(trained(refused), max_fraction=0.5)
    check_lost(trained(scored(*[(RIGHT, GONE)] * 3)), max_fraction=0.5)


def span(sequence_id, prompt, sampled):
    ids = {"prompt_token_ids": prompt, "response_token_ids": sampled, "response_log_probs": [-0.5] * len(sampled)}
    attributes = {name: json.dumps(numbers) for name, numbers in ids.items()}
    return SimpleNamespace(name=TURN_SPAN, sequence_id=sequence_id, attributes=attributes)


def reward_span(reward, num_turns, reason="match", tokens=None, one_conversation=True):
    outcome = make_outcome(
        reward, reason=reason, num_turns=num_turns, completion_tokens=num_turns if tokens is None else tokens
    )
    outcome = dataclasses.replace(outcome, one_conversation=one_conversation)
    return SimpleNamespace(name="outcome", sequence_id=99, attributes={OUTCOME: outcome_text(outcome)})


FIRST, SECOND, LATE = span(1, [1], [2]), span(2, [1, 2, 9], [3]), span(3, [1, 2, 9, 3, 9], [4])


async def read(*answers, status="succeeded", settings=()):
    """The result after the store gave these answers one after the other, and what it was asked."""
    left, asked, marked = list(answers), [], []

    class Store:
        async def query_spans(self, rollout_id, attempt_id):
            asked.append((rollout_id, attempt_id))
            return left.pop(0) if len(left) > 1 else left[0]

        async def mark_read(self, rollouts):
            marked.append([rollout.rollout_id for rollout in rollouts])

    cfg = load_config(None, ["rollout.poll_s=0.001", "rollout.span_timeout_s=0.05", *settings])
    transport = StoreTransport(
        cfg.rollout,
        "run",
        Store(),  # pyright: ignore[reportArgumentType]
        "policy",
        [],
        None,
        seed=0,
        lag=0,
        ending_s=60.0,
        max_response_tokens=cfg.data.max_response_tokens,
        max_row_tokens=cfg.micro_batch_tokens(cpu=False),
    )
    result = Rollout("g", {"id": "task"})
    await transport._read(SimpleNamespace(rollout_id="r", status=status), result)
    assert result.settled
    await transport.collect()
    assert marked == [["r"]]  # whatever became of it, nobody asks for its spans again
    return result, asked


def parts(row):
    return row.ids[: row.prompt_tokens], row.ids[row.prompt_tokens :]


def ids(result):
    return result.row and parts(result.row)


async def test_spans_that_come_after_the_end_are_waited_for_and_only_the_latest_attempt_counts():
    outcome = reward_span(1.0, num_turns=2)
    result, asked = await read([FIRST], [outcome, FIRST], [outcome, FIRST, SECOND])
    assert (result.lost, result.reward, ids(result)) == (None, 1.0, ((1,), (2, 9, 3)))
    assert asked == [("r", "latest")] * 3


@pytest.mark.parametrize("spans", [
    pytest.param([FIRST, SECOND], id="no_outcome"),
    pytest.param([reward_span(1.0, num_turns=2), FIRST], id="a_turn_is_missing"),
])  # fmt: skip
async def test_what_never_comes_makes_a_rollout_lost(spans):
    result, _ = await read(spans)
    assert (result.lost, result.reward, ids(result)) == ("missing_spans", None, None)


async def test_a_call_that_ended_after_the_agent_is_no_turn():
    result, _ = await read([reward_span(0.0, num_turns=2), FIRST, SECOND, LATE])
    assert (result.lost, result.reward, ids(result)) == (None, 0.0, ((1,), (2, 9, 3)))


async def test_calls_that_the_agent_did_not_use_are_counted_by_cause():
    again = span(2, [1], [2])  # the same prompt once more, and the same reply
    result, _ = await read([reward_span(0.0, num_turns=1), FIRST, again, SECOND, LATE])
    assert (ids(result), result.unused_turns) == (((1,), (2,)), {"repeated": 1, "given_up": 2})


async def test_an_agent_that_hands_over_does_not_break_and_one_that_should_not_does():
    other = (
        span(2, [5], [6]),
        span(3, [1, 2, 9], [3]),
        span(4, [5], [7]),
    )  # the last one asks the second's question anew
    for one_conversation, cause in ((True, "template"), (False, None)):
        outcome = reward_span(1.0, num_turns=4, one_conversation=one_conversation)
        result, _ = await read([outcome, FIRST, *other])
        assert ids(result) == ((1,), (2, 9, 3, 5, 6, 5, 7))
        assert (result.row.prefix_break, result.row.num_turns) == (cause, 4)


async def test_a_conversation_that_does_not_fit_beside_the_others_is_left_out_and_counted():
    """A micro-batch has room for 64 tokens: the chains have 2, 63 and 3, of which the second one is too long."""
    small = ["data.max_prompt_tokens=16", "data.max_response_tokens=16", "agent.max_tokens=16"]
    spans = [FIRST, span(2, [5] * 62, [6]), span(3, [7, 7], [8])]
    result, _ = await read([reward_span(1.0, num_turns=3), *spans], settings=[*small, "optim.micro_batch_tokens=64"])
    assert ids(result) == ((1,), (2, 7, 7, 8))
    assert (result.row.num_turns, result.row.dropped_turns, result.row.num_chains) == (2, 1, 2)


async def test_a_rollout_that_failed_is_lost_whatever_it_left_behind():
    result, asked = await read([reward_span(1.0, num_turns=1), FIRST], status="failed")
    assert (result.lost, result.reward, ids(result), asked) == ("rollout_failed", None, None, [])


async def test_a_rollout_that_nobody_could_judge_is_lost_under_its_reason():
    result, _ = await read([reward_span(None, num_turns=1, reason="db_unavailable"), FIRST])
    assert (result.lost, result.reward, ids(result)) == ("db_unavailable", None, None)


async def test_a_rollout_without_a_call_is_lost():
    result, _ = await read([reward_span(0.0, num_turns=0)])
    assert (result.lost, result.reward, ids(result)) == ("no_turns", None, None)


async def test_a_call_without_token_ids_is_lost_not_guessed():
    result, _ = await read([reward_span(1.0, num_turns=1), span(1, [1], [])])
    assert (result.lost, result.reward, ids(result)) == ("no_token_ids", None, None)


async def test_a_first_reply_that_does_not_fit_is_lost():
    fits = ["data.max_response_tokens=16", "agent.max_tokens=16"]
    result, _ = await read([reward_span(1.0, num_turns=1, tokens=17), span(1, [1], [2] * 17)], settings=fits)
    assert (result.lost, result.reward) == ("response_too_long", None)
    result, _ = await read([reward_span(1.0, num_turns=1, tokens=16), span(1, [1], [2] * 16)], settings=fits)
    assert (result.lost, result.reward) == (None, 1.0)


def test_a_step_may_lose_the_share_it_is_allowed():
    check_lost(rollouts("g", 1.0, None), max_fraction=0.5)
    with pytest.raises(TooManyLostError, match="2 of 3 rollouts were lost"):
        check_lost(rollouts("g", 1.0, None, None), max_fraction=0.5)

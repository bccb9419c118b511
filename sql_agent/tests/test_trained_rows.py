"""What becomes of a rollout that has ended: what is read of it, which are trained on, in which row, with which
advantage. A scripted store and no model."""

import dataclasses
import json
from types import SimpleNamespace

import pytest

from sql_agent.config import load_config
from sql_agent.stitch import OUTCOME, TURN_SPAN, RolloutOutcome

pytestmark = pytest.mark.slow  # imports verl


def rollouts(group, *rewards):
    from sql_agent.rollout_manager import Result

    return [
        Result(
            group,
            group,
            outcome=RolloutOutcome(reward, "", "answered", 1),
            lost="db_unavailable" if reward is None else None,
        )
        for reward in rewards
    ]


def test_results_stand_in_the_order_of_the_rows_and_lost_ones_have_no_advantage():
    from sql_agent.rollout_manager import LightningRolloutManager, Place

    manager = object.__new__(LightningRolloutManager)
    manager.cfg, manager._judged = load_config(None), True
    places = [
        Place(0, [0, 2, 4], draws=[rollouts("a", 1.0, 0.0, None)]),
        Place(1, [1, 3, 5], draws=[rollouts("b", None, 1.0, None)]),
    ]
    trained = manager._trained(places)
    # a: mean 0.5 and unbiased std 0.7071 over the two that are known; b: one alone has no peer
    assert [(r.group, r.reward, r.advantage) for r in trained] == [
        ("a", 1.0, pytest.approx(0.7071, abs=1e-4)),
        ("b", None, None),
        ("a", 0.0, pytest.approx(-0.7071, abs=1e-4)),
        ("b", 1.0, 0.0),
        ("a", None, None),
        ("b", None, None),
    ]


@pytest.mark.parametrize(
    ("draws", "chosen", "causes"),
    [
        pytest.param([[1.0, 0.0]], 0, [None], id="one_with_spread"),
        pytest.param([[1.0, 1.0], [0.0, 1.0]], 1, ["all_right", None], id="the_later_one_has_spread"),
        pytest.param([[1.0, 1.0], [0.0, 0.0]], 0, [None, "all_wrong"], id="none_has_spread"),
        # two known and different teach more than two equal and none lost
        pytest.param([[1.0, 1.0, 1.0], [0.0, 1.0, None]], 1, ["all_right", None], id="spread_before_losses"),
        # a lone rollout has no peer: it is no group with spread
        pytest.param([[0.0, 0.0], [1.0, None]], 0, [None, "lost"], id="one_known_is_no_spread"),
        pytest.param([[None, None], [0.0, None]], 1, ["lost", None], id="the_one_that_lost_least"),
    ],
)
def test_the_group_with_spread_is_chosen_else_the_one_that_lost_least(draws, chosen, causes):
    from sql_agent.rollout_manager import Place

    groups = [rollouts("g", *rewards) for rewards in draws]
    place = Place(0, list(range(len(draws[0]))), draws=groups)
    assert place.choose(judged=True) is groups[chosen]
    assert [{r.set_aside for r in group} for group in groups] == [{cause} for cause in causes]


def span(sequence_id, prompt, sampled):
    ids = {"prompt_token_ids": prompt, "response_token_ids": sampled, "response_log_probs": [-0.5] * len(sampled)}
    return SimpleNamespace(name=TURN_SPAN, sequence_id=sequence_id, attributes=ids)


def outcome_span(reward, num_turns, reason="match", tokens=None):
    record = {"completion_tokens": num_turns if tokens is None else tokens}
    outcome = json.dumps(dataclasses.asdict(RolloutOutcome(reward, reason, "answered", num_turns, record=record)))
    return SimpleNamespace(name="outcome", sequence_id=99, attributes={OUTCOME: outcome})


FIRST, SECOND, LATE = span(1, [1], [2]), span(2, [1, 2, 9], [3]), span(3, [1, 2, 9, 3, 9], [4])


async def read(*answers, status="succeeded", settings=()):
    """The result after the store gave these answers one after the other, and what it was asked."""
    from sql_agent.rollout_manager import LightningRolloutManager, Result

    left, asked = list(answers), []

    class Store:
        async def query_spans(self, rollout_id, attempt_id):
            asked.append((rollout_id, attempt_id))
            return left.pop(0) if len(left) > 1 else left[0]

    manager = object.__new__(LightningRolloutManager)
    manager.cfg = load_config(None, ["rollout.poll_s=0.001", "rollout.span_timeout_s=0.05", *settings])
    manager.store = Store()  # pyright: ignore[reportAttributeAccessIssue]
    result = Result("g", "task")
    await manager._read(SimpleNamespace(rollout_id="r", status=status), result)
    assert result.settled
    return result, asked


def ids(result):
    return result.trajectory and (result.trajectory.prompt_ids, result.trajectory.response_ids)


async def test_spans_that_come_after_the_end_are_waited_for_and_only_the_latest_attempt_counts():
    outcome = outcome_span(1.0, num_turns=2)
    result, asked = await read([FIRST], [outcome, FIRST], [outcome, FIRST, SECOND])
    assert (result.lost, result.reward, ids(result)) == (None, 1.0, ((1,), (2, 9, 3)))
    assert asked == [("r", "latest")] * 3


@pytest.mark.parametrize("spans", [
    pytest.param([FIRST, SECOND], id="no_outcome"),
    pytest.param([outcome_span(1.0, num_turns=2), FIRST], id="a_turn_is_missing"),
])  # fmt: skip
async def test_what_never_comes_makes_a_rollout_lost(spans):
    result, _ = await read(spans)
    assert (result.lost, result.reward, ids(result)) == ("missing_spans", None, None)


async def test_a_call_that_ended_after_the_agent_is_no_turn():
    result, _ = await read([outcome_span(0.0, num_turns=2), FIRST, SECOND, LATE])
    assert (result.lost, result.reward, ids(result)) == (None, 0.0, ((1,), (2, 9, 3)))


async def test_a_rollout_that_failed_is_lost_whatever_it_left_behind():
    result, asked = await read([outcome_span(1.0, num_turns=1), FIRST], status="failed")
    assert (result.lost, result.reward, ids(result), asked) == ("rollout_failed", None, None, [])


async def test_a_rollout_that_nobody_could_judge_is_lost_under_its_reason():
    result, _ = await read([outcome_span(None, num_turns=1, reason="db_unavailable"), FIRST])
    assert (result.lost, result.reward, ids(result)) == ("db_unavailable", None, None)


async def test_a_rollout_without_a_call_is_lost():
    result, _ = await read([outcome_span(0.0, num_turns=0)])
    assert (result.lost, result.reward, ids(result)) == ("no_turns", None, None)


async def test_a_call_without_token_ids_is_lost_not_guessed():
    result, _ = await read([outcome_span(1.0, num_turns=1), span(1, [1], [])])
    assert (result.lost, result.reward, ids(result)) == ("no_token_ids", None, None)


async def test_a_first_reply_that_does_not_fit_is_lost():
    fits = ["data.max_response_tokens=16", "agent.max_tokens=16"]
    result, _ = await read([outcome_span(1.0, num_turns=1, tokens=17), span(1, [1], [2] * 17)], settings=fits)
    assert (result.lost, result.reward) == ("response_too_long", None)
    result, _ = await read([outcome_span(1.0, num_turns=1, tokens=16), span(1, [1], [2] * 16)], settings=fits)
    assert (result.lost, result.reward) == (None, 1.0)


def test_a_step_may_lose_the_share_it_is_allowed():
    from sql_agent.rollout_manager import TooManyLostError, check_lost

    check_lost(rollouts("g", 1.0, None), max_fraction=0.5)
    with pytest.raises(TooManyLostError, match="2 of 3 rollouts were lost"):
        check_lost(rollouts("g", 1.0, None, None), max_fraction=0.5)

"""Rewards of turns: what a token is credited with, hand-worked, from the function's numbers to verl's batch."""

from types import SimpleNamespace

import numpy as np
import pytest

from dbbench_adapter.datatypes import Score
from sql_agent.credit.grpo import GroupRelative
from sql_agent.credit.reinforce import RewardToGo
from sql_agent.credit.rloo import LeaveOneOut
from sql_agent.credit.row import Turn, stitch
from sql_agent.datatypes import FunctionReward, ScorerResult
from sql_agent.rewards import summed_reward, without_function
from sql_agent.settings.groups import RewardModelConfig
from sql_agent.source.batch import CREDIT, to_tensors
from sql_agent.source.dynamic_sampling import credit_group, credit_groups, zero_variance
from sql_agent.source.run_context import trajectory_line
from sql_agent.tests.records import make_record, make_result, make_row, rewarded, travelled

RIGHT = Score(1.0, "match")

# from the function to the row -----------------------------------------------------------------------------------------


def test_one_number_is_earned_in_the_last_turn():
    given = {"f": FunctionReward(1.5, turns=[0.5, 1.0]), "g": FunctionReward(3.0)}
    reward = summed_reward(make_record(RIGHT, num_turns=2), {"agentbench": 1.0, "a:f": 2.0, "a:g": -0.5}, given)
    # 1 + 2 x 1.5 - 0.5 x 3; turn 1 has 2 x 0.5, turn 2 has 2 x 1 + 1 - 1.5
    assert (reward.value, reward.by_turn(2)) == (2.5, [1.0, 1.5])
    assert reward.parts["f"] == 1.5
    assert without_function(reward, "g", "away").by_turn(2) == [1.0, 3.0]
    assert without_function(reward, "f", "away").by_turn(2) is None


def test_the_reward_models_score_is_earned_in_the_last_turn():
    given, shaping = {"f": FunctionReward(1.5, turns=[0.5, 1.0])}, RewardModelConfig(weight=0.2)
    reward = summed_reward(make_record(RIGHT, num_turns=2), {"a:f": 1.0}, given, ScorerResult(1e9), shaping)
    assert reward.by_turn(2) == [0.5, 1.2]


# turns of 2 and 1 sampled tokens, with a tool result of 2 between
TURNS = [Turn((1, 2), (3, 4), (-0.1, -0.2)), Turn((1, 2, 3, 4, 9, 9), (5,), (-0.3,))]


def played(group, *turns, weights=None, row=None, lost=None):
    """A rollout whose function gave a number per turn; one number is the rollout's."""
    row = row or stitch(TURNS, max_response_tokens=100)
    given = FunctionReward(turns[0]) if len(turns) == 1 else FunctionReward(sum(turns), turns=list(turns))
    record = make_record(RIGHT, num_turns=2)
    outcome = travelled(rewarded(record, summed_reward(record, weights or {"a:f": 1.0}, {"f": given})))
    return make_result(group, outcome, lost, row=None if lost else row)


def test_a_turn_ends_with_its_last_sampled_token():
    row = stitch(TURNS, max_response_tokens=100)
    assert (row.ids, row.sampled) == ((1, 2, 3, 4, 9, 9, 5), (0, 0, 1, 1, 0, 0, 1))
    assert row.turn_ends == (4, 7)
    assert stitch(TURNS, max_response_tokens=4).turn_ends == (4,)


def test_in_the_batch_each_turns_advantage_stands_on_its_sampled_tokens_and_the_reward_at_the_end():
    results = [played("a", 2.0, 1.0), played("a", 0.0, 0.0), played("a", 1.0, 1.0, lost="late")]
    credit_group(results, GroupRelative())
    batch = to_tensors([r.row for r in results], [r.reward for r in results], pad_id=0)
    # {2, 1, 0, 0}: mean 3/4, std sqrt((25 + 1 + 9 + 9) / 16 / 3) = 0.95743: 1.30558, 0.26112, -0.78335 twice
    expected = [[1.56670, 1.56670, 0, 0, 0.26112], [-1.56670, -1.56670, 0, 0, -0.78335], [0] * 5]
    np.testing.assert_allclose(batch[CREDIT], expected, atol=1e-4)
    assert batch["rm_scores"].tolist() == [[0, 0, 0, 0, 3.0], [0] * 5, [0] * 5]


LONGER = stitch([Turn((1, 2), (3, 4, 5), (-0.1, -0.2, -0.3))], max_response_tokens=100)


def test_whitened_advantages_have_mean_0_and_std_1_over_the_sampled_tokens_of_the_step():
    # tokens: 2 and 1 of the first rollout's turns, 3 of each other; credits 3, 3, 1, 0, 0, 0, 1, 1, 1
    groups = [[played("a", 2.0, 1.0), played("a", 0.0, row=LONGER)], [played("b", 1.0), played("b", 1.0, lost="late")]]
    credit_groups(groups, RewardToGo(), whiten=True)
    # mean 10/9, unbiased variance (22 - 100/9) / 8 = 1.36111, std 1.16667
    by_turn = [each.turn_advantages for each in groups[0]]
    assert by_turn == [pytest.approx([1.61905, -0.09524], abs=1e-5), pytest.approx([-0.95238], abs=1e-5)]
    assert [each.advantage for each in groups[1]] == [pytest.approx(-0.09524, abs=1e-5), None]
    assert groups[0][0].row.credit == pytest.approx((0, 0, 1.61905, 1.61905, 0, 0, -0.09524), abs=1e-5)


@pytest.mark.parametrize("rewards", [[1.0], [0.1, 0.1, 0.1]])  # the mean of nine 0.1 is off by rounding
def test_a_step_of_equal_credits_whitens_to_0_or_is_not_trained_on(rewards):
    for zeros, advantage in ((True, 0.0), (False, None)):
        group = [played("a", reward) for reward in rewards]
        credit_groups([group], RewardToGo(), whiten=True, zeros=zeros)
        assert [each.advantage for each in group] == [advantage] * len(group)


def test_a_rollout_that_is_credited_whole_has_no_advantages_of_turns():
    group = [played("a", 2.0, 1.0), played("a", 0.0)]
    credit_groups([group], LeaveOneOut())
    assert [(each.advantage, each.turn_advantages) for each in group] == [(3.0, None), (-3.0, None)]


@pytest.mark.slow  # imports verl
@pytest.mark.parametrize(
    ("estimator", "name"),
    [
        (RewardToGo(), "compute_reinforce_plus_plus_outcome_advantage"),
        (GroupRelative(scale=False), "compute_reinforce_plus_plus_baseline_outcome_advantage"),
    ],
)
def test_whitened_advantages_are_those_of_verls_reinforce_plus_plus(estimator, name):
    import torch
    from verl.trainer.ppo import core_algos

    groups = [[played(name, reward, row=row) for reward, row in zip(rewards, (None, LONGER, None), strict=True)]
              for name, rewards in (("a", (1.0, 0.0, 0.25)), ("b", (0.0, 0.0, 0.0)))]  # fmt: skip
    credit_groups(groups, estimator, whiten=True, zeros=False)
    results = [each for group in groups for each in group]
    batch = to_tensors([r.row for r in results], [r.reward for r in results], pad_id=0)
    theirs, _ = getattr(core_algos, name)(
        token_level_rewards=batch["rm_scores"], response_mask=batch["response_mask"].float(),
        index=np.array(["a"] * 3 + ["b"] * 3), config=SimpleNamespace(gamma=1.0),
    )  # fmt: skip
    torch.testing.assert_close(batch[CREDIT], theirs, rtol=0, atol=1e-6)


def test_what_a_row_has_lost_is_earned_by_its_last_turn():
    cut = stitch(TURNS, max_response_tokens=4)
    assert (cut.dropped_turns, played("a", 2.0, 0.5, row=cut).turn_rewards) == (1, [2.5])


def test_the_trajectories_have_the_advantages_that_verl_trains_on():
    by_turn = [played("a", 2.0, 1.0), played("a", 0.0, 0.0), played("a", 0.75), played("a", 9.0, 9.0, lost="late")]
    whole = [played("b", 1.0), played("b", 0.0)]
    for group in (by_turn, whole):
        credit_group(group, GroupRelative())
    # {2, 1, 0, 0, 0.75}: mean 3/4, unbiased std sqrt((25 + 1 + 9 + 9 + 0) / 16 / 4) = 0.82916
    assert by_turn[0].turn_advantages == pytest.approx([1.5 / 0.82916, 0.25 / 0.82916], abs=1e-4)
    assert by_turn[1].turn_advantages == pytest.approx([-1.5 / 0.82916, -0.75 / 0.82916], abs=1e-4)
    assert by_turn[2].turn_advantages == [0.0]
    assert [result.turn_advantages for result in (by_turn[3], *whole)] == [None] * 3
    assert [result.advantage for result in by_turn] == [
        *(result.turn_advantages[0] for result in by_turn[:3]), None,
    ]  # fmt: skip
    assert [result.advantage for result in whole] == pytest.approx([0.7071, -0.7071], abs=1e-4)
    line = trajectory_line(by_turn[0], 1, validate=False)
    assert (line["turn_rewards"], line["turn_advantages"]) == ([2.0, 1.0], by_turn[0].turn_advantages)
    assert "turn_rewards" not in trajectory_line(whole[0], 1, validate=False)


@pytest.mark.parametrize(
    ("group", "cause"),
    [
        pytest.param([(1.0, 0.0), (0.0, 1.0)], None, id="equal_sums_of_other_turns_teach_something"),
        pytest.param([(1.0, 1.0), (1.0,)], "all_right", id="other_sums_of_equal_turns_teach_nothing"),
    ],
)
def test_a_group_has_spread_where_its_turns_differ(group, cause):
    assert zero_variance([played("a", *turns) for turns in group]) == cause


def test_a_rollout_whose_row_is_whole_but_short_has_one_turn():
    row = make_row((1,), (2,), (1,), (0.0,), num_turns=1, turn_ends=(2,))
    record = make_record(RIGHT, num_turns=1)
    reward = summed_reward(record, {"a:f": 1.0}, {"f": FunctionReward(0.5, turns=[0.5])})
    assert make_result("a", rewarded(record, reward), row=row).turn_rewards == [0.5]


def test_a_rollout_of_several_conversations_has_one_reward():
    apart = [TURNS[0], Turn((7, 8), (5,), (-0.3,))]  # the second goes on from nothing
    row = stitch(apart, max_response_tokens=100, one_conversation=False)
    result = played("a", 0.5, 1.0, row=row)
    assert (row.num_chains, result.turn_rewards, result.reward) == (2, None, 1.5)


def test_so_has_one_whose_row_had_no_room_for_the_other_conversation():
    long = Turn((9,) * 10, (5,), (-0.3,))
    turns = [TURNS[0], long, TURNS[1]]
    row = stitch(turns, max_response_tokens=100, max_row_tokens=12)
    assert (row.num_chains, row.num_turns, row.ids) == (1, 2, (1, 2, 3, 4, 9, 9, 5))
    assert row.turn_ends == ()  # the second turn ended at 9 of 5 tokens when it was taken for the row's second
    assert played("a", 0.5, 1.0, row=row).turn_rewards is None

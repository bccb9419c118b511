"""Rewards of turns: what a token is credited with, hand-worked, from the function's numbers to verl's advantages."""

import numpy as np
import pytest
import torch

from dbbench_adapter.datatypes import Score
from sql_agent.datatypes import FunctionReward, RewardModelConfig, ScorerResult
from sql_agent.rewards import summed_reward, without_function
from sql_agent.rollouts.advantages import (
    ZERO_REWARD,
    masked_group_advantages,
    masked_grpo,
    masked_turn_advantages,
)
from sql_agent.rollouts.batch import to_tensors
from sql_agent.rollouts.datatypes import RolloutOutcome, Trajectory, Turn
from sql_agent.rollouts.dynamic_sampling import no_spread
from sql_agent.rollouts.run_context import trajectory_line
from sql_agent.rollouts.stitch import stitch
from sql_agent.rollouts.turn_rewards import credit_turns, place_turn_rewards, turn_ends
from sql_agent.tests.records import make_record, make_result

RIGHT = Score(1.0, "match")
Z = ZERO_REWARD


# the maths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        # {1, 0, 0, 1}: mean 1/2, unbiased std sqrt(4 x 1/4 / 3) = 0.57735, normalised +-0.86603; later ones are added
        pytest.param([[1, Z], [Z, 1]], [[0, -0.86603], [0, 0.86603]], id="what_came_before_is_not_credited"),
        # {2, 1, 0, 0}: mean 3/4, std sqrt((25 + 1 + 9 + 9) / 16 / 3) = 0.95743: 1.30558, 0.26112, -0.78335 twice
        pytest.param([[2, 1], [Z, Z]], [[1.56670, 0.26112], [-1.56670, -0.78335]], id="later_turns_add_up"),
        # {0, 1, 0}: mean 1/3, std sqrt((1 + 4 + 1) / 9 / 2) = 0.57735: -0.57735, 1.15470, -0.57735
        pytest.param([[Z, 1], [0, 0]], [[0.57735, 1.15470], [-0.57735, -0.57735]], id="beside_a_rollout_of_one_number"),
        pytest.param([[1, 1, 1], [0, 0, 1]], [[0, 0, 0], [0, 0, 0]], id="equal_turns_teach_nothing_however_many"),
    ],
)
def test_a_turn_is_credited_with_its_own_and_later_rewards_against_all_turns_of_the_group(rewards, expected):
    rewards = torch.tensor(rewards, dtype=torch.float32)
    found = masked_turn_advantages(rewards, torch.tensor([True, True]), np.zeros(2))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_turn_that_earned_0_is_equal_to_a_rollout_that_did():
    found = masked_turn_advantages(torch.tensor([[Z, Z], [0.0, 0.0]]), torch.tensor([True, True]), np.zeros(2))
    assert found.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_without_scaling_they_are_centred_only():
    # mean 1/2: the turns are +1/2, -1/2 and -1/2, +1/2
    rewards = torch.tensor([[1.0, Z], [Z, 1.0]])
    found = masked_turn_advantages(rewards, torch.tensor([True, True]), np.zeros(2), scale=False)
    np.testing.assert_allclose(found, [[0, -0.5], [0, 0.5]], atol=1e-6)


def test_lost_rollouts_and_other_groups_have_no_part_in_it():
    rewards = torch.tensor([[1.0, Z], [Z, 1.0], [9.0, 9.0], [5.0, 7.0], [3.0, 4.0]])
    judged = torch.tensor([True, True, False, True, True])
    found = masked_turn_advantages(rewards, judged, np.array(["a", "a", "a", "b", "c"]))
    # "b" and "c" have one rollout each: nobody to be compared with
    np.testing.assert_allclose(found, [[0, -0.86603], [0, 0.86603], [0, 0], [0, 0], [0, 0]], atol=1e-4)


def test_where_each_rollout_has_one_reward_it_is_grpo_with_outcomes():
    generator = torch.Generator().manual_seed(0)
    rewards = torch.zeros(24, 7)
    rewards[:, -1] = torch.randint(0, 3, (24,), generator=generator).float()
    judged, groups = torch.rand(24, generator=generator) > 0.2, np.arange(24) // 4
    found = masked_turn_advantages(rewards, judged, groups)
    outcome = masked_group_advantages(rewards.sum(dim=-1), judged, groups)
    torch.testing.assert_close(found, outcome.unsqueeze(-1).expand(24, 7), rtol=0, atol=1e-6)


def test_in_verls_batch_only_the_group_that_has_them_changes():
    # tokens: two of turn 1, a tool result, one of turn 2
    mask = torch.tensor([[1, 1, 0, 1]] * 4)
    rewards = torch.tensor([[0, 2.0, 0, 1.0], [0, Z, 0, Z], [0, 0, 0, 1.0], [0, 0, 0, 0]])
    groups = np.array(["turns", "turns", "outcome", "outcome"])
    found, returned = masked_grpo(rewards, mask, groups)
    expected = [
        [1.56670, 1.56670, 0, 0.26112],
        [-1.56670, -1.56670, 0, -0.78335],
        [0.70711, 0.70711, 0, 0.70711],
        [-0.70711, -0.70711, 0, -0.70711],
    ]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert found is returned


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
TURNS = [Turn((1, 2), (3, 4), (-0.1, -0.2), "stop"), Turn((1, 2, 3, 4, 9, 9), (5,), (-0.3,), "stop")]


def played(group, *turns, weights=None, row=None, lost=None, turns_of=TURNS):
    """A rollout whose function gave a number per turn; one number is the rollout's."""
    row = row or stitch(TURNS, max_response_tokens=100)
    given = FunctionReward(turns[0]) if len(turns) == 1 else FunctionReward(sum(turns), turns=list(turns))
    record = make_record(RIGHT, num_turns=2)
    outcome = RolloutOutcome(record, summed_reward(record, weights or {"a:f": 1.0}, {"f": given}))
    outcome = RolloutOutcome.from_json(outcome.to_json())  # as it travels
    return make_result(group, outcome, lost, trajectory=None if lost else row, turn_ends=turn_ends(turns_of, row))


def test_a_turn_ends_with_its_last_sampled_token():
    row = stitch(TURNS, max_response_tokens=100)
    assert (row.response_ids, row.response_mask) == ((3, 4, 9, 9, 5), (1, 1, 0, 0, 1))
    assert turn_ends(TURNS, row) == (2, 5)
    assert turn_ends(TURNS, stitch(TURNS, max_response_tokens=4)) == (2,)


def test_in_the_batch_each_reward_stands_at_the_end_of_its_turn():
    results = [played("a", 2.0, 0.0), played("a", 0.5), played("a", 1.0, 1.0, lost="late")]
    scores = to_tensors([r.trajectory for r in results], [r.reward for r in results], pad_id=0)["rm_scores"]
    place_turn_rewards(scores, results)
    np.testing.assert_array_equal(scores, torch.tensor([[0, 2.0, 0, 0, Z], [0, 0, 0, 0, 0.5], [0] * 5]))


def test_what_a_row_has_lost_is_earned_by_its_last_turn():
    cut = stitch(TURNS, max_response_tokens=4)
    assert (cut.dropped_turns, played("a", 2.0, 0.5, row=cut).turn_rewards) == (1, [2.5])


def test_the_trajectories_have_the_advantages_that_verl_computes():
    results = [played("a", 2.0, 1.0), played("a", 0.0, 0.0), played("a", 0.7), played("a", 9.0, 9.0, lost="late"),
               played("b", 1.0), played("b", 0.0)]  # fmt: skip
    judged = [r.reward is not None for r in results]
    groups = np.array([r.group for r in results])
    outcome = masked_group_advantages(torch.tensor([r.reward or 0.0 for r in results]), torch.tensor(judged), groups)
    for result, advantage, known in zip(results, outcome.tolist(), judged, strict=True):
        result.advantage = advantage if known else None
    credit_turns(results, scale=True)
    tensors = to_tensors([r.trajectory for r in results], [r.reward for r in results], pad_id=0)
    place_turn_rewards(tensors["rm_scores"], results)
    mask = tensors["response_mask"]
    mask[[not known for known in judged]] = 0
    found, _ = masked_grpo(tensors["rm_scores"], mask, groups)
    assert [result.turn_advantages for result in results] == [
        [float(found[0, 0]), float(found[0, 4])],
        [float(found[1, 0]), float(found[1, 4])],
        [float(found[2, 0])],
        None,
        None,
        None,
    ]
    assert [result.advantage for result in results] == [
        *(float(found[row, 0]) for row in range(3)), None, float(found[4, 0]), float(found[5, 0]),
    ]  # fmt: skip
    line = trajectory_line(results[0], 1, validate=False)
    assert (line["turn_rewards"], line["turn_advantages"]) == ([2.0, 1.0], results[0].turn_advantages)
    assert "turn_rewards" not in trajectory_line(results[4], 1, validate=False)


@pytest.mark.parametrize(
    ("group", "cause"),
    [
        pytest.param([(1.0, 0.0), (0.0, 1.0)], None, id="equal_sums_of_other_turns_teach_something"),
        pytest.param([(1.0, 1.0), (1.0,)], "all_right", id="other_sums_of_equal_turns_teach_nothing"),
    ],
)
def test_a_group_has_spread_where_its_turns_differ(group, cause):
    assert no_spread([played("a", *turns) for turns in group]) == cause


def test_a_rollout_whose_row_is_whole_but_short_has_one_turn():
    row = Trajectory((1,), (2,), (1,), (0.0,), num_turns=1)
    record = make_record(RIGHT, num_turns=1)
    reward = summed_reward(record, {"a:f": 1.0}, {"f": FunctionReward(0.5, turns=[0.5])})
    assert make_result("a", RolloutOutcome(record, reward), trajectory=row, turn_ends=(1,)).turn_rewards == [0.5]


def test_a_rollout_of_several_conversations_has_one_reward():
    apart = [TURNS[0], Turn((7, 8), (5,), (-0.3,), "stop")]  # the second goes on from nothing
    row = stitch(apart, max_response_tokens=100, one_conversation=False)
    result = played("a", 0.5, 1.0, row=row, turns_of=apart)
    assert (row.num_chains, result.turn_rewards, result.reward) == (2, None, 1.5)


def test_so_has_one_whose_row_had_no_room_for_the_other_conversation():
    long = Turn((9,) * 10, (5,), (-0.3,), "stop")
    turns = [TURNS[0], long, TURNS[1]]
    row = stitch(turns, max_response_tokens=100, max_row_tokens=12)
    assert (row.num_chains, row.num_turns, row.response_ids) == (1, 2, (3, 4, 9, 9, 5))
    assert turn_ends(turns, row) == ()  # the second turn ended at 9 of 5 tokens when it was taken for the row's second
    assert played("a", 0.5, 1.0, row=row, turns_of=turns).turn_rewards is None

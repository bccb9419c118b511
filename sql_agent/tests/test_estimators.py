"""Estimators: hand-worked advantages, equality with verl where nothing is lost, and lost rollouts left out."""

import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sql_agent.credit.grpo import GroupRelative
from sql_agent.credit.registry import zero_variance_of
from sql_agent.credit.reinforce import RewardToGo
from sql_agent.credit.rloo import LeaveOneOut

EXACT = {"rtol": 0, "atol": 1e-6}


def of_rollouts(rewards, **options):
    """The advantages of rollouts with one reward each, in float64."""
    found = GroupRelative(float64=True, **options)([None if reward is None else [reward] for reward in rewards])
    return [None if turns is None else turns[0] for turns in found]


@pytest.mark.parametrize(
    ("rewards", "scale", "expected"),
    [
        # mean 0, unbiased std sqrt(2) -> +-1 / 1.41421
        pytest.param([1.0, -1.0], True, [0.70711, -0.70711], id="one_right_one_wrong"),
        # mean -1 / 4 = -0.25; the squares 1.5625 + 0.5625 + 0.3025 + 0.0025 = 2.43, / 3 = 0.81, std 0.9
        pytest.param([1.0, -1.0, -0.8, -0.2], True, [1.38889, -0.83333, -0.61111, 0.05556], id="four_ways_to_end"),
        pytest.param([1.0, -1.0, -0.8, -0.2], False, [1.25, -0.75, -0.55, 0.05], id="centred_only"),
        # the mean of 3 and -1 is 1, not 2/3; std sqrt(8)
        pytest.param([3.0, None, -1.0], True, [0.70711, None, -0.70711], id="unjudged_has_no_place"),
        pytest.param([3.0, None, -1.0], False, [2.0, None, -2.0], id="unjudged_has_no_place_in_the_mean"),
        pytest.param([0.1, 0.1, 0.1], True, [0.0, 0.0, 0.0], id="equal_rewards_are_exactly_0"),
        pytest.param([None, 1.0], True, [None, 0.0], id="a_lone_judged_rollout_has_no_peer"),
        pytest.param([None, None], True, [None, None], id="nothing_judged"),
        pytest.param([], True, [], id="no_rollout"),
    ],
)
def test_a_rollout_is_credited_relative_to_its_group(rewards, scale, expected):
    found = of_rollouts(rewards, scale=scale)
    assert [None if value is None else round(value, 5) for value in found] == expected


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        # {1, 0, 0, 1}: mean 1/2, unbiased std sqrt(4 x 1/4 / 3) = 0.57735, normalised +-0.86603; later ones are added
        pytest.param([[1, 0], [0, 1]], [[0, -0.86603], [0, 0.86603]], id="what_came_before_is_not_credited"),
        # {2, 1, 0, 0}: mean 3/4, std sqrt((25 + 1 + 9 + 9) / 16 / 3) = 0.95743: 1.30558, 0.26112, -0.78335 twice
        pytest.param([[2, 1], [0, 0]], [[1.56670, 0.26112], [-1.56670, -0.78335]], id="later_turns_add_up"),
        # {0, 1, 0}: mean 1/3, std sqrt((1 + 4 + 1) / 9 / 2) = 0.57735: -0.57735, 1.15470, -0.57735
        pytest.param([[0, 1], [0]], [[0.57735, 1.15470], [-0.57735]], id="beside_a_rollout_of_one_number"),
        pytest.param([[1, 1, 1], [1]], [[0, 0, 0], [0]], id="equal_turns_teach_nothing_however_many"),
        pytest.param([[1, 0], [0, 1], None], [[0, -0.86603], [0, 0.86603], None], id="a_lost_one_has_no_place"),
        pytest.param([[5, 7]], [[0, 0]], id="one_alone_has_no_peer"),
    ],
)
def test_a_turn_is_credited_with_its_own_and_later_rewards_against_all_turns_of_the_group(rewards, expected):
    found = GroupRelative()(rewards)
    assert [turns and pytest.approx(turns, abs=1e-4) for turns in expected] == found


def test_without_scaling_turns_are_centred_only():
    # mean 1/2: the turns are +1/2, -1/2 and -1/2, +1/2
    assert GroupRelative(scale=False)([[1, 0], [0, 1]]) == [[0, -0.5], [0, 0.5]]


@pytest.mark.parametrize("value", [-0.8, -0.3, -0.2, 0.1, 1.0])
@pytest.mark.parametrize("estimator", [GroupRelative(), LeaveOneOut()])
def test_equal_rewards_teach_exactly_nothing(estimator, value):
    """In float32 the mean of eight -0.8 is not -0.8; the difference over eps is 0.056."""
    assert estimator([[value]] * 8) == [[0.0]] * 8


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_is_refused_and_none_is_named(reward):
    for reads in (GroupRelative(), RewardToGo(), LeaveOneOut(), lambda group: zero_variance_of(group, [None, None])):
        with pytest.raises(ValueError, match="None says that one was not judged"):
            reads([[1.0], [reward]])


REWARDS = st.lists(st.none() | st.floats(-1, 1).map(lambda reward: round(reward, 2)), max_size=8)


@settings(max_examples=60)
@given(REWARDS, st.booleans())
def test_advantages_of_the_judged_sum_to_0_and_keep_their_order(rewards, scale):
    judged = [
        (reward, advantage)
        for reward, advantage in zip(rewards, of_rollouts(rewards, scale=scale), strict=True)
        if reward is not None and advantage is not None
    ]
    assert len(judged) == sum(reward is not None for reward in rewards)
    assert abs(sum(advantage for _, advantage in judged)) < 1e-9
    by_reward = [advantage for _, advantage in sorted(judged)]
    assert all(low <= high + 1e-12 for low, high in pairwise(by_reward))


def test_rloo_credits_a_rollout_against_the_mean_of_the_others():
    # 1 - (0 + 0.5) / 2, 0 - (1 + 0.5) / 2, 0.5 - (1 + 0) / 2; the turns of a rollout are added up
    assert LeaveOneOut()([[1.0], [0.0], None, [0.25, 0.25]]) == [[0.75], [-0.75], None, [0.0]]
    assert LeaveOneOut()([None, [1.0]]) == [None, [0.0]]
    assert LeaveOneOut()([None, None]) == [None, None]


def test_reinforce_credits_what_followed():
    assert RewardToGo()([[1.0, 0.5, -0.25], [0.75], None]) == [[1.25, 0.25, -0.25], [0.75], None]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", [True, False])
def test_equal_to_verl_where_everything_is_judged(scale, seed):
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    rewards = torch.randn(8, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    theirs, _ = compute_grpo_outcome_advantage(
        rewards.clone(), torch.ones(8, 1), np.zeros(8), norm_adv_by_std_in_grpo=scale
    )
    np.testing.assert_allclose(of_rollouts(rewards.squeeze(1).tolist(), scale=scale), theirs.squeeze(1), **EXACT)


@pytest.mark.slow
def test_rloo_is_verls_where_everything_is_judged():
    from verl.trainer.ppo.core_algos import compute_rloo_outcome_advantage

    rewards = torch.randn(8, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theirs, _ = compute_rloo_outcome_advantage(rewards.clone(), torch.ones(8, 1), np.zeros(8))
    torch.testing.assert_close(torch.tensor(LeaveOneOut()(rewards.tolist())), theirs.float())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["compute_grpo_outcome_advantage", "compute_rloo_outcome_advantage"])
def test_verl_gives_a_lone_rollout_its_reward_and_we_give_0(name):
    from verl.trainer.ppo import core_algos

    theirs, _ = getattr(core_algos, name)(torch.tensor([[-0.8]]), torch.ones(1, 1), np.zeros(1))
    assert theirs.item() == pytest.approx(-0.8)
    assert of_rollouts([-0.8]) == [0.0]
    assert LeaveOneOut()([[-0.8]]) == [[0.0]]


@pytest.mark.slow
def test_verl_credits_equal_rewards_by_rounding_and_we_give_0():
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    # the float32 mean of eight times -0.8 is 6e-8 off, and so is the std: 6e-8 / (6e-8 + 1e-6) = 0.056
    theirs, _ = compute_grpo_outcome_advantage(torch.full((8, 1), -0.8), torch.ones(8, 1), np.zeros(8))
    torch.testing.assert_close(theirs, torch.full((8, 1), 0.056), rtol=0, atol=1e-3)
    assert of_rollouts([-0.8] * 8) == [0.0] * 8


@pytest.mark.slow
def test_reinforces_returns_are_verls_without_its_whitening():
    """verl's REINFORCE++ credits the reward to go, and whitens it over the batch."""
    from verl.trainer.ppo.core_algos import compute_reinforce_plus_plus_outcome_advantage

    group = [[1.0, 0.5, -0.25], [0.75, 0.0, 2.0]]
    _, returns = compute_reinforce_plus_plus_outcome_advantage(
        torch.tensor(group), torch.ones(2, 3), config=SimpleNamespace(gamma=1.0)
    )
    assert RewardToGo()(group) == returns.tolist()

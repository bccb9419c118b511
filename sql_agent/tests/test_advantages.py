"""Group advantages: hand-worked numbers, equality with verl where nothing is lost, and lost rollouts left out."""

import numpy as np
import pytest
import torch

from sql_agent.rollouts.advantages import masked_group_advantages, masked_grpo


@pytest.mark.parametrize(
    ("returns", "judged", "expected"),
    [
        # mean 0.5, unbiased std 0.7071 -> (1 - 0.5) / 0.7071
        pytest.param([1.0, 0.0], [True, True], [0.7071, -0.7071], id="one_right_one_wrong"),
        pytest.param([1.0, 1.0], [True, True], [0.0, 0.0], id="all_right_carries_no_signal"),
        # the third row is out: mean 0.5 over two, not 1/3 over three
        pytest.param([1.0, 0.0, 0.0], [True, True, False], [0.7071, -0.7071, 0.0], id="lost_row_has_no_place"),
        pytest.param([1.0, 0.0, 0.0], [True, False, False], [0.0, 0.0, 0.0], id="a_lone_rollout_has_no_peer"),
        pytest.param([1.0, 0.0], [False, False], [0.0, 0.0], id="all_lost"),
    ],
)
def test_masked_group_advantages(returns, judged, expected):
    result = masked_group_advantages(torch.tensor(returns), torch.tensor(judged), np.zeros(len(returns)))
    np.testing.assert_allclose(result, expected, atol=1e-4)


def test_without_scaling_advantages_are_centred_returns():
    # mean (1 + 0 + 0.5) / 3 = 0.5
    result = masked_group_advantages(torch.tensor([1.0, 0.0, 0.5]), torch.tensor([True] * 3), np.zeros(3), scale=False)
    np.testing.assert_allclose(result, [0.5, -0.5, 0.0], atol=1e-6)


def test_a_lost_rollouts_reward_changes_nothing():
    judged, groups = torch.tensor([True, True, False]), np.array(["a", "a", "a"])
    as_zero = masked_group_advantages(torch.tensor([1.0, 0.0, 0.0]), judged, groups)
    as_seven = masked_group_advantages(torch.tensor([1.0, 0.0, 7.0]), judged, groups)
    assert torch.equal(as_zero, as_seven)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [True, False])
def test_equal_to_verl_where_nothing_is_lost(scale):
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    generator = torch.Generator().manual_seed(0)
    rewards = torch.zeros(24, 7)
    rewards[:, -1] = torch.randint(0, 3, (24,), generator=generator).float()
    mask = (torch.rand(24, 7, generator=generator) > 0.3).long()
    mask[:, 0] = 1
    groups = np.array([f"task-{i // 4}" for i in range(24)])
    ours, _ = masked_grpo(rewards, mask, groups, {"norm_adv_by_std_in_grpo": scale})
    theirs, _ = compute_grpo_outcome_advantage(rewards, mask, groups, norm_adv_by_std_in_grpo=scale)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_advantages_stand_on_sampled_tokens_only():
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 0, 1], [1, 1, 0]])
    per_token, _ = masked_grpo(rewards, mask, np.array(["a", "a"]))
    np.testing.assert_allclose(per_token, [[0.7071, 0, 0.7071], [-0.7071, -0.7071, 0]], atol=1e-4)


@pytest.mark.parametrize("value", [-0.8, -0.3, -0.2, 0.1, 1.0])
def test_equal_rewards_teach_exactly_nothing(value):
    """In float32 the mean of eight -0.8 is not -0.8; the difference over eps is 0.056."""
    returns = torch.full((8,), value)
    advantages = masked_group_advantages(returns, torch.ones(8, dtype=torch.bool), np.zeros(8))
    assert advantages.tolist() == [0.0] * 8

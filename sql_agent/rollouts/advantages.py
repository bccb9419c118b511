"""Computes group-relative advantages of whole rollouts and of their turns, without the lost rollouts.

verl's own estimator counts every row in its group's mean and std. A lost rollout has no reward, which is not the same
as a reward of 0, so it is left out here. Its empty response mask marks it. Leaves out which group is trained on
(`dynamic_sampling`).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import torch


def masked_group_advantages(
    returns: torch.Tensor, judged: torch.Tensor, groups: np.ndarray, *, scale: bool = True, eps: float = 1e-6
) -> torch.Tensor:
    """Credit each judged rollout relative to the judged rollouts of its group.

    Args:
        returns: one return per rollout, shape (P * G,); values where `judged` is False are ignored.
        judged: bool, shape (P * G,); False for a lost rollout.
        groups: the group each rollout belongs to, shape (P * G,).
        scale: divide by the group's unbiased std; False only centres (arXiv:2503.20783).
        eps: keeps an all-equal group at 0 rather than NaN.
    Returns:
        Advantages, shape (P * G,); 0 for lost rollouts and for a rollout whose peers were all lost.
    Source:
        GRPO, arXiv:2402.03300 sec. 4.1.2; equal to verl core_algos.py `compute_grpo_outcome_advantage` where nothing is
        lost. Differences: verl gives a lone rollout its raw return as advantage, here it is 0 (no peer to compare
        with); a group of equal returns is exactly 0 here, in verl up to 0.06 by rounding.
    """
    advantages = torch.zeros_like(returns)
    for rows in _with_peers(judged, groups):
        returns_G = returns[rows]
        if bool((returns_G == returns_G[0]).all()):
            continue  # in float32 the mean of eight -0.8 is off by 6e-8, which divided by eps would be 0.056
        centred_G = returns_G - returns_G.mean()
        advantages[rows] = centred_G / (returns_G.std() + eps) if scale else centred_G
    return advantages


def _with_peers(judged: torch.Tensor, groups: np.ndarray) -> list[list[int]]:
    """The judged rows of each group that has two or more."""
    members: defaultdict[Any, list[int]] = defaultdict(list)
    for row, group in enumerate(groups):
        if judged[row]:
            members[group].append(row)
    return [rows for rows in members.values() if len(rows) > 1]


ZERO_REWARD = 1e-30
"""Stands for a reward of 0 at the end of a turn, because 0 itself marks tokens that do not end a turn. Added to any
other reward, it disappears in float32."""


def masked_turn_advantages(
    rewards: torch.Tensor, judged: torch.Tensor, groups: np.ndarray, *, scale: bool = True, eps: float = 1e-6
) -> torch.Tensor:
    """Credit each turn with its own reward and those of later turns, relative to all turns of its group.

    Args:
        rewards: shape (P * G, T): the reward of each turn at its end (`ZERO_REWARD` for 0), and 0 elsewhere. T
            counts tokens or turns. A row of zeros is a rollout with a reward of 0 at its end.
        judged: bool, shape (P * G,); False for a lost rollout.
        groups: the group each rollout belongs to, shape (P * G,).
        scale: divide by the unbiased std of the group's rewards; False only centres.
        eps: keeps an all-equal group at 0 rather than NaN.
    Returns:
        Advantages, shape (P * G, T): the sum of the normalised rewards from that place to the end. 0 for lost rollouts,
        for groups with fewer than two judged rollouts, and where all rewards of the group are equal.
    Source:
        GRPO with process supervision, arXiv:2402.03300 sec. 4.1.3. Equal to `masked_group_advantages` where each
        rollout has one reward, at its end. verl 0.9.1 (core_algos.py) has outcome supervision only.
    """
    advantages = torch.zeros_like(rewards)
    for rows in _with_peers(judged, groups):
        earned = rewards[rows]
        ends = earned != 0
        ends[~ends.any(dim=-1), -1] = True
        earned = torch.where(earned.abs() <= ZERO_REWARD, 0.0, earned)
        rewards_N = earned[ends]  # of all turns of the group
        if bool((rewards_N == rewards_N[0]).all()):
            continue
        normalised = torch.zeros_like(earned)
        centred_N = rewards_N - rewards_N.mean()
        normalised[ends] = centred_N / (rewards_N.std() + eps) if scale else centred_N
        advantages[rows] = normalised.flip(-1).cumsum(-1).flip(-1)
    return advantages


def rewarded_by_turn(rewards: torch.Tensor, groups: np.ndarray) -> torch.Tensor:
    """Return which rows belong to a group with a rollout that has rewards for several turns, bool, shape (P * G,)."""
    several = {group for group, row in zip(groups, rewards, strict=True) if int((row != 0).sum()) > 1}
    return torch.tensor([group in several for group in groups], dtype=torch.bool)


def masked_grpo(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray, config: Any = None, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute advantages behind verl's estimator interface; `sql_agent.verl_side.plugin` registers it as `masked_grpo`.

    Args:
        token_level_rewards: shape (P * G, T).
        response_mask: shape (P * G, T); a row without a 1 is a lost rollout.
        index: verl's `uid`, the group of each row.
        config: verl's `AlgoConfig`; `norm_adv_by_std_in_grpo` chooses the scaling.
    Returns:
        Advantages and returns, the same tensor twice as in verl's GRPO, shape (P * G, T): at each sampled token the
        rollout's advantage, or the turn's (`masked_turn_advantages`) in a group with rewards of turns; 0 elsewhere.
    """
    scale = True if config is None else bool(config.get("norm_adv_by_std_in_grpo", True))
    with torch.no_grad():
        judged = response_mask.bool().any(dim=-1)
        advantages = masked_group_advantages(token_level_rewards.sum(dim=-1), judged, index, scale=scale)
        per_token = advantages.unsqueeze(-1) * response_mask
        by_turn = rewarded_by_turn(token_level_rewards, index)
        if bool(by_turn.any()):
            turns = masked_turn_advantages(token_level_rewards, judged & by_turn, index, scale=scale)
            per_token[by_turn] = (turns * response_mask)[by_turn]
    return per_token, per_token

"""Group-relative advantages that leave out rollouts without a reward.

verl's own estimator counts every row in its group's mean and std. A lost rollout has no reward, which is not a reward
of 0, so it is left out here; its empty response mask marks it. Leaves out which group is trained on
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
    members: defaultdict[Any, list[int]] = defaultdict(list)
    for row, group in enumerate(groups):
        if judged[row]:
            members[group].append(row)
    advantages = torch.zeros_like(returns)
    for rows in members.values():
        if len(rows) < 2:
            continue
        returns_G = returns[rows]
        if bool((returns_G == returns_G[0]).all()):
            continue  # in float32 the mean of eight -0.8 is off by 6e-8, which divided by eps would be 0.056
        centred_G = returns_G - returns_G.mean()
        advantages[rows] = centred_G / (returns_G.std() + eps) if scale else centred_G
    return advantages


def masked_grpo(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray, config: Any = None, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """verl's advantage-estimator interface; registered as `masked_grpo` by `sql_agent.verl_side.plugin`.

    Args:
        token_level_rewards: shape (P * G, T).
        response_mask: shape (P * G, T); a row without a 1 is a lost rollout.
        index: verl's `uid`, the group of each row.
        config: verl's `AlgoConfig`; `norm_adv_by_std_in_grpo` chooses the scaling.
    Returns:
        Advantages and returns, the same tensor twice as in verl's GRPO, shape (P * G, T): the rollout's advantage at
        each sampled token, 0 elsewhere.
    """
    scale = True if config is None else bool(config.get("norm_adv_by_std_in_grpo", True))
    with torch.no_grad():
        advantages = masked_group_advantages(
            token_level_rewards.sum(dim=-1), response_mask.bool().any(dim=-1), index, scale=scale
        )
        per_token = advantages.unsqueeze(-1) * response_mask
    return per_token, per_token

"""GRPO: rewards are compared within their group, and the policy's ratio is clipped. arXiv:2402.03300."""

from __future__ import annotations

import torch

from sql_agent.credit.losses import LossInputs, LossOutput, log_prob_ratio, pessimistic
from sql_agent.credit.registry import CreditSettings, Group, ratio_range, scored


class GroupRelative(CreditSettings):
    """Credits each turn with its own reward and those of later turns, relative to all turns of its group.

    Where each rollout has one reward, this is GRPO with outcome supervision (sec. 4.1.2, verl core_algos.py
    `compute_grpo_outcome_advantage`); with rewards of turns it is process supervision (sec. 4.1.3), which verl 0.9.1
    does not have. Differences: verl gives a lone rollout its raw reward, here it gets 0 (no peer to compare with); a
    group of equal rewards is exactly 0 here, in verl up to 0.06 by rounding.
    """

    float64: bool = False
    """Compute in float64; False: in float32, as verl."""

    def __call__(self, rewards: Group) -> list[list[float] | None]:
        """One advantage per turn, mean 0, in unbiased stds of the group (reward units without `scale`); None if lost.

        Raises:
            ValueError: a reward is NaN or infinite.
        """
        known = scored(rewards)
        dtype = torch.float64 if self.float64 else torch.float32
        rewards_N = torch.tensor([reward for turns in known for reward in turns], dtype=dtype)
        # in float32 the mean of eight -0.8 is off by 6e-8, which divided by eps would be 0.056
        if len(known) < 2 or bool((rewards_N == rewards_N[0]).all()):
            return [None if turns is None else [0.0] * len(turns) for turns in rewards]
        centred_N = rewards_N - rewards_N.mean()
        normalised_N = centred_N / (rewards_N.std() + 1e-6) if self.scale else centred_N
        parts = iter(normalised_N.split([len(turns) for turns in known]))
        return [None if turns is None else next(parts).flip(-1).cumsum(-1).flip(-1).tolist() for turns in rewards]


class ClippedRatio(CreditSettings):
    """PPO's clipped surrogate (arXiv:1707.06347 eq. 7), GRPO's loss without its KL (arXiv:2402.03300 eq. 3).

    The ratio is clipped to 1 - clip_ratio and 1 + clip_ratio_high.

    Source: TRL `GRPOTrainer._compute_loss`. The main job takes verl core_algos.py `compute_policy_loss_vanilla`, whose
    second clip (arXiv:1912.09729) ends the loss of a token at 3 times its advantage.
    """

    def __call__(self, inputs: LossInputs) -> LossOutput:
        ratio = log_prob_ratio(inputs.log_probs, inputs.old_log_probs)
        return pessimistic(ratio, ratio_range(self), inputs.advantages)

"""Losses that bound the ratio of probabilities in other ways than PPO: per sequence, as a constant, or by a gate."""

from __future__ import annotations

import torch

from sql_agent.credit.losses import LossInputs, LossOutput, log_prob_ratio, pessimistic
from sql_agent.credit.registry import CreditSettings, ratio_range

TAU_POSITIVE, TAU_NEGATIVE = 1.0, 1.05
"""Temperatures of SAPO's gate by the sign of the advantage; verl's `actor.tau_pos` and `tau_neg`, as its paper has."""


class SequenceRatio(CreditSettings):
    """GSPO: every token has the geometric mean of its sequence's ratios, which PPO's surrogate clips.

    Source: arXiv:2507.18071, GSPO-token (sec. 4.3), verl core_algos.py `compute_policy_loss_gspo`. The paper clips at
    3e-4 and 4e-4, and weighs sequences alike (`seq-mean-token-mean`).
    """

    def __call__(self, inputs: LossInputs) -> LossOutput:
        log_ratio = inputs.log_probs - inputs.old_log_probs
        mean = log_ratio.sum(-1, keepdim=True) / inputs.mask.sum(-1, keepdim=True).clamp(min=1)
        ratio = torch.exp(mean.detach() + inputs.log_probs - inputs.log_probs.detach())
        return pessimistic(ratio, ratio_range(self), inputs.advantages)


class ConstantRatio(CreditSettings):
    """CISPO: the clipped ratio is a constant weight of REINFORCE's loss, so that no token loses its gradient.

    Source: arXiv:2506.13585 eq. 4 and 5, verl core_algos.py `compute_policy_loss_cispo`.
    """

    def __call__(self, inputs: LossInputs) -> LossOutput:
        ratio = log_prob_ratio(inputs.log_probs, inputs.old_log_probs).detach()
        clipped = ratio.clamp(*ratio_range(self))
        return LossOutput(-clipped * inputs.advantages * inputs.log_probs, clipped != ratio)


class SoftGate(CreditSettings):
    """SAPO: a sigmoid of the ratio in place of the clip, steeper for negative advantages.

    Source: arXiv:2511.20347, verl core_algos.py `compute_policy_loss_sapo`, which always weighs sequences alike.
    """

    def __call__(self, inputs: LossInputs) -> LossOutput:
        tau = torch.where(inputs.advantages > 0, TAU_POSITIVE, TAU_NEGATIVE).to(inputs.log_probs.dtype)
        gate = torch.sigmoid(tau * (log_prob_ratio(inputs.log_probs, inputs.old_log_probs) - 1)) * 4 / tau
        return LossOutput(-gate * inputs.advantages)

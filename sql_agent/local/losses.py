"""Computes the local trainers' losses: REINFORCE and GRPO, with group advantages, KL estimators and token weights.

These are pure functions on tensors of shape (B, T): B sequences, T tokens. `mask` is 1 on the tokens that the policy
sampled, 0 on prompts, tool results and padding. Values where it is 0 may be anything, even NaN, and affect neither loss
nor gradient. A loss is a weighted sum over tokens: `token_weights` is computed once for the whole batch, so the losses
of its micro-batches add up to that of the batch. Leaves out the model, the optimiser and the treatment of a loss that
is not finite; nothing is clamped to hide one. doc/local_losses.md has formulas and differences to verl and TRL.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from sql_agent.rollouts.advantages import masked_group_advantages

Aggregation = Literal["seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm"]
"""How token losses become one number, with verl's names: GRPO's paper, DAPO, Dr. GRPO."""


def has_spread(rewards_G: Sequence[float | None]) -> bool:
    """Return whether a group has spread: two or more judged rewards that differ.

    Raises:
        ValueError: a reward is NaN or infinite.
    """
    return len(set(_judged(rewards_G))) > 1


def group_advantages(rewards_G: Sequence[float | None], *, scale: bool = True) -> list[float | None]:
    """Credit each rollout of one task relative to its group.

    Args:
        rewards_G: one reward per rollout, None for one that could not be judged.
        scale: divide by the group's unbiased std; False only centres (arXiv:2503.20783).
    Returns:
        One advantage per rollout; None stays None and is left out of mean and std. Exactly 0 if all rewards are equal.
    Raises:
        ValueError: a reward is NaN or infinite.
    Source:
        `sql_agent.rollouts.advantages.masked_group_advantages`, GRPO, arXiv:2402.03300 sec. 4.1.2, in float64.
    """
    if not has_spread(rewards_G):  # 0.1, 0.1, 0.1 have a mean of 0.1 + 1 ulp, and dividing by eps would amplify that
        return [None if reward is None else 0.0 for reward in rewards_G]
    returns = torch.tensor([0.0 if reward is None else reward for reward in rewards_G], dtype=torch.float64)
    judged = torch.tensor([reward is not None for reward in rewards_G])
    advantages = masked_group_advantages(returns, judged, np.zeros(len(rewards_G)), scale=scale).tolist()
    return [None if reward is None else value for reward, value in zip(rewards_G, advantages, strict=True)]


def _judged(rewards_G: Sequence[float | None]) -> list[float]:
    judged = [reward for reward in rewards_G if reward is not None]
    if not all(math.isfinite(reward) for reward in judged):
        raise ValueError(f"rewards must be finite numbers, got {list(rewards_G)}; None says that one was not judged")
    return judged


def log_prob_ratio(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """Return PPO's ratio of a token's new and old probability, exp(new - old), arXiv:1707.06347 sec. 3.

    Args:
        log_probs: under the policy that is trained, shape (B, T).
        old_log_probs: under the policy that sampled, recorded then, shape (B, T); constants without gradient.
    """
    return torch.exp(log_probs - old_log_probs.detach())


def kl_k3(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """Estimate KL(policy, reference) per token by k3 = q / p - 1 - log(q / p), GRPO's term.

    The estimate is unbiased, at least 0, and has low variance. Its expected gradient is that of KL(reference, policy),
    the other direction.

    Args:
        log_probs: log p of tokens sampled from the policy, in nats, shape (B, T).
        ref_log_probs: log q of the same tokens under the reference, shape (B, T); constants.
    Source:
        Schulman, http://joschu.net/blog/kl-approx.html.
    """
    log_ratio = ref_log_probs.detach() - log_probs
    return torch.expm1(log_ratio) - log_ratio


def token_weights(mask_B_T: Tensor, aggregation: Aggregation, *, max_tokens: int | None = None) -> Tensor:
    """Weigh each token so that `loss = (weights * per_token_loss).sum()`.

    The weights are computed once over the whole batch and then cut with it, so that the losses of micro-batches add up
    to the batch's.

    Args:
        mask_B_T: 1 on sampled tokens, shape (B, T), bool or number.
        aggregation: `seq-mean-token-mean` gives sequences equal weight (GRPO), `token-mean` gives tokens equal weight
            (DAPO), `seq-mean-token-sum-norm` divides each sequence's sum by `max_tokens` (Dr. GRPO).
        max_tokens: the constant divisor of `seq-mean-token-sum-norm`; the most tokens that a sequence may sample.
    Returns:
        Weights, shape (B, T), float32, float64 for a float64 mask; 0 where the mask is 0. A row without a 1 weighs 0
        and does not count as a sequence, so a batch of only such rows has weights of 0, not of NaN.
    Raises:
        ValueError: the mask has another shape, the aggregation is unknown, or its `max_tokens` is missing.
    Source:
        verl core_algos.py `agg_loss`.
    """
    if mask_B_T.dim() != 2:
        raise ValueError(f"the mask needs the shape (sequences, tokens), got {tuple(mask_B_T.shape)}")
    if aggregation not in get_args(Aggregation):
        raise ValueError(f"unknown aggregation {aggregation!r}; known: {', '.join(get_args(Aggregation))}")
    sampled = mask_B_T.bool().to(torch.promote_types(mask_B_T.dtype, torch.float32))
    tokens_B_1 = sampled.sum(dim=1, keepdim=True)
    if aggregation == "token-mean":
        return sampled / tokens_B_1.sum().clamp(min=1)
    sequences = (tokens_B_1 > 0).sum().clamp(min=1)
    if aggregation == "seq-mean-token-mean":
        return sampled / tokens_B_1.clamp(min=1) / sequences
    if max_tokens is None or max_tokens < 1:
        raise ValueError(
            f"{aggregation} divides by max_tokens, 1 or more, got {max_tokens}; pass the most a sequence may sample"
        )
    return sampled / max_tokens / sequences


def reinforce_loss(log_probs: Tensor, advantages_B: Tensor, weights: Tensor) -> Tensor:
    """Compute the REINFORCE loss: minus the weighted sum of advantage times log-prob.

    Args:
        log_probs: under the policy that is trained and sampled, shape (B, T).
        advantages_B: one per sequence, shape (B,); constants.
        weights: from `token_weights`, shape (B, T); positions of weight 0 may hold anything.
    Returns:
        The loss, a scalar.
    Raises:
        ValueError: shapes that do not fit together.
    Source:
        Williams 1992, https://doi.org/10.1007/BF00992696.
    """
    _same_shape(log_probs, advantages_B, weights=weights)
    counted = weights != 0
    return -(weights * _only(counted, log_probs) * _only(counted, advantages_B.detach().unsqueeze(1))).sum()


@dataclass(frozen=True)
class GrpoStats:
    """Holds statistics of an update over its sampled tokens; the default has no token.

    They are sums and a count, so that the stats of micro-batches add up to those of the batch: `total = total + stats`.
    """

    tokens: int = 0
    clipped: int = 0
    """Tokens whose ratio was clipped and so has no gradient."""
    ratio_sum: float = 0.0
    ratio_max: float = math.nan
    kl_k3_sum: float | None = None
    """In nats; None without a reference."""

    @property
    def clip_frac(self) -> float:
        """Return the share of clipped tokens, verl's `pg_clipfrac`, TRL's `clip_ratio/region_mean`; NaN if no token."""
        return self.clipped / self.tokens if self.tokens else math.nan

    @property
    def ratio_mean(self) -> float:
        """Return the mean ratio, near 1 while the policy is near the one that sampled; NaN without a token."""
        return self.ratio_sum / self.tokens if self.tokens else math.nan

    @property
    def kl_k3(self) -> float | None:
        """Return KL(policy, reference), nats per token, k3; None without a reference or a token."""
        return None if self.kl_k3_sum is None else self.kl_k3_sum / self.tokens

    def __add__(self, other: GrpoStats) -> GrpoStats:
        if not (self.tokens and other.tokens):
            return self if self.tokens else other
        kl = None if self.kl_k3_sum is None or other.kl_k3_sum is None else self.kl_k3_sum + other.kl_k3_sum
        return GrpoStats(
            tokens=self.tokens + other.tokens,
            clipped=self.clipped + other.clipped,
            ratio_sum=self.ratio_sum + other.ratio_sum,
            ratio_max=float(np.maximum(self.ratio_max, other.ratio_max)),  # unlike max, NaN stays,
            kl_k3_sum=kl,
        )


def grpo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages_B: Tensor,
    mask: Tensor,
    weights: Tensor,
    *,
    clip_ratio: float,
    kl_coef: float = 0.0,
    ref_log_probs: Tensor | None = None,
) -> tuple[Tensor, GrpoStats]:
    """Compute the GRPO loss: PPO's clipped surrogate plus `kl_coef` times KL(policy, reference) by k3.

    Args:
        log_probs: under the policy that is trained, shape (B, T).
        old_log_probs: recorded while sampling, shape (B, T); constants.
        advantages_B: one per sequence, shape (B,); constants.
        mask: 1 on sampled tokens, shape (B, T); where it is 0, the other tensors may hold anything.
        weights: from `token_weights` of the whole batch, shape (B, T).
        clip_ratio: PPO's epsilon, between 0 and 1; the ratio is clipped to 1 - clip_ratio and 1 + clip_ratio.
        kl_coef: weight of the KL, 0 or more.
        ref_log_probs: under the frozen reference, shape (B, T); with `kl_coef` 0 only measured.
    Returns:
        The loss, a scalar, and its stats. A NaN or an infinity on a sampled token reaches both.
    Raises:
        ValueError: shapes do not fit together, `clip_ratio` or `kl_coef` is out of range, or `kl_coef` has no
            reference.
    Source:
        arXiv:2402.03300 eq. 3 with one advantage per rollout; verl `compute_policy_loss_vanilla`, TRL `_compute_loss`.
    """
    if not 0 < clip_ratio < 1:
        raise ValueError(f"clip_ratio must lie between 0 and 1, got {clip_ratio}; 0.2 is usual")
    if not 0 <= kl_coef < math.inf:
        raise ValueError(f"kl_coef must be 0 or more, got {kl_coef}; 0.04 is usual, 0 leaves the KL out")
    if kl_coef and ref_log_probs is None:
        raise ValueError(
            f"kl_coef {kl_coef} needs ref_log_probs, the reference's log-probs; pass them or set kl_coef to 0"
        )
    reference = {} if ref_log_probs is None else {"ref_log_probs": ref_log_probs}
    _same_shape(log_probs, advantages_B, old_log_probs=old_log_probs, mask=mask, weights=weights, **reference)
    sampled = mask.bool()
    log_probs = _only(sampled, log_probs)
    advantages = _only(sampled, advantages_B.detach().unsqueeze(1))
    ratio = log_prob_ratio(log_probs, _only(sampled, old_log_probs))
    unclipped, clipped = ratio * advantages, ratio.clamp(1 - clip_ratio, 1 + clip_ratio) * advantages
    per_token = -torch.minimum(unclipped, clipped)
    kl = None if ref_log_probs is None else kl_k3(log_probs, _only(sampled, ref_log_probs))
    if kl is not None and kl_coef:
        per_token = per_token + kl_coef * kl
    return (weights * per_token).sum(), _stats(sampled, ratio.detach(), clipped < unclipped, kl)


def _stats(sampled: Tensor, ratio: Tensor, clipped: Tensor, kl: Tensor | None) -> GrpoStats:
    if not sampled.any():
        return GrpoStats()
    # One transfer from the device, in float64: float32 counts to 2^24.
    values = [sampled.sum(), clipped.sum(), ratio[sampled].sum(), ratio[sampled].max()]
    values += [] if kl is None else [kl.detach().sum()]
    tokens, clips, ratio_sum, ratio_max, *kl_sum = torch.stack([value.double() for value in values]).tolist()
    return GrpoStats(int(tokens), int(clips), ratio_sum, ratio_max, kl_sum[0] if kl_sum else None)


def _only(counted: Tensor, values: Tensor) -> Tensor:
    """Set values outside `counted` to 0 with `where`; a product would keep NaN, in the loss and in its gradient."""
    return torch.where(counted, values, 0.0)


def _same_shape(log_probs: Tensor, advantages_B: Tensor, **others: Tensor) -> None:
    if log_probs.dim() != 2:
        raise ValueError(f"log_probs need the shape (sequences, tokens), got {tuple(log_probs.shape)}")
    if advantages_B.shape != log_probs.shape[:1]:
        raise ValueError(
            f"advantages_B needs one value per sequence, ({len(log_probs)},), got {tuple(advantages_B.shape)}"
        )
    for name, values in others.items():
        if values.shape != log_probs.shape:
            raise ValueError(
                f"{name} needs the shape of log_probs, {tuple(log_probs.shape)}, got {tuple(values.shape)}"
            )

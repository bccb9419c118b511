"""How the losses of tokens become that of a local trainer's batch, and the KL beside them. Pure functions.

Tensors have the shape (B, T): B sequences, T tokens. A loss is a weighted sum over tokens: `token_weights` is computed
once for the whole batch, so the losses of its micro-batches add up to that of the batch. doc/concepts/losses.md has
formulas and differences to verl and TRL.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from sql_agent.credit.losses import Loss, LossInputs, log_prob_ratio, only, same_shape
from sql_agent.credit.registry import Aggregation


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


@dataclass(frozen=True)
class LossStats:
    """Sums and a count over the sampled tokens of an update, so that the stats of micro-batches add up to those of the
    batch: `total = total + stats`.
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
        """Share of clipped tokens, verl's `pg_clipfrac`, TRL's `clip_ratio/region_mean`; NaN if no token."""
        return self.clipped / self.tokens if self.tokens else math.nan

    @property
    def ratio_mean(self) -> float:
        # It is near 1 while the policy is near the one that sampled; NaN without a token.
        return self.ratio_sum / self.tokens if self.tokens else math.nan

    @property
    def kl_k3(self) -> float | None:
        """Nats per token; None without a reference or a token."""
        return None if self.kl_k3_sum is None else self.kl_k3_sum / self.tokens

    def __add__(self, other: LossStats) -> LossStats:
        if not (self.tokens and other.tokens):
            return self if self.tokens else other
        kl = None if self.kl_k3_sum is None or other.kl_k3_sum is None else self.kl_k3_sum + other.kl_k3_sum
        return LossStats(
            tokens=self.tokens + other.tokens,
            clipped=self.clipped + other.clipped,
            ratio_sum=self.ratio_sum + other.ratio_sum,
            ratio_max=float(np.maximum(self.ratio_max, other.ratio_max)),  # unlike max, it keeps NaN
            kl_k3_sum=kl,
        )


def weighted_loss(
    loss: Loss, inputs: LossInputs, weights: Tensor, *, kl_coef: float = 0.0, ref_log_probs: Tensor | None = None
) -> tuple[Tensor, LossStats]:
    """Compute the weighted sum of a policy loss and of `kl_coef` times KL(policy, reference) by k3.

    Args:
        weights: from `token_weights` of the whole batch, shape (B, T).
        kl_coef: weight of the KL, 0 or more.
        ref_log_probs: under the frozen reference, shape (B, T); with `kl_coef` 0 only measured.
    Returns:
        The loss, a scalar, and its stats. A NaN or an infinity on a sampled token reaches both.
    Raises:
        ValueError: shapes do not fit together, or `kl_coef` has no reference.
    """
    if kl_coef and ref_log_probs is None:
        raise ValueError(
            f"kl_coef {kl_coef} needs ref_log_probs, the reference's log-probs; pass them or set kl_coef to 0"
        )
    same_shape("weights", weights, inputs.log_probs)
    output, kl = loss(inputs), None
    per_token = output.per_token
    if ref_log_probs is not None:
        reference = same_shape("ref_log_probs", ref_log_probs, inputs.log_probs)
        kl = kl_k3(inputs.log_probs, only(inputs.mask.bool(), reference))
        per_token = per_token + kl_coef * kl if kl_coef else per_token
    return (weights * per_token).sum(), _stats(inputs, output.clipped, kl)


def _stats(inputs: LossInputs, clipped: Tensor | None, kl: Tensor | None) -> LossStats:
    sampled = inputs.mask.bool()
    if not sampled.any():
        return LossStats()
    ratio = log_prob_ratio(inputs.log_probs.detach(), inputs.old_log_probs)[sampled]
    # One transfer from the device, in float64: float32 counts to 2^24.
    values = [sampled.sum(), ratio.new_zeros(()) if clipped is None else clipped.sum(), ratio.sum(), ratio.max()]
    values += [] if kl is None else [kl.detach().sum()]
    tokens, clips, ratio_sum, ratio_max, *kl_sum = torch.stack([value.double() for value in values]).tolist()
    return LossStats(int(tokens), int(clips), ratio_sum, ratio_max, kl_sum[0] if kl_sum else None)

"""What a policy loss, a row of `sql_agent.credit.registry`, gets and gives: tensors (B, T), B sequences, T tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LossInputs:
    """What a policy loss may read of a batch, shape (B, T) each.

    Values where `mask` is 0 may be anything, even NaN. They are 0 here, so they affect neither loss nor gradient.

    Raises:
        ValueError: the shapes differ.
    """

    log_probs: Tensor
    """Log-probs in nats under the policy that is trained."""
    old_log_probs: Tensor
    """Log-probs in nats under the policy that sampled; they are constants."""
    advantages: Tensor
    """Advantages of the tokens; they are constants."""
    mask: Tensor
    """1 on sampled tokens, bool or number."""

    def __post_init__(self) -> None:
        if self.log_probs.dim() != 2:
            raise ValueError(f"log_probs need the shape (sequences, tokens), got {tuple(self.log_probs.shape)}")
        same_shape("mask", self.mask, self.log_probs)
        object.__setattr__(self, "log_probs", only(self.mask.bool(), self.log_probs))
        for name in ("old_log_probs", "advantages"):
            values = same_shape(name, getattr(self, name), self.log_probs).detach()
            object.__setattr__(self, name, only(self.mask.bool(), values))


@dataclass(frozen=True)
class LossOutput:
    """What a policy loss gives, shape (B, T) each."""

    per_token: Tensor
    """The loss of each token, neither weighted nor masked."""
    clipped: Tensor | None = None
    """True where the ratio of probabilities was clipped, so that the token has no gradient; None: nowhere."""


Loss = Callable[[LossInputs], LossOutput]


def log_prob_ratio(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """PPO's ratio of a token's new and old probability, exp(new - old), arXiv:1707.06347 sec. 3.

    Args:
        log_probs: under the policy that is trained, shape (B, T).
        old_log_probs: under the policy that sampled, recorded then, shape (B, T); constants without gradient.
    """
    return torch.exp(log_probs - old_log_probs.detach())


def pessimistic(ratio: Tensor, between: tuple[float, float], advantages: Tensor) -> LossOutput:
    """The lower one of ratio and clipped ratio, times the advantage: PPO's surrogate, arXiv:1707.06347 eq. 7."""
    unclipped, clipped = ratio * advantages, ratio.clamp(*between) * advantages
    return LossOutput(-torch.minimum(unclipped, clipped), clipped < unclipped)


def only(counted: Tensor, values: Tensor) -> Tensor:
    """Set values outside `counted` to 0 with `where`; a product would keep NaN, in the loss and in its gradient."""
    return torch.where(counted, values, 0.0)


def same_shape(name: str, values: Tensor, log_probs: Tensor) -> Tensor:
    if values.shape != log_probs.shape:
        raise ValueError(f"{name} needs the shape of log_probs, {tuple(log_probs.shape)}, got {tuple(values.shape)}")
    return values

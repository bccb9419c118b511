"""Says which learning rate models of a size take (doc/guides/training.md).

Importing this module is instant.
"""

from __future__ import annotations

from typing import Literal

from agentgrpo.machine import LARGE

BILLION = 1_000_000_000
# By method and whether an adapter is trained: for models of fewer than 20 million weights, of fewer than a billion, and
# larger ones.
USUAL: dict[tuple[Literal["grpo", "sft"], bool], tuple[float, float, float]] = {
    ("grpo", False): (5e-4, 3e-5, 1e-6),
    ("grpo", True): (1e-3, 3e-4, 2e-5),
    ("sft", False): (3e-3, 5e-4, 1e-5),
    ("sft", True): (3e-3, 5e-4, 2e-4),
}
# A learning rate that is this many times too large or too small is worth a line.
FAR = 5.0


def usual_learning_rate(weights: int | None, *, method: Literal["grpo", "sft"], lora: bool) -> float:
    """What a model of that size takes.

    Args:
        weights: of the whole model; None, if it is not known, counts as a large one, which takes the smallest rate.
    """
    tiny, small, large = USUAL[method, lora]
    return large if weights is None or weights >= BILLION else small if weights >= LARGE else tiny


def learning_rate_hint(rate: float, weights: int | None, *, method: Literal["grpo", "sft"], lora: bool) -> str | None:
    """A line if a default is far from what a model of this size takes; None if it is not, or nobody knows."""
    usual = usual_learning_rate(weights, method=method, lora=lora)
    if weights is None or 1 / FAR < rate / usual < FAR:
        return None
    return (
        f"learning rate: the default is {rate:g}, and {'an adapter of ' if lora else ''}a model of {weights:,} weights "
        f"takes about {usual:g}: give --learning-rate {usual:g}"
    )

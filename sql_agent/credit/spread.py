"""Whether the rewards of a group differ. The redraw, the metrics and both trainers ask here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

NoSpread = Literal["all_right", "all_wrong", "all_equal"]
# The rewards of the rollouts of one task under one policy: for each rollout those of its turns, in order, or the one of
# the whole rollout; None for one that could not be judged.
Group = Sequence[Sequence[float] | None]


def judged(rewards: Group) -> list[Sequence[float]]:
    """The rewards of the rollouts that were judged.

    Raises:
        ValueError: a reward is NaN or infinite.
    """
    known = [turns for turns in rewards if turns is not None]
    if not all(math.isfinite(reward) for turns in known for reward in turns):
        raise ValueError(f"rewards must be finite numbers, got {list(rewards)}; None says that one was not judged")
    return known


def no_spread(rewards: Group, success: Sequence[float | None]) -> NoSpread | None:
    """Why a group has no spread; None if it has, or if fewer than two of its rollouts were judged.

    Equal rewards count as right or wrong only with a judge's verdict: a reward model's score above 0 is not "right".

    Args:
        success: of the same rollouts, 1 for a verdict of exactly 1 and 0 for a lower one; None without a verdict.
    Raises:
        ValueError: a reward is NaN or infinite.
    """
    known = judged(rewards)
    if len(known) < 2 or len({reward for turns in known for reward in turns}) > 1:
        return None
    verdicts = {right for right, turns in zip(success, rewards, strict=True) if turns is not None}
    return "all_right" if verdicts == {1.0} else "all_wrong" if verdicts == {0.0} else "all_equal"

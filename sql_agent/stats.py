"""Statistics of evaluations: pure functions of counts."""

from __future__ import annotations

import math

Z_95 = 1.959964
"""The 97.5 % quantile of the standard normal distribution."""


def wilson_interval(successes: int, n: int) -> tuple[float, float]:
    """The 95 % confidence interval of a success rate; it stays inside [0, 1] and is sensible at 0 and n successes.

    Args:
        successes: how many of the `n` judged rollouts were right, 0 <= successes <= n.
        n: judged rollouts, n >= 1.
    Returns:
        Lower and upper bound of the rate, both in [0, 1].
    Raises:
        ValueError: there is no rate without a rollout, or the counts contradict each other.
    Source:
        E. B. Wilson (1927), "Probable inference, the law of succession, and statistical inference", JASA 22(158).
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"expected 0 <= successes <= n and n >= 1, got {successes} of {n}")
    rate, z2 = successes / n, Z_95**2
    centre = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half_width = Z_95 / (1 + z2 / n) * math.sqrt(rate * (1 - rate) / n + z2 / (4 * n * n))
    return max(0.0, centre - half_width), min(1.0, centre + half_width)

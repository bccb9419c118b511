from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

# The 97.5 % quantile of the standard normal distribution.
Z_95 = 1.959964
RESAMPLES = 2000


def wilson_interval(successes: float, n: int) -> tuple[float, float]:
    """95 % interval of a share. It stays inside [0, 1] and is meaningful at 0 and n.

    Args:
        successes: the number of successes in `n` independent trials; a tie counts half.
    Raises:
        ValueError: `n` is 0, or the counts contradict each other.
    Source:
        E. B. Wilson (1927), "Probable inference, the law of succession, and statistical inference", JASA 22(158).
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"expected 0 <= successes <= n and n >= 1, got {successes} of {n}")
    rate, z2 = successes / n, Z_95**2
    centre = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half_width = Z_95 / (1 + z2 / n) * math.sqrt(rate * (1 - rate) / n + z2 / (4 * n * n))
    # at 0 and n rounding may put a bound beyond the share itself
    return max(0.0, min(rate, centre - half_width)), min(1.0, max(rate, centre + half_width))


def cluster_interval(values: Sequence[float], clusters: Sequence[Hashable]) -> tuple[float, float]:
    """95 % interval of the mean of values in clusters, for example of several pairs of one prompt.

    Clusters are drawn with replacement, with all their values (percentile bootstrap). Give several clusters: a single
    one says nothing about others, and its interval is its mean.

    Args:
        values: shape (N,), N >= 1.
        clusters: the cluster of each value, shape (N,).
    Source:
        A. C. Davison and D. V. Hinkley (1997), "Bootstrap Methods and their Application", sec. 3.8.
    """
    number: dict[Hashable, int] = {}
    index = np.array([number.setdefault(cluster, len(number)) for cluster in clusters])
    sums, sizes = np.bincount(index, weights=values), np.bincount(index)
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(len(number), np.full(len(number), 1 / len(number)), size=RESAMPLES)
    low, high = np.quantile((drawn @ sums) / (drawn @ sizes), [0.025, 0.975])
    return float(low), float(high)

"""Whether a reward model is right as often as its confidence says.

By the Bradley-Terry model, which the loss fits, the chosen answer is better with probability p = sigmoid(margin). The
model does not know which answer was chosen, so its confidence is max(p, 1 - p), and it is right if margin > 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BINS = 10


@dataclass(frozen=True)
class Bin:
    """Pairs of similar confidence."""

    low: float
    high: float
    pairs: int
    confidence: float
    """The mean of max(p, 1 - p)."""
    accuracy: float


def calibration_bins(margins: Sequence[float], *, bins: int = BINS) -> list[Bin]:
    """Bins of equal width over [0.5, 1]; empty bins are left out.

    Args:
        margins: chosen score minus rejected score, shape (N,).
    """
    margins_N = np.asarray(margins, dtype=float)
    confidence_N = 1 / (1 + np.exp(-np.abs(margins_N)))
    right_N = (np.sign(margins_N) + 1) / 2
    edges = np.linspace(0.5, 1.0, bins + 1)
    index_N = np.minimum(((confidence_N - 0.5) * 2 * bins).astype(int), bins - 1)
    return [
        Bin(
            float(edges[i]),
            float(edges[i + 1]),
            int((index_N == i).sum()),
            float(confidence_N[index_N == i].mean()),
            float(right_N[index_N == i].mean()),
        )
        for i in range(bins)
        if (index_N == i).any()
    ]


def expected_calibration_error(margins: Sequence[float], *, bins: int = BINS) -> float:
    """The mean distance between confidence and accuracy over the bins, weighted by pairs; 0 means calibrated.

    Source:
        Guo et al. (2017), "On Calibration of Modern Neural Networks", arXiv:1706.04599, eq. 3.
    """
    found = calibration_bins(margins, bins=bins)
    return sum(b.pairs * abs(b.accuracy - b.confidence) for b in found) / sum(b.pairs for b in found)

"""Detects reward hacking: the reward model's score rises while correctness falls.

It looks at the last `WINDOW` train steps that have both numbers. A trend counts if the slope of the fitted line is at
least `TREND` standard errors away from 0. Ten steps of pure noise reach that about once in 25 on each side. Tasks
without a judge have no correctness, so there is no alarm for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

# Train steps.
WINDOW = 10
TREND = 2.0
SCORE, CORRECT = "reward_model/score_mean", "rollout/success"


class RewardHackingAlarm:
    """Remembers the steps so far, including those before a resume.

    Args:
        earlier: metrics of the steps before, in order, each with its `train_step`.
    """

    def __init__(self, earlier: Iterable[Mapping[str, float]] = ()) -> None:
        self._steps: dict[int, tuple[float, float]] = {}
        for metrics in earlier:
            self.look(int(metrics["train_step"]), metrics)

    def look(self, train_step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Add one step's metrics and return `reward_model/alarm`, 1 or 0, once the window is full.

        Remembered metrics of this step and later ones are dropped, because a resumed run takes these steps again.
        """
        self._steps = {step: both for step, both in self._steps.items() if step < train_step}
        if SCORE in metrics and CORRECT in metrics:
            self._steps[train_step] = metrics[SCORE], metrics[CORRECT]
            if len(self._steps) >= WINDOW:
                scores, correct = zip(*list(self._steps.values())[-WINDOW:], strict=True)
                return {"reward_model/alarm": float(trend(scores) >= TREND and trend(correct) <= -TREND)}
        return {}


def trend(values: Sequence[float]) -> float:
    """The slope of the least-squares line through equally spaced values, in its standard errors.

    Args:
        values: at least three.
    Returns:
        The slope's t value: 0 for a flat line, infinite for points exactly on a rising or falling line.
    """
    x = np.arange(len(values)) - (len(values) - 1) / 2
    y = np.asarray(values) - np.mean(values)
    slope = float(x @ y / (x @ x))
    error = math.sqrt(max(0.0, float(y @ y) - slope**2 * float(x @ x)) / (len(values) - 2) / float(x @ x))
    if abs(slope) < 1e-12:
        return 0.0
    return slope / error if error > 1e-12 else math.copysign(math.inf, slope)

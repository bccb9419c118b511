"""Stops a run whose rollouts go on losing their later turns because prompts do not continue what was sampled."""

from __future__ import annotations

from collections.abc import Mapping

STEPS = 3
"""Train steps in a row; one may have met an unlucky task."""

_ADVICE = {
    "template": "The history itself changed: `python -m scripts.doctor --model MODEL --protocol PROTOCOL` tries the "
    "model's chat template; protocol text also cuts histories that are longer than AgentBench's limit.",
    "other": "The model server did not continue from the ids that it sampled: logs/driver.log in the run directory "
    "says whether it loaded sql_agent.verl_side.plugin.",
}


class PrefixBrokenError(RuntimeError):
    """Train steps in a row broke more of their rollouts than `rollout.max_broken_fraction` allows."""


class PrefixStop:
    """Watches `prefix/broken_frac` over the train steps of a run.

    The turns after a break are not trained, and those before it take the whole reward: the gradient belongs to another
    agent than the one that was played.

    Args:
        max_fraction: share of a step's rollouts that may break.
    """

    def __init__(self, max_fraction: float) -> None:
        self._max_fraction, self._steps = max_fraction, 0

    def add(self, metrics: Mapping[str, float]) -> None:
        """Take the rollout metrics of one train step.

        Raises:
            PrefixBrokenError: this is the last of `STEPS` steps in a row above the limit.
        """
        broken = metrics.get("prefix/broken_frac")
        if broken is None:  # no rollout was judged: nothing is known of this step
            return
        self._steps = self._steps + 1 if broken > self._max_fraction else 0
        if self._steps < STEPS:
            return
        counts = {
            name.removeprefix("prefix/break/"): n for name, n in metrics.items() if name.startswith("prefix/break/")
        }
        cause = max(counts, key=lambda name: counts[name])
        raise PrefixBrokenError(
            f"{broken:.0%} of the rollouts broke, for {STEPS} train steps in a row more than "
            f"rollout.max_broken_fraction={self._max_fraction} allows: their later turns are not trained, and the "
            f"turns before take the whole reward; the most frequent cause is {cause!r} ({counts[cause]:.0f} times in "
            f"the last step). {_ADVICE.get(cause, _ADVICE['other'])}"
        )

"""Defines the success rate with its confidence interval."""

from __future__ import annotations

from dataclasses import dataclass

from agentgrpo.stats import wilson_interval


@dataclass(frozen=True)
class Rate:
    """Counts the successes among the rollouts that have a verdict."""

    n: int
    judged: int
    correct: int

    @property
    def success(self) -> float | None:
        return self.correct / self.judged if self.judged else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return Wilson's 95 % interval."""
        return wilson_interval(self.correct, self.judged) if self.judged else None

    def __str__(self) -> str:
        if self.success is None or self.interval is None:
            return f"none of {self.n} judged"
        low, high = self.interval
        return f"{self.success:.1%} of {self.judged} (95 % interval {low:.1%} to {high:.1%})"

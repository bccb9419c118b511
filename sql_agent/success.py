"""The rate of success with its confidence interval."""

from __future__ import annotations

from dataclasses import dataclass, field

from core.stats import wilson_interval


@dataclass(frozen=True)
class Rate:
    """Success among the rollouts that have a verdict."""

    n: int
    judged: int
    correct: int
    cluster_interval: tuple[float, float] | None = field(default=None, kw_only=True)
    """The interval where several rollouts of one task make Wilson's too narrow."""

    @property
    def success(self) -> float | None:
        return self.correct / self.judged if self.judged else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """At 95 %: Wilson's, where every rollout is of a task of its own."""
        if self.cluster_interval is not None or not self.judged:
            return self.cluster_interval
        return wilson_interval(self.correct, self.judged)

    def __str__(self) -> str:
        if self.success is None or self.interval is None:
            return f"none of {self.n} judged"
        low, high = self.interval
        return f"{self.success:.1%} of {self.judged} (95 % interval {low:.1%} to {high:.1%})"

"""Defines the success rate with its confidence interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentgrpo.stats import cluster_interval, wilson_interval


@dataclass(frozen=True)
class Rate:
    """Counts the successes among the rollouts that have a verdict."""

    n: int
    judged: int
    correct: int

    @classmethod
    def of(cls, successes: Sequence[float | None]) -> Rate:
        """
        Args:
            successes: one for each rollout, 1 for a right one; None without a verdict.
        """
        judged = [success == 1.0 for success in successes if success is not None]
        return cls(len(successes), len(judged), sum(judged))

    @property
    def success(self) -> float | None:
        return self.correct / self.judged if self.judged else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Wilson's 95 % interval."""
        return wilson_interval(self.correct, self.judged) if self.judged else None

    def __str__(self) -> str:
        if self.success is None or self.interval is None:
            return f"none of {self.n} judged"
        low, high = self.interval
        return f"{self.success:.1%} of {self.judged} (95 % interval {low:.1%} to {high:.1%})"


@dataclass(frozen=True)
class ClusteredRate(Rate):
    """Success of several rollouts per task; these are correlated, so Wilson's interval would be too narrow."""

    interval_of_tasks: tuple[float, float]

    @property
    def interval(self) -> tuple[float, float]:
        return self.interval_of_tasks


def rate(results: Sequence[tuple[str, float | None]]) -> Rate:
    """Count results.

    Args:
        results: of each rollout the task's id and its success, 0 or 1; None without a verdict.
    """
    judged = [(task, success == 1) for task, success in results if success is not None]
    tasks, solved = [task for task, _ in judged], [right for _, right in judged]
    if len(set(tasks)) == len(tasks):
        return Rate(len(results), len(judged), sum(solved))
    return ClusteredRate(len(results), len(judged), sum(solved), cluster_interval(solved, tasks))

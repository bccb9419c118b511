"""Writes seconds for people, and estimates those that are left."""

from __future__ import annotations


def in_words(seconds: float) -> str:
    """Two digits at most: 45 s, 12 min, 2.4 h, 30 h."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 9.95 * 3600 else f"{seconds / 3600:.0f} h"


def left(passed_s: float, done: float, total: float) -> str | None:
    """Seconds left in words, at the mean speed so far; None before the first step and at the end.

    Args:
        passed_s: the seconds that `done` of `total` steps took.
    """
    return f"{in_words(passed_s / done * (total - done))} left" if 0 < done < total else None

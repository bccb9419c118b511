"""Writes seconds for people, estimates those that are left, and those to wait before another try."""

from __future__ import annotations

import random


def format_time(seconds: float) -> str:
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
    return f"{format_time(passed_s / done * (total - done))} left" if 0 < done < total else None


def pause_s(attempt: int, first_s: float, longest_s: float, *, after_s: float | None) -> float:
    """Twice as long after each try, varied, so that clients do not ask together.

    Args:
        attempt: the number of the try that failed, from 0.
        after_s: what the server asked for (`retry_after_s`), which is waited at least.
    """
    return max(min(first_s * 2**attempt, longest_s) * random.uniform(0.5, 1.5), after_s or 0.0)


def retry_after_s(header: str | None) -> float | None:
    """Seconds of a `Retry-After`; None if it is not there or is a date, its other form."""
    try:
        return max(0.0, float(header or "x"))
    except ValueError:
        return None

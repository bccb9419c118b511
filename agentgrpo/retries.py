from __future__ import annotations

import random


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

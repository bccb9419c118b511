"""Bounds for tests that time something."""

import time

# CPU seconds of `_count` on an idle core of AMD EPYC (Zen 5), where the bounds were set.
REFERENCE_S = 0.03


def seconds_here(seconds: float) -> float:
    """Twice as long as a core takes here, now, for what took `seconds` where the bounds were set.

    An older core, or one whose other half is busy, takes several times the CPU seconds. Twice, since its speed changes
    within a test; what such a bound guards against takes far longer.
    """
    return 2 * seconds * max(1.0, min(_count() for _ in range(3)) / REFERENCE_S)


def _count() -> float:
    started, total = time.thread_time(), 0
    for number in range(1_000_000):
        total += number
    return time.thread_time() - started

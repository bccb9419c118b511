"""The deadline of the statement that the current thread is running, for all that works on it to look at.

What a C library does between two looks is bounded by the size of its input (see `sqlite`), not from here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class StatementTimeout(Exception):
    """The statement's time is up."""


class _Clock(threading.local):
    deadline = float("inf")


_CLOCK = _Clock()


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Give what runs inside `seconds` from now; limits do not nest."""
    _CLOCK.deadline = time.monotonic() + seconds
    try:
        yield
    finally:
        _CLOCK.deadline = float("inf")


def expired() -> bool:
    return time.monotonic() > _CLOCK.deadline


def check() -> None:
    """Raises: StatementTimeout."""
    if time.monotonic() > _CLOCK.deadline:
        raise StatementTimeout("the statement's time is up")


def remaining_s(at_most: float) -> float:
    """Seconds left, at most `at_most`; never 0, which libraries read as no limit."""
    return max(min(_CLOCK.deadline - time.monotonic(), at_most), 0.001)

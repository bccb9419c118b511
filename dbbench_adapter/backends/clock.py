"""The deadline of the statement that the current thread runs, and how many characters its functions may make.

Parser, functions and collation check it. A C library checks nothing while it works; the size of its input bounds that
time instead (see `sqlite.sandbox`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

MAX_MADE_CHARS = 16_777_216
"""The functions of one statement make at most so many characters of long texts: a sort compares all of them."""


class StatementTimeout(Exception):
    """The statement's time is up."""


class _Clock(threading.local):
    deadline = float("inf")
    chars_left = float("inf")


_CLOCK = _Clock()


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Set the deadline of the code inside to `seconds` from now; limits do not nest."""
    _CLOCK.deadline, _CLOCK.chars_left = time.monotonic() + seconds, MAX_MADE_CHARS
    try:
        yield
    finally:
        _CLOCK.deadline = _CLOCK.chars_left = float("inf")


def count_made(chars: int) -> None:
    """Raises: MemoryError: more than `MAX_MADE_CHARS`."""
    _CLOCK.chars_left -= chars
    if _CLOCK.chars_left < 0:
        raise MemoryError("too many long texts")


def expired() -> bool:
    return time.monotonic() > _CLOCK.deadline


def check() -> None:
    """Raises: StatementTimeout."""
    if time.monotonic() > _CLOCK.deadline:
        raise StatementTimeout("the statement's time is up")


def remaining_s(at_most: float) -> float:
    """Seconds left, at most `at_most`; never 0, which libraries read as no limit."""
    return max(min(_CLOCK.deadline - time.monotonic(), at_most), 0.001)

"""What the functions of the current thread's statement have to know and to say.

It is the deadline, the characters that they have made, and MySQL's error where one of them ends the statement. Parser,
functions and collation check the deadline. A C library does not check it while it works, so the size of its input is
limited instead (see `sqlite.sandbox`).

Every limit of a statement in this process is in CPU seconds of its thread, because the load of a machine must decide
neither what a policy reads nor what it is paid. A wall clock `WALL_RATIO` times as long stands behind it, for a disk
that hangs; what reaches that is the machine's fault (`stalled`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

# The functions of one statement make at most this many characters of long texts, since a sort compares all of them.
MAX_MADE_CHARS = 16_777_216
# 32 rollouts of a run may share a core while their statements compute, so load alone does not reach it.
WALL_RATIO = 60


class StatementTimeout(Exception):
    """The statement's time is up."""


class Refused(ValueError):
    """MySQL ends the statement with this error."""


# How every error ends over something that the embedded engine could only answer by guessing.
LEFT_OUT = "not supported on SQLite; use --backend mariadb"


def left_out(what: str) -> str:
    return f"1235 (42000): {what}: {LEFT_OUT}"


class _Clock(threading.local):
    deadline = last = looked_at = float("inf")
    chars_left = float("inf")
    refused: str | None = None


_CLOCK = _Clock()


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Limits do not nest.

    Args:
        seconds: of the thread's CPU.
    """
    began = time.monotonic()
    _CLOCK.deadline, _CLOCK.last = time.thread_time() + seconds, began + WALL_RATIO * seconds
    _CLOCK.looked_at = began + seconds
    _CLOCK.chars_left, _CLOCK.refused = MAX_MADE_CHARS, None
    try:
        yield
    finally:
        _CLOCK.deadline = _CLOCK.last = _CLOCK.looked_at = _CLOCK.chars_left = float("inf")


def count_made(chars: int) -> None:
    """Raises MemoryError: the statement made more than `MAX_MADE_CHARS`."""
    _CLOCK.chars_left -= chars
    if _CLOCK.chars_left < 0:
        raise MemoryError("too many long texts")


def kept(refusal: Refused) -> Refused:
    """Keep the error for `statement_refusal`, since SQLite does not pass on its text; it is returned to be raised."""
    _CLOCK.refused = str(refusal)
    return refusal


def statement_refusal() -> str | None:
    return _CLOCK.refused


def expired() -> bool:
    # CPU seconds take at least as many of the wall clock, and reading that is no system call: an INSERT ... SELECT of a
    # million rows took 7.6 s of CPU where every look read the thread's time, and takes 3.7.
    now = time.monotonic()
    if now < _CLOCK.looked_at:
        return False
    left_s = _CLOCK.deadline - time.thread_time()
    _CLOCK.looked_at = now + max(left_s, 0.0)
    return left_s < 0


def stalled() -> bool:
    """Whether the wall clock behind the limit has passed, and the limit has not."""
    return time.monotonic() > _CLOCK.last and not expired()


def check_deadline() -> None:
    if expired():
        raise StatementTimeout("the statement's time is up")


def remaining_s(at_most: float) -> float:
    # 0 would be read by libraries as no limit.
    return max(min(_CLOCK.deadline - time.thread_time(), at_most), 0.001)

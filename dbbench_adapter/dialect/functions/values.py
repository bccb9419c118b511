"""What all functions share: how a value becomes a text or a number, and how the collation compares texts."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache

from dbbench_adapter.datatypes import SqlValue
from dbbench_adapter.statement_clock import Refused, StatementTimeout, check_deadline, expired, left_out

# The largest value; MySQL's TEXT holds 65,535 bytes.
MAX_VALUE_BYTES = 262_144
Function = tuple[int, Callable[..., SqlValue]]
# Each table of characters holds at most this many, which take some 3 MiB.
MAX_KNOWN_CHARS = 16_384
_CACHED_CHARS = 64
# A table is applied to this many characters at once; in between the deadline is checked and other threads may run.
_CHUNK_CHARS = 8_192
_NUMBER = re.compile(r"\s*+([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")


class _CharTable(dict[int, str]):
    """A table for `str.translate` that is filled on demand and emptied when it is full."""

    def __init__(self, of_char: Callable[[str], str]) -> None:
        super().__init__()
        self._of_char = of_char

    def __missing__(self, code: int) -> str:
        if len(self) >= MAX_KNOWN_CHARS:
            self.clear()
        found = self[code] = self._of_char(chr(code))
        return found

    def applied(self, text: str) -> str:
        """Raises StatementTimeout: the time is up."""
        if len(text) <= _CHUNK_CHARS:
            return text.translate(self)
        pieces = []
        for start in range(0, len(text), _CHUNK_CHARS):
            check_deadline()
            pieces.append(text[start : start + _CHUNK_CHARS].translate(self))
        return "".join(pieces)


def _folded_char(char: str) -> str:
    # For a whole text `normalize` would take quadratic time to sort its marks.
    decomposed = unicodedata.normalize("NFKD", char.casefold())
    return "".join(part for part in decomposed if not unicodedata.combining(part))


_FIRST = {char: chr(rank) for rank, char in enumerate(" _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$", 1)}


def _weight(char: str) -> str:
    """The sort key of a character: punctuation before digits and letters, in the order of Unicode's table."""
    return "".join(_FIRST.get(part) or (part if part.isalnum() else "\x2f" + part) for part in _folded_char(char))


_FOLDED, _WEIGHTS = _CharTable(_folded_char), _CharTable(_weight)


def fold(text: str) -> str:
    """A text as utf8mb4_0900_ai_ci compares it: without case and accents, with its trailing blanks.

    Raises:
        StatementTimeout: the time is up in the middle of a long text.
    """
    if text.isascii():
        return text.lower()
    return _folded_often(text) if len(text) <= _CACHED_CHARS else _FOLDED.applied(text)


_folded_often = lru_cache(maxsize=4096)(_FOLDED.applied)


def sort_key(text: str) -> str:
    """A key that orders texts nearly as utf8mb4_0900_ai_ci does; keys are equal where `fold` is equal.

    Raises:
        StatementTimeout: the time is up.
    """
    return _sort_key_often(text) if len(text) <= _CACHED_CHARS else _WEIGHTS.applied(text)


_sort_key_often = lru_cache(maxsize=4096)(_WEIGHTS.applied)


def compare_texts(left: str, right: str) -> int:
    """Compare two texts by the collation; the result is negative, 0 or positive."""
    if left == right:
        return 0
    first, second = sort_key(left), sort_key(right)
    return (first > second) - (first < second)


def collate(left: str, right: str) -> int:
    """Compare two texts; after the deadline the first argument is always less.

    SQLite's sort checks no clock, so this makes it end soon. If all texts were equal then, it would go on with the next
    sort key.
    """
    try:
        return -1 if expired() else compare_texts(left, right)
    except StatementTimeout:
        return -1


def to_number(value: SqlValue) -> float:
    """A value in a numeric context: text counts as the number it begins with, else 0."""
    if isinstance(value, int | float):
        return value
    match = _NUMBER.match(to_text(value))
    return float(match.group(1)) if match else 0.0


def whole(value: SqlValue) -> int:
    """Raises Refused: a fraction, which MySQL rounds or cuts by its type."""
    found = to_number(value)
    size = max(min(found, 2**63 - 1), -(2**63)) if found == found else 0
    if size % 1:
        raise Refused(left_out("a fraction as a length, a place or a number of digits"))
    return int(size)


def to_text(value: SqlValue) -> str:
    """A value in a text context; doubles are written as by MySQL."""
    if isinstance(value, float):
        return _double_text(value)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _double_text(value: float) -> str:
    """The shortest digits that give this double: 7, not 7.0; plain from 1e-15 to 1e14, else 1e20, not 1e+20.

    Source:
        MySQL `my_gcvt`, strings/dtoa.cc.
    """
    if not math.isfinite(value):
        return str(value)
    digits = Decimal(repr(value + 0.0)).normalize()  # adding 0.0 removes a negative zero
    return f"{digits:f}" if -15 <= digits.adjusted() < 15 else f"{digits:e}".replace("e+", "e")

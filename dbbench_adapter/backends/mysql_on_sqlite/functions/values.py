"""What the functions share: values as text and as numbers, and the collation."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from dbbench_adapter.backends.clock import StatementTimeout, check, expired

MAX_VALUE_BYTES = 262_144
"""Of one value; MySQL's TEXT holds 65,535."""
Function = tuple[int, Callable[..., Any]]
MAX_KNOWN_CHARS = 16_384
"""Each table of characters holds at most so many, which take some 3 MiB."""
_CACHED_CHARS = 64
_CHUNK_CHARS = 8_192
"""A table is applied to so many at once: in between, the deadline is looked at and other threads may work."""
_NUMBER = re.compile(r"\s*+([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")


class _CharTable(dict[int, str]):
    """A table for `str.translate` that fills as characters come and is emptied when it is full."""

    def __init__(self, of_char: Callable[[str], str]) -> None:
        super().__init__()
        self._of_char = of_char

    def __missing__(self, code: int) -> str:
        if len(self) >= MAX_KNOWN_CHARS:
            self.clear()
        found = self[code] = self._of_char(chr(code))
        return found

    def applied(self, text: str) -> str:
        """Raises: StatementTimeout."""
        if len(text) <= _CHUNK_CHARS:
            return text.translate(self)
        pieces = []
        for start in range(0, len(text), _CHUNK_CHARS):
            check()
            pieces.append(text[start : start + _CHUNK_CHARS].translate(self))
        return "".join(pieces)


def _folded_char(char: str) -> str:
    """Give `fold` of one character; on a whole text `normalize` sorts its marks in quadratic time."""
    decomposed = unicodedata.normalize("NFKD", char.casefold())
    return "".join(part for part in decomposed if not unicodedata.combining(part))


_FIRST = {char: chr(rank) for rank, char in enumerate(" _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$", 1)}


def _weight(char: str) -> str:
    """What is neither letter nor digit sorts before both, in the order of Unicode's table."""
    return "".join(_FIRST.get(part) or (part if part.isalnum() else "\x2f" + part) for part in _folded_char(char))


_FOLDED, _WEIGHTS = _CharTable(_folded_char), _CharTable(_weight)


def fold(text: str) -> str:
    """The form under which utf8mb4_0900_ai_ci compares text: case and accents do not count, trailing blanks do.

    Raises:
        StatementTimeout: the time is up in the midst of a long text.
    """
    if text.isascii():
        return text.lower()
    return _folded_often(text) if len(text) <= _CACHED_CHARS else _FOLDED.applied(text)


_folded_often = lru_cache(maxsize=4096)(_FOLDED.applied)


def sort_key(text: str) -> str:
    """What orders text under utf8mb4_0900_ai_ci, near enough: equal where `fold` is. Raises: StatementTimeout."""
    return _sort_key_often(text) if len(text) <= _CACHED_CHARS else _WEIGHTS.applied(text)


_sort_key_often = lru_cache(maxsize=4096)(_WEIGHTS.applied)


def compare(left: str, right: str) -> int:
    """The collation: negative, 0 or positive."""
    if left == right:
        return 0
    first, second = sort_key(left), sort_key(right)
    return (first > second) - (first < second)


def collate(left: str, right: str) -> int:
    """`compare`, but once the deadline has passed whatever comes first is less: SQLite's sort looks at no clock and
    ends soon so; were it equal, the next of several columns would be compared as well."""
    try:
        return -1 if expired() else compare(left, right)
    except StatementTimeout:
        return -1


def number(value: Any) -> float:
    """A value in a numeric context: text counts as the number it begins with, else 0."""
    if isinstance(value, int | float):
        return value
    match = _NUMBER.match(text_of(value))
    return float(match.group(1)) if match else 0.0


def whole(value: Any) -> int:
    """A value where an integer is wanted, within 64 bits."""
    found = number(value)
    return round(max(min(found, 2**63 - 1), -(2**63))) if found == found else 0


def text_of(value: Any) -> str:
    """A value in a text context; doubles as MySQL writes them."""
    if isinstance(value, float):
        return _double_text(value)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _double_text(value: float) -> str:
    """The shortest digits that say this double: 7, not 7.0; plain from 1e-15 to 1e14, else 1e20, not 1e+20.

    Source:
        MySQL `my_gcvt`, strings/dtoa.cc.
    """
    if value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    mantissa, _, exponent = repr(value).partition("e")
    if not exponent:
        if not value.is_integer():
            return mantissa
        mantissa, exponent = _shifted(mantissa.removesuffix(".0"))
    power = int(exponent)
    sign, digits = "-" * (value < 0), mantissa.lstrip("-").replace(".", "")
    if -15 <= power < 0:
        return f"{sign}0.{'0' * (-power - 1)}{digits}"
    return f"{mantissa.removesuffix('.0')}e{power}"


def _shifted(integer: str) -> tuple[str, str]:
    """Mantissa and exponent of a whole number's digits."""
    sign, digits = ("-", integer[1:]) if integer.startswith("-") else ("", integer)
    fraction = digits[1:].rstrip("0")
    return f"{sign}{digits[0]}{'.' + fraction if fraction else ''}", str(len(digits) - 1)

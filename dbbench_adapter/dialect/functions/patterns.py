"""Matches LIKE and regular expressions, both within the statement's deadline.

LIKE is matched piece by piece between its `%`, without backtracking. Regular expressions run in the `regex` package,
which has a timeout and lets other threads work; patterns that are slow or need much memory before that timeout are
refused. Rare syntax, over which the engines of the servers differ, is refused too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

import regex

from dbbench_adapter.datatypes import SqlValue
from dbbench_adapter.dialect.functions.values import MAX_VALUE_BYTES, Function, fold, to_text
from dbbench_adapter.statement_clock import Refused, StatementTimeout, check_deadline, left_out, remaining_s

MAX_PATTERN_CHARS = 1_000
# The largest bound of a `{n,m}`, and the largest product of nested bounds, as in RE2.
MAX_REPEAT = 1_000
MAX_SUBJECT_CHARS = 65_536
# The limit of one match, in CPU seconds; MySQL gives up after 32 ms (`regexp_time_limit`).
MAX_REGEX_S = 0.5
# What MySQL's engine (ICU), MariaDB's (PCRE) and ours read alike.
_COMMON = re.compile(
    r"(?:[^\\\[(]|\((?!\?)|\((?=\?:)|\\[^A-Za-z0-9]|\\[dDwWsSbBntr]"
    r"|\[\^?\]?(?:[^\\\[\]]|\[:(?:alpha|digit|alnum|upper|lower|space|punct):\]|\\[^A-Za-z0-9]|\\[dDwWsS])*\])*+",
    re.DOTALL,
)
_BOUNDS = re.compile(r"\{(\d*)(?:,(\d*))?\}")
_CACHED_CHARS = 200


# LIKE -----------------------------------------------------------------------------------------------------------------

# A text or, where it holds `_`, its characters, of which None stands for `_`.
_Piece = str | tuple[str | None, ...]


def like(pattern: SqlValue, text: SqlValue, escape: SqlValue = "\\") -> int:
    # SQLite calls like(pattern, text) for `text LIKE pattern`.
    pattern, text = to_text(pattern), to_text(text)
    folded, searched = fold(pattern), fold(text)
    if "_" in pattern and (len(folded) != len(pattern) or len(searched) != len(text)):
        raise Refused(left_out("LIKE with _ over letters like ß"))
    if len(folded) > MAX_VALUE_BYTES:  # one character may become eighteen
        raise ValueError("the pattern is too long")
    return like_exactly(folded, searched, to_text(escape))


def like_exactly(pattern: str, text: str, escape: str = "\\") -> int:
    # MySQL compares names of tables with regard to case and accents.
    read = _pieces_often if len(pattern) <= _CACHED_CHARS else _pieces
    first, *rest = read(pattern, escape)
    if not rest:
        return int(len(first) == len(text) and _fits(first, text, 0))
    last = rest.pop()
    end = len(text) - len(last)
    if end < len(first) or not _fits(first, text, 0) or not _fits(last, text, end):
        return 0
    place = len(first)
    for piece in rest:
        check_deadline()
        place = _find(piece, text, place, end)
        if place < 0:
            return 0
        place += len(piece)
    return 1


def _pieces(pattern: str, escape: str) -> tuple[_Piece, ...]:
    pieces: list[list[str | None]] = [[]]
    chars = iter(pattern)
    for count, char in enumerate(chars):
        if count % 1_000 == 0:
            check_deadline()
        if char == escape:
            pieces[-1].append(next(chars, char))
        elif char == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if char == "_" else char)
    return tuple(tuple(piece) if None in piece else "".join(filter(None, piece)) for piece in pieces)


_pieces_often = lru_cache(maxsize=512)(_pieces)


def _fits(piece: _Piece, text: str, at: int) -> bool:
    if isinstance(piece, str):
        return text.startswith(piece, at)
    return all(char is None or char == text[at + index] for index, char in enumerate(piece))


def _find(piece: _Piece, text: str, start: int, end: int) -> int:
    if isinstance(piece, str):
        return text.find(piece, start, end)
    for place in range(start, end - len(piece) + 1):
        check_deadline()
        if _fits(piece, text, place):
            return place
    return -1


# Regular expressions --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> regex.Pattern[str]:
    product = 1
    for low, high in _BOUNDS.findall(pattern):
        product *= max(int(bound[:9]) if bound else 1 for bound in (low, high)) or 1
    if len(pattern) > MAX_PATTERN_CHARS or product > MAX_REPEAT:
        raise ValueError("the regular expression is too large")
    if not _COMMON.fullmatch(pattern):
        raise Refused(left_out("regular expressions of rare syntax"))
    return regex.compile(pattern, regex.IGNORECASE | regex.VERSION0)


def _matches(pattern: SqlValue, text: SqlValue) -> Iterator[regex.Match[str]]:
    """Yield all matches one by one, leftmost first.

    Raises:
        ValueError: the pattern or the text is too large, or the pattern is no regular expression.
        StatementTimeout: a match takes longer than `MAX_REGEX_S` or than the statement has left.
    """
    text = to_text(text)
    if len(text) > MAX_SUBJECT_CHARS:
        raise ValueError("the text is too long for a regular expression")
    limit_s = timeout_s = remaining_s(MAX_REGEX_S)
    found = 0
    try:
        compiled = _compiled(to_text(pattern))
        while True:
            began = time.thread_time()
            try:
                for match in islice(compiled.finditer(text, timeout=timeout_s, concurrent=True), found, None):
                    found += 1
                    yield match
                return
            except TimeoutError:
                if time.thread_time() - began >= limit_s / 2:
                    raise StatementTimeout("Timeout exceeded in regular expression match.") from None
                timeout_s *= 2  # `regex` counts the CPU of the whole process, that of other rollouts included
    except (regex.error, RecursionError, OverflowError) as error:
        raise ValueError(f"no regular expression: {error}") from None


def _regexp(pattern: SqlValue, text: SqlValue) -> int:
    return int(next(_matches(pattern, text), None) is not None)


NULLS_MATTER: dict[str, Function] = {}

STRICT: dict[str, Function] = {
    "like": (-1, like),
    "regexp": (2, _regexp),
}

"""Compares typed rows, which is the rule `strict`.

NULL is only NULL, a text only the same text, and bytes only the same bytes. Numbers are equal whatever their type; two
whole numbers exactly, others up to rounding. A number never equals a text.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from dbbench_adapter.datatypes import Row, Rows
from dbbench_adapter.judges.strict import paired

RELATIVE_TOLERANCE = 1e-9
# 0 equals a smaller number, which differences that cancel out leave behind.
NEARLY_ZERO = 1e-12


def same_rows(given: Rows, expected: Rows, *, ranks: Sequence[int] | None = None, decimals: int | None = None) -> bool:
    """
    Args:
        ranks: for each expected row its place among all, in ascending order; rows of one place are tied, and free to
        change theirs. None: the order does not count.
        decimals: an expected number with no more decimals than these equals one that rounds to it (MySQL's averages).
    """
    if len(given) != len(expected):
        return False
    places = groupby(range(len(expected)), key=ranks.__getitem__) if ranks is not None else [(0, range(len(expected)))]
    return all(
        _same_bag(given[tied[0] : tied[-1] + 1], expected[tied[0] : tied[-1] + 1], decimals)
        for tied in (list(group) for _, group in places)
        if tied
    )


def _same_bag(given: Rows, expected: Rows, decimals: int | None) -> bool:
    # Rows that are equal to the last digit are paired first.
    counts = Counter(given), Counter(expected)
    left = _by_other_cells(counts[0] - counts[1]), _by_other_cells(counts[1] - counts[0])
    return left[0].keys() == left[1].keys() and all(
        len(rows) == len(left[1][key]) and paired(_fitting(rows, left[1][key], decimals))
        for key, rows in left[0].items()
    )


def _by_other_cells(rows: Counter[Row]) -> dict[Row, list[Any]]:
    """The numbers of the rows, by their other cells; ... stands for a number."""
    alike: dict[Any, list[Any]] = {}
    for row in rows.elements():
        key = tuple(... if isinstance(cell, int | float) else cell for cell in row)
        alike.setdefault(key, []).append(tuple(cell for cell in row if isinstance(cell, int | float)))
    return alike


def _fitting(given: list[Any], expected: list[Any], decimals: int | None) -> list[list[list[int]]]:
    # The places of the expected rows that each given row equals. They are looked up by the column with the most
    # distinct values, so that thousands of rows take a second.
    width = range(len(expected[0]))
    pivot = max(width, key=lambda column: len({row[column] for row in expected}), default=None)
    if pivot is None:
        return [[list(range(len(expected)))] for _ in given]
    ascending = sorted((row[pivot], place) for place, row in enumerate(expected))
    keys = [key for key, _ in ascending]
    found = []
    for row in given:
        reach = _reach(row[pivot], decimals)
        near = ascending[bisect_left(keys, row[pivot] - reach) : bisect_right(keys, row[pivot] + reach)]
        found.append([[place for _, place in near if _close(row, expected[place], decimals)]])
    return found


def _reach(number: int | float, decimals: int | None) -> int | float:
    # Whole numbers may be beyond all floats.
    least = NEARLY_ZERO if decimals is None else 10**-decimals
    if isinstance(number, int):
        return abs(number) // 10**8 + 1
    return 2 * RELATIVE_TOLERANCE * abs(number) + least if math.isfinite(number) else 0.0


def _close(given: Row, expected: Row, decimals: int | None) -> bool:
    return all(_same_number(ours, theirs, decimals) for ours, theirs in zip(given, expected, strict=True))


def _same_number(given: Any, expected: Any, decimals: int | None) -> bool:
    if given == expected or (isinstance(given, int) and isinstance(expected, int)):
        return given == expected
    try:
        if 0 in (given, expected) and abs(given - expected) < NEARLY_ZERO:
            return True
        rounded = decimals is not None and isinstance(expected, float) and round(expected, decimals) == expected
        absolute = 0.5001 * 10 ** -(decimals or 0) if rounded else 0.0
        return math.isclose(given, expected, rel_tol=RELATIVE_TOLERANCE, abs_tol=absolute)
    except OverflowError:  # a whole number beyond all floats
        return False

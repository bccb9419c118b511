"""Compares two values in one of MySQL's ways where the statement's text cannot: mixed lists, ANY, ALL, unknown kinds.

A way is a letter of `comparisons`: `t` texts, `n` numbers, `d` dates, `s` times, `?` as the values turn out.
"""

from __future__ import annotations

from typing import Any

from dbbench_adapter.clock import check
from dbbench_adapter.dialect.functions.dates import moment, seconds_of
from dbbench_adapter.dialect.functions.values import Function, compare, number, text_of


def _order(how: str, left: Any, right: Any) -> int | None:
    """Negative, 0 or positive; None for NULL.

    Raises:
        ValueError: a value is no date or no time.
    """
    check()
    if left is None or right is None:
        return None
    if how == "?":
        how = "n" if any(isinstance(value, int | float) for value in (left, right)) else "t"
    if how == "t":
        return compare(text_of(left), text_of(right))
    read = {"n": number, "d": moment, "s": seconds_of}[how]
    first, second = read(left), read(right)
    if first is None or second is None:
        raise ValueError("no date or time")
    return (first > second) - (first < second)  # pyright: ignore[reportOperatorIssue]


def _same_or_null(left: Any, right: Any) -> int:
    return int(_order("?", left, right) == 0 if None not in (left, right) else left is right)


def _in_list(hows: str, value: Any, *items: Any) -> int | None:
    orders = [_order(how, value, item) for how, item in zip(hows, items, strict=True)]
    return 1 if 0 in orders else None if None in orders else 0


def _between(hows: str, value: Any, low: Any, high: Any) -> int | None:
    over, under = _order(hows[0], value, low), _order(hows[1], value, high)
    if (over is not None and over < 0) or (under is not None and under > 0):
        return 0
    return None if over is None or under is None else 1


def _first_same(hows: str, value: Any, *items: Any) -> int:
    """Place of the first item that equals the value, from 1; 0 if none does."""
    for place, (how, item) in enumerate(zip(hows, items, strict=True), 1):
        if _order(how, value, item) == 0:
            return place
    return 0


def _null_if(how: str, value: Any, other: Any) -> Any:
    return None if _order(how, value, other) == 0 else value


NULLS_MATTER: dict[str, Function] = {
    "same_or_null": (2, _same_or_null),
    "in_list": (-1, _in_list),
    "between_by": (4, _between),
    "first_same": (-1, _first_same),
    "null_if": (3, _null_if),
}

STRICT: dict[str, Function] = {
    "compare_values": (2, lambda left, right: _order("?", left, right)),
    "compare_by": (3, _order),
}

"""The MySQL functions that agents use and SQLite lacks, as plain functions over str, int, float and None.

`FUNCTIONS` maps a lower-case name to (number of arguments or -1, function); `AGGREGATES` likewise to a class. Without a
word to the contrary None in gives None out. Each looks at the statement's deadline. Other threads wait while a library
in C works, so a call is given no more than `MAX_VALUE_BYTES` characters in all, with which none takes longer than some
10 ms at a stretch. Leaves out JSON, spatial, encryption and user-lock functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from dbbench_adapter.backends.clock import check, count_made
from dbbench_adapter.backends.mysql_on_sqlite.functions import dates, numeric, patterns, text
from dbbench_adapter.backends.mysql_on_sqlite.functions.aggregates import AGGREGATES, GROUP_CONCAT_MAX_LEN
from dbbench_adapter.backends.mysql_on_sqlite.functions.values import MAX_VALUE_BYTES, Function, collate, fold, text_of

__all__ = [
    "AGGREGATES",
    "FUNCTIONS",
    "GROUP_CONCAT_MAX_LEN",
    "MAX_VALUE_BYTES",
    "collate",
    "fold",
    "like_exactly",
    "text_of",
]

LONG_CHARS = 1_000
"""Shorter texts are not counted among those that a statement makes."""

like_exactly = patterns.like_exactly


def _timed(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def timed(*values: Any) -> Any:
        check()
        _refuse_long(values)
        return _counted(function(*values))

    return timed


def _strict(function: Callable[..., Any]) -> Callable[..., Any]:
    """None in, None out."""

    @wraps(function)
    def with_nulls(*values: Any) -> Any:
        check()
        _refuse_long(values)
        return None if None in values else _counted(function(*values))

    return with_nulls


def _counted(value: Any) -> Any:
    if isinstance(value, str) and len(value) > LONG_CHARS:
        count_made(len(value))
    return value


def _refuse_long(values: tuple[Any, ...]) -> None:
    """Raises: ValueError."""
    if sum(len(value) for value in values if isinstance(value, str | bytes)) > MAX_VALUE_BYTES:
        raise ValueError("the arguments are too long")


FUNCTIONS: dict[str, Function] = {
    **{
        name: (count, _timed(function))
        for module in (text, numeric, dates)
        for name, (count, function) in module.NULLS_MATTER.items()
    },
    **{
        name: (count, _strict(function))
        for module in (text, patterns, numeric, dates)
        for name, (count, function) in module.STRICT.items()
    },
}

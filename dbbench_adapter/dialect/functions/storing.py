"""Converts a value to what a column of a declared type holds in MySQL's strict mode, or ends the statement.

Only the types that `kinds.sqlite_type` knows are here.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from functools import lru_cache

from dbbench_adapter.datatypes import SqlValue
from dbbench_adapter.dialect.functions.dates import moment
from dbbench_adapter.dialect.functions.values import Function, to_text
from dbbench_adapter.dialect.sql_types import (
    DATE,
    DOUBLE,
    SIZED_TEXTS,
    TEXT_BYTES,
    SqlType,
    column_type,
    declared_type,
    integer_range,
)
from dbbench_adapter.statement_clock import Refused, left_out

_NUMBER = re.compile(r"\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?)\s*")
_FRACTION = re.compile(r":\d{1,2}\.0*[1-9]")
_DECIMALS = Context(prec=400)
# BIGINT UNSIGNED has so many; a number with more is not rounded, since it may exceed the precision.
_MAX_INTEGER_DIGITS = 20
_SHOWN_CHARS = 80
# Of a character in UTF-8.
_MOST_BYTES = 4


def stored_as(declared: str, column: str, value: SqlValue) -> int | float | str:
    """
    Args:
        declared: MySQL's type of the column, one that `kinds.sqlite_type` knows.
        column: the column's name, for the error.
    Raises:
        Refused: MySQL's error for a value that the type does not take, or 1235 if SQLite cannot hold it as MySQL does.
    """
    kind = declared_type(declared)
    if kind is not None and kind.is_number:
        return _number(declared, kind, column, value)
    if kind is not None and kind.is_temporal:
        return _moment(kind, column, to_text(value))
    return _text(declared, column, to_text(value))


@lru_cache(maxsize=1024)
def surely_holds(declared: str) -> Callable[[SqlValue], bool]:
    """A test whether a column holds a value as it is, which says no where only `stored_as` knows.

    Args:
        declared: see `stored_as`.
    """
    limits, (name, sizes, _) = integer_range(declared), column_type(declared)
    if limits is not None:
        return lambda value: type(value) is int and limits[0] <= value <= limits[1]
    if name in TEXT_BYTES or name == "VARCHAR":
        longest = TEXT_BYTES[name] // _MOST_BYTES if name in TEXT_BYTES else (sizes or (1,))[0]
        return lambda value: type(value) is str and len(value) <= longest
    return lambda value: False


def _number(declared: str, kind: SqlType, column: str, value: SqlValue) -> int | float:
    written, limits = _written(kind, column, value), integer_range(declared)
    if limits is not None:
        if written.adjusted() >= _MAX_INTEGER_DIGITS and written:
            return _out_of_range(column)
        rounding = ROUND_HALF_EVEN if isinstance(value, float) else ROUND_HALF_UP
        whole = int(written.quantize(Decimal(1), rounding, _DECIMALS))
        return whole if limits[0] <= whole <= limits[1] else _out_of_range(column)
    if kind == DOUBLE:
        return float(written) if abs(float(written)) <= sys.float_info.max else _out_of_range(column)
    digits = (column_type(declared).sizes or (10,))[0] - kind.scale
    if written.adjusted() >= digits and written:
        return _out_of_range(column)
    rounded = written.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, _DECIMALS)
    if rounded.adjusted() >= digits and rounded:
        return _out_of_range(column)
    if kind.scale == 0 and abs(rounded) < 2**63:
        return int(rounded)
    if Decimal(repr(float(rounded))) != rounded:
        raise Refused(left_out("decimals of more than 15 digits"))
    return float(rounded)


def _written(kind: SqlType, column: str, value: SqlValue) -> Decimal:
    if isinstance(value, int | float):
        return Decimal(repr(value)) if math.isfinite(value) else Decimal(_out_of_range(column))
    text = to_text(value)
    match = _NUMBER.match(text)
    if match and match.end() == len(text):
        return Decimal(match[1])
    if match or kind == DOUBLE:
        raise Refused(f"1265 (01000): Data truncated for column '{column}' at row 1")
    what = "decimal" if kind.name == "decimal" else "integer"
    raise Refused(f"1366 (HY000): Incorrect {what} value: '{text[:_SHOWN_CHARS]}' for column '{column}' at row 1")


def _out_of_range(column: str) -> int:
    raise Refused(f"1264 (22003): Out of range value for column '{column}' at row 1")


def _moment(kind: SqlType, column: str, text: str) -> str:
    if _FRACTION.search(text):
        raise Refused(left_out("fractions of a second in a column"))
    if (found := moment(text)) is not None:
        return found.date().isoformat() if kind == DATE else found.isoformat(sep=" ")
    raise Refused(f"1292 (22007): Incorrect {kind.name} value: '{text[:_SHOWN_CHARS]}' for column '{column}' at row 1")


def _text(declared: str, column: str, text: str) -> str:
    """A text; VARCHAR and CHAR cut blanks that are too many, and CHAR keeps none at the end."""
    name, sizes, _ = column_type(declared)
    if name in SIZED_TEXTS:
        size = (sizes or (1,))[0]
        if text[size:].strip(" "):
            raise Refused(f"1406 (22001): Data too long for column '{column}' at row 1")
        return text[:size].rstrip(" ") if name == "CHAR" else text[:size]
    if len(text.encode(errors="replace")) > TEXT_BYTES[name]:
        raise Refused(f"1406 (22001): Data too long for column '{column}' at row 1")
    return text


NULLS_MATTER: dict[str, Function] = {}

STRICT: dict[str, Function] = {"stored_as": (3, stored_as)}

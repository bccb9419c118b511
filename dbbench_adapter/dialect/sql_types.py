"""MySQL's types as far as they decide how values compare and print.

`signatures` says which function returns which kind, and `type_inference` finds the kind of an expression.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Literal, NamedTuple, cast

from sqlglot import exp

from dbbench_adapter.statement_clock import Refused, left_out

_MAX_SCALE = 30


@dataclass(frozen=True)
class SqlType:
    name: Literal["text", "int", "decimal", "double", "date", "datetime", "null"]
    scale: int = 0
    """Digits shown after the point, at most 30 as in MySQL; 0 for a double means all of its digits."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", min(self.scale, _MAX_SCALE))

    @property
    def is_number(self) -> bool:
        return self.name in ("int", "decimal", "double")

    @property
    def is_temporal(self) -> bool:
        """SQLite holds it as ISO text."""
        return self.name in ("date", "datetime")

    @property
    def is_exact(self) -> bool:
        return self.name in ("int", "decimal")


TEXT, INT, DOUBLE = SqlType("text"), SqlType("int"), SqlType("double")
DATE, DATETIME = SqlType("date"), SqlType("datetime")
# The kind of the word NULL, which compares with everything.
NULL = SqlType("null")


class TableColumn(NamedTuple):
    table: str
    """In lower case, as the next."""
    name: str
    kind: SqlType | None
    declared: str
    """MySQL's type, such as `VARCHAR(5)`; empty where it is unknown."""


# The columns of all tables, those of a table in their order.
Columns = tuple[TableColumn, ...]
# MySQL's div_precision_increment: AVG and `/` of exact numbers return four more digits.
_AVG_DIGITS = 4
# This precision has room for every double with all of MySQL's digits.
_DECIMALS = Context(prec=400)
# Up to here a double holds every whole number.
_DOUBLE_INTEGERS = 2.0**53
# A double holds every decimal of so many digits.
_DOUBLE_DIGITS = 15
# The most digits before or after the point; no column holds a number with more.
_MAX_WRITTEN_DIGITS = 400


class ColumnType(NamedTuple):
    """Other words of a declaration (`NOT NULL`, `CHARACTER SET utf8mb4`) are left out."""

    name: str
    """In capitals, such as `DECIMAL`."""
    sizes: tuple[int, ...]
    """The numbers in the parentheses."""
    unsigned: bool


# SQLite takes the words before the parentheses, MySQL after them.
_DECLARED = re.compile(
    r"\s*(?P<name>\w*)(?P<sign>(?:\s+(?:UNSIGNED|ZEROFILL|SIGNED|PRECISION)\b)*)\s*"
    r"(?:\((?P<sizes>[\d\s,]*)\))?(?P<rest>.*)",
    re.DOTALL,
)


@lru_cache(maxsize=1024)
def column_type(declared: str) -> ColumnType:
    """Read a type as a task, MySQL or SQLite declares it, such as `decimal (10, 2) UNSIGNED NOT NULL`."""
    parts = cast("re.Match[str]", _DECLARED.match(declared.upper()))
    words = f"{parts['sign']} {parts['rest']}".split()
    unsigned = "UNSIGNED" in words or "ZEROFILL" in words
    return ColumnType(parts["name"], tuple(map(int, re.findall(r"\d+", parts["sizes"] or ""))), unsigned)


# The types of columns that hold on SQLite what they hold on MySQL; tables with others are refused.
_INTEGER_BITS = {
    **{"TINYINT": 8, "BOOL": 8, "BOOLEAN": 8, "SMALLINT": 16, "MEDIUMINT": 24, "INT": 32, "INTEGER": 32, "BIGINT": 64}
}
SIZED_TEXTS = frozenset(["CHAR", "VARCHAR"])
# The bytes that a text of these types may have.
TEXT_BYTES = {"TINYTEXT": 2**8 - 1, "TEXT": 2**16 - 1, "MEDIUMTEXT": 2**24 - 1, "LONGTEXT": 2**32 - 1}
_KINDS = {
    **dict.fromkeys(_INTEGER_BITS, INT),
    **dict.fromkeys(["DOUBLE", "REAL"], DOUBLE),
    **dict.fromkeys([*SIZED_TEXTS, *TEXT_BYTES], TEXT),
    **{"DATE": DATE, "DATETIME": DATETIME},
}
_SYNONYMS = {"REAL": "DOUBLE", "BOOL": "BOOLEAN"}
_DECIMALS_NAMES = frozenset(["DECIMAL", "NUMERIC", "DEC"])


def declared_type(declared: str) -> SqlType | None:
    """The kind of a column by its declared type, such as `DECIMAL(10,2)`; None for a type that is refused."""
    name, sizes, unsigned = column_type(declared)
    if unsigned or (name == "DATETIME" and any(sizes)):
        return None
    if name in _DECIMALS_NAMES:
        return SqlType("decimal", sizes[1] if len(sizes) > 1 else 0)
    return _KINDS.get(name)


def integer_range(declared: str) -> tuple[int, int] | None:
    """The smallest and largest value that a declared type takes; None unless it is an integer type."""
    bits = _INTEGER_BITS.get(column_type(declared).name)
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if bits else None


def sqlite_type(declared: str) -> str:
    """The type by which SQLite declares a column, from which `mysql_type` reads MySQL's. Dates are texts for SQLite.

    Raises:
        Refused: no column of this type holds on SQLite what it holds on MySQL.
    """
    name, sizes, _ = column_type(declared)
    kind = declared_type(declared)
    if kind is None:
        raise Refused(left_out(f"columns of type {declared.strip()}"))
    if kind.is_temporal:
        return f"TEXT {name}"
    if name in SIZED_TEXTS:
        return f"{name}({(sizes or (1,))[0]})"
    return f"DECIMAL({','.join(map(str, sizes)) or 10})" if kind.name == "decimal" else _SYNONYMS.get(name, name)


def mysql_type(declared: str) -> str:
    """The type by which MySQL declares a column of `sqlite_type`."""
    word, _, rest = declared.partition(" ")
    return rest if word == "TEXT" and rest else "INT" if word == "INTEGER" else declared


def as_written(value: str | float) -> Decimal | None:
    """The exact value of a number, or of a text that is one; None for other texts, nan, infinity."""
    try:
        found = Decimal(value.strip() if isinstance(value, str) else repr(value))
    except (InvalidOperation, ValueError):
        return None
    return found if found.is_finite() and abs(found.adjusted()) < _MAX_WRITTEN_DIGITS else None


def as_driver_shows(value: object, kind: SqlType | None) -> object:
    """What MySQL's driver returns: decimals with their scale, doubles as float, dates.

    Raises:
        Refused: SQLite cannot hold MySQL's number, or MySQL ends the statement over it.
    """
    if kind is None or isinstance(value, bool):
        return value
    if kind.is_temporal and isinstance(value, str):
        return _as_moment(value, kind)
    if not isinstance(value, int | float):
        return value
    if not math.isfinite(value):
        raise Refused("1690 (22003): DOUBLE value is out of range")
    value = value or 0  # never -0.0
    if kind.name == "double":
        return round(float(value), kind.scale) if kind.scale else float(value)
    if kind.name == "decimal":
        return digits_of(value, kind.scale)
    return value


def digits_of(value: int | float, scale: int) -> Decimal:
    """Raises Refused: SQLite holds the number as a double, which has too few digits."""
    exact = Decimal(repr(value))
    inexact = isinstance(value, float) and abs(value) * 10.0**scale >= _DOUBLE_INTEGERS
    if inexact and len(exact.normalize().as_tuple().digits) > _DOUBLE_DIGITS:
        raise Refused(left_out("decimals of more than 15 digits"))
    return exact.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _DECIMALS)


def _as_moment(text: str, kind: SqlType) -> datetime.date | str:
    # A date or time as the driver's object; the text if it is none.
    try:
        return (datetime.date if kind == DATE else datetime.datetime).fromisoformat(text)
    except ValueError:
        return text


def to_cell(value: object) -> str | int | float | None:
    """A driver's value as a cell: decimals to int or float, dates to ISO text, bytes to text."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else float(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    return value if value is None or isinstance(value, str | int | float) else str(value)


def common_type(kinds: Sequence[SqlType | None]) -> SqlType | None:
    """The kind of a value that is one of several, as of IF and UNION; None if one of them is unknown."""
    if None in kinds:
        return None
    known = [kind for kind in kinds if kind is not None and kind != NULL]
    if not known:
        return NULL
    if all(kind.is_exact for kind in known):
        return max(known, key=lambda kind: (kind.name == "decimal", kind.scale))
    if all(kind.is_number for kind in known):
        return DOUBLE if not any(kind.scale for kind in known if kind.name == "double") else None  # MariaDB rounds some
    names = {kind.name for kind in known}
    if len(names) == 1:
        return known[0]
    return DATETIME if names <= {"date", "datetime"} else TEXT


def number_type(text: str) -> SqlType:
    if "e" in text.lower():
        return DOUBLE
    return SqlType("decimal", len(text.partition(".")[2])) if "." in text else INT


def as_number(inner: SqlType | None) -> SqlType | None:
    """The kind of a value in a numeric context: a double of a text, a whole number of a date."""
    if inner is None or inner.is_number:
        return inner
    return INT if inner.is_temporal else DOUBLE


def quotient(left: SqlType, right: SqlType) -> SqlType:
    if not (left.is_exact and right.is_exact):
        return DOUBLE
    return SqlType("decimal", left.scale + _AVG_DIGITS)


def cast_type(target: exp.DataType) -> SqlType | None:
    if target.is_type(*exp.DataType.INTEGER_TYPES):
        return INT
    if target.this == exp.DType.DECIMAL:
        params = target.expressions
        return SqlType("decimal", int(params[1].name) if len(params) > 1 else 0)
    if target.is_type(*exp.DataType.REAL_TYPES):
        return DOUBLE
    if target.is_type(*exp.DataType.TEMPORAL_TYPES):
        return DATE if target.this == exp.DType.DATE else DATETIME
    return TEXT if target.is_type(*exp.DataType.TEXT_TYPES, exp.DType.BINARY) else None

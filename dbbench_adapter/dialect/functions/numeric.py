"""Computes MySQL's numeric functions; they return NULL outside their domain, as in MySQL."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from decimal import ROUND_DOWN, ROUND_HALF_UP, Context, Decimal
from functools import partial
from typing import Any, TypeVar

from dbbench_adapter.datatypes import SqlValue
from dbbench_adapter.dialect.functions.values import Function, sort_key, to_number, to_text, whole
from dbbench_adapter.dialect.sql_types import as_written, digits_of
from dbbench_adapter.statement_clock import Refused, kept, left_out

# The most digits after the point, in MySQL's decimals and in FORMAT.
MAX_DIGITS = 30
_DECIMALS = Context(prec=400)
# A double holds this many digits of a decimal.
_DOUBLE_DIGITS = Context(prec=15)
_INTEGER = re.compile(r"\s*([-+]?[0-9]+)")
_DECIMAL = re.compile(r"\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?)")
_LARGE = left_out("whole numbers of 2^63 and more")
_BIGINT = "1690 (22003): BIGINT value is out of range"
_DOUBLE = "1690 (22003): DOUBLE value is out of range"

T = TypeVar("T", bound=SqlValue)


def half_up(value: float) -> int:
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


def _digits(value: SqlValue) -> int:
    return min(max(whole(value), 0), MAX_DIGITS)


def _format(value: SqlValue, digits: SqlValue) -> str:
    places = _digits(digits)
    rounded = _round(value, places)
    if not math.isfinite(rounded):
        raise ArithmeticError("no finite number")
    return f"{Decimal(repr(rounded)):,.{places}f}"


def _integer(value: SqlValue) -> int:
    if isinstance(value, int | float):
        return half_up(value) if isinstance(value, float) else value
    match = _INTEGER.match(to_text(value))
    return int(match[1]) if match else 0


def _cast_signed(value: SqlValue) -> int:
    """Raises Refused: a text has more digits, of which MySQL takes 64 bits in its own way."""
    cast = _integer(value)
    if isinstance(value, str) and not -(2**63) <= cast < 2**63:
        raise Refused(_LARGE)
    return min(max(cast, -(2**63)), 2**63 - 1)


def _cast_unsigned(value: SqlValue) -> int:
    """Raises Refused: it is one of those that SQLite's whole numbers do not hold."""
    cast = _integer(value)
    if not 0 <= cast < 2**63:
        raise Refused(_LARGE)
    return cast


def _cast_decimal(value: SqlValue, scale: SqlValue, precision: SqlValue) -> int | float:
    """Raises Refused: it has too many digits, where MySQL takes the nearest or ends a change."""
    digits = _digits(scale)
    written = _exact(value)
    largest = Decimal(10) ** (whole(precision) - digits) - Decimal(1).scaleb(-digits)
    rounded = written.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP, _DECIMALS)
    if abs(rounded) > largest:
        raise Refused(left_out("CAST of a number that the type does not hold"))
    return float(rounded) if digits or abs(rounded) >= 2**63 else int(rounded)


def _int_div(left: SqlValue, right: SqlValue) -> int | None:
    # The numbers count as they are written: 0.3 DIV 0.1 is 3.
    first, second = _exact(left), _exact(right)
    return _in_bigint(int(_DECIMALS.divide_int(first, second))) if second else None


def _exact(value: SqlValue) -> Decimal:
    """A number, or the one that a text begins with, in all its digits."""
    match = None if isinstance(value, int | float) else _DECIMAL.match(to_text(value))
    found = as_written(value if isinstance(value, int | float) else match[1] if match else "0")
    if found is None:
        raise Refused(_DOUBLE)
    return found


def _truncate(value: SqlValue, digits: SqlValue) -> float:
    """Raises Refused: a double falls short of the decimal, as 4.35 * 100 does of 435."""
    found, places = to_number(value), max(min(whole(digits), MAX_DIGITS), -MAX_DIGITS)
    if isinstance(found, int):
        size = abs(found) // 10 ** max(-places, 0) * 10 ** max(-places, 0)
        return size if found >= 0 else -size
    factor = 10.0**places
    cut = math.trunc(found * factor) / factor
    if cut != float(Decimal(repr(found)).quantize(Decimal(1).scaleb(-places), ROUND_DOWN, _DECIMALS)):
        raise Refused(left_out("TRUNCATE of such a number"))
    return cut


def _round(value: SqlValue, digits: SqlValue = 0) -> int | float:
    # Round halves exactly in the written decimal, as MySQL rounds its decimals.
    if isinstance(value, str):
        return _round_double(value, digits)
    found, places = to_number(value), max(min(whole(digits), MAX_DIGITS), -MAX_DIGITS)
    if not math.isfinite(found):
        return found
    rounded = Decimal(repr(found)).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP, _DECIMALS)
    return int(rounded) if isinstance(found, int) else float(rounded)


def _round_double(value: SqlValue, digits: SqlValue = 0) -> float:
    """Round a double or a text, as C does: halves to the even neighbour."""
    found, factor = float(to_number(value)), 10.0 ** max(min(whole(digits), MAX_DIGITS), -MAX_DIGITS)
    scaled = found * factor
    return round(scaled) / factor if math.isfinite(scaled) else found


def _as_text(value: SqlValue, digits: int | None = None) -> str:
    """The text of a number: a decimal with `digits` after the point, a double or an integer with its own."""
    if digits is None or not isinstance(value, int | float) or not math.isfinite(value):
        return to_text(value)
    digits_of(value, digits)
    exact = _DOUBLE_DIGITS.create_decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    return f"{exact.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP, _DECIMALS):f}"


def _decimal_text(value: SqlValue) -> str:
    # The text of a decimal with all the digits that SQLite knows of it.
    if not isinstance(value, float) or not math.isfinite(value):
        return to_text(value)
    return f"{_DOUBLE_DIGITS.create_decimal(repr(value)):f}"


# Ranges ---------------------------------------------------------------------------------------------------------------


def _in_bigint(value: T) -> T:
    # SQLite turns a sum of whole numbers into a double where it is out of range.
    if isinstance(value, float) or (isinstance(value, int) and not -(2**63) <= value < 2**63):
        raise kept(Refused(_BIGINT))
    return value


def _in_double(value: T) -> T | float:
    # A sum in which one operand is a double, also where SQLite adds a text as a whole number.
    if isinstance(value, int) and abs(value) > 2**53:
        return float(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise kept(Refused(_DOUBLE))
    return value


def _extreme(wanted: int, *values: Any) -> Any:
    """GREATEST (1) or LEAST (-1) of texts alone or numbers alone."""
    extreme = max if wanted > 0 else min
    return extreme(values, key=sort_key if isinstance(values[0], str) else to_number)


def _mod(left: SqlValue, right: SqlValue) -> int | float | None:
    """Raises Refused: of decimals as doubles another rest is left, as of 0.3 and 0.1."""
    first, second = to_number(left), to_number(right)
    if not second:
        return None
    if isinstance(first, int) and isinstance(second, int):
        return int(math.copysign(abs(first) % abs(second), first))
    rest = math.fmod(first, second)
    exact = _DECIMALS.remainder(Decimal(repr(first)), Decimal(repr(second)))
    if not math.isclose(rest, exact, abs_tol=1e-9 * abs(second)):
        raise Refused(left_out("MOD of such numbers"))
    return rest


def _rand() -> float:
    return random.random()


def _math(function: Callable[..., float]) -> Callable[..., float | None]:
    def guarded(*values: SqlValue) -> float | None:
        try:
            found = function(*(to_number(value) for value in values))
        except (OverflowError, ZeroDivisionError):
            raise Refused(_DOUBLE) from None
        except Refused:
            raise
        except ValueError:
            return None
        return _in_double(found)

    return guarded


def _to_whole(rounding: Callable[[float], int]) -> Callable[[SqlValue], SqlValue]:
    """CEIL or FLOOR, which leave a whole number as it is and turn a double into one."""

    def rounded(value: SqlValue) -> SqlValue:
        found = to_number(value)
        return found if isinstance(found, int) else _in_double(rounding(found))

    return rounded


def _power(base: float, exponent: float) -> float:
    try:
        return math.pow(base, exponent)
    except ValueError:  # a negative power of 0, a root of a negative number
        raise Refused(_DOUBLE) from None


def _log(base_or_value: float, *value: float) -> float:
    return math.log(value[0], base_or_value) if value else math.log(base_or_value)


NULLS_MATTER: dict[str, Function] = {
    "rand": (0, _rand),
}

STRICT: dict[str, Function] = {
    "as_text": (-1, _as_text),
    "greatest": (-1, partial(_extreme, 1)),
    "least": (-1, partial(_extreme, -1)),
    "format": (2, _format),
    "decimal_text": (1, _decimal_text),
    "cast_signed": (1, _cast_signed),
    "cast_unsigned": (1, _cast_unsigned),
    "cast_decimal": (3, _cast_decimal),
    "int_div": (2, _int_div),
    "truncate": (2, _truncate),
    "ceil": (1, _to_whole(math.ceil)),
    "ceiling": (1, _to_whole(math.ceil)),
    "floor": (1, _to_whole(math.floor)),
    "sign": (1, lambda value: (to_number(value) > 0) - (to_number(value) < 0)),
    "sqrt": (1, _math(math.sqrt)),
    "pow": (2, _math(_power)),
    "power": (2, _math(_power)),
    "exp": (1, _math(math.exp)),
    "ln": (1, _math(math.log)),
    "log": (-1, _math(_log)),
    "log2": (1, _math(math.log2)),
    "log10": (1, _math(math.log10)),
    "mod": (2, _mod),
    "mysql_round": (-1, _round),
    "round_double": (-1, _round_double),
}

# These stand around every sum, so they run without the limits of other functions, which cost three times as much.
RANGES: dict[str, Function] = {
    "in_bigint": (1, _in_bigint),
    "in_double": (1, _in_double),
}

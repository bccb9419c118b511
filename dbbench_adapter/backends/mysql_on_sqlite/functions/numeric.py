"""Computes MySQL's numeric functions; they return NULL outside their domain, as in MySQL."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import partial
from typing import Any

from dbbench_adapter.backends.mysql_on_sqlite.functions.values import Function, number, sort_key, text_of, whole

MAX_DIGITS = 30
"""The most digits after the point, in MySQL's decimals and in FORMAT."""
_DECIMALS = Context(prec=400)
_DOUBLE_DIGITS = Context(prec=15)
"""A double holds this many digits of a decimal."""


def half_up(value: float) -> int:
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


def _digits(value: Any) -> int:
    return min(max(whole(value), 0), MAX_DIGITS)


def _format(value: Any, digits: Any) -> str:
    places = _digits(digits)
    rounded = _round(value, places)
    if not math.isfinite(rounded):
        raise ArithmeticError("no finite number")
    return f"{Decimal(repr(rounded)):,.{places}f}"


def _cast_signed(value: Any) -> int:
    """Return the nearest BIGINT; MySQL adds a warning."""
    cast = half_up(value) if isinstance(value, float) else int(number(value))
    return min(max(cast, -(2**63)), 2**63 - 1)


def _cast_decimal(value: Any, scale: Any) -> int | float:
    digits = _digits(scale)
    rounded = half_up(number(value) * 10**digits)
    return rounded / 10**digits if digits else rounded


def _int_div(left: Any, right: Any) -> int | None:
    divisor = number(right)
    if not divisor:
        return None
    quotient = math.trunc(number(left) / divisor)
    if not -(2**63) <= quotient < 2**63:
        raise ArithmeticError("BIGINT value is out of range")
    return quotient


def _truncate(value: Any, digits: Any) -> float:
    found, factor = number(value), 10.0 ** max(min(whole(digits), MAX_DIGITS), -MAX_DIGITS)
    cut = math.trunc(found * factor) / factor
    return int(cut) if isinstance(found, int) else cut


def _round(value: Any, digits: Any = 0) -> int | float:
    """Round halves exactly in the written decimal, as MySQL rounds its decimals."""
    if isinstance(value, str):
        return _round_double(value, digits)
    found, places = number(value), max(min(whole(digits), MAX_DIGITS), -MAX_DIGITS)
    if not math.isfinite(found):
        return found
    rounded = Decimal(repr(found)).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP, _DECIMALS)
    return int(rounded) if isinstance(found, int) else float(rounded)


def _round_double(value: Any, digits: Any = 0) -> float:
    """Round a double or a text, as C does: halves to the even neighbour."""
    found, factor = float(number(value)), 10.0 ** max(min(whole(digits), MAX_DIGITS), -MAX_DIGITS)
    scaled = found * factor
    return round(scaled) / factor if math.isfinite(scaled) else found


def _as_text(value: Any, digits: Any = None, own: Any = 0) -> str:
    """Return the text of a number: a decimal with `digits` after the point, a double or an integer with its own.

    Args:
        own: 1 leaves whole numbers as they are, since a decimal that was chosen from several keeps its own digits.
    """
    if (
        digits is None
        or (own and isinstance(value, int))
        or not isinstance(value, int | float)
        or not math.isfinite(value)
    ):
        return text_of(value)
    exact = _DOUBLE_DIGITS.create_decimal(repr(value))
    return f"{exact.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP, _DECIMALS):f}"


def _extreme(wanted: int, *values: Any) -> Any:
    """Return GREATEST (1) or LEAST (-1): texts alone compare by the collation, numbers and mixtures by number."""
    texts = [value for value in values if isinstance(value, str)]
    extreme = max if wanted > 0 else min
    if len(texts) == len(values):
        return extreme(values, key=sort_key)
    found = extreme(values, key=number)
    return float(number(found)) if texts else found


def _extreme_number(wanted: int, *values: Any) -> float:
    extreme = max if wanted > 0 else min
    return float(extreme(number(value) for value in values))


def _mod(left: Any, right: Any) -> int | float | None:
    first, second = number(left), number(right)
    if not second:
        return None
    both = isinstance(first, int) and isinstance(second, int)
    return int(math.copysign(abs(first) % abs(second), first)) if both else math.fmod(first, second)


def _bits(combine: Callable[..., int]) -> Callable[..., int]:
    """Return a function of bits; MySQL's are whole numbers without a sign.
    Raises:
        ArithmeticError: the result does not fit into SQLite's whole numbers.
    """

    def combined(*values: Any) -> int:
        made = combine(*(half_up(number(value)) % 2**64 for value in values)) % 2**64
        if made >= 2**63:
            raise ArithmeticError("more than 63 bits")
        return made

    return combined


def _rand(seed: Any = None) -> float:
    return random.Random(whole(seed)).random() if seed is not None else random.random()


def _math(function: Callable[..., float]) -> Callable[..., float | None]:
    def guarded(*values: Any) -> float | None:
        try:
            return function(*(number(value) for value in values))
        except (ValueError, OverflowError, ZeroDivisionError):
            return None

    return guarded


def _log(base_or_value: float, *value: float) -> float:
    return math.log(value[0], base_or_value) if value else math.log(base_or_value)


NULLS_MATTER: dict[str, Function] = {
    "rand": (-1, _rand),
    "pi": (0, lambda: math.pi),
}

STRICT: dict[str, Function] = {
    "as_text": (-1, _as_text),
    "greatest": (-1, partial(_extreme, 1)),
    "least": (-1, partial(_extreme, -1)),
    "greatest_number": (-1, partial(_extreme_number, 1)),
    "least_number": (-1, partial(_extreme_number, -1)),
    "format": (2, _format),
    "cast_signed": (1, _cast_signed),
    "cast_decimal": (2, _cast_decimal),
    "int_div": (2, _int_div),
    "truncate": (2, _truncate),
    "ceil": (1, _math(math.ceil)),
    "ceiling": (1, _math(math.ceil)),
    "floor": (1, _math(math.floor)),
    "sign": (1, lambda value: (number(value) > 0) - (number(value) < 0)),
    "sqrt": (1, _math(math.sqrt)),
    "pow": (2, _math(math.pow)),
    "power": (2, _math(math.pow)),
    "exp": (1, _math(math.exp)),
    "ln": (1, _math(math.log)),
    "log": (-1, _math(_log)),
    "log2": (1, _math(math.log2)),
    "log10": (1, _math(math.log10)),
    "mod": (2, _mod),
    "mysql_round": (-1, _round),
    "round_double": (-1, _round_double),
    "bits_and": (2, _bits(lambda left, right: left & right)),
    "bits_or": (2, _bits(lambda left, right: left | right)),
    "bitwise_xor": (2, _bits(lambda left, right: left ^ right)),
    "bit_not": (1, _bits(lambda value: ~value)),
    "bit_left": (2, _bits(lambda value, count: value << count if count < 64 else 0)),
    "bit_right": (2, _bits(lambda value, count: value >> count if count < 64 else 0)),
    "bit_count": (1, lambda value: (half_up(number(value)) % 2**64).bit_count()),
    "cot": (1, _math(lambda value: 1 / math.tan(value))),
}

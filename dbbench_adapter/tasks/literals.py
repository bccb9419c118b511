"""Reads a Python literal from text that a model or a data file wrote, without running any of it.

It understands constant expressions: literals, and the arithmetic on numbers that the original judges' `eval` would do
(for them `[2010-12-31]` is a list with one number). Calls, attributes and names are refused, except names of builtins,
which stand for themselves (in the originals `[max]` is no text either). `parse_rows` also understands the constructors
that database drivers print inside rows, `Decimal('1.5')` and `datetime.date(2024, 1, 31)`.
"""

from __future__ import annotations

import ast
import builtins
import datetime
import operator
import warnings
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from dbbench_adapter.datatypes import Cell, Rows

# A longer text is not parsed; the longest result of the 500 LifelongAgentBench references has 1,583 characters.
MAX_CHARS = 200_000
_MAX_BITS = 14_000  # Python prints no integer of more than 4,300 digits
# The most digits before the point of a decimal; MySQL's have at most 65.
_MAX_ADJUSTED = 300
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
}
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}


def parse_literal(text: str) -> Any:
    """The value of a constant expression.

    Raises:
        ValueError: the text is not a constant, is longer than `MAX_CHARS` or nested too deeply, or its value is too
            large to print.
    """
    return _evaluate(_parse(text))


def parse_rows(text: str) -> Rows | None:
    """The rows of a printed driver result such as `[('a', 1), ('b', Decimal('2.50'))]`.

    Returns:
        One tuple per row; decimals with a point as float, without one as int, dates as ISO text. None if the text is
        not a list of tuples or lists.
    """
    try:
        node = _parse(text.strip())
        if not isinstance(node, ast.List):
            return None
        return tuple(_row(item) for item in node.elts)
    except ValueError:
        return None


def _parse(text: str) -> ast.expr:
    if len(text) > MAX_CHARS:
        raise ValueError(f"text of {len(text)} characters, expected at most {MAX_CHARS}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a SyntaxWarning about a model's backslashes helps nobody
            return ast.parse(text.lstrip(" \t"), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(f"not a constant: {type(error).__name__}") from None


def _evaluate(node: ast.expr) -> object:
    try:
        return _value(node)
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"not a constant: {type(error).__name__}") from None


def _value(node: ast.expr | None) -> object:
    match node:
        case ast.Constant():
            return node.value
        case ast.List():
            return [_value(item) for item in node.elts]
        case ast.Tuple():
            return tuple(_value(item) for item in node.elts)
        case ast.Set():
            return {_value(item) for item in node.elts}
        case ast.Dict():
            pairs = zip(node.keys, node.values, strict=True)
            return {_value(key): _value(value) for key, value in pairs}
        case ast.UnaryOp():
            return _UNARY[type(node.op)](_value(node.operand))
        case ast.BinOp():
            return _calculated(type(node.op), _value(node.left), _value(node.right))
        case ast.Name() if hasattr(builtins, node.id):
            return getattr(builtins, node.id)
    raise ValueError(type(node).__name__)


def _calculated(operation: type[ast.operator], left: object, right: object) -> object:
    """Calculate with two numbers; the result must be small enough to print."""
    if not isinstance(left, int | float | complex) or not isinstance(right, int | float | complex):
        raise ValueError("an operator between other things than numbers")
    if isinstance(left, int) and isinstance(right, int):
        bits = {ast.Pow: left.bit_length() * abs(right), ast.LShift: left.bit_length() + abs(right)}
        if bits.get(operation, left.bit_length() + right.bit_length()) > _MAX_BITS:
            raise ValueError("a number too large to print")
    return _BINARY[operation](left, right)


def _row(node: ast.expr) -> tuple[Cell, ...]:
    if not isinstance(node, ast.Tuple | ast.List):
        raise ValueError("a row is a tuple or a list")
    return tuple(_cell(item) for item in node.elts)


def _cell(node: ast.expr) -> Cell:
    if isinstance(node, ast.Call):
        value = _constructed(ast.unparse(node.func), [_evaluate(argument) for argument in node.args])
    else:
        value = _evaluate(node)
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(f"a cell is text, a number or None, got {type(value).__name__}")


def _decimal(value: Any) -> int | float:
    # An integer if no point is printed: to MySQL's drivers the sum of a column of integers is a decimal.
    number = Decimal(value)
    if not number.is_finite() or abs(number.adjusted()) > _MAX_ADJUSTED:
        raise ValueError("a number too large or small to be one of a database")
    return int(number) if number.as_tuple().exponent == 0 else float(number)


def _constructed(name: str, arguments: list[Any]) -> Cell:
    try:
        if name in ("Decimal", "decimal.Decimal"):
            return _decimal(*arguments)
        if name in ("datetime.date", "date"):
            return datetime.date(*arguments).isoformat()
        if name in ("datetime.datetime", "datetime"):
            return datetime.datetime(*arguments).isoformat(sep=" ")
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{name}: {error}") from None
    raise ValueError(f"a call of {name}")

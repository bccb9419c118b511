"""Calculates the exact value of an arithmetic expression, without running code. Pure.

It knows numbers, + - * / // % ** and parentheses, but no names. Numbers may be written as in GSM8K: with commas between
thousands, `$` in front, or a percent sign behind (`20%` is 0.2). A `%` before another number or a parenthesis is the
remainder of a division.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction

MAX_CHARS = 300
# Largest depth of a parsed expression; a sum of n numbers is n - 1 deep.
MAX_DEPTH = 100
MAX_EXPONENT = 100
# Largest size of numerator and denominator of every intermediate number, 154 digits.
MAX_BITS = 512
SIGNIFICANT_DIGITS = 12

_NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
_FOREIGN = re.compile(r"[^0-9.,$%+*/() -]")
_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})++(?![0-9,])")
_DOLLAR = re.compile(rf"\$ ?(?=-?{_NUMBER})")
_PERCENT = re.compile(rf"({_NUMBER}) ?%(?= ?(?:[-+*/)]|$))")
_STRAY_PERCENT = re.compile(r"% ?(?:[-+*/)]|$)")

_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction | int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class _Refused(ValueError):
    """An expression has no value here; the message says why."""


def calculate(expression: str) -> str:
    """Never raises. The whole part is in full, and decimals up to `SIGNIFICANT_DIGITS` digits in total, rounded half to
    even, without trailing zeros.

    Returns:
        The value in digits, or `Error: ...`.
    """
    try:
        return _format_number(_evaluate(expression))
    except _Refused as refusal:
        return f"Error: {refusal}."


def _evaluate(expression: str) -> Fraction:
    if len(expression) > MAX_CHARS:
        raise _Refused(f"the expression has {len(expression)} characters, at most {MAX_CHARS} are read")
    text = _plain(" ".join(expression.split()))
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # the latter two: too many parentheses
        raise _not_arithmetic(text) from None
    return _value(tree.body, text, 1)


def _plain(text: str) -> str:
    if not text:
        raise _Refused("the expression is empty; write one such as 48/2")
    if foreign := _FOREIGN.search(text):
        raise _Refused(f"{foreign[0]!r} is not allowed; write numbers, + - * / // % ** and parentheses")
    text = _DOLLAR.sub("", _THOUSANDS.sub(lambda number: number[0].replace(",", ""), text))
    text = _PERCENT.sub(r"(\1/100)", text)
    if "," in text:
        raise _Refused("a comma may only stand between thousands, as in 1,000")
    if "$" in text or _STRAY_PERCENT.search(text):
        raise _Refused("$ stands in front of a number and a percent sign behind one, as in $5 and 20%")
    return text


def _value(node: ast.expr, text: str, depth: int) -> Fraction:
    if depth > MAX_DEPTH:
        raise _Refused("the expression is nested too deeply; calculate it in parts")
    match node:
        case ast.Constant(value=int() | float()):
            value = Fraction(
                text[node.col_offset : node.end_col_offset]
            )  # from the text, because the parser's 0.1 is a float
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = -_value(operand, text, depth + 1)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            value = _value(operand, text, depth + 1)
        case ast.BinOp(left=left, op=op, right=right):
            value = _combined(op, _value(left, text, depth + 1), _value(right, text, depth + 1))
        case _:
            raise _not_arithmetic(text)
    if value.numerator.bit_length() > MAX_BITS or value.denominator.bit_length() > MAX_BITS:
        raise _Refused("a number becomes too large")
    return value


def _combined(op: ast.operator, left: Fraction, right: Fraction) -> Fraction:
    if isinstance(op, ast.Pow):
        return _power(left, right)
    function = _BINARY.get(type(op))
    if function is None:
        raise _Refused("only + - * / // % and ** are known")
    try:
        return Fraction(function(left, right))
    except ZeroDivisionError:
        raise _Refused("division by zero") from None


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > MAX_EXPONENT:
        raise _Refused(f"an exponent has to be a whole number from -{MAX_EXPONENT} to {MAX_EXPONENT}")
    if max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(exponent) > 2 * MAX_BITS:
        raise _Refused("a number becomes too large")  # checked before it is computed
    try:
        return Fraction(base ** int(exponent))
    except ZeroDivisionError:
        raise _Refused("division by zero") from None


def _not_arithmetic(text: str) -> _Refused:
    return _Refused(f"{text[:60]!r} cannot be read as arithmetic; write an expression such as (3 + 4) * 2")


def _format_number(value: Fraction) -> str:
    digits = max(SIGNIFICANT_DIGITS, len(str(abs(int(value)))))
    text = f"{Context(prec=digits).divide(Decimal(value.numerator), Decimal(value.denominator)):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text

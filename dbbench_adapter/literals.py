"""Read a Python literal out of text that a model or a data file wrote, without running any of it.

Leaves out everything that is not a literal: names, calls, operators. `parse_rows` also understands the two
constructors that database drivers print inside rows, `Decimal('1.5')` and `datetime.date(2024, 1, 31)`.
"""

from __future__ import annotations

import ast
import datetime
import warnings
from typing import Any

from dbbench_adapter.types import Cell, Rows

MAX_CHARS = 200_000
"""Longer texts are not parsed: the longest result of the 500 LifelongAgentBench references has 1,583."""


def parse_literal(text: str) -> Any:
    """The value of a Python literal.

    Raises:
        ValueError: not a literal, longer than `MAX_CHARS`, or nested too deeply to parse.
    """
    return _evaluate(_parse(text))


def parse_rows(text: str) -> Rows | None:
    """The rows of a printed driver result such as `[('a', 1), ('b', Decimal('2.50'))]`.

    Returns:
        One tuple per row; decimals as float, dates as ISO text; None where the text is not a list of tuples or lists.
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
            warnings.simplefilter("ignore")  # SyntaxWarning about a model's backslashes is of no use to anyone
            return ast.parse(text.lstrip(" \t"), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(f"not a Python literal: {type(error).__name__}") from None


def _evaluate(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(f"not a Python literal: {type(error).__name__}") from None


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


def _constructed(name: str, arguments: list[Any]) -> Cell:
    try:
        if name in ("Decimal", "decimal.Decimal"):
            return float(*arguments)
        if name in ("datetime.date", "date"):
            return datetime.date(*arguments).isoformat()
        if name in ("datetime.datetime", "datetime"):
            return datetime.datetime(*arguments).isoformat(sep=" ")
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name}: {error}") from None
    raise ValueError(f"a call of {name}")

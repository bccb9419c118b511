"""Finds the type that MySQL gives an expression, from the syntax tree; the type decides how values compare and print.

This module has no catalogue: it knows a column by its name alone, and not at all if two tables disagree about it.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, Literal

from sqlglot import exp

_MAX_SCALE = 30


@dataclass(frozen=True)
class Kind:
    name: Literal["text", "int", "decimal", "double"]
    scale: int = 0
    """Digits shown after the point, at most 30 as in MySQL; 0 for a double means all of its digits."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", min(self.scale, _MAX_SCALE))

    @property
    def is_number(self) -> bool:
        return self.name != "text"

    @property
    def is_exact(self) -> bool:
        return self.name in ("int", "decimal")


TEXT, INT, DOUBLE = Kind("text"), Kind("int"), Kind("double")
ColumnKinds = frozenset[tuple[str, Kind]]
_AVG_DIGITS = 4
"""MySQL's div_precision_increment: AVG and `/` of exact numbers return four more digits."""
_MAX_ALIAS_DEPTH = 20
_TEXT_NODES = (exp.Substring, exp.Left, exp.Right, exp.Trim, exp.Upper, exp.Lower, exp.GroupConcat)
_VARIANCES = (exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance, exp.VariancePop)
_DECIMALS = Context(prec=400)
"""This precision has room for every double with all of MySQL's digits."""
_MAX_WRITTEN_DIGITS = 400
"""The most digits before or after the point; no column holds a number with more."""


def declared_kind(declared: str) -> Kind:
    """Return the kind of a column by its declared type, such as `DECIMAL(10,2)`; return TEXT for every unknown type."""
    name, _, rest = declared.upper().partition("(")
    if "INT" in name or name in ("BOOL", "BOOLEAN", "YEAR"):
        return INT
    if name in ("DOUBLE", "FLOAT", "REAL"):
        return DOUBLE
    if name in ("DECIMAL", "NUMERIC", "DEC"):
        parts = rest.rstrip(") ").split(",")
        return Kind("decimal", int(parts[1]) if len(parts) > 1 else 0)
    return TEXT


_INTEGER_BITS = {"TINYINT": 8, "BOOL": 8, "BOOLEAN": 8, "SMALLINT": 16, "MEDIUMINT": 24, "BIGINT": 64}


def integer_range(declared: str) -> tuple[int, int] | None:
    """Return the smallest and largest value that a declared type takes; return None unless it is an integer type."""
    if declared_kind(declared) != INT:
        return None
    name = declared.upper().partition("(")[0].split()[0]
    if name == "YEAR":
        return (0, 2155)
    bits = _INTEGER_BITS.get(name, 32)
    return (0, 2**bits - 1) if "UNSIGNED" in declared.upper() else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def as_written(value: str | float) -> Decimal | None:
    """Return the exact value of a number, or of a text that is one; return None for other texts, nan, infinity."""
    try:
        found = Decimal(value.strip() if isinstance(value, str) else repr(value))
    except (InvalidOperation, ValueError):
        return None
    return found if found.is_finite() and abs(found.adjusted()) < _MAX_WRITTEN_DIGITS else None


def as_driver_shows(value: Any, kind: Kind | None) -> Any:
    """Convert a value of SQLite to what MySQL's driver returns: decimals with their scale, doubles as float."""
    if kind is None or isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if kind.name == "double":
        return round(float(value), kind.scale) if kind.scale else float(value)
    if kind.name == "decimal" and math.isfinite(value):
        return Decimal(repr(value)).quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, _DECIMALS)
    return value


def plain(value: Any) -> str | int | float | None:
    """Convert a driver's value to a cell: decimals to int or float, dates to ISO text, bytes to text."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else float(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    return value if value is None or isinstance(value, str | int | float) else str(value)


class KindFinder:
    """Finds the kinds of the expressions in one statement, given all its nodes; it follows the statement's aliases."""

    def __init__(self, nodes: Iterable[exp.Expr], columns: ColumnKinds) -> None:
        self._columns = dict(columns)
        self._aliases = {item.alias.lower(): item.this for item in nodes if isinstance(item, exp.Alias)}
        self._depth = 0

    def kind(self, node: exp.Expr | None) -> Kind | None:
        """Return the kind of an expression, or None if the syntax does not tell."""
        if node is None or self._depth > _MAX_ALIAS_DEPTH:
            return None
        self._depth += 1
        try:
            return self._find(node)
        finally:
            self._depth -= 1

    def _find(self, node: exp.Expr) -> Kind | None:
        match node:
            case exp.Literal():
                return TEXT if node.is_string else _number(node.name)
            case exp.Column():
                return self._column(node.name.lower())
            case exp.Paren() | exp.Alias() | exp.Collate() | exp.Max() | exp.Min() | exp.Nullif():
                return self.kind(node.this)
            case exp.Neg() | exp.Abs():
                return _as_number(self.kind(node.this))
            case exp.Subquery():
                inner = node.unnest()
                selects = inner.selects if isinstance(inner, exp.Query) else []
                return self.kind(selects[0]) if len(selects) == 1 else None
            case exp.Count() | exp.Predicate() | exp.Not() | exp.IntDiv() | exp.Connector() | exp.Boolean():
                return INT
            case exp.Cast():
                return _cast_kind(node)
            case exp.Sum():
                inner = self.kind(node.this)
                return None if inner is None else Kind("decimal", inner.scale) if inner.is_exact else DOUBLE
            case _ if isinstance(node, _VARIANCES):
                return DOUBLE
            case _ if isinstance(node, _TEXT_NODES):
                return TEXT
            case exp.Avg():
                return _quotient(self.kind(node.this), INT)
            case exp.Round():
                return self._round(node)
            case exp.Add() | exp.Sub() | exp.Mul() | exp.Div() | exp.Mod():
                return self._arithmetic(node, node.left, node.right)
            case exp.Coalesce():
                return self._common([node.this, *node.expressions])
            case exp.If():
                return self._common([node.args["true"], node.args.get("false")])
            case exp.Anonymous():
                return self._called(node.name.lower(), node.expressions)
            case exp.TimestampDiff() | exp.Extract():
                return INT
            case exp.Case():
                branches = [branch.args["true"] for branch in node.args["ifs"]]
                return self._common([*branches, node.args.get("default")])
        return None

    def kinds_of(self, query: exp.Expr) -> tuple[Kind | None, ...]:
        """Return the kinds of a query's columns; return () if a star leaves them open."""
        if isinstance(query, exp.SetOperation):
            sides = self.kinds_of(query.left.unnest()), self.kinds_of(query.right.unnest())
            same = len(sides[0]) == len(sides[1])
            return tuple(_common_kind(pair) for pair in zip(*sides, strict=True)) if same else ()
        if type(query) is not exp.Select:
            return ()
        if not query.is_star:
            return tuple(self.kind(item) for item in query.selects)
        source = query.args.get("from_")
        if len(query.expressions) > 1 or query.args.get("joins") or source is None:
            return ()
        return self.kinds_of(source.this.unnest()) if isinstance(source.this, exp.Subquery) else ()

    def _column(self, name: str) -> Kind | None:
        return self._columns[name] if name in self._columns else self.kind(self._aliases.get(name))

    def _called(self, name: str, values: list[exp.Expr]) -> Kind | None:
        match name, len(values):
            case "truncate", 2:
                return self._round(exp.Round(this=values[0], decimals=values[1]))
            case "mod", 2:
                return self._arithmetic(exp.Mod(), *values)
            case "floor" | "ceil" | "ceiling", 1:
                inner = self.kind(values[0])
                return None if inner is None else INT if inner.is_exact else DOUBLE
            case "abs", 1:
                return _as_number(self.kind(values[0]))
            case "greatest" | "least", _:
                kinds = {self.kind(value) for value in values}
                return DOUBLE if TEXT in kinds and len(kinds - {None}) > 1 else self._common(list(values))
        return None

    def _round(self, node: exp.Round) -> Kind | None:
        inner, digits = self.kind(node.this), node.args.get("decimals")
        if inner is None or inner == INT:
            return inner
        if inner.name != "decimal":
            return Kind("double", int(digits.name) if isinstance(digits, exp.Literal) and digits.is_int else 0)
        if digits is None or isinstance(digits, exp.Neg):
            return Kind("decimal", 0)
        return Kind("decimal", min(int(digits.name), inner.scale)) if digits.is_int and int(digits.name) >= 0 else None

    def _arithmetic(self, node: exp.Expr, first: exp.Expr, second: exp.Expr) -> Kind | None:
        left, right = self.kind(first), self.kind(second)
        if isinstance(second, exp.Interval) or left is None or right is None:
            return None
        if isinstance(node, exp.Div) or not (left.is_exact and right.is_exact):
            return _quotient(left, right)
        if left == right == INT:
            return INT
        joined = sum if isinstance(node, exp.Mul) else max
        return Kind("decimal", joined((left.scale, right.scale)))

    def _common(self, nodes: list[exp.Expr | None]) -> Kind | None:
        return _common_kind([self.kind(node) for node in nodes if node is not None and not isinstance(node, exp.Null)])


def _common_kind(kinds: Sequence[Kind | None]) -> Kind | None:
    known = [kind for kind in kinds if kind is not None]
    if not known or len(known) < len(kinds):
        return None
    if all(kind.is_exact for kind in known):
        return max(known, key=lambda kind: (kind.name == "decimal", kind.scale))
    return TEXT if TEXT in known else DOUBLE


def _number(text: str) -> Kind:
    if "e" in text.lower():
        return DOUBLE
    return Kind("decimal", len(text.partition(".")[2])) if "." in text else INT


def _as_number(inner: Kind | None) -> Kind | None:
    return DOUBLE if inner == TEXT else inner


def _quotient(left: Kind | None, right: Kind) -> Kind | None:
    """Return the kind of a division, and of AVG."""
    if left is None:
        return None
    if not (left.is_exact and right.is_exact):
        return DOUBLE
    return Kind("decimal", left.scale + _AVG_DIGITS)


def _cast_kind(node: exp.Cast) -> Kind | None:
    target = node.to
    if target.is_type(*exp.DataType.INTEGER_TYPES):
        return INT
    if target.this == exp.DType.DECIMAL:
        params = target.expressions
        return Kind("decimal", int(params[1].name) if len(params) > 1 else 0)
    if target.is_type(*exp.DataType.REAL_TYPES):
        return DOUBLE
    return TEXT if target.is_type(*exp.DataType.TEXT_TYPES) else None

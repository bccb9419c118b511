"""Makes SQLite compare as MySQL does: each comparison by the kinds of its sides, and arguments in their context.

MySQL compares two texts by the collation, anything with a number by number, a date with a text as dates. Where a side's
kind is unknown, or the values of a list are of several kinds, the statement is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal

from sqlglot import exp

from dbbench_adapter.dialect.functions.dates import moment
from dbbench_adapter.dialect.signatures import called
from dbbench_adapter.dialect.sql_types import DATE, DATETIME, DOUBLE, INT, NULL, TEXT, SqlType, as_number
from dbbench_adapter.dialect.syntax import COLLATION, StatementError, anonymous_call, unsupported
from dbbench_adapter.dialect.type_inference import TypeInference, branches

COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ)
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div)
_DIVISIONS = (exp.Div, exp.IntDiv, exp.Mod)
# SQLite gives these the precedence of a comparison, MySQL a higher one.
_PREDICATES = (exp.In, exp.Between, exp.Like, exp.RegexpLike, exp.Escape, exp.Is, exp.Not)
_SHIFTS = (exp.DateAdd, exp.DateSub, exp.TimestampAdd)
_CONDITIONS = (exp.Where, exp.Having, exp.Not)
_DOUBLE_INTEGERS = 2**53
# MySQL computes a quotient with at least so many digits after the point.
_QUOTIENT_DIGITS = 9
_NUMERIC = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")

# `t` texts, `n` numbers, `d` dates; `-` where NULL alone is compared.
Way = Literal["t", "n", "d", "-"]


def compare_as_mysql(node: exp.Expr, finder: TypeInference) -> None:
    """Make a node compare as in MySQL, in place; other nodes stay as they are.

    Raises:
        StatementError: SQLite cannot compare these kinds as MySQL does.
    """
    if isinstance(node, COMPARISONS):
        _compare_two(node, finder)
    elif isinstance(node, exp.Between):
        _compare_all(node.this, [node.args["low"], node.args["high"]], finder)
    elif isinstance(node, exp.In):
        _compare_list(node, finder)
    elif isinstance(node, exp.Nullif):
        _null_if(node, finder)
    elif isinstance(node, exp.Case) and node.this is not None:
        _compare_all(node.this, [branch.this for branch in node.args["ifs"]], finder)
    elif isinstance(node, exp.Like | exp.RegexpLike) and any(is_binary(side) for side in node.iter_expressions()):
        raise unsupported("LIKE and REGEXP of bytes")  # SQLite's operators do not see the collation


def take_arguments(node: exp.Expr, finder: TypeInference) -> None:
    # MySQL takes decimals as texts with all digits, and dates as numbers.
    for condition in _conditions(node):
        _take(condition, "n", finder)
    found = called(node)
    if found is not None:
        signature, values = found
        if signature.kind(finder, values) is None and finder.knows_columns(node):
            raise unsupported(f"{_name(node)} of these arguments")
        if isinstance(node, exp.Round) and as_number(finder.kind(node.this)) == DOUBLE:
            digits = node.args.get("decimals")
            node.replace(anonymous_call("round_double", node.this, *([digits] if digits else [])))
        elif isinstance(node, exp.Sum | exp.Avg) and finder.kind(node.this) == TEXT:
            inner = node.this.unnest()
            if isinstance(inner, exp.Cast) or inner.name.lower() == "date_format":
                raise unsupported("SUM and AVG of such a text")  # MariaDB rounds it
            if isinstance(node, exp.Sum):
                put(node.this, as_double)  # SQLite would add whole numbers as such
        if isinstance(node, exp.Anonymous) and node.name.lower() == "format" and finder.kind(values[0]) == DOUBLE:
            put(values[0], lambda value: anonymous_call("round_double", value, values[1].copy()))
        elif isinstance(node, _SHIFTS) and finder.kind(node.this) == TEXT:
            put(node.this, lambda value: anonymous_call("date_alone", value))
        for place, value in enumerate(values):
            if isinstance(value.unnest(), exp.Exists):
                raise unsupported("EXISTS as an argument")  # bytes for MariaDB
            _take(value, signature.taken(place), finder)
            if signature.taken(place) == "n" and not isinstance(node, exp.Neg | exp.Sum | exp.Avg):
                kind = finder.kind(value)
                put(value, lambda value, kind=kind: _exact(value, kind))
    elif isinstance(node, exp.Cast):
        _take_cast(node, finder)
    elif isinstance(node, exp.SetOperation):
        _same_kinds(node, finder)
    elif isinstance(node, _ARITHMETIC):
        for value in (node.this, node.expression):
            _take(value, "n", finder)
    elif chosen := branches(node):
        common = finder.kind(node)
        for value in chosen:
            kind = finder.kind(value)
            if common == TEXT:
                _take(value, "s", finder)
            elif common == DATETIME and kind == DATE:
                put(value, lambda value: anonymous_call("datetime_of", value))
    if finder.is_strict and isinstance(node, _DIVISIONS) and not _is_number(node.expression, nonzero=True):
        raise unsupported("a change that divides by anything but a constant")  # MySQL ends it at a zero (1365)


def _name(node: exp.Expr) -> str:
    return (node.name if isinstance(node, exp.Anonymous) else node.key).upper()


def _take_cast(node: exp.Cast, finder: TypeInference) -> None:
    kind = finder.kind(node.this)
    if node.to.is_type(*exp.DataType.TEXT_TYPES):
        _take(node.this, "s", finder)
    elif node.to.is_type(*exp.DataType.NUMERIC_TYPES):
        _take(node.this, "n", finder)
        if kind == DOUBLE and node.to.is_type(*exp.DataType.INTEGER_TYPES):
            put(node.this, lambda value: anonymous_call("round_double", value))
    elif node.to.is_type(*exp.DataType.TEMPORAL_TYPES):
        _take(node.this, "d", finder)


def _same_kinds(union: exp.SetOperation, finder: TypeInference) -> None:
    """Raises StatementError: one side has numbers where the other has texts or dates, which MySQL writes as texts."""
    sides = [finder.kinds_of(side) for side in (union.left.unnest(), union.right.unnest())]
    for pair in zip(*sides, strict=False):
        if len({_sort(kind) for kind in pair if kind is not None and kind != NULL}) > 1:
            raise unsupported("a union of texts, dates or numbers with others")


def _conditions(node: exp.Expr) -> list[exp.Expr]:
    if isinstance(node, exp.If):
        compared = isinstance(node.parent, exp.Case) and node.parent.this is not None
        return [] if compared else [node.this]
    if isinstance(node, exp.Connector):
        return [node.left, node.right]
    truth = isinstance(node, exp.Is) and isinstance(node.expression, exp.Boolean)
    return [node.this] if truth or isinstance(node, _CONDITIONS) else []


def _take(value: exp.Expr, context: str, finder: TypeInference) -> None:
    kind = finder.kind(value)
    if kind is None or kind == NULL:
        return
    if context == "n":
        _refuse_words(value, kind, finder)
        if kind.is_temporal:
            put(value, lambda value: anonymous_call("temporal_number", value))
    elif context == "d":
        if kind.is_number:
            raise unsupported("a number as a date")
        if kind == TEXT and finder.is_strict and not isinstance(value, exp.Literal):
            raise unsupported("a text as a date in a change")  # MySQL ends it where it is none (1292)
    elif kind.is_number and (context == "s" or (context == "t" and kind != INT)):
        put(value, lambda value: cast_to_text(value, kind))


def cast_to_text(value: exp.Expr, kind: SqlType) -> exp.Expr:
    digits = [exp.Literal.number(kind.scale)] if kind.name == "decimal" or kind.scale else []
    return anonymous_call("as_text", value, *digits)


def as_double(value: exp.Expr) -> exp.Cast:
    return exp.Cast(this=value, to=exp.DataType.build("double"))


def _refuse_words(value: exp.Expr, kind: SqlType, finder: TypeInference) -> None:
    """Raises StatementError: MySQL's servers differ over such a text as a number, or may end the change (1292)."""
    value = value.unnest()
    if kind != TEXT:
        return
    if isinstance(value, _SHIFTS) or value.name.lower() in ("greatest", "least"):
        raise unsupported("DATE_ADD, GREATEST and LEAST of texts as a number")
    if finder.is_strict and not _is_number(value):
        raise unsupported("a text as a number in a change")


def _is_number(value: exp.Expr, *, nonzero: bool = False) -> bool:
    found = isinstance(value, exp.Literal) and _NUMERIC.fullmatch(value.name.strip())
    return bool(found) and not (nonzero and float(value.name) == 0)


# Ways -----------------------------------------------------------------------------------------------------------------


def _sort(kind: SqlType) -> str:
    return "number" if kind.is_number else "date" if kind.is_temporal else "text"


def _way(left: SqlType | None, others: Sequence[SqlType | None]) -> Way:
    """How MySQL compares a value with others.

    Raises:
        StatementError: a kind is unknown, or the others are of several kinds.
    """
    given = {_sort(kind) for kind in others if kind is not None and kind != NULL}
    if left == NULL or (not given and None not in others):
        return "-"
    if left is None or None in others:
        raise unsupported("a comparison of values whose type is not known")
    if left.is_number:
        if "date" not in given:
            return "n"
    elif left.is_temporal:
        if "number" not in given:
            return "d"
    elif len(given) == 1:
        return {"number": "n", "date": "d", "text": "t"}[given.pop()]  # pyright: ignore[reportReturnType]
    raise unsupported("a comparison of dates with numbers, or of a text with several types")


def _as(way: Way, value: exp.Expr, kind: SqlType | None, finder: TypeInference) -> exp.Expr:
    if kind is None or kind == NULL or way in "t-":
        return value
    if way == "n":
        return _number(value, kind, finder)
    if isinstance(value, exp.Literal) and moment(value.name) is None:
        raise StatementError(f"1525 (HY000): Incorrect DATETIME value: '{value.name[:80]}'")
    return anonymous_call("moment_of", value)


def _number(value: exp.Expr, kind: SqlType, finder: TypeInference) -> exp.Expr:
    if kind == TEXT:
        _refuse_words(value, kind, finder)
        return as_double(value)
    return _exact(value, kind)


def _exact(value: exp.Expr, kind: SqlType | None) -> exp.Expr:
    """A decimal as MySQL computes it: doubles miss it by a last digit, so that 0.1 + 0.2 would not be 0.3."""
    inner = value.unnest()
    if kind is not None and kind.name == "decimal" and not isinstance(inner, exp.Column | exp.Literal | exp.Neg):
        exact = inner.find(exp.Div, exp.Avg, exp.Subquery) is None
        return anonymous_call(
            "mysql_round", value, exp.Literal.number(kind.scale if exact else max(kind.scale, _QUOTIENT_DIGITS))
        )
    return value


def _compare_two(node: exp.Expr, finder: TypeInference) -> None:
    if any(isinstance(side, COMPARISONS) for side in (node.this, node.expression)):  # SQLite binds some more tightly
        raise unsupported("comparisons in a row without parentheses")
    for side in (node.this, node.expression):
        if isinstance(side, exp.Boolean):  # SQLite prints <=> as IS, and IS TRUE is no comparison
            side.replace(exp.Literal.number(int(side.this)))
    for side in (node.this, node.expression):
        if isinstance(side, _PREDICATES):
            put(side, lambda side: exp.Paren(this=side))
    left, right = node.this, node.expression
    if isinstance(left, exp.Tuple) and isinstance(right, exp.Tuple):
        if len(left.expressions) != len(right.expressions):
            raise StatementError(f"1241 (21000): Operand should contain {len(left.expressions)} column(s)")
        if not isinstance(node, exp.EQ | exp.NEQ):
            raise unsupported("an order of rows")
        for first, second in zip(list(left.expressions), list(right.expressions), strict=True):
            _compare_all(first, [second], finder)
    elif isinstance(left, exp.Tuple) or isinstance(right, exp.Tuple):
        raise unsupported("a row compared with a query")
    else:
        _compare_all(left, [right], finder)


def _compare_all(left: exp.Expr, others: Sequence[exp.Expr], finder: TypeInference) -> None:
    """Make a value and those that it is compared with, in place, into what compares in one way."""
    values = [left, *others]
    kinds = [finder.kind(value) for value in values]
    if None in kinds and not all(map(finder.knows_columns, values)):
        return  # SQLite names the column that does not exist
    way = _way(kinds[0], kinds[1:])
    if way == "t":
        _collate(left, values, finder)
    elif way == "n" or set(kinds) - {NULL} != {DATE}:
        if TEXT in kinds or DOUBLE in kinds:
            _as_doubles(values)
        for value, kind in zip(values, kinds, strict=True):
            put(value, lambda value, kind=kind: _as(way, value, kind, finder))


def _as_doubles(values: Sequence[exp.Expr]) -> None:
    for value in (value.unnest() for value in values):
        if isinstance(value, exp.Literal) and value.is_int and int(value.name) > _DOUBLE_INTEGERS:
            value.set("this", repr(float(value.name)))


def _compare_list(node: exp.In, finder: TypeInference) -> None:
    query = node.args.get("query")
    if query is not None:
        query.set("this", query.unnest())  # SQLite takes a sub-query in two parentheses for a value
        _compare_query(node, query, finder)
    elif isinstance(node.this, exp.Tuple):
        width = len(node.this.expressions)
        if not all(isinstance(item, exp.Tuple) and len(item.expressions) == width for item in node.expressions):
            raise StatementError(f"1241 (21000): Operand should contain {width} column(s)")
        for place, left in enumerate(list(node.this.expressions)):
            _compare_all(left, [item.expressions[place] for item in node.expressions], finder)
    elif node.expressions:
        _compare_all(node.this, node.expressions, finder)


def _compare_query(node: exp.In, query: exp.Expr, finder: TypeInference) -> None:
    inner = query.unnest()
    kinds = finder.kinds_of(inner) if isinstance(inner, exp.Query) else ()
    lefts = list(node.this.expressions) if isinstance(node.this, exp.Tuple) else [node.this]
    if not finder.knows_columns(node):
        return
    if len(kinds) != len(lefts):
        raise StatementError(f"1241 (21000): Operand should contain {len(lefts)} column(s)")
    for left, kind in zip(lefts, kinds, strict=True):
        own = finder.kind(left)
        way = _way(own, [kind])
        if way == "t":
            _collate(left, (left,), finder)
        elif way != "-" and not (own == kind or (own and kind and own.is_exact and kind.is_exact)):
            raise unsupported("IN a query of another type")


def _null_if(node: exp.Nullif, finder: TypeInference) -> None:
    kinds = [finder.kind(value) for value in (node.this, node.args["expression"])]
    if kinds[0] != kinds[1] or kinds[0] not in (TEXT, INT):
        raise unsupported("NULLIF of two types")
    if kinds[0] == TEXT:
        _collate(node.this, [node.this, node.args["expression"]], finder)


# Texts ----------------------------------------------------------------------------------------------------------------


def is_binary(value: exp.Expr) -> bool:
    """Whether a value is compared byte by byte: BINARY x, or x COLLATE with a binary collation."""
    value = value.unnest()
    if isinstance(value, exp.Cast):
        return value.to.this == exp.DType.BINARY
    return isinstance(value, exp.Collate) and value.expression.name.lower().endswith(("_bin", "binary"))


def _collate(left: exp.Expr, sides: Sequence[exp.Expr], finder: TypeInference) -> None:
    """Compare without regard to case and accents, unless a side has a collation of its own."""
    own = any(isinstance(side.unnest(), exp.Collate | exp.Tuple) or is_binary(side) for side in sides)
    if not own and not any(isinstance(side, exp.Column) and not finder.is_computed(side) for side in sides):
        put(left, collated)


def collated(value: exp.Expr) -> exp.Collate:
    return exp.Collate(this=exp.paren(value, copy=False), expression=exp.Var(this=COLLATION))


def put(value: exp.Expr, made_of: Callable[[exp.Expr], exp.Expr]) -> None:
    # Other nodes keep their references to the node.
    parent, key, index = value.parent, value.arg_key, value.index
    assert parent is not None and key is not None
    parent.set(key, made_of(value), index=index)

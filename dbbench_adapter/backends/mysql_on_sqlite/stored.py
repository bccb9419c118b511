"""Stores computed values as MySQL does: an UPDATE or INSERT into a TEXT column writes a number in MySQL's digits.

SQLite's column affinity turns the text back into a number in every other column. This module leaves out columns of
derived tables behind a star, and the digits that MySQL keeps after a division but does not show.
"""

from __future__ import annotations

import re

from sqlglot import exp

from dbbench_adapter.backends.mysql_on_sqlite.comparisons import put
from dbbench_adapter.backends.mysql_on_sqlite.kind_finder import KindFinder, branches
from dbbench_adapter.backends.mysql_on_sqlite.kinds import INT, Kind

_PLAIN_NUMBER = re.compile(r"(?:0|[1-9]\d*)\.\d+|[1-9]\d{18,}")
"""A TEXT column keeps these numbers as written: decimals, and integers that SQLite would turn into doubles."""


def store(tree: exp.Expr, finder: KindFinder) -> None:
    """Turn the values that an UPDATE or INSERT stores into texts, in place."""
    if isinstance(tree, exp.Update):
        _store_assigned(tree.expressions, finder)
    if not isinstance(tree, exp.Insert):
        return
    if tree.args.get("conflict"):
        _store_assigned(tree.args["conflict"].expressions, finder)
    if isinstance(tree.expression, exp.Values):
        for row in tree.expression.expressions:
            for cell in list(row.expressions):
                put(cell, lambda value: _stored(value, finder))
    elif isinstance(tree.expression, exp.Query):
        _store_selected(tree, tree.expression, finder)


def _store_assigned(items: list[exp.Expr], finder: KindFinder) -> None:
    for item in items:
        if isinstance(item, exp.EQ) and isinstance(item.this, exp.Column):
            column = finder.kind(item.this)
            if column is None or not column.is_number or isinstance(item.expression, exp.Literal):
                item.set("expression", _stored(item.expression, finder))


def _store_selected(tree: exp.Insert, query: exp.Query, finder: KindFinder) -> None:
    """Read the query through `WITH stored_rows (...)`, so that it still orders and groups by numbers."""
    if query.is_star:
        return
    kinds = finder.kinds_of(query) or (None,) * len(query.selects)
    if all(_is_text(item.unalias(), kind) for item, kind in zip(query.selects, kinds, strict=True)):
        return
    names = [exp.to_identifier(f"stored_{place}") for place in range(len(kinds))]
    texts = [
        _as_text(exp.column(name.copy()), _stored_digits(kind), own=_is_chosen(item.unalias()))
        for name, kind, item in zip(names, kinds, query.selects, strict=True)
    ]
    alias = exp.TableAlias(this=exp.to_identifier("stored_rows"), columns=names)
    outer = exp.select(*texts, copy=False).from_("stored_rows")
    outer.set("with_", exp.With(expressions=[exp.CTE(this=query, alias=alias)]))
    tree.set("expression", outer)


def _stored(value: exp.Expr, finder: KindFinder) -> exp.Expr:
    if isinstance(value, exp.Literal) and not value.is_string and _PLAIN_NUMBER.fullmatch(value.name):
        return exp.Literal.string(value.name)
    if chosen := branches(value):
        for branch in chosen:
            put(branch, lambda value: _stored(value, finder))
        return value
    kind = finder.kind(value)
    return value if _is_text(value, kind) else _as_text(value, _stored_digits(kind), own=_is_chosen(value))


def _is_chosen(value: exp.Expr) -> bool:
    """Return whether a value is one of several, which keeps its own digits."""
    value = value.unnest()
    return bool(branches(value)) or value.name.lower() in ("greatest", "least")


def _is_text(value: exp.Expr, kind: Kind | None) -> bool:
    """Return whether SQLite already stores the text that MySQL stores."""
    written = kind is not None and (kind == INT or not kind.is_number)
    return written or isinstance(value, exp.Null | exp.Tuple | exp.Star | exp.Placeholder | exp.Var)


def _as_text(value: exp.Expr, digits: int | None, *, own: bool) -> exp.Expr:
    shown = [] if digits is None else [exp.Literal.number(digits), exp.Literal.number(int(own))]
    return exp.Anonymous(this="as_text", expressions=[value, *shown])


def _stored_digits(kind: Kind | None) -> int | None:
    return kind.scale if kind is not None and kind.name == "decimal" else None

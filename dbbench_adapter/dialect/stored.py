"""Stores values as MySQL does: a column takes what its declared type takes, in the form of that type.

An UPDATE or INSERT passes each value through `functions.storing`; a number becomes a text in MySQL's digits first where
the column is a text. This module leaves out columns whose type SQLite does not know (of CREATE TABLE ... AS), and the
digits that MySQL keeps after a division but does not show.
"""

from __future__ import annotations

import re

from sqlglot import exp

from dbbench_adapter.clock import Refused
from dbbench_adapter.dialect.comparisons import put
from dbbench_adapter.dialect.functions.storing import stored_as
from dbbench_adapter.dialect.functions.values import MAX_VALUE_BYTES
from dbbench_adapter.dialect.kind_finder import KindFinder, branches
from dbbench_adapter.dialect.kinds import (
    BINARY,
    DATE,
    DATETIME,
    INT,
    TEXT_BYTES,
    TIME,
    Kind,
    TableColumn,
    sqlite_type,
)
from dbbench_adapter.dialect.literals import number_of, text_of
from dbbench_adapter.dialect.syntax import StatementError, call, read_through, unparenthesised, unsupported

# A TEXT column keeps these numbers as written: decimals, and integers that SQLite would turn into doubles.
_PLAIN_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)\.\d+|-?[1-9]\d{18,}")


def store(tree: exp.Expr, finder: KindFinder) -> None:
    """Turn the values that an UPDATE or INSERT stores into those that the columns hold, in place.

    Raises:
        StatementError: SQLite cannot store a value as MySQL does.
    """
    if isinstance(tree, exp.Update):
        _store_assigned(tree.expressions, _columns(tree.this, finder), finder)
    if not isinstance(tree, exp.Insert):
        return
    target = tree.this
    columns = _columns(target.this if isinstance(target, exp.Schema) else target, finder)
    if tree.args.get("conflict"):
        _store_assigned(tree.args["conflict"].expressions, columns, finder)
    if isinstance(target, exp.Schema):
        columns = {name: columns.get(name) for name in (part.name.lower() for part in target.expressions)}
    places = list(columns.values())
    if isinstance(tree.expression, exp.Values):
        for row in tree.expression.expressions:
            for place, cell in enumerate(list(row.expressions)):
                column = places[place] if place < len(places) else None
                put(cell, lambda value, column=column: _stored_in(column, value, finder))
    elif isinstance(tree.expression, exp.Query):
        tree.set("expression", unparenthesised(tree.expression))
        _store_selected(tree, tree.expression, places, finder)
        if tree.args.get("conflict"):
            _end_with_where(tree.expression)
    if tree.args.get("ignore"):
        for made in tree.find_all(exp.Anonymous):
            if made.name == "stored_as":
                made.set("this", "stored_ignoring")


def stored_default(column: exp.ColumnDef) -> None:
    """Turn the default of a column's definition into what the column holds, in place.

    Raises:
        StatementError: the column does not take it.
    """
    declared = column.args["kind"].sql("mysql") if column.args.get("kind") else ""
    for constraint in column.constraints:
        if not isinstance(constraint.kind, exp.DefaultColumnConstraint) or not sqlite_type(declared):
            continue
        value = _constant(constraint.kind.this)
        if value is not None:
            try:
                held = stored_as(declared, column.name, value)
            except Refused:
                raise StatementError(f"1067 (42000): Invalid default value for '{column.name}'") from None
            constraint.kind.set("this", exp.convert(held))


def _constant(value: exp.Expr) -> str | int | float | None:
    """The value of a literal with its signs, a decimal as a text of all its digits; None for anything else."""
    negative = False
    while isinstance(value, exp.Paren | exp.Neg):
        negative ^= isinstance(value, exp.Neg)
        value = value.this
    if not isinstance(value, exp.Literal) or (value.is_string and negative):
        return None
    if value.is_string:
        return value.name
    found = int(value.name) if value.is_int else float(value.name)
    if value.is_int or "e" in value.name.lower():
        return -found if negative else found
    return f"-{value.name}" if negative and found else value.name


def _columns(table: exp.Expr, finder: KindFinder) -> dict[str, TableColumn | None]:
    return {column.name: column for column in finder.columns_of(table.name)}


def _store_assigned(items: list[exp.Expr], columns: dict[str, TableColumn | None], finder: KindFinder) -> None:
    for item in items:
        if isinstance(item, exp.EQ) and isinstance(item.this, exp.Column):
            item.set("expression", _stored_in(columns.get(item.this.name.lower()), item.expression, finder))


def _store_selected(tree: exp.Insert, query: exp.Query, columns: list[TableColumn | None], finder: KindFinder) -> None:
    # Read the query through `WITH stored_rows (...)`, so that it still orders and groups by numbers.
    _settle_bytes(query, columns, finder)
    items = _selected(query, columns, finder)
    kinds = finder.kinds_of(query)
    if len(kinds) != len(items):
        kinds = [finder.kind(item) for item in items]
    columns = [*columns, *[None] * len(items)][: len(items)]
    names = [f"stored_{place}" for place in range(len(items))]
    values = [
        exp.column(name)
        if type(query) is exp.Select and _is_like(column, item, finder)
        else _held(column, exp.column(name), kind, item)
        for name, column, kind, item in zip(names, columns, kinds, items, strict=True)
    ]
    if all(isinstance(value, exp.Column) for value in values):
        return
    tree.set("expression", read_through(query, "stored_rows", names, values))


def _end_with_where(query: exp.Query) -> None:
    # After a table without WHERE, SQLite reads the ON of the conflict as a join's.
    while isinstance(query, exp.SetOperation):
        query = query.right
    if isinstance(query, exp.Select) and not query.args.get("where"):
        query.set("where", exp.Where(this=exp.true()))


def _settle_bytes(query: exp.Query, columns: list[TableColumn | None], finder: KindFinder) -> None:
    for item, column in zip(query.selects, columns, strict=False):
        value = item.unalias()
        if finder.kind(value) == BINARY:
            value.replace(_bytes_in(column, value))


def _bytes_in(column: TableColumn | None, value: exp.Expr) -> exp.Expr:
    number = column is not None and column.kind is not None and column.kind.is_number
    return number_of(value.unnest()) if number else text_of(value.unnest())


def _selected(query: exp.Query, columns: list[TableColumn | None], finder: KindFinder) -> list[exp.Expr | None]:
    """The expressions that a query selects; those behind a star only where it stands for one table's columns."""
    if not query.is_star:
        return [item.unalias() for item in query.selects]
    source = query.args.get("from_")
    table = source.this if source is not None and isinstance(source.this, exp.Table) else None
    alone = isinstance(query, exp.Select) and len(query.expressions) == 1 and not query.args.get("joins")
    if table is not None and alone and (named := finder.columns_of(table.name)):
        return [exp.column(column.name, table=table.alias_or_name) for column in named]
    return [None] * len(columns)


def _stored_in(column: TableColumn | None, value: exp.Expr, finder: KindFinder) -> exp.Expr:
    """A value as the column holds it; of an unknown column, as a text column does."""
    kind, into = finder.kind(value), column.kind if column is not None else None
    if isinstance(value, exp.Null | exp.Star | exp.Placeholder | exp.Var) or _is_like(column, value, finder):
        return value
    if kind == BINARY:
        value = _bytes_in(column, value)
        kind = finder.kind(value)
    constant = _constant(value)
    if isinstance(constant, str | int) and not value.is_string and _PLAIN_NUMBER.fullmatch(str(constant)):
        return _held(column, exp.Literal.string(str(constant)), kind, None)
    if (into is None or not into.is_number) and (chosen := branches(value)):
        for branch in chosen:
            put(branch, lambda value: _stored_in(None, value, finder))
    return _held(column, value, kind, value)


def _held(column: TableColumn | None, value: exp.Expr, kind: Kind | None, origin: exp.Expr | None) -> exp.Expr:
    """
    Args:
        kind: the kind of the value.
        origin: the expression that computes it; None if it is a literal, or if a star hides it.
    """
    into = column.kind if column is not None else None
    if into is not None and into.is_number:
        value = _as_number(value, kind)
    elif kind == TIME and into in (DATE, DATETIME):
        raise unsupported("a time stored as a date")
    elif origin is not None and not _is_text(origin, kind) and not (value is origin and branches(origin)):
        digits = kind.scale if kind is not None and kind.name == "decimal" else None
        value = _as_text(value, digits, own=_is_chosen(origin))
    if column is None or not column.declared or _fits(column, value, kind, origin):
        return value
    return call("stored_as", exp.Literal.string(column.declared), exp.Literal.string(column.name), value)


def _as_number(value: exp.Expr, kind: Kind | None) -> exp.Expr:
    if kind is not None and kind.is_temporal:
        return call("temporal_number", value)
    if kind is not None and kind.name == "decimal" and not isinstance(value, exp.Literal):
        return call("decimal_text", value)
    return value


def _is_like(column: TableColumn | None, value: exp.Expr | None, finder: KindFinder) -> bool:
    if column is None or not isinstance(value, exp.Column) or finder.is_computed(value):
        return False
    return finder.declared(value) == {column.declared}


def _fits(column: TableColumn, value: exp.Expr, kind: Kind | None, origin: exp.Expr | None) -> bool:
    """Whether a column surely holds the value as it is."""
    if isinstance(value, exp.Literal):
        given = _constant(value)
        try:
            return stored_as(column.declared, column.name, given) == given
        except Refused:
            return False  # which is an error only once there is a row to change
    room = TEXT_BYTES.get(column.declared, 0)
    short = isinstance(origin, exp.Column) or (kind is not None and kind.is_number)
    return room > MAX_VALUE_BYTES or (short and room >= TEXT_BYTES["TEXT"])


def _is_chosen(value: exp.Expr) -> bool:
    value = value.unnest()
    return bool(branches(value)) or value.name.lower() in ("greatest", "least")


def _is_text(value: exp.Expr, kind: Kind | None) -> bool:
    # Whether SQLite already stores the text that MySQL stores.
    written = kind is not None and (kind == INT or not kind.is_number)
    return written or isinstance(value, exp.Null | exp.Tuple | exp.Star | exp.Placeholder | exp.Var)


def _as_text(value: exp.Expr, digits: int | None, *, own: bool) -> exp.Expr:
    shown = [] if digits is None else [exp.Literal.number(digits), exp.Literal.number(int(own))]
    return call("as_text", value, *shown)

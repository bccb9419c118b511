"""Stores values as MySQL does: a column takes what its declared type takes, in the form of that type.

An UPDATE or INSERT passes each value through `functions.storing`; a number becomes a text in MySQL's digits first where
the column is a text. Refused are quotients, of which MySQL stores more digits than it shows, and decimals that are
chosen from several, each of which keeps its own digits.
"""

from __future__ import annotations

import re

from sqlglot import exp

from dbbench_adapter.dialect.comparisons import cast_to_text, put
from dbbench_adapter.dialect.functions.storing import stored_as
from dbbench_adapter.dialect.functions.values import MAX_VALUE_BYTES
from dbbench_adapter.dialect.sql_types import DOUBLE, INT, NULL, TEXT_BYTES, SqlType, TableColumn
from dbbench_adapter.dialect.syntax import StatementError, anonymous_call, read_through, unparenthesised, unsupported
from dbbench_adapter.dialect.type_inference import TypeInference, branches
from dbbench_adapter.statement_clock import Refused

# A TEXT column keeps these numbers as written: decimals, and integers that SQLite would turn into doubles.
_PLAIN_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)\.\d+|-?[1-9]\d{18,}")


def store(tree: exp.Expr, finder: TypeInference) -> None:
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


def stored_default(column: exp.ColumnDef) -> None:
    """Turn the default of a column's definition into what the column holds, in place.

    Raises:
        StatementError: the column does not take it.
    """
    declared = column.args["kind"].sql("mysql") if column.args.get("kind") else ""
    for constraint in column.constraints:
        if not isinstance(constraint.kind, exp.DefaultColumnConstraint):
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


def _columns(table: exp.Expr, finder: TypeInference) -> dict[str, TableColumn | None]:
    return {column.name: column for column in finder.columns_of(table.name)}


def _store_assigned(items: list[exp.Expr], columns: dict[str, TableColumn | None], finder: TypeInference) -> None:
    for item in items:
        if isinstance(item, exp.EQ) and isinstance(item.this, exp.Column):
            item.set("expression", _stored_in(columns.get(item.this.name.lower()), item.expression, finder))


def _store_selected(
    tree: exp.Insert, query: exp.Query, columns: list[TableColumn | None], finder: TypeInference
) -> None:
    # Read the query through `WITH stored_rows (...)`, so that it still orders and groups by numbers.
    kinds = finder.kinds_of(query)
    if (not kinds or None in kinds) and finder.knows_tables() and finder.knows_columns(query):
        raise unsupported("INSERT of a query with a column of unknown type")
    items = _selected(query, finder)
    items += [None] * (len(kinds) - len(items))
    columns = [*columns, *[None] * len(kinds)][: len(kinds)]
    names = [f"stored_{place}" for place in range(len(kinds))]
    if any(kind and kind.name == "double" and kind.scale for kind in kinds):
        raise unsupported("INSERT of a query with rounded doubles")
    values = [
        exp.column(name)
        if type(query) is exp.Select and _is_like(column, item, finder)  # the other queries of a UNION may differ
        else _held(column, exp.column(name), kind, item)
        for name, column, kind, item in zip(names, columns, kinds, items, strict=True)
    ]
    if not all(isinstance(value, exp.Column) for value in values):
        tree.set("expression", read_through(query, "stored_rows", names, values))


def _selected(query: exp.Query, finder: TypeInference) -> list[exp.Expr | None]:
    """The expressions that a query selects; those behind a star only where it stands for one table's columns."""
    if not query.is_star:
        return [item.unalias() for item in query.selects]
    source = query.args.get("from_")
    table = source.this if source is not None and isinstance(source.this, exp.Table) else None
    if table is None or len(query.selects) > 1 or query.args.get("joins"):
        return []
    return [exp.column(column.name, table=table.alias_or_name) for column in finder.columns_of(table.name)]


def _end_with_where(query: exp.Query) -> None:
    # After a table without WHERE, SQLite reads the ON of the conflict as a join's.
    while isinstance(query, exp.SetOperation):
        query = query.right
    if isinstance(query, exp.Select) and not query.args.get("where"):
        query.set("where", exp.Where(this=exp.true()))


def _stored_in(column: TableColumn | None, value: exp.Expr, finder: TypeInference) -> exp.Expr:
    kind = finder.kind(value)
    if isinstance(value, exp.Null | exp.Star | exp.Placeholder | exp.Var) or _is_like(column, value, finder):
        return value
    if kind is None and finder.knows_columns(value):
        raise unsupported("a stored value of unknown type")
    constant = _constant(value)
    if isinstance(constant, str | int) and not value.is_string and _PLAIN_NUMBER.fullmatch(str(constant)):
        return _held(column, exp.Literal.string(str(constant)), kind, None)
    return _held(column, value, kind, value)


def _held(column: TableColumn | None, value: exp.Expr, kind: SqlType | None, origin: exp.Expr | None) -> exp.Expr:
    """
    Args:
        kind: the kind of the value.
        origin: the expression that computes it; None if it is a literal, or if a star hides it.
    """
    into = column.kind if column is not None else None
    if column is None or into is None or kind is None or kind == NULL:
        return value
    if kind.name == "decimal" and into != INT and origin is not None:
        _refuse_hidden_digits(origin, into)
    if into.is_number:
        if kind.is_temporal:
            value = anonymous_call("temporal_number", value)
        elif kind.name == "decimal" and not isinstance(value, exp.Literal):
            value = anonymous_call("decimal_text", value)
    elif into.is_temporal and kind.is_number and not isinstance(value, exp.Literal):
        raise unsupported("a computed number stored as a date")
    elif kind.is_number and kind != INT and (origin is not None or isinstance(value, exp.Column)):
        value = cast_to_text(value, kind if kind.name == "decimal" else DOUBLE)
    if _fits(column, value, kind, origin):
        return value
    return anonymous_call("stored_as", exp.Literal.string(column.declared), exp.Literal.string(column.name), value)


def _refuse_hidden_digits(origin: exp.Expr, into: SqlType) -> None:
    if into.name != "decimal" and origin.find(exp.Div, exp.Avg):
        raise unsupported("a quotient or AVG that is stored; ROUND it")
    if not into.is_number and (branches(origin.unnest()) or origin.find(exp.Case, exp.If, exp.Coalesce)):
        raise unsupported("a decimal of several digits stored as a text")


def _is_like(column: TableColumn | None, value: exp.Expr | None, finder: TypeInference) -> bool:
    if column is None or not isinstance(value, exp.Column) or finder.is_computed(value):
        return False
    return finder.declared(value) == {column.declared}


def _fits(column: TableColumn, value: exp.Expr, kind: SqlType, origin: exp.Expr | None) -> bool:
    """Whether a column surely holds the value as it is."""
    if isinstance(value, exp.Literal):
        given = _constant(value)
        try:
            return stored_as(column.declared, column.name, given) == given
        except Refused:
            return False  # which is an error only once there is a row to change
    room = TEXT_BYTES.get(column.declared, 0)
    short = isinstance(origin, exp.Column) or kind.is_number
    return room > MAX_VALUE_BYTES or (short and room >= TEXT_BYTES["TEXT"])

"""Writes a query with each column behind the name of its table, and without aliases such as T1.

A policy writes from left to right. In `SELECT T2.name FROM a AS T1 JOIN b AS T2` it chooses a column before it has said
of which table; in `SELECT b.name FROM a JOIN b` the table comes first, and the prompt has its columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope

from dbbench_adapter.engines.engine import Engine, TableInfo
from sql_agent.text_to_sql.load import parsed
from sql_agent.text_to_sql.schema import folded

_Schema = Mapping[str, tuple[str, Mapping[str, str]]]
"""By the folded name of a table its name, and the names of its columns by the folded ones."""


class _UnclearError(Exception):
    """A column that may be of several tables."""


class _Edit(NamedTuple):
    start: int
    end: int
    text: str


class _Read(NamedTuple):
    """A column, the table that has it, and the query whose FROM names the table."""

    column: exp.Column
    table: exp.Table
    place: Scope


def qualified(query: str, tables: Sequence[TableInfo], engine: Engine) -> str:
    """
    Args:
        query: with single blanks and no comments.
        tables: the database's.
    Returns:
        A query of the same rows, with the schema's spelling where no quotes stand. It stays as it is if it is no
        SELECT, names tables of its own (WITH) or leaves open whose a column is. A table that is read twice at one
        place, or hidden by an inner query, keeps its alias there.
    """
    schema = {
        folded(table.name): (table.name, {folded(column.name): column.name for column in table.columns})
        for table in tables
    }
    tree = parsed(query, engine)
    if not isinstance(tree, exp.Query) or tree.find(exp.With) or len(schema) < len(tables):
        return query
    try:
        edits = _edits(traverse_scope(tree), query, schema)
    except (SqlglotError, _UnclearError):
        return query
    for edit in sorted(edits, reverse=True):
        query = query[: edit.start] + edit.text + query[edit.end :]
    return query


def _edits(scopes: Sequence[Scope], query: str, schema: _Schema) -> list[_Edit]:
    reads, kept = list[_Read](), set[int]()
    seen = set[int]()
    for scope in scopes:  # innermost first; outer ones list the columns of inner ones again that are theirs
        names = [folded(table.name) for table in _tables(scope)]
        kept |= {id(table) for table in _tables(scope) if names.count(folded(table.name)) > 1}
        for column in scope.columns:
            read = None if id(column) in seen else _read(column, scope, schema)
            seen.add(id(column))
            if read is not None:
                reads.append(read)
                kept |= _hidden(read, scope)
    edits = []
    for scope in scopes:
        for table in _tables(scope):
            if folded(table.name) in schema:
                edits.append(_Edit(_start(table.this), _end(table.this), _spelled(table, query, schema)))
                if table.alias and id(table) not in kept:
                    edits.append(_Edit(_end(table.this), _end(table.args["alias"].this), ""))
    for column, table, _ in reads:
        owner = table.alias if table.alias and id(table) in kept else _spelled(table, query, schema)
        _, columns = schema[folded(table.name)]
        name = _text(column.this, query) if column.this.quoted else columns[folded(column.name)]
        start = _start(column.args.get("table") or column.this)
        edits.append(_Edit(start, _end(column.this), f"{owner}.{name}"))
    return edits


def _spelled(table: exp.Table, query: str, schema: _Schema) -> str:
    name, _ = schema[folded(table.name)]
    return _text(table.this, query) if table.this.quoted else name


def _tables(scope: Scope) -> list[exp.Table]:
    return [source for source in scope.sources.values() if isinstance(source, exp.Table)]


def _read(column: exp.Column, scope: Scope, schema: _Schema) -> _Read | None:
    """None for an alias of a result, a text in double quotes, and what a query in FROM gives."""
    name = folded(column.name)
    if not column.table and _is_alias(column, scope):
        return None
    place: Scope | None = scope
    while place is not None:
        found = [
            source
            for key, source in place.sources.items()
            if (folded(key) == folded(column.table) if column.table else _may_have(source, name, schema))
        ]
        if len(found) > 1:
            raise _UnclearError
        if found:
            (table,) = found
            if isinstance(table, exp.Table) and _may_have(table, name, schema):
                return _Read(column, table, place)
            return None
        place = place.parent
    return None


def _is_alias(column: exp.Column, scope: Scope) -> bool:
    clause = column.find_ancestor(exp.Order, exp.Group, exp.Having, exp.Query)
    if not isinstance(scope.expression, exp.Query) or isinstance(clause, exp.Query):
        return False
    named = [each for each in scope.expression.selects if isinstance(each, exp.Alias)]
    return folded(column.name) in {folded(each.alias) for each in named}


def _may_have(source: exp.Table | Scope, column: str, schema: _Schema) -> bool:
    return isinstance(source, Scope) or column in schema.get(folded(source.name), ("", {}))[1]


def _hidden(read: _Read, scope: Scope) -> set[int]:
    """The tables of one name, by id, if queries between the column and its table's FROM read one of that name too."""
    found = set[int]()
    inner: Scope | None = scope
    while inner is not None and inner is not read.place:
        found |= {id(table) for table in _tables(inner) if folded(table.name) == folded(read.table.name)}
        inner = inner.parent
    return found | {id(read.table)} if found else found


def _text(name: exp.Expr, query: str) -> str:
    return query[_start(name) : _end(name)]


def _start(name: exp.Expr) -> int:
    return int(name.meta["start"])


def _end(name: exp.Expr) -> int:
    return int(name.meta["end"]) + 1

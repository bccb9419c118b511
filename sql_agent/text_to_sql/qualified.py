"""Writes a query with each column behind the name of its table, and without aliases such as T1.

A policy writes from left to right. In `SELECT T2.name FROM a AS T1 JOIN b AS T2` it chooses a column before it has said
of which table; in `SELECT b.name FROM a JOIN b` the table comes first, and the prompt has its columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlglot import exp

from dbbench_adapter.engines.engine import Engine, TableInfo
from sql_agent.text_to_sql.load import parsed
from sql_agent.text_to_sql.schema import folded

_Names = Mapping[str, tuple[str, Mapping[str, str]]]
"""By the folded name of a table its name, and the names of its columns by the folded ones."""


class _UnclearError(Exception):
    """It is not certain whose a column is."""


class _Edit(NamedTuple):
    start: int
    end: int
    text: str


def qualified(query: str, tables: Sequence[TableInfo], engine: Engine) -> str:
    """Put each column of a query behind its table's name; its rows stay as they are.

    A table that is read twice at one place, or that an inner query hides, keeps its alias there. Names that need no
    quotes have the schema's spelling. The query stays as it is if it is no SELECT over plain tables (a query in FROM,
    WITH, VALUES, table functions, USING), or if it is not certain whose a column is (`T1.*`, `rowid`).

    Args:
        query: with single blanks and without comments.
        tables: the database's.
    """
    names = {
        folded(table.name): (table.name, {folded(column.name): column.name for column in table.columns})
        for table in tables
    }
    tree = parsed(query, engine)
    if not isinstance(tree, exp.Query) or len(names) < len(tables):
        return query
    try:
        edits = _edits(tree, query, names)
    except (_UnclearError, RecursionError):
        return query
    for edit in sorted(edits, reverse=True):
        query = query[: edit.start] + edit.text + query[edit.end :]
    return query


def _edits(tree: exp.Query, query: str, names: _Names) -> list[_Edit]:
    if tree.find(exp.With) or any(node.comments for node in tree.walk()):
        raise _UnclearError
    sources = _tables_of_selects(tree, names)
    kept = {
        id(table)
        for tables in sources.values()
        for table in tables
        if sum(folded(other.name) == folded(table.name) for other in tables) > 1
    }
    read = [
        (column, table) for column in tree.find_all(exp.Column) if (table := _table_of(column, sources, names, kept))
    ]
    edits = []
    for tables in sources.values():
        for table in tables:
            edits.append(_Edit(_start(table.this), _end(table.this), _spelled(table, query, names)))
            if table.alias and id(table) not in kept:
                edits.append(_Edit(_end(table.this), _end(table.args["alias"].this), ""))
    for column, table in read:
        has_alias = table.alias and id(table) in kept
        owner = _text(table.args["alias"].this, query) if has_alias else _spelled(table, query, names)
        _, columns = names[folded(table.name)]
        name = _text(column.this, query) if column.this.quoted else columns[folded(column.name)]
        edits.append(_Edit(_start(column.args.get("table") or column.this), _end(column.this), f"{owner}.{name}"))
    return edits


def _tables_of_selects(tree: exp.Query, names: _Names) -> dict[int, list[exp.Table]]:
    """The tables in FROM of each SELECT, by its id."""
    found: dict[int, list[exp.Table]] = {id(select): [] for select in tree.find_all(exp.Select)}
    for join in tree.find_all(exp.Join):
        if join.args.get("using") or join.method:
            raise _UnclearError
    for source in (each.this for each in tree.find_all(exp.From, exp.Join)):
        is_plain = isinstance(source, exp.Table) and not {
            name for name, value in source.args.items() if value and name not in ("this", "alias")
        }
        select = source.parent_select
        if not is_plain or not isinstance(source.this, exp.Identifier) or select is None:
            raise _UnclearError
        alias = source.args.get("alias")
        if folded(source.name) not in names or (alias and alias.columns):
            raise _UnclearError
        if alias and folded(source.alias) in names and folded(source.alias) != folded(source.name):
            raise _UnclearError
        found[id(select)].append(source)
    return found


def _table_of(
    column: exp.Column, sources: Mapping[int, Sequence[exp.Table]], names: _Names, kept: set[int]
) -> exp.Table | None:
    """None for an alias of a result and a text in double quotes, which have no qualifier.

    Args:
        kept: receives the tables, by id, whose aliases tell them apart: that of an outer query, and one of the same
            name in a query inside of it that asks for the column.
    """
    owner, query = column.args.get("table"), column.find_ancestor(exp.Select, exp.SetOperation)
    identifiers = [column.this, *([owner] if owner else [])]
    if column.args.get("db") or not all(isinstance(each, exp.Identifier) and each.meta for each in identifiers):
        raise _UnclearError
    name, between = folded(column.name), list[exp.Table]()
    is_result = isinstance(query, exp.Select) and name in {
        folded(each.alias) for each in query.selects if isinstance(each, exp.Alias)
    }
    clause = column.find_ancestor(exp.Order, exp.Group, exp.Having, exp.Query)
    while isinstance(query, exp.Select):
        tables = sources[id(query)]
        found = [
            table
            for table in tables
            if (folded(table.alias_or_name) == folded(owner.name) if owner else name in names[folded(table.name)][1])
        ]
        if len(found) > 1 or (found and name not in names[folded(found[0].name)][1]):
            raise _UnclearError
        if is_result and not owner and (not found or not isinstance(clause, exp.Query)):
            return None
        if found:
            hiding = [table for table in between if folded(table.name) == folded(found[0].name)]
            kept.update(id(table) for table in (*hiding, *found) if hiding)
            return found[0]
        between += tables
        query, is_result = query.parent_select, False
    if owner:
        raise _UnclearError
    return None


def _spelled(table: exp.Table, query: str, names: _Names) -> str:
    name, _ = names[folded(table.name)]
    return _text(table.this, query) if table.this.quoted else name


def _text(name: exp.Expr, query: str) -> str:
    return query[_start(name) : _end(name)]


def _start(name: exp.Expr) -> int:
    return int(name.meta["start"])


def _end(name: exp.Expr) -> int:
    return int(name.meta["end"]) + 1

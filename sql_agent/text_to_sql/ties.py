"""Finds which rows of an ordered reference are tied, so that any order of them is right.

The reference is run once more with a column that numbers the places (`dense_rank`). What its syntax tree does not show
(a position behind a `*`, what DISTINCT does not return) has no ties: every row keeps its place. So have the rows at the
end of a LIMIT: which of the tied ones are kept is part of the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from dbbench_adapter.datatypes import Rows
from dbbench_adapter.engines.engine import Engine
from dbbench_adapter.engines.sqlite import SQLITE
from sql_agent.text_to_sql.load import parsed


def probes(reference: str, engine: Engine = SQLITE) -> dict[str, str]:
    """A query for each alias that an expression in ORDER BY contains, by the alias in lower case.

    It runs only where FROM has a column of that name: inside an expression the column is meant, not the alias.
    """
    tree = parsed(reference, engine)
    if not isinstance(tree, exp.Select) or not tree.args.get("order"):
        return {}
    aliases = _aliases(tree)
    keys = [_key(term) for term in tree.args["order"].expressions]
    names = {name for key in keys if _result_column(key, tree) is None for name in _names(key) if name in aliases}
    try:
        return {name: _column_alone(tree, name, engine).sql(dialect=engine.dialect) for name in names}
    except (SqlglotError, RecursionError):
        return {}


def _column_alone(tree: exp.Select, name: str, engine: Engine) -> exp.Select:
    probe = tree.copy()
    # SQLite reads an unknown name in double quotes as a text, and PostgreSQL knows no other quotes
    quote = '"' if engine.dialect == "postgres" else "`"
    column = exp.Var(this=quote + name.replace(quote, 2 * quote) + quote)
    for part in ("order", "offset", "distinct", "where", "group", "having", "windows", "qualify"):
        probe.set(part, None)
    probe.set("expressions", [column])
    return probe.limit(0, copy=False)


def ranked(reference: str, engine: Engine = SQLITE, columns: Collection[str] = ()) -> str | None:
    """The reference with one more column, the rank of each row; None if it cannot be written so.

    Args:
        columns: the aliases, in lower case, that are columns of FROM too.
    """
    tree = parsed(reference, engine)
    if not isinstance(tree, exp.Query) or not tree.args.get("order"):
        return None
    tree = tree.copy()
    plain = isinstance(tree, exp.Select) and not tree.args.get("distinct")
    terms = _terms(tree, columns, by_name=not plain)
    if plain and any(term is not None and term.find(exp.Window) for term in terms):  # no window holds another
        plain, terms = False, _terms(tree, columns, by_name=True)
    if None in terms:
        return None
    rank = exp.Window(this=exp.func("dense_rank", dialect=engine.dialect), order=exp.Order(expressions=terms))
    try:
        if isinstance(tree, exp.Select) and plain:
            return tree.select(rank, copy=False).sql(dialect=engine.dialect)
        return exp.select("q.*", rank).from_(tree.subquery("q")).order_by(rank.copy()).sql(dialect=engine.dialect)
    except (SqlglotError, RecursionError):
        return None


def _terms(query: exp.Query, columns: Collection[str], *, by_name: bool) -> list[exp.Expr | None]:
    return [_term(each, query, columns, by_name=by_name) for each in query.args["order"].expressions]


def _key(term: exp.Expr) -> exp.Expr:
    key = term.this if isinstance(term, exp.Ordered) else term
    return key.this if isinstance(key, exp.Collate) else key


def _term(term: exp.Expr, query: exp.Query, columns: Collection[str], *, by_name: bool) -> exp.Expr | None:
    """A term of ORDER BY as a window may have it, where neither positions nor aliases mean anything.

    Args:
        by_name: the window stands outside of the query, and sees only the names of its columns.
    """
    term = term.copy()
    inner = _key(term)
    column = _result_column(inner, query)
    if column is not None:
        if by_name and not column.alias_or_name:
            return None
        inner.replace(_outer(column) if by_name else column.unalias().copy())
        return term
    if isinstance(inner, exp.Literal) and inner.is_int:
        return None  # a position that is not shown
    return _expression(term, query, columns) if by_name else _without_aliases(term, _aliases(query), columns)


def _without_aliases(term: exp.Expr, aliases: dict[str, exp.Expr], columns: Collection[str]) -> exp.Expr:
    """Put what an alias stands for in its place, unless FROM has a column of that name."""
    for name in list(term.find_all(exp.Column)):
        meant = aliases.get(name.name.lower())
        if meant is not None and not name.table and name.name.lower() not in columns:
            name.replace(exp.paren(meant))
    return term


def _expression(term: exp.Expr, query: exp.Query, columns: Collection[str]) -> exp.Expr | None:
    """An expression over the query's columns by their names; None if it reads something else."""
    if term.find(exp.Query):
        return None
    for name in list(term.find_all(exp.Column)):
        column = _result_column(name, query)
        ours = isinstance(query, exp.SetOperation) or (column is not None and not _hides(column, columns))
        if column is None or not ours:
            return None
        name.replace(_outer(column))
    return term


def _hides(column: exp.Expr, columns: Collection[str]) -> bool:
    """Whether a column of the result has the name of another one of FROM."""
    inner = column.unalias()
    own = isinstance(inner, exp.Column) and inner.name.lower() == column.alias_or_name.lower()
    return not own and column.alias_or_name.lower() in columns


def _outer(column: exp.Expr) -> exp.Column:
    return exp.column(column.alias_or_name, table="q", quoted=True)


def _aliases(query: exp.Query) -> dict[str, exp.Expr]:
    aliased = [item for item in query.selects if isinstance(item, exp.Alias)]
    return {item.alias.lower(): item.this for item in reversed(aliased)}


def _names(key: exp.Expr) -> list[str]:
    return [column.name.lower() for column in key.find_all(exp.Column) if not column.table]


def _result_column(key: exp.Expr, query: exp.Query) -> exp.Expr | None:
    """The expression of SELECT that a position or a name in ORDER BY means; None if it means none."""
    columns = query.selects
    if isinstance(key, exp.Literal) and key.is_int:
        place = int(key.this)
        before = columns[:place]
        return before[-1] if len(before) == place > 0 and not any(each.is_star for each in before) else None
    if isinstance(key, exp.Column) and not key.table:
        return next((each for each in columns if each.alias_or_name.lower() == key.name.lower()), None)
    return next((each for each in columns if each.unalias() == key), None)


def ranks(rows: Sequence[tuple[Any, ...]], expected: Rows) -> list[int] | None:
    """The rank of each expected row; None if the reference with ranks gave other rows, or another order.

    Args:
        rows: the rows of the `ranked` reference, the last cell being the rank.
    """
    found: list[int] = [row[-1] for row in rows]
    if len(rows) != len(expected) or any(before > after for before, after in pairwise(found)):
        return None
    if _by_rank([row[:-1] for row in rows], found) != _by_rank(expected, found):
        return None
    return found


def _by_rank(rows: Sequence[tuple[object, ...]], found: Sequence[int]) -> Counter[tuple[int, tuple[object, ...]]]:
    return Counter(zip(found, rows, strict=True))

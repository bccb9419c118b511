"""Finds which rows of an ordered reference are tied, so that any order of them is right.

The reference is run once more with a column that numbers the places (`dense_rank`). What its syntax tree does not show
(a position behind a `*`, an expression over a column that UNION makes) has no ties: every row keeps its place. So have
the rows at the end of a LIMIT: which of the tied ones are kept is part of the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from dbbench_adapter.datatypes import Rows
from sql_agent.text_to_sql.load import parsed


def ranked(reference: str, dialect: str = "sqlite") -> str | None:
    """Return the reference with one more column, the rank of each row; None if it cannot be written so."""
    tree = parsed(reference, dialect)
    if not isinstance(tree, exp.Query) or not tree.args.get("order"):
        return None
    tree = tree.copy()
    plain = isinstance(tree, exp.Select) and not tree.args.get("distinct")
    terms = _terms(tree, by_name=not plain)
    if plain and any(term is not None and term.find(exp.Window) for term in terms):  # no window holds another
        plain, terms = False, _terms(tree, by_name=True)
    if None in terms:
        return None
    rank = exp.Window(this=exp.func("dense_rank", dialect=dialect), order=exp.Order(expressions=terms))
    try:
        if isinstance(tree, exp.Select) and plain:
            return tree.select(rank, copy=False).sql(dialect=dialect)
        return exp.select("q.*", rank).from_(tree.subquery("q")).order_by(rank.copy()).sql(dialect=dialect)
    except (SqlglotError, RecursionError):
        return None


def _terms(query: exp.Query, *, by_name: bool) -> list[exp.Expr | None]:
    return [_term(each, query, by_name=by_name) for each in query.args["order"].expressions]


def _term(term: exp.Expr, query: exp.Query, *, by_name: bool) -> exp.Expr | None:
    """Return a term of ORDER BY as a window may have it, where neither positions nor aliases mean anything.

    Args:
        by_name: the window stands outside of the query, and sees only the names of its columns.
    """
    term = term.copy()
    key = term.this if isinstance(term, exp.Ordered) else term
    inner = key.this if isinstance(key, exp.Collate) else key
    column = _result_column(inner, query)
    if column is None:
        return None if by_name or isinstance(inner, exp.Literal) else term
    if by_name and not column.alias_or_name:
        return None
    meant = exp.column(column.alias_or_name, table="q", quoted=True) if by_name else column.unalias().copy()
    inner.replace(meant)
    return term


def _result_column(key: exp.Expr, query: exp.Query) -> exp.Expr | None:
    """Return the expression of SELECT that a position or a name in ORDER BY means; None if it means none."""
    columns = query.selects
    if isinstance(key, exp.Literal) and key.is_int:
        place = int(key.this)
        before = columns[:place]
        return before[-1] if len(before) == place > 0 and not any(each.is_star for each in before) else None
    if isinstance(key, exp.Column) and not key.table:
        return next((each for each in columns if each.alias_or_name.lower() == key.name.lower()), None)
    return next((each for each in columns if each.unalias() == key), None)


def ranks(rows: Sequence[tuple[Any, ...]], expected: Rows) -> list[int] | None:
    """Return the rank of each expected row; None if the reference with ranks gave other rows, or another order.

    Args:
        rows: the rows of the `ranked` reference, the last cell being the rank.
    """
    found: list[int] = [row[-1] for row in rows]
    if len(rows) != len(expected) or any(before > after for before, after in pairwise(found)):
        return None
    if _by_rank([row[:-1] for row in rows], found) != _by_rank(expected, found):
        return None
    return found


def _by_rank(rows: Sequence[tuple[Any, ...]], found: Sequence[int]) -> Counter[tuple[int, tuple[Any, ...]]]:
    return Counter(zip(found, rows, strict=True))

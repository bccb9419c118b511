"""Treats the rows of queries as MySQL does and SQLite does not: collation, order of groups, one row for a value.

In SQLite only columns have a collation, and everything else compares by bytes. It is added in GROUP BY, ORDER BY,
DISTINCT, unions, sub-queries, windows, MIN, MAX and simple CASE; comparisons are left to `comparisons`.

MySQL 8 returns groups by their first rows, SQLite sorts them. The order matters to the `lab` judge and where a LIMIT
cuts: 62 of the 350 queries of LifelongAgentBench group without ordering. MySQL promises no such order, and none among
ties; its usual one is reproduced here, except for unions, joins and WITH ROLLUP.

A sub-query that stands for a value ends the statement where it returns several rows; SQLite would take the first.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from dbbench_adapter.dialect.allowed_sql import aggregates
from dbbench_adapter.dialect.comparisons import collated, put
from dbbench_adapter.dialect.syntax import (
    StatementError,
    anonymous_call,
    nodes_of,
    read_through,
    unparenthesised,
    unsupported,
)
from dbbench_adapter.dialect.type_inference import TypeInference

# The nodes that `collate_computed` accepts.
COLLATING = (exp.Select, exp.Ordered, exp.Group, exp.Min, exp.Max, exp.Count, exp.Case, exp.Window)
_HAVE_THEIR_OWN = (exp.Column, exp.Collate, exp.Star, exp.Null, exp.Boolean, exp.Tuple, exp.Subquery, exp.Query)


def collate_computed(node: exp.Expr, finder: TypeInference) -> None:
    if isinstance(node, exp.Select):
        if node.parent is not None or node.args.get("distinct") or node.args.get("group") or node.args.get("order"):
            for item in node.expressions:
                _collate(item.unalias(), finder)
    elif isinstance(node, exp.Ordered):
        order = node.parent
        if order is not None and not isinstance(order.parent, exp.SetOperation | exp.GroupConcat | exp.Subquery):
            _collate_key(node.this, finder)
    elif isinstance(node, exp.Group):
        for key in node.expressions:
            _collate_key(key, finder)
    elif isinstance(node, exp.Count):
        if isinstance(node.this, exp.Distinct) and len(node.this.expressions) == 1:
            _collate(node.this.expressions[0], finder)
    elif isinstance(node, exp.Window):
        for key in node.args.get("partition_by") or []:
            _collate_key(key, finder)
    elif node.this is not None:
        _collate(node.this, finder)


def _collate_key(key: exp.Expr, finder: TypeInference) -> None:
    if not isinstance(key, exp.Literal):  # a literal is a position
        _collate(key, finder)


def _collate(value: exp.Expr, finder: TypeInference) -> None:
    kind = finder.kind(value)
    binary = isinstance(value, exp.Cast) and value.to.this == exp.DType.BINARY
    of_bytes = kind is not None and kind.is_number
    if not (isinstance(value, _HAVE_THEIR_OWN) or binary or of_bytes or value.parent is None):
        put(value, collated)


# Groups ---------------------------------------------------------------------------------------------------------------


def order_groups(tree: exp.Expr) -> None:
    """Order groups on SQLite by their first rows, in place, wherever the query's own order leaves a choice."""
    nodes = nodes_of(tree)
    cte_names = {cte.alias.lower() for cte in nodes if isinstance(cte, exp.CTE)}
    for query in (node for node in nodes if isinstance(node, exp.Select)):
        spelt = any(isinstance(item.unalias(), exp.Column) for item in query.expressions)
        clauses = [*query.expressions, *filter(None, map(query.args.get, ("having", "order")))]
        chosen = spelt and any(clause.find(exp.Min, exp.Max) for clause in clauses)  # SQLite shows the key of its row
        matters = query.parent is None or query.args.get("limit") is not None or chosen
        source = query.args.get("from_")
        table = source.this if source is not None else None
        group = query.args.get("group")
        if not matters or group is None or not group.expressions:
            continue
        joined = query.args.get("joins") or query.args.get("distinct")
        if not isinstance(table, exp.Table) or table.name.lower() in cte_names or joined:
            if chosen:
                raise unsupported("GROUP BY with MIN or MAX over joins and sub-queries")
            continue
        first_row = exp.Min(this=exp.column("_rowid_", table=table.alias_or_name))
        ordered = query.args.get("order")
        keys = [*(ordered.expressions if ordered is not None else ()), exp.Ordered(this=first_row)]
        query.set("order", exp.Order(expressions=keys))


# Values ---------------------------------------------------------------------------------------------------------------

# Below these a sub-query stands for rows.
_TABLES = (
    *(exp.From, exp.Join, exp.SetOperation, exp.Insert, exp.Create, exp.CTE, exp.Exists, exp.Subquery, exp.Table),
)


def scalar_queries(nodes: Iterable[exp.Expr]) -> list[exp.Subquery]:
    return [
        node
        for node in nodes
        if isinstance(node, exp.Subquery)
        and node.parent is not None
        and not isinstance(node.parent, _TABLES)
        and not (isinstance(node.parent, exp.In) and node.arg_key == "query")
    ]


def allow_one_row(query: exp.Subquery, finder: TypeInference) -> None:
    """Change a sub-query, in place, so that a second row ends the statement.

    Raises:
        StatementError: it has several columns.
    """
    inner = unparenthesised(query)
    if len(finder.kinds_of(inner)) > 1:
        raise StatementError("1241 (21000): Operand should contain 1 column(s)")
    if _may_have_more(inner):
        query.set("this", read_through(inner, "only_rows", ["only"], [anonymous_call("only_row", exp.column("only"))]))


def _may_have_more(query: exp.Expr) -> bool:
    limit = query.args.get("limit")
    if limit is not None and limit.expression.name in ("0", "1"):
        return False
    if not isinstance(query, exp.Select):
        return True
    if not query.args.get("from_"):
        return False
    return bool(query.args.get("group")) or not any(aggregates(item) for item in query.expressions)

"""Makes a sub-query that stands for a value end the statement where it returns several rows, as MySQL does.

SQLite would take the first row.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from dbbench_adapter.dialect.checks import aggregates
from dbbench_adapter.dialect.syntax import unparenthesised

# Below these a sub-query stands for rows.
_TABLES = (
    *(exp.From, exp.Join, exp.SetOperation, exp.Insert, exp.Create, exp.CTE, exp.Exists, exp.Any, exp.All, exp.Lateral),
    *(exp.Subquery, exp.Table),
)


def scalar_queries(nodes: Iterable[exp.Expr]) -> list[tuple[exp.Subquery, int]]:
    return [
        (node, _width(node))
        for node in nodes
        if isinstance(node, exp.Subquery)
        and node.parent is not None
        and not isinstance(node.parent, _TABLES)
        and not (isinstance(node.parent, exp.In) and node.arg_key == "query")
    ]


def _width(query: exp.Subquery) -> int:
    parent = query.parent
    sides = (parent.this, parent.expression) if isinstance(parent, exp.Binary) else ()
    return next((len(side.expressions) for side in sides if isinstance(side, exp.Tuple)), 1)


def allow_one_row(query: exp.Subquery, width: int) -> None:
    """Change a sub-query, in place, so that a second row ends the statement."""
    inner = unparenthesised(query)
    if not _may_have_more(inner):
        return
    names = [exp.to_identifier(f"only_{place}") for place in range(width)]
    source = exp.CTE(this=inner, alias=exp.TableAlias(this=exp.to_identifier("only_rows"), columns=names))
    values = [exp.Anonymous(this="only_row", expressions=[exp.column(name.copy())]) for name in names]
    outer = exp.select(*values, copy=False).from_("only_rows", copy=False)
    outer.set("with_", exp.With(expressions=[source]))
    query.set("this", outer)


def _may_have_more(query: exp.Expr) -> bool:
    limit = query.args.get("limit")
    if limit is not None and limit.expression.name in ("0", "1"):
        return False
    if not isinstance(query, exp.Select):
        return True
    if not query.args.get("from_"):
        return False
    return bool(query.args.get("group")) or not any(aggregates(item) for item in query.expressions)

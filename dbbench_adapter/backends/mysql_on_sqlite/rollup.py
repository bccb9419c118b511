"""GROUP BY a, b WITH ROLLUP for SQLite: one query per level of totals, put together in MySQL's order.

Leaves out GROUPING(), and refuses an ORDER BY, a LIMIT or a star beside it.
"""

from __future__ import annotations

from sqlglot import exp

from dbbench_adapter.backends.mysql_on_sqlite.syntax import unsupported


def rolled_up(query: exp.Select) -> exp.Expr:
    """The same query without WITH ROLLUP; each level groups by one key less and shows NULL in its place."""
    keys = query.args["group"].expressions
    if not keys or query.is_star or any(query.args.get(part) for part in ("order", "limit", "distinct")):
        raise unsupported("WITH ROLLUP beside ORDER BY, LIMIT or *")
    levels = [_level(query, keys, kept) for kept in range(len(keys), -1, -1)]
    union: exp.Expr = levels[0]
    for level in levels[1:]:
        union = exp.Union(this=union, expression=level, distinct=False)
    rows = exp.Subquery(this=union, alias=exp.TableAlias(this=exp.to_identifier("rollup_rows")))
    shown = [exp.alias_(exp.column(f"shown_{i}"), item.output_name) for i, item in enumerate(query.selects)]
    order = [exp.column(f"{part}_{i}") for i in range(len(keys)) for part in ("total", "key")]
    return exp.select(*shown).from_(rows).order_by(*order)


def _level(query: exp.Select, keys: list[exp.Expr], kept: int) -> exp.Select:
    level = query.copy()
    gone = {key.sql() for key in keys[kept:]}
    items = [_without(item.unalias(), gone) for item in level.selects]
    selected = [exp.alias_(item, f"shown_{i}") for i, item in enumerate(items)]
    for i, key in enumerate(keys):
        selected.append(exp.alias_(exp.Literal.number(int(i >= kept)), f"total_{i}"))
        selected.append(exp.alias_(key.copy() if i < kept else exp.Null(), f"key_{i}"))
    level.set("expressions", selected)
    level.set("group", exp.Group(expressions=[key.copy() for key in keys[:kept]]) if kept else None)
    if not kept:  # the grand total of no rows is no row
        level = level.having("COUNT(*) > 0")
    return level


def _without(item: exp.Expr, gone: set[str]) -> exp.Expr:
    return item.transform(lambda node: exp.Null() if not isinstance(node, exp.AggFunc) and node.sql() in gone else node)

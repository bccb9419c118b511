"""The order of groups that a query leaves open: MySQL 8 gives them as their first rows come, SQLite and MariaDB sort.

It matters where row order counts (the `lab` judge) or a LIMIT cuts: of 350 references of LifelongAgentBench, 62 group
without ordering. MySQL promises nothing here, and orders ties as it pleases; what is done gives its rows in its order
for all but a few. Left out: unions, joins on SQLite, common table expressions on MariaDB, WITH ROLLUP.
"""

from __future__ import annotations

import re

from sqlglot import exp

from dbbench_adapter.backends.statements import lexemes

_TOKEN = re.compile(r"\w+|[()]")
_LEFT_ALONE = frozenset(["union", "except", "intersect", "order", "rollup"])
_AFTER_ORDER = frozenset(["limit", "offset", "for", "into", "lock", "procedure"])


def for_mariadb(sql: str) -> str:
    """The statement with ORDER BY NULL, which keeps MariaDB from sorting, where its outermost query only groups."""
    depth = place = end = 0
    first = previous = ""
    cut: int | None = None
    grouped = False
    for part, is_code in lexemes(sql):
        for token in _TOKEN.finditer(part) if is_code else ():
            word = token[0].lower()
            depth += (word == "(") - (word == ")")
            first = first or word
            if depth == 0 and word in _LEFT_ALONE:
                return sql
            grouped = grouped or (depth == 0 and (previous, word) == ("group", "by"))
            if grouped and depth == 0 and cut is None and word in _AFTER_ORDER:
                cut = place + token.start()
            previous = word
        place += len(part)
        end = place if is_code or part.startswith(("'", '"', "`")) else end
    if first != "select" or not grouped:
        return sql
    cut = end if cut is None else cut
    return f"{sql[:cut].rstrip()} ORDER BY NULL {sql[cut:]}"


def order_groups(tree: exp.Expr) -> None:
    """Order the groups of a query, where its order leaves a choice, by the first of their rows (SQLite)."""
    of_expressions = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    for query in tree.find_all(exp.Select):
        matters = query.parent is None or query.args.get("limit") is not None
        source = query.args.get("from_")
        table = source.this if source is not None else None
        if not matters or not isinstance(table, exp.Table) or query.args.get("joins") or query.args.get("distinct"):
            continue
        group = query.args.get("group")
        if group is None or not group.expressions or table.name.lower() in of_expressions:
            continue
        first_row = exp.Min(this=exp.column("_rowid_", table=table.alias_or_name))
        ordered = query.args.get("order")
        keys = [*(ordered.expressions if ordered is not None else ()), exp.Ordered(this=first_row)]
        query.set("order", exp.Order(expressions=keys))

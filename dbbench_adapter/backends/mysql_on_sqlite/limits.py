"""Refuses statements that would blow up inside SQLite's planner, which checks no clock; the tree shows which they are.

Both blow-ups double at each step of a chain: a CTE that the next one uses twice, and an expression of a sub-query that
the query around it uses twice. MySQL refuses joins of more than 61 tables.
"""

from __future__ import annotations

from sqlglot import exp

from dbbench_adapter.backends.clock import check

MAX_TABLES = 200
"""Most tables in one statement; each use of a CTE counts with the tables inside it."""
MAX_EXPANSION = 20_000
"""How often one expression may contain its innermost column once all sub-queries are written out."""


def blows_up(tree: exp.Expr) -> bool:
    """Whether the tree holds more than `MAX_TABLES` tables or `MAX_EXPANSION` columns, written out.

    Raises:
        StatementTimeout: the statement's time is up.
    """
    if not tree.find(exp.Subquery, exp.CTE):
        return False
    sizes = _Sizes({cte.alias.lower(): cte.this for cte in tree.find_all(exp.CTE)})
    if sizes.tables(tree) > MAX_TABLES:
        return True
    return any(sizes.width(select) > MAX_EXPANSION for select in tree.find_all(exp.Select))


class _Sizes:
    def __init__(self, ctes: dict[str, exp.Expr]) -> None:
        self._ctes = ctes
        self._tables: dict[int, int] = {}
        self._widths: dict[int, int] = {}

    def tables(self, node: exp.Expr) -> int:
        """The number of tables below a node; inside itself a recursive CTE counts once."""
        if id(node) not in self._tables:
            check()
            self._tables[id(node)] = 1
            inner = (self._ctes.get(table.name.lower()) for table in node.find_all(exp.Table))
            self._tables[id(node)] = sum(1 if cte is None else 1 + self.tables(cte) for cte in inner)
        return self._tables[id(node)]

    def width(self, select: exp.Expr) -> int:
        """The columns in the widest expression of a SELECT, times the width of what it selects from."""
        if id(select) not in self._widths:
            check()
            self._widths[id(select)] = 1
            items = select.expressions if isinstance(select, exp.Select) else []
            own = max((sum(1 for _ in item.find_all(exp.Column)) for item in items), default=1)
            clauses = [select.args.get("from_"), *(select.args.get("joins") or [])]
            sources = [source for clause in clauses if clause for source in clause.find_all(exp.Table, exp.Subquery)]
            inner = [self._ctes.get(s.name.lower()) if isinstance(s, exp.Table) else s.unnest() for s in sources]
            queries = [query for source in inner if source is not None for query in source.find_all(exp.Select)]
            self._widths[id(select)] = max(own, 1) * max((self.width(query) for query in queries), default=1)
        return self._widths[id(select)]

"""Refuses statements that would blow up inside SQLite's planner, which checks no clock; the tree shows which they are.

Both blow-ups double at each step of a chain: a CTE that the next one uses twice, and an expression of a sub-query that
the query around it uses twice. MySQL refuses joins of more than 61 tables.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from dbbench_adapter.backends.clock import check

MAX_TABLES = 200
"""Most tables in one statement; each use of a CTE counts with the tables inside it."""
MAX_EXPANSION = 20_000
"""How often one expression may contain its innermost column once all sub-queries are written out."""
MAX_WRITTEN = 200_000
"""The same for all expressions of a SELECT together, those of WHERE and ORDER BY included."""


def blows_up(tree: exp.Expr) -> bool:
    """Whether the tree holds more than `MAX_TABLES` tables or `MAX_EXPANSION` columns, written out.

    Raises:
        StatementTimeout: the statement's time is up.
    """
    if not tree.find(exp.Subquery, exp.CTE):
        return False
    sizes = _Sizes(tree.find_all(exp.CTE))
    if sizes.tables(tree) > MAX_TABLES:
        return True
    return any(
        sizes.width(select) > MAX_EXPANSION or sizes.written(select) > MAX_WRITTEN
        for select in tree.find_all(exp.Select)
    )


class _Sizes:
    def __init__(self, ctes: Iterable[exp.CTE]) -> None:
        self._ctes: dict[str, list[exp.Expr]] = {}  # a name counts as all that it means in any scope
        for cte in ctes:
            self._ctes.setdefault(cte.alias.lower(), []).append(cte.this)
        self._tables: dict[int, int] = {}
        self._widths: dict[int, int] = {}

    def tables(self, node: exp.Expr) -> int:
        """The number of tables below a node; inside itself a recursive CTE counts once."""
        if id(node) not in self._tables:
            check()
            self._tables[id(node)] = 1
            names = [table.name for table in node.find_all(exp.Table)]
            names += [column.name for found in node.find_all(exp.In) if (column := found.args.get("field"))]
            inner = (self._ctes.get(name.lower(), []) for name in names)
            self._tables[id(node)] = sum(1 + sum(map(self.tables, ctes)) for ctes in inner)
        return self._tables[id(node)]

    def width(self, select: exp.Expr) -> int:
        """The columns in the widest expression of a SELECT, times the width of what it selects from."""
        if id(select) not in self._widths:
            check()
            self._widths[id(select)] = 1
            items = select.expressions if isinstance(select, exp.Select) else []
            own = max((_columns(item) for item in items), default=1)
            self._widths[id(select)] = max(own, 1) * self._inner_width(select)
        return self._widths[id(select)]

    def written(self, select: exp.Select) -> int:
        """All columns of a SELECT, times the width of what it selects from."""
        return _columns(select) * self._inner_width(select)

    def _inner_width(self, select: exp.Expr) -> int:
        clauses = [select.args.get("from_"), *(select.args.get("joins") or [])]
        sources = [source for clause in clauses if clause for source in clause.find_all(exp.Table, exp.Subquery)]
        inner = [self._ctes.get(s.name.lower(), []) if isinstance(s, exp.Table) else [s.unnest()] for s in sources]
        queries = [query for found in inner for source in found for query in source.find_all(exp.Select)]
        return max((self.width(query) for query in queries), default=1)


def _columns(node: exp.Expr) -> int:
    return sum(1 for _ in node.find_all(exp.Column))

"""Refuses statements that would grow without bound inside SQLite's planner, which checks no clock.

The syntax tree shows two cases, each of which doubles at every step of a chain: a CTE that the next one uses twice, and
an expression of a sub-query that the outer query uses twice. MySQL refuses joins of more than 61 tables.
"""

from __future__ import annotations

from sqlglot import exp

from dbbench_adapter.statement_clock import check_deadline

# One statement may have at most this many tables; each use of a CTE counts the tables inside it.
MAX_TABLES = 200
# One expression may contain its innermost column this often once all sub-queries are expanded.
MAX_EXPANSION = 20_000
# All expressions of a SELECT together may contain this many, including those of WHERE and ORDER BY.
MAX_WRITTEN = 200_000


def exceeds_limits(tree: exp.Expr) -> bool:
    """Raises StatementTimeout: the statement's time is up."""
    if not tree.find(exp.Subquery, exp.CTE):
        return False
    sizes = _Sizes(tree)
    if sizes.tables(tree) > MAX_TABLES:
        return True
    return any(
        sizes.width(select) > MAX_EXPANSION or sizes.written(select) > MAX_WRITTEN
        for select in tree.find_all(exp.Select)
    )


class _Sizes:
    def __init__(self, tree: exp.Expr) -> None:
        self._ctes: dict[str, list[exp.Expr]] = {}  # a name counts as everything that it means in any scope
        for cte in tree.find_all(exp.CTE):
            self._ctes.setdefault(cte.alias.lower(), []).append(cte.this)
        self._tables: dict[int, int] = {}
        self._columns: dict[int, int] = {}
        for node in reversed(list(tree.walk())):  # children come first
            below = sum(self._columns[id(child)] for child in node.iter_expressions())
            self._columns[id(node)] = below + isinstance(node, exp.Column)
        self._widest: dict[int, int] = {}
        for body in reversed([body for bodies in self._ctes.values() for body in bodies]):  # inner bodies come first
            self._note_widest(body)
        self._note_widest(tree)

    def tables(self, node: exp.Expr) -> int:
        if id(node) not in self._tables:
            check_deadline()
            self._tables[id(node)] = 1
            names = [table.name for table in node.find_all(exp.Table)]
            names += [column.name for found in node.find_all(exp.In) if (column := found.args.get("field"))]
            inner = (self._ctes.get(name.lower(), []) for name in names)
            self._tables[id(node)] = sum(1 + sum(map(self.tables, ctes)) for ctes in inner)
        return self._tables[id(node)]

    def width(self, select: exp.Select) -> int:
        """The columns in the widest expression of a SELECT, times the width of its tables and sub-queries."""
        own = max((self._columns[id(item)] for item in select.expressions), default=1)
        return max(own, 1) * self._inner_width(select)

    def written(self, select: exp.Select) -> int:
        """All columns of a SELECT, times the width of its tables and sub-queries."""
        return self._columns[id(select)] * self._inner_width(select)

    def _inner_width(self, select: exp.Select) -> int:
        clauses = [select.args.get("from_"), *(select.args.get("joins") or [])]
        return max((self._widest[id(clause)] for clause in clauses if clause), default=1)

    def _note_widest(self, root: exp.Expr) -> None:
        """Record the width of the widest SELECT at or below each node, including the CTEs that the node names."""
        if id(root) in self._widest:
            return
        check_deadline()
        self._widest[id(root)] = 1  # inside itself a recursive CTE has this width
        nodes = root.walk(prune=lambda node: node is not root and id(node) in self._widest)
        for node in reversed(list(nodes)):
            if node is not root and id(node) in self._widest:
                continue
            widths = [self._widest[id(child)] for child in node.iter_expressions()]
            if isinstance(node, exp.Table):
                bodies = self._ctes.get(node.name.lower(), [])
                for body in bodies:
                    self._note_widest(body)
                widths += [self._widest[id(body)] for body in bodies]
            elif isinstance(node, exp.Select):
                widths.append(self.width(node))
            self._widest[id(node)] = max(widths, default=1)

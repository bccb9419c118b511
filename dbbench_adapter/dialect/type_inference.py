"""Finds the kind that MySQL gives an expression, from the syntax tree and the kinds of the tables' columns.

A column is known by its table where the statement says which; a name that may mean columns of different kinds is
unknown, and a statement that needs its kind is refused.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from dbbench_adapter.dialect.signatures import called
from dbbench_adapter.dialect.sql_types import (
    DOUBLE,
    INT,
    NULL,
    TEXT,
    Columns,
    SqlType,
    TableColumn,
    as_number,
    cast_type,
    common_type,
    number_type,
    quotient,
)
from dbbench_adapter.statement_clock import check_deadline

_MAX_ALIAS_DEPTH = 20
_NESTED = (exp.CTE, exp.Subquery)


class TypeInference:
    def __init__(self, nodes: Iterable[exp.Expr], columns: Columns, *, is_strict: bool = False) -> None:
        self.is_strict = is_strict
        """Whether it is a change under MySQL's strict mode, which ends at a text that is no number, and at a zero
        divisor."""
        self._by_table = {(column.table, column.name): column for column in columns}
        self._aliases: dict[str, list[exp.Expr]] = {}
        self._tables: dict[str, set[str]] = {}
        self._ctes: dict[str, exp.Expr] = {}
        for node in nodes:
            if isinstance(node, exp.Alias):
                self._aliases.setdefault(node.alias.lower(), []).append(node.this)
            elif isinstance(node, _NESTED) and node.alias_column_names:
                inner = node.this
                for name, item in zip(node.alias_column_names, getattr(inner, "selects", ()), strict=False):
                    self._aliases.setdefault(name.lower(), []).append(item.unalias())
            if isinstance(node, exp.CTE):
                self._ctes[node.alias.lower()] = node.this
            elif isinstance(node, exp.Table):
                self._tables.setdefault(node.alias_or_name.lower(), set()).add(node.name.lower())
        used = set[str]().union(*self._tables.values())
        self._by_name: dict[str, set[SqlType | None]] = {}
        for column in columns:
            if column.table in used:
                self._by_name.setdefault(column.name, set()).add(column.kind)
        self._known: dict[tuple[str, int], SqlType | None] = {}
        self._depth = 0

    def kind(self, node: exp.Expr | None) -> SqlType | None:
        if node is None or self._depth > _MAX_ALIAS_DEPTH:
            return None
        self._depth += 1
        try:
            return self._find(node)
        finally:
            self._depth -= 1

    def is_computed(self, column: exp.Column) -> bool:
        # A column of a sub-query has no collation, one of a table has its own.
        return column.name.lower() in self._aliases and column.table.lower() not in self._tables

    def knows_columns(self, node: exp.Expr) -> bool:
        """Whether every column in it belongs to a table of the statement or is an alias."""
        names = (column.name.lower() for column in node.find_all(exp.Column) if not isinstance(column.this, exp.Star))
        return all(name in self._by_name or name in self._aliases for name in names)

    def columns_of(self, table: str) -> list[TableColumn]:
        return [column for column in self._by_table.values() if column.table == table.lower()]

    def declared(self, node: exp.Column) -> set[str]:
        named = self._tables.get(node.table.lower()) if node.table else set[str]().union(*self._tables.values())
        keys = [(table, node.name.lower()) for table in named or ()]
        return {self._by_table[key].declared for key in keys if key in self._by_table}

    def _find(self, node: exp.Expr) -> SqlType | None:
        match node:
            case exp.Literal():
                return TEXT if node.is_string else number_type(node.name)
            case exp.Null():
                return NULL
            case exp.Column():
                return self._column(node)
            case exp.Paren() | exp.Alias() | exp.Collate() | exp.Window() | exp.IgnoreNulls() | exp.RespectNulls():
                return self.kind(node.this)
            case exp.Subquery():
                inner = node.unnest()
                kinds = self.kinds_of(inner) if isinstance(inner, exp.Query) else ()
                return kinds[0] if len(kinds) == 1 else None
            case exp.Add() | exp.Sub() | exp.Mul() | exp.Div():
                return self._arithmetic(node)
            case exp.Predicate() | exp.Not() | exp.Connector() | exp.Boolean() | exp.Escape():
                return INT
            case exp.Cast():
                return cast_type(node.to)
            case exp.Coalesce() | exp.If() | exp.Case():
                return common_type([self.kind(branch) for branch in branches(node)])
            case exp.Distinct():
                return self.kind(node.expressions[0]) if len(node.expressions) == 1 else None
        found = called(node)
        return found[0].kind(self, found[1]) if found else None

    def kinds_of(self, query: exp.Expr) -> tuple[SqlType | None, ...]:
        """The kinds of a query's columns; () if a star leaves them open."""
        if isinstance(query, exp.SetOperation):
            sides = self.kinds_of(query.left.unnest()), self.kinds_of(query.right.unnest())
            same = len(sides[0]) == len(sides[1])
            return tuple(common_type(pair) for pair in zip(*sides, strict=True)) if same else ()
        if type(query) is not exp.Select:
            return ()
        if not query.is_star:
            return tuple(self.kind(item) for item in query.selects)
        joins = query.args.get("joins") or []
        if any(join.args.get("using") or join.method for join in joins):
            return ()  # a column that both sides share is shown once
        sources = [clause.this for clause in (query.args.get("from_"), *joins) if clause is not None]
        shown = list[SqlType | None]()
        for item in query.selects:
            named = item.table.lower() if isinstance(item, exp.Column) else ""
            if not item.is_star:
                shown.append(self.kind(item))
            for source in sources if item.is_star else ():
                if named in ("", source.alias_or_name.lower()):
                    if not (of_source := self._shown_by(source)):
                        return ()
                    shown += of_source
        return tuple(shown)

    def _shown_by(self, source: exp.Expr) -> tuple[SqlType | None, ...]:
        if isinstance(source, exp.Subquery):
            return self.kinds_of(source.this.unnest())
        if (inner := self._ctes.pop(source.name.lower(), None)) is not None:  # once, as it may name itself
            found = self.kinds_of(inner)
            self._ctes[source.name.lower()] = inner
            return found
        return tuple(column.kind for column in self.columns_of(source.name))

    def _column(self, node: exp.Column) -> SqlType | None:
        name, table = node.name.lower(), node.table.lower()
        if table and (tables := self._tables.get(table)):
            found = {self._by_table[key].kind for key in ((one, name) for one in tables) if key in self._by_table}
            if found:
                return found.pop() if len(found) == 1 else None
        own = node.parent_select if self._hides_aliases(node, name) else None
        key = name, id(own)
        if key not in self._known:  # kept: a chain of sub-queries asks for a name exponentially often
            check_deadline()
            self._known[key] = None
            kinds = set(self._by_name.get(name, ()))
            for value in self._aliases.get(name, ()):
                hidden = own is not None and value.parent_select is own
                if not hidden and not (isinstance(value, exp.Column) and value.name.lower() == name):
                    kinds.add(self.kind(value))
            self._known[key] = kinds.pop() if len(kinds) == 1 else None
        return self._known[key]

    def _hides_aliases(self, node: exp.Expr, name: str) -> bool:
        """Whether a column's name hides an alias of its own SELECT: not in ORDER BY, HAVING and GROUP BY."""
        if name not in self._by_name or name not in self._aliases:
            return False
        while node.parent is not None and not isinstance(node.parent, exp.Select):
            node = node.parent
        return node.arg_key not in ("order", "having", "group")

    def knows_tables(self) -> bool:
        tables = {table for table, _ in self._by_table}
        return all(name in tables or name in self._ctes for names in self._tables.values() for name in names)

    def _arithmetic(self, node: exp.Binary) -> SqlType | None:
        left, right = as_number(self.kind(node.left)), as_number(self.kind(node.right))
        if left is None or right is None or any(kind.name == "double" and kind.scale for kind in (left, right)):
            return None  # MariaDB rounds what is computed from a rounded double
        if isinstance(node, exp.Div):
            return quotient(left, right)
        if not (left.is_exact and right.is_exact):
            return DOUBLE
        if left == right == INT:
            return INT
        return SqlType(
            "decimal", left.scale + right.scale if isinstance(node, exp.Mul) else max(left.scale, right.scale)
        )


def branches(value: exp.Expr) -> list[exp.Expr]:
    if isinstance(value, exp.Coalesce):
        return [value.this, *value.expressions]
    if isinstance(value, exp.If):
        chosen = [value.args["true"], value.args.get("false")]
    elif isinstance(value, exp.Case):
        chosen = [*(branch.args["true"] for branch in value.args["ifs"]), value.args.get("default")]
    else:
        return []
    return [branch for branch in chosen if branch is not None]

"""Computed values as the texts that MySQL makes of them: in a TEXT column, and inside functions that join texts.

SQLite's column affinity still makes numbers of them in every other column. Leaves out columns of derived tables that a
star inserts, and decimals that go on being computed after a division.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from sqlglot import exp

from dbbench_adapter.backends.mysql_on_sqlite.kinds import INT, TEXT, ColumnKinds, Kind, KindFinder
from dbbench_adapter.backends.mysql_on_sqlite.syntax import unsupported

_PLAIN_NUMBER = re.compile(r"(?:0|[1-9]\d*)\.\d+|[1-9]\d{18,}")
"""What stands in a TEXT column as it is written: decimals, and integers that SQLite would make doubles of."""
_JOINERS = frozenset(
    ["concat", "concat_ws", "lpad", "rpad", "length", "char_length", "replace", "substring_index", "reverse", "repeat"]
)
JOINING = (exp.Anonymous, exp.GroupConcat, exp.If, exp.Case, exp.Coalesce, exp.Cast)
"""What `join_as_text` is for."""


_MAX_ASSIGNED_NODES = 500
"""Of one assigned value once the values that it names are written out."""


def assign_in_order(tree: exp.Expr, columns: ColumnKinds) -> None:
    """`SET a = a + 1, b = a` gives b the new a in MySQL, the old one elsewhere: write the new one out, in place.

    Raises:
        StatementError: a chain of assignments grows too long.
    """
    if not isinstance(tree, exp.Update) or len(tree.expressions) < 2 or tree.this.args.get("joins"):
        return
    kinds, assigned = dict(columns), {}
    own = ("", tree.this.alias_or_name.lower())
    for item in tree.expressions:
        if not isinstance(item, exp.EQ) or not isinstance(item.this, exp.Column):
            return
        for column in list(item.expression.find_all(exp.Column)) if assigned else ():
            value = assigned.get(column.name.lower())
            if value is not None and column.table.lower() in own and column.find_ancestor(exp.Query) is None:
                column.replace(value.copy())
        if sum(1 for _ in item.expression.walk()) > _MAX_ASSIGNED_NODES:
            raise unsupported("so long a chain of assignments")
        name = item.this.name.lower()
        assigned[name] = _in_column(item.expression.copy(), kinds.get(name))


def _in_column(value: exp.Expr, kind: Kind | None) -> exp.Expr:
    if isinstance(value, exp.Literal | exp.Null) or kind not in (TEXT, INT):
        return exp.paren(value)
    return exp.cast(value, "char" if kind == TEXT else "bigint")


def store(tree: exp.Expr, finder: KindFinder) -> None:
    """Make texts of the values that an UPDATE or INSERT stores, in place."""
    if isinstance(tree, exp.Update):
        _store_assigned(tree.expressions, finder)
    if not isinstance(tree, exp.Insert):
        return
    if tree.args.get("conflict"):
        _store_assigned(tree.args["conflict"].expressions, finder)
    if isinstance(tree.expression, exp.Values):
        for row in tree.expression.expressions:
            for cell in list(row.expressions):
                _put(cell, lambda value: _stored(value, finder))
    elif isinstance(tree.expression, exp.Query):
        _store_selected(tree, tree.expression, finder)


def join_as_text(node: exp.Expr, finder: KindFinder) -> None:
    """Give the decimals that a function of texts takes their digits, in place."""
    if isinstance(node, exp.Anonymous) and node.name.lower() in _JOINERS:
        node.set("expressions", [_with_digits(value, finder) for value in node.expressions])
    elif isinstance(node, exp.GroupConcat) and not isinstance(node.this, exp.Distinct | exp.Order):
        node.set("this", _with_digits(node.this, finder))
    elif isinstance(node, exp.If | exp.Case | exp.Coalesce) and not isinstance(node.parent, exp.Case):
        if finder.kind(node) == TEXT:
            for value in _branches(node):
                kind = finder.kind(value)
                if kind is not None and kind.is_number:
                    _put(value, lambda v, kind=kind: _with_digits(v, finder) if kind.scale else _call("as_text", v))
    elif isinstance(node, exp.Cast) and node.to.is_type(*exp.DataType.TEXT_TYPES):
        kind = finder.kind(node.this)
        if kind is not None and kind.is_number and kind != INT:
            node.set("this", _with_digits(node.this, finder) if kind.scale else _call("as_text", node.this))


def _store_assigned(items: list[exp.Expr], finder: KindFinder) -> None:
    for item in items:
        if isinstance(item, exp.EQ) and isinstance(item.this, exp.Column):
            column = finder.kind(item.this)
            if column is None or not column.is_number or isinstance(item.expression, exp.Literal):
                item.set("expression", _stored(item.expression, finder))


def _store_selected(tree: exp.Insert, query: exp.Query, finder: KindFinder) -> None:
    """`WITH stored (s0, ...) AS (query) SELECT as_text(s0), ...`: what the query orders or groups by stays a number."""
    if query.is_star:
        return
    kinds = finder.kinds_of(query) or (None,) * len(query.selects)
    if all(_is_text(item.unalias(), kind) for item, kind in zip(query.selects, kinds, strict=True)):
        return
    names = [exp.to_identifier(f"stored_{place}") for place in range(len(kinds))]
    buffered = _buffered(tree, query)
    shown = [
        (_as_shown if buffered and item.find(exp.Column) else _as_text)(exp.column(name.copy()), kind)
        for name, item, kind in zip(names, query.selects, kinds, strict=True)
    ]
    alias = exp.TableAlias(this=exp.to_identifier("stored_rows"), columns=names)
    outer = exp.select(*shown, copy=False).from_("stored_rows")
    outer.set("with_", exp.With(expressions=[exp.CTE(this=query, alias=alias)]))
    tree.set("expression", outer)


def _stored(value: exp.Expr, finder: KindFinder) -> exp.Expr:
    if isinstance(value, exp.Literal) and not value.is_string and _PLAIN_NUMBER.fullmatch(value.name):
        return exp.Literal.string(value.name)
    if branches := _branches(value):
        for branch in branches:
            _put(branch, lambda value: _stored(value, finder))
        return value
    kind = finder.kind(value)
    return value if _is_text(value, kind) else _as_text(value, kind)


def _branches(value: exp.Expr) -> list[exp.Expr]:
    """The expressions that IF, CASE, IFNULL and COALESCE choose from; [] for anything else."""
    if isinstance(value, exp.Coalesce):
        return [value.this, *value.expressions]
    if isinstance(value, exp.If):
        chosen = [value.args["true"], value.args.get("false")]
    elif isinstance(value, exp.Case):
        chosen = [*(branch.args["true"] for branch in value.args["ifs"]), value.args.get("default")]
    else:
        return []
    return [branch for branch in chosen if branch is not None]


def _is_text(value: exp.Expr, kind: Kind | None) -> bool:
    """Whether SQLite makes the text of it that MySQL makes."""
    return kind in (TEXT, INT) or isinstance(value, exp.Null | exp.Tuple | exp.Star | exp.Placeholder | exp.Var)


def _as_text(value: exp.Expr, kind: Kind | None) -> exp.Expr:
    digits = [exp.Literal.number(kind.stored_scale)] if kind is not None and kind.name == "decimal" else []
    return _call("as_text", value, *digits)


def _as_shown(value: exp.Expr, kind: Kind | None) -> exp.Expr:
    if kind is None or not (kind.scale or kind.name == "decimal"):
        return _call("as_text", value)
    return _call("decimal_text", value, exp.Literal.number(kind.scale))


def _buffered(tree: exp.Insert, query: exp.Query) -> bool:
    """Whether MySQL keeps the rows in a table of its own first, where decimals that are no constants have the
    digits that SELECT shows."""
    if not isinstance(query, exp.Select) or query.args.get("distinct"):
        return True
    if query.args.get("group") or any(item.find(exp.AggFunc) for item in query.selects):
        return False
    target = tree.this.find(exp.Table)
    return target is not None and any(table.name == target.name for table in query.find_all(exp.Table))


def _with_digits(value: exp.Expr, finder: KindFinder) -> exp.Expr:
    kind = finder.kind(value)
    return value if kind is None or not kind.scale else _call("decimal_text", value, exp.Literal.number(kind.scale))


def _put(value: exp.Expr, made_of: Callable[[exp.Expr], exp.Expr]) -> None:
    """Put what is made of a node into its place; the node itself, which others hold, stays part of it."""
    parent, key, index = value.parent, value.arg_key, value.index
    assert parent is not None and key is not None
    parent.set(key, made_of(value), index=index)


def _call(name: str, *values: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=list(values))

"""Gives computed texts MySQL's collation: in SQLite only columns have one, and everything else compares by bytes.

It is added in GROUP BY, ORDER BY, DISTINCT, unions, sub-queries, windows, MIN, MAX and simple CASE. Comparisons are
left to `rewrites`.
"""

from __future__ import annotations

from sqlglot import exp

from dbbench_adapter.dialect.kind_finder import KindFinder
from dbbench_adapter.dialect.kinds import BINARY
from dbbench_adapter.dialect.syntax import COLLATION

# The nodes that `collate_computed` accepts.
COLLATING = (exp.Select, exp.Ordered, exp.Group, exp.Min, exp.Max, exp.Count, exp.Case, exp.Window)
_HAVE_THEIR_OWN = (exp.Column, exp.Collate, exp.Star, exp.Null, exp.Boolean, exp.Tuple, exp.Subquery, exp.Query)


def collate_computed(node: exp.Expr, finder: KindFinder) -> None:
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


def _collate_key(key: exp.Expr, finder: KindFinder) -> None:
    if not isinstance(key, exp.Literal):  # a literal is a position
        _collate(key, finder)


def _collate(value: exp.Expr, finder: KindFinder) -> None:
    kind = finder.kind(value)
    binary = isinstance(value, exp.Cast) and value.to.this == exp.DType.BINARY
    parent, key, index = value.parent, value.arg_key, value.index
    if (
        isinstance(value, _HAVE_THEIR_OWN)
        or binary
        or (kind is not None and (kind.is_number or kind == BINARY))
        or parent is None
        or not key
    ):
        return
    parent.set(key, exp.Collate(this=exp.paren(value, copy=False), expression=exp.Var(this=COLLATION)), index=index)

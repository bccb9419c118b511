"""Ends a statement where a number leaves MySQL's BIGINT or DOUBLE; SQLite goes on with a double, infinity or NULL.

It leaves out decimals, which are checked where they are shown or stored (`kinds.digits_of`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlglot import exp

from dbbench_adapter.clock import check
from dbbench_adapter.dialect.comparisons import put
from dbbench_adapter.dialect.kind_finder import KindFinder, branches
from dbbench_adapter.dialect.kinds import BINARY, DOUBLE, INT, integer_range
from dbbench_adapter.dialect.syntax import call

_SUMS = (exp.Add, exp.Sub, exp.Mul)
_GUARDED = (*_SUMS, exp.Div, exp.IntDiv, exp.Neg)
_BITS = (exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot, exp.BitwiseLeftShift, exp.BitwiseRightShift)
_FIRST_SIGN = (exp.Mod, exp.Nullif, exp.Abs, exp.Max, exp.Min, exp.AnyValue, exp.Round, exp.Ceil, exp.Floor)
# Like the nodes above these are unsigned where their first operand is; a product or quotient where either is.
_FIRST_SIGN_CALLS = frozenset(["mod", "ceiling", "truncate"])
# A schema calls no function of ours.
_DEFINITIONS = (exp.CheckColumnConstraint, exp.DefaultColumnConstraint)
_BEYOND = 2**63
# No table has so many rows that a sum of smaller numbers exceeds 64 bits.
_SUMMED = 2**32
# A count of rows, and a date as a number, are smaller.
_ROWS, _DATES = 2**40, 10**15


def guards(nodes: Sequence[exp.Expr], finder: KindFinder) -> list[tuple[exp.Expr, str]]:
    found: dict[int, str] = {}
    guarded = []
    defines = any(isinstance(node, _DEFINITIONS) for node in nodes)
    for node in nodes:  # parents come first
        check()
        name = _guard(node, finder) if isinstance(node, _GUARDED) else None
        if name is None or (defines and node.find_ancestor(*_DEFINITIONS)):
            continue
        found[id(node)] = name
        outer = node.parent
        while isinstance(outer, exp.Paren):
            outer = outer.parent
        if not (name == "in_bigint" and found.get(id(outer)) in ("in_bigint", "in_unsigned")):  # which sees the double
            guarded.append((node, name))
    return guarded


def sums(tree: exp.Expr, nodes: Iterable[exp.Expr], finder: KindFinder) -> list[tuple[exp.Expr, str]]:
    shown: set[int] = set()
    if isinstance(tree, exp.Select) and not any(tree.args.get(part) for part in ("order", "having", "distinct")):
        shown = {id(item.unalias()) for item in tree.expressions}
    return [
        (node, "sum_digits" if id(node) in shown else "sum_whole")
        for node in nodes
        if isinstance(node, exp.Sum)
        and not isinstance(node.parent, exp.Window)
        and finder.kind(node.this) == INT
        and _bound(node.this, finder) > _SUMMED
    ]


def guard(node: exp.Expr, name: str) -> None:
    put(node, lambda value: call(name, value))


def _guard(node: exp.Expr, finder: KindFinder) -> str | None:
    kind = finder.kind(node)
    if kind is None:
        return "in_either"
    if kind == INT and _is_unsigned(node, finder):
        return "in_unsigned"
    if kind == INT:
        return "in_bigint" if not isinstance(node, exp.IntDiv) and _bound(node, finder) >= _BEYOND else None
    return "in_double" if kind.name == DOUBLE.name and not isinstance(node, exp.Neg) else None


def _is_unsigned(node: exp.Expr, finder: KindFinder) -> bool:
    if finder.kind(node) not in (INT, BINARY):
        return False
    match node:
        case exp.Paren() | exp.Alias() | exp.Window():
            return _is_unsigned(node.this, finder)
        case exp.Add() | exp.Sub() | exp.Mul() | exp.IntDiv():
            return _is_unsigned(node.left, finder) or _is_unsigned(node.right, finder)
        case exp.Subquery():
            inner = node.unnest()
            return isinstance(inner, exp.Select) and len(inner.selects) == 1 and _is_unsigned(inner.selects[0], finder)
        case exp.Coalesce() | exp.If() | exp.Case():
            return _all_unsigned(branches(node), finder)
        case exp.Cast():
            return node.to.this == exp.DType.UBIGINT
        case exp.Column():
            return any("UNSIGNED" in declared for declared in finder.declared(node))
    if isinstance(node, (*_BITS, exp.HexString, exp.BitString)):
        return True
    name = node.name.lower() if isinstance(node, exp.Anonymous) else ""
    if name in ("greatest", "least"):
        return _all_unsigned(node.expressions, finder)
    if name in _FIRST_SIGN_CALLS:
        return bool(node.expressions) and _is_unsigned(node.expressions[0], finder)
    return name == "crc32" or (isinstance(node, _FIRST_SIGN) and _is_unsigned(node.this, finder))


def _all_unsigned(values: Iterable[exp.Expr], finder: KindFinder) -> bool:
    return all(_is_unsigned(value, finder) for value in values if not isinstance(value.unnest(), exp.Null))


def _bound(node: exp.Expr, finder: KindFinder) -> int:
    match node:
        case exp.Literal():
            return int(node.name)
        case exp.Paren() | exp.Neg():
            return _bound(node.this, finder)
        case exp.Add() | exp.Sub():
            return _bound(node.left, finder) + _bound(node.right, finder)
        case exp.Mul():
            return _bound(node.left, finder) * _bound(node.right, finder)
        case exp.Count():
            return _ROWS
        case exp.Column():
            return _column_bound(node, finder)
    return 1 if isinstance(node, exp.Predicate | exp.Boolean) else _BEYOND


def _column_bound(node: exp.Column, finder: KindFinder) -> int:
    kind = finder.kind(node)
    if kind is not None and kind.is_temporal:
        return _DATES
    limits = [integer_range(declared) for declared in finder.declared(node)]
    computed = finder.is_computed(node) or not limits or None in limits
    return _BEYOND if computed else max(max(-low, high) for low, high in filter(None, limits))

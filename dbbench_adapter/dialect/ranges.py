"""Ends a statement where a number leaves MySQL's BIGINT or DOUBLE; SQLite goes on with a double, infinity or NULL.

It leaves out decimals, which are checked where they are shown or stored (`kinds.digits_of`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from dbbench_adapter.dialect.comparisons import put
from dbbench_adapter.dialect.sql_types import DOUBLE, INT, integer_range
from dbbench_adapter.dialect.syntax import anonymous_call
from dbbench_adapter.dialect.type_inference import TypeInference
from dbbench_adapter.statement_clock import check_deadline

_SUMS = (exp.Add, exp.Sub, exp.Mul)
_GUARDED = (*_SUMS, exp.Div, exp.IntDiv, exp.Neg)
_BEYOND = 2**63
# A count of rows, and a date as a number, are smaller.
_ROWS, _DATES = 2**40, 10**15


def guards(nodes: Sequence[exp.Expr], finder: TypeInference) -> list[tuple[exp.Expr, str]]:
    found: dict[int, str] = {}
    guarded = []
    for node in nodes:  # parents come first
        check_deadline()
        name = _guard(node, finder) if isinstance(node, _GUARDED) else None
        if name is None:
            continue
        found[id(node)] = name
        outer = node.parent
        while isinstance(outer, exp.Paren):
            outer = outer.parent
        if not (name == found.get(id(outer)) == "in_bigint"):  # which sees the double
            guarded.append((node, name))
    return guarded


def wrap_in_call(node: exp.Expr, name: str) -> None:
    put(node, lambda value: anonymous_call(name, value))


def _guard(node: exp.Expr, finder: TypeInference) -> str | None:
    kind = finder.kind(node)
    if kind == INT:
        return "in_bigint" if not isinstance(node, exp.IntDiv) and _bound(node, finder) >= _BEYOND else None
    return "in_double" if kind is not None and kind.name == DOUBLE.name and not isinstance(node, exp.Neg) else None


def _bound(node: exp.Expr, finder: TypeInference) -> int:
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


def _column_bound(node: exp.Column, finder: TypeInference) -> int:
    kind = finder.kind(node)
    if kind is not None and kind.is_temporal:
        return _DATES
    limits = [integer_range(declared) for declared in finder.declared(node)]
    computed = finder.is_computed(node) or not limits or None in limits
    return _BEYOND if computed else max(max(-low, high) for low, high in filter(None, limits))

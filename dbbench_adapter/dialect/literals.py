"""Reads MySQL's literals: the numbers of LIMIT, whole numbers beyond 64 bits, and bytes as `0x41` or `b'101'`.

Bytes are a whole number beside a number and a text beside a text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from decimal import Decimal

from sqlglot import exp

from dbbench_adapter.dialect.kind_finder import KindFinder
from dbbench_adapter.dialect.kinds import BINARY, DOUBLE, TEXT, Kind
from dbbench_adapter.dialect.syntax import StatementError, syntax_error, unsupported

_LARGEST, _LARGEST_UNSIGNED = 2**63 - 1, 2**64 - 1
_DOUBLE_INTEGERS = 2**53
# Whole numbers beyond 64 bits may stand below these: comparisons, which doubles do not change, and values to store.
_TAKE_LARGE = (
    *(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Between, exp.In),
    *(exp.Tuple, exp.Limit, exp.Offset),
)
_COUNTS = (exp.Limit, exp.Offset)


def settled_literals(nodes: Iterable[exp.Expr]) -> list[exp.Expr]:
    """The numbers of LIMIT are capped and bits turned to bytes, in place.

    Raises:
        StatementError: MySQL refuses the number too, or SQLite cannot hold it.
    """
    settled = []
    for node in nodes:
        if isinstance(node, exp.BitString):
            settled.append(node.replace(_hex(int(node.name or "0", 2))))
        else:
            settled.append(node)
        _settle(settled[-1])
    return settled


def _settle(node: exp.Expr) -> None:
    if isinstance(node, _COUNTS):
        _cap(node)
    elif isinstance(node, exp.HexString):
        node.set("this", node.name.zfill(len(node.name) + len(node.name) % 2))
        if isinstance(node.parent, exp.Tuple) and not isinstance(node.parent.parent, exp.Values):
            raise unsupported("bytes in a row that is compared")
    elif isinstance(node, exp.Literal) and not node.is_string:
        _check_number(node)


def _hex(number: int) -> exp.HexString:
    return exp.HexString(this=number.to_bytes(max((number.bit_length() + 7) // 8, 1), "big").hex())


def _cap(node: exp.Limit | exp.Offset) -> None:
    # The manual asks for all the rest with 18446744073709551615, more than SQLite reads.
    value = node.expression
    if not (isinstance(value, exp.Literal) and value.is_int and int(value.name) <= _LARGEST_UNSIGNED):
        if isinstance(value, exp.Parameter | exp.SessionParameter):
            raise unsupported("user and system variables")
        raise syntax_error(value.sql("mysql") if value is not None else "LIMIT")
    value.set("this", str(min(int(value.name), _LARGEST)))


def _check_number(node: exp.Literal) -> None:
    if math.isinf(float(node.name)):
        raise StatementError(f"1367 (22007): Illegal double '{node.name[:80]}' value found during parsing")
    parent = node.parent
    negative = isinstance(parent, exp.Neg)
    while isinstance(parent, exp.Paren | exp.Neg):
        parent = parent.parent
    if not node.is_int:
        changed = parent.parent if isinstance(parent, exp.EQ) else None
        assigned = isinstance(parent, exp.Tuple) or isinstance(changed, exp.Update | exp.OnConflict)
        if "e" not in node.name.lower() and not assigned and Decimal(repr(float(node.name))) != Decimal(node.name):
            raise unsupported("decimals of more than 15 digits")
        return
    if int(node.name) <= _LARGEST:
        return
    if negative and int(node.name) == _LARGEST + 1:
        return
    if not isinstance(parent, _TAKE_LARGE):
        raise unsupported("whole numbers of 2^63 and more")


def number_of(node: exp.Expr) -> exp.Expr:
    """Raises StatementError: SQLite cannot hold the whole number that the bytes are in a sum."""
    number = int(node.name or "0", 16)
    if number > _LARGEST:
        raise unsupported("whole numbers of 2^63 and more")
    return exp.Literal.number(number)


def text_of(node: exp.Expr) -> exp.Literal:
    """Raises StatementError: the bytes are no UTF-8."""
    try:
        return exp.Literal.string(bytes.fromhex(node.name).decode())
    except UnicodeDecodeError:
        raise unsupported("bytes that are no text") from None


# With `exp.Case` all nodes whose literals `settle_literals` reads.
COMPARED = (exp.In, exp.Between, exp.Binary, exp.Nullif)


def settle_literals(node: exp.Expr, finder: KindFinder) -> None:
    """Turn literals that a node compares, in place, into what they are beside the other values."""
    found = [(value, finder.kind(value)) for value in _compared(node)]
    if any(kind == BINARY for _, kind in found):
        _settle_bytes(found)
    if any(kind in (TEXT, DOUBLE) for _, kind in found):
        for value in (value.unnest() for value, _ in found):
            if isinstance(value, exp.Literal) and value.is_int and int(value.name) > _DOUBLE_INTEGERS:
                value.set("this", repr(float(value.name)))  # both sides are doubles


def _settle_bytes(found: list[tuple[exp.Expr, Kind | None]]) -> None:
    others = [(value, kind) for value, kind in found if kind != BINARY]
    as_numbers = any(kind is not None and kind.is_number for _, kind in others)
    by_bytes = not any(value.find(exp.Column) for value, _ in others)
    for value in (value.unnest() for value, kind in found if kind == BINARY):
        if as_numbers:
            value.replace(number_of(value))
        else:
            text = text_of(value)
            value.replace(exp.Collate(this=text, expression=exp.Var(this="binary")) if by_bytes else text)


def _compared(node: exp.Expr) -> Iterator[exp.Expr]:
    if isinstance(node, exp.Case):
        yield from (node.this, *(branch.this for branch in node.args["ifs"]))
    elif isinstance(node, COMPARED):
        parts = [node.args.get(name) for name in ("this", "expression", "low", "high")]
        yield from (part for part in [*parts, *(node.args.get("expressions") or [])] if isinstance(part, exp.Expr))

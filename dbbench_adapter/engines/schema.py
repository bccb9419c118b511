"""Defines the records of a database's schema: tables, columns with types, keys, and a few values of each column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Example values come from this many first rows, so that a large table is not read whole.
SAMPLED_ROWS = 1_000
SAMPLES = 2
SAMPLE_CHARS = 24


@dataclass(frozen=True)
class ColumnInfo:
    name: str
    type: str
    """The declared type; empty if none is declared."""
    samples: tuple[str, ...] = ()
    """Values as SQL literals."""


@dataclass(frozen=True)
class TableInfo:
    name: str
    columns: tuple[ColumnInfo, ...]
    primary_key: tuple[str, ...] = ()
    foreign_keys: tuple[tuple[str, str, str], ...] = ()
    """Column, other table, its column."""
    is_view: bool = False
    quote: str = '"'
    """What a name stands in; backquotes stand around every name, since MySQL's versions differ in their keywords."""


def said_unreadable(unreadable: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({why})" for name, why in unreadable.items())


def sample_values(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> dict[str, tuple[str, ...]]:
    """The first few values of each column as SQL literals."""
    found: dict[str, dict[str, None]] = {column: {} for column in columns}
    for row in rows:
        for column, cell in zip(columns, row, strict=False):
            if len(found[column]) < SAMPLES and cell is not None and not isinstance(cell, bytes):
                found[column][_literal(cell)] = None
    return {column: tuple(values) for column, values in found.items()}


def _literal(cell: Any) -> str:
    if not isinstance(cell, str):
        return repr(cell)
    text = " ".join(cell.split())  # one line
    text = text if len(text) <= SAMPLE_CHARS else text[:SAMPLE_CHARS] + "..."
    return "'" + text.replace("'", "''") + "'"

"""Draws a table from a theme, and opens a database that holds it while tasks over it are written.

A task has one table, as in LifelongAgentBench; joins and NULLs are left out.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dbbench_adapter.datatypes import Column, Row, Table
from dbbench_adapter.generate.themes import Field, Role, Theme

NAME_ENDINGS = ("", "", "", "_log", "_archive", "_data", "_2021", "_2022", "_2023", "_2024", "_north", "_south")
_SQL_WORDS = frozenset({"as", "by", "do", "if", "in", "is", "of", "on", "or", "to"})


@dataclass(frozen=True)
class Scene:
    """`ask` runs our own SQL on the table, to find thresholds and ties."""

    theme: Theme
    table: Table
    fields: tuple[Field, ...]
    """One per column, in column order."""
    extra_row: Row
    """One more row of the same distributions; the table does not hold its key and label."""
    connection: sqlite3.Connection

    @property
    def row(self) -> str:
        return self.theme.row

    @property
    def rows(self) -> str:
        return self.theme.rows

    @property
    def alias(self) -> str:
        initials = "".join(part[0] for part in self.theme.table.split("_"))
        return initials if initials not in _SQL_WORDS else f"{initials}t"

    def source(self, at: str) -> str:
        """The table as FROM names it; `at` is the prefix of its columns, `t.` or nothing."""
        return f"{self.table.name} AS {at[:-1]}" if at else self.table.name

    def of(self, *roles: Role) -> list[Field]:
        return [field for field in self.fields if field.role in roles]

    @property
    def numbers(self) -> list[Field]:
        return self.of("amount", "level")

    def column(self, field: Field) -> list[Any]:
        index = self.fields.index(field)
        return [row[index] for row in self.table.rows]

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql).fetchall()


def draw_scene(rng: random.Random, themes: Sequence[Theme], num_rows: int) -> Scene:
    """Draw 5-7 columns of a theme: at least a key, two categories and an amount, in the theme's order."""
    theme = rng.choice(themes)
    fields = _some_fields(rng, theme)
    cells = [field.values(rng, num_rows + 1) for field in fields]
    *rows, extra_row = zip(*cells, strict=True)
    name = theme.table + rng.choice(NAME_ENDINGS)
    table = Table(name, tuple(Column(field.name, field.type) for field in fields), tuple(rows))
    return Scene(theme, table, fields, extra_row, in_memory(table))


def _some_fields(rng: random.Random, theme: Theme) -> tuple[Field, ...]:
    def some(role: Role, n: int) -> list[Field]:
        of_role = [field for field in theme.fields if field.role == role]
        return rng.sample(of_role, min(n, len(of_role)))

    chosen = [*some("key", 1), *some("category", 2), *some("amount", rng.randint(1, 2))]
    rest = [field for field in theme.fields if field not in chosen]
    chosen += rng.sample(rest, min(len(rest), rng.randint(5, 7) - len(chosen)))
    return tuple(field for field in theme.fields if field in chosen)


def in_memory(table: Table) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    columns = ", ".join(f"`{column.name}` {column.type}" for column in table.columns)
    connection.execute(f"CREATE TABLE `{table.name}` ({columns})")
    connection.executemany(f"INSERT INTO `{table.name}` VALUES ({', '.join('?' * len(table.columns))})", table.rows)
    return connection

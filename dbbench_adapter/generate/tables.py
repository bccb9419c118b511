"""A table drawn from a theme, kept at hand for looking things up while a task over it is written.

Left out: joins (one table per task, as in LifelongAgentBench) and NULLs.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dbbench_adapter.datatypes import Column, Row, Table
from dbbench_adapter.generate.themes import Theme
from dbbench_adapter.generate.values import Field, Role

NAME_ENDINGS = ("", "", "", "_log", "_archive", "_data", "_2021", "_2022", "_2023", "_2024", "_north", "_south")


@dataclass(frozen=True)
class Scene:
    """A table with the words for it; `ask` runs our own plain SQL, for thresholds and ties."""

    theme: Theme
    table: Table
    fields: tuple[Field, ...]
    """One per column, in column order."""
    spare: Row
    """One more row of the same distributions, whose key and label the table does not hold."""
    connection: sqlite3.Connection

    @property
    def row(self) -> str:
        return self.theme.row

    @property
    def rows(self) -> str:
        return self.theme.rows

    def of(self, *roles: Role) -> list[Field]:
        return [field for field in self.fields if field.role in roles]

    @property
    def numbers(self) -> list[Field]:
        return self.of("amount", "level")

    def column(self, field: Field) -> list[Any]:
        """Its cells, from first to last row."""
        index = self.fields.index(field)
        return [row[index] for row in self.table.rows]

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql).fetchall()


def draw_scene(rng: random.Random, themes: Sequence[Theme], num_rows: int) -> Scene:
    """5-7 columns of a theme: at least a key, two categories and an amount, in the theme's order."""
    theme = rng.choice(themes)
    fields = _some_fields(rng, theme)
    cells = [field.values(rng, num_rows + 1) for field in fields]
    *rows, spare = zip(*cells, strict=True)
    name = theme.table + rng.choice(NAME_ENDINGS)
    table = Table(name, tuple(Column(field.name, field.type) for field in fields), tuple(rows))
    return Scene(theme, table, fields, spare, _in_memory(table))


def _some_fields(rng: random.Random, theme: Theme) -> tuple[Field, ...]:
    def some(role: Role, n: int) -> list[Field]:
        of_role = [field for field in theme.fields if field.role == role]
        return rng.sample(of_role, min(n, len(of_role)))

    chosen = [*some("key", 1), *some("category", 2), *some("amount", rng.randint(1, 2))]
    rest = [field for field in theme.fields if field not in chosen]
    chosen += rng.sample(rest, min(len(rest), rng.randint(5, 7) - len(chosen)))
    return tuple(field for field in theme.fields if field in chosen)


def _in_memory(table: Table) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    columns = ", ".join(f"{column.name} {column.type}" for column in table.columns)
    connection.execute(f"CREATE TABLE {table.name} ({columns})")
    connection.executemany(f"INSERT INTO {table.name} VALUES ({', '.join('?' * len(table.columns))})", table.rows)
    return connection

"""Draws the tables of generated tasks: names, places, categories, money, counts, ratings, years, dates, codes.

A `Field` is a column together with its English name and the distribution of its cells. Cells are INT or TEXT and never
NULL. No text holds a quote, bracket, comma, backquote or backslash, and no two texts of a column differ by case or
accents alone, so that MySQL and SQLite group and sort them alike. Decimals and missing values are left out.

A `Theme` names a table, its rows in English, and the columns to draw from. `themes.yaml` holds the themes. A `Scene` is
a table that was drawn from one, in a database that holds it while tasks over it are written. A task has one table, as
in LifelongAgentBench.
"""

from __future__ import annotations

import datetime
import random
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from dbbench_adapter.datatypes import Cell, Column, Row, Table


@cache
def read_data(name: str) -> dict[str, Any]:
    # It is read once; callers must not change it.
    return yaml.load((Path(__file__).parent / f"{name}.yaml").read_text("utf-8"), yaml.CSafeLoader)


# key: INT, never repeats. label: TEXT, never repeats. category: TEXT, repeats, to group by. amount: INT, summed. level:
# INT that is not summed (a rating, a year, an age). date: TEXT, year-month-day.
Role = Literal["key", "label", "category", "amount", "level", "date"]


@dataclass(frozen=True)
class Field:
    name: str
    role: Role
    phrase: str
    """A singular noun without article, e.g. `number of seats`."""
    values: Callable[[random.Random, int], list[Any]]
    """Draws this many cells, one per row."""

    @property
    def type(self) -> Literal["INT", "TEXT"]:
        return "INT" if self.role in ("key", "amount", "level") else "TEXT"


def make_field(phrase: str = "", **column: Any) -> Field:
    """Make the field of a `columns` entry of `themes.yaml`, whose first key is one of `KINDS`.

    Args:
        phrase: its English name; by default the words of the column name.
    """
    (kind, name), *options = column.items()
    role, values = KINDS[kind]
    words = " ".join("ID" if word == "id" else word for word in name.split("_"))
    return Field(name, role, phrase or words, partial(values, **dict(options)))


def literal(cell: Cell) -> str:
    """A text or number in SQL; generated texts hold no quotes."""
    return f"'{cell}'" if isinstance(cell, str) else str(cell)


def _rising_numbers(rng: random.Random, n: int) -> list[int]:
    number, gaps = rng.choice([1, 101, 501, 1001, 2001, 5001]), rng.random() < 0.3
    cells = []
    for _ in range(n):
        cells.append(number)
        number += rng.randint(1, 4) if gaps else 1
    return cells


def _full_names(rng: random.Random, n: int) -> list[str]:
    words = read_data("themes")
    return _two_words(rng, n, first=words["first_names"], second=words["last_names"])


def _two_words(rng: random.Random, n: int, *, first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Draw different combinations of two words; there are 64 or more of them."""
    chosen = rng.sample(range(len(first) * len(second)), n)
    return [f"{first[pair % len(first)]} {second[pair // len(first)]}" for pair in chosen]


def _codes(rng: random.Random, n: int, *, prefix: str) -> list[str]:
    """Draw different codes such as QX-417; the part before the hyphen repeats."""
    prefixes = [prefix, *(f"{prefix[0]}{letter}" for letter in rng.sample("KQVXZ", 2))]
    return [f"{rng.choice(prefixes)}-{number}" for number in rng.sample(range(100, 1000), n)]


def _few_people(rng: random.Random, n: int) -> list[str]:
    return _repeated(rng, _full_names(rng, min(rng.randint(4, 8), max(2, n // 3))), n)


def _some_of(rng: random.Random, n: int, *, choices: Sequence[str]) -> list[str]:
    return _repeated(rng, rng.sample(choices, max(2, min(len(choices), n // 3))), n)


def _places(rng: random.Random, n: int, *, of: str) -> list[str]:
    return _repeated(rng, rng.sample(read_data("themes")[of], max(2, min(rng.randint(3, 8), n // 3))), n)


def _repeated(rng: random.Random, words: list[str], n: int) -> list[str]:
    """Draw every word at least once if there is room, and the rest evenly or by falling weights."""
    weights = [1.0] * len(words) if rng.random() < 0.5 else [1 / rank for rank in range(1, len(words) + 1)]
    cells = words[:n] + rng.choices(words, weights, k=max(0, n - len(words)))
    rng.shuffle(cells)
    return cells


def _amounts(rng: random.Random, n: int, *, low: int, high: int) -> list[int]:
    """Draw numbers that may be added up: even, skewed to the low end, or in round steps, alike in a whole column."""
    shape = rng.choice(["even", "skewed", "round"])
    if shape == "even":
        return [rng.randint(low, high) for _ in range(n)]
    if shape == "skewed":
        return [low + round((high - low) * rng.random() ** 2.5) for _ in range(n)]
    step = max(step for step in (1, 5, 10, 50, 100, 500) if step == 1 or (high - low) // step >= 20)
    start = -(-low // step)
    return [step * rng.randint(start, high // step) for _ in range(n)]


def _levels(rng: random.Random, n: int, *, low: int, high: int) -> list[int]:
    return [rng.randint(low, high) for _ in range(n)]


def _days(rng: random.Random, n: int) -> list[str]:
    """Draw dates such as 2023-05-17 over one or two years; in half of the tables days repeat."""
    first = datetime.date(rng.randint(2019, 2024), 1, 1)
    days = [first + datetime.timedelta(rng.randrange(rng.choice([365, 700]))) for _ in range(n)]
    if rng.random() < 0.5:
        days = rng.choices(days[: max(3, n // 2)], k=n)
    return [f"{date:%Y-%m-%d}" for date in days]


# The kinds of columns in `themes.yaml`, with their roles and the function that draws their cells.
KINDS: dict[str, tuple[Role, Callable[..., list[Any]]]] = {
    "key": ("key", _rising_numbers),
    "person": ("label", _full_names),
    "title": ("label", _two_words),
    "code": ("label", _codes),
    "staff": ("category", _few_people),
    "pick": ("category", _some_of),
    "city": ("category", partial(_places, of="cities")),
    "country": ("category", partial(_places, of="countries")),
    "amount": ("amount", _amounts),
    "level": ("level", _levels),
    "day": ("date", _days),
}


Split = Literal["train", "held_out"]


@dataclass(frozen=True)
class Theme:
    table: str
    row: str
    """The name of one row, in the singular and without article: `delivery route`."""
    rows: str
    """The plural of `row`."""
    fields: tuple[Field, ...]


def _read_themes(split: Split) -> list[Theme]:
    return [
        Theme(
            entry["table"],
            entry["row"],
            entry.get("plural", f"{entry['row']}s"),
            tuple(make_field(**column) for column in entry["columns"]),
        )
        for entry in read_data("themes")[split]
    ]


THEMES: Mapping[Split, Sequence[Theme]] = {split: _read_themes(split) for split in get_args(Split)}

# Tables ---------------------------------------------------------------------------------------------------------------


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

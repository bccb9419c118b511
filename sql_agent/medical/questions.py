"""Makes questions about the entries of a medical database, each about one field of one entry.

The table and id of an entry alone decide whether it belongs to the training or the held-out half. An entry whose name
occurs twice in its table is left out, because the question would be ambiguous.
"""

from __future__ import annotations

import hashlib
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dbbench_adapter.engines.sqlite.read_only import connect
from sql_agent.medical.datatypes import TABLES, Language, Question, Schema
from sql_agent.medical.words import ASK, LABELS

Half = Literal["train", "held_out"]


@dataclass(frozen=True)
class Entry:
    table: str
    id: int | str
    name: str

    @property
    def language(self) -> Language:
        return "zh" if any("\u4e00" <= char <= "\u9fff" for char in self.name) else "en"


def make_questions(
    path: Path, schema: Schema, count: int, *, half: Half, held_out_fraction: float = 0.2, seed: int = 0
) -> list[Question]:
    """Every entry gets its first question before any gets its second.

    Returns:
        The questions; fewer than `count` if the entries of that half have fewer fields with text.
    """
    draw = random.Random(f"{seed}/{half}")
    with closing(connect(path)) as connection:
        wanted = [e for e in entries(connection, schema) if in_half(f"{e.table}/{e.id}", half, held_out_fraction)]
        draw.shuffle(wanted)
        found: list[Question] = []
        for entry, column, value in _fields(connection, schema, wanted, draw):
            if len(found) >= count:
                break
            found.append(_question(entry, column, value, draw))
    return found


def entries(connection: sqlite3.Connection, schema: Schema) -> list[Entry]:
    found = []
    for table in schema:
        name = TABLES[table].name_column
        text = f"{name} <> '' AND typeof({name}) <> 'blob'"
        sql = f"SELECT min(id), {name} FROM {table} WHERE {text} GROUP BY {name} HAVING count(*) = 1 ORDER BY 1"
        found += [Entry(table, row_id, str(text)) for row_id, text in connection.execute(sql)]
    return found


def in_half(entry: str, half: Half, held_out_fraction: float) -> bool:
    # The result depends on nothing but the entry.
    digest = hashlib.sha256(entry.encode()).digest()
    return (int.from_bytes(digest[:8], "big") < held_out_fraction * 2**64) == (half == "held_out")


def label(column: str, language: Language) -> str:
    return LABELS[language].get(column, column.replace("_", " "))


def askable(table: str, schema: Schema) -> list[str]:
    return [column for column in TABLES[table].columns if column in schema[table]]


def _fields(
    connection: sqlite3.Connection, schema: Schema, wanted: list[Entry], draw: random.Random
) -> Iterator[tuple[Entry, str, str]]:
    """Fields with text, in rounds of one field per entry."""
    orders = {entry: draw.sample(askable(entry.table, schema), len(askable(entry.table, schema))) for entry in wanted}
    for k in range(max(map(len, orders.values()), default=0)):
        for entry in wanted:
            if k < len(orders[entry]):
                column = orders[entry][k]
                if (value := text_of(connection, entry, column)) is not None:
                    yield entry, column, value


def text_of(connection: sqlite3.Connection, entry: Entry, column: str) -> str | None:
    """The text of a field; None if it is empty or binary."""
    sql = f'SELECT "{column}" FROM {entry.table} WHERE id = ?'
    (value,) = connection.execute(sql, (entry.id,)).fetchone()
    return None if value is None or isinstance(value, bytes) or not str(value).strip() else str(value)


def _question(entry: Entry, column: str, value: str, draw: random.Random) -> Question:
    asked = draw.choice(ASK[entry.language]).format(label=label(column, entry.language), name=entry.name)
    return Question(
        id=f"{entry.table}-{entry.id}-{column}",
        question=asked,
        language=entry.language,
        table=entry.table,
        row_id=entry.id,
        column=column,
        answer=value,
    )

"""Reads a user's own SQLite file as tables for an episode. The file is only read: an episode works on a copy."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from dbbench_adapter.datatypes import Cell, Column, Gold, Row, Table, Task
from dbbench_adapter.engines.engine import format_unreadable
from dbbench_adapter.engines.sqlite.foreign_schema import load_schema, table_list
from dbbench_adapter.engines.sqlite.read_only import why_unavailable
from dbbench_adapter.engines.sqlite.schema import quoted, why_unreadable
from dbbench_adapter.generator import NOTE

# Largest number of rows of all tables together, since they are held in memory.
MAX_ROWS = 200_000


@dataclass(frozen=True)
class DatabaseCopy:
    task: Task
    """A task with the tables of the file and an empty question."""
    left_out: tuple[str, ...]
    """Descriptions of what was not copied, or is shown in another form."""


def read_database(path: Path) -> DatabaseCopy:
    """A column of whole numbers becomes BIGINT, one of finite numbers DOUBLE, and every other TEXT.

    Raises:
        ValueError: there is no such file, it is not a SQLite database, or it has no table or more than `MAX_ROWS` rows.
    """
    if not path.is_file():
        raise ValueError(f"--database {path}: no such file; expected a SQLite database")
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro", uri=True)) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            unparsed = load_schema(connection)
            foreign = {entry.name: entry.why for entry in unparsed if entry.is_read}
            kinds = {name: kind for name, kind, _ in table_list(connection, unparsed)}
            made = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY rowid")
            listed = [(name, kinds[name]) for (name,) in made if name in kinds]
            all_names = [name for name, kind in listed if kind == "table" and not name.startswith("sqlite_")]
            faults = {
                name: fault
                for name in all_names
                if (fault := foreign.get(name) or _unreadable(connection, name)) is not None
            }
            names = [name for name in all_names if name not in faults]
            _refuse_too_many(connection, names, path)
            tables, num_blobs = [], 0
            for name in names:
                table, blobs = _read_table(connection, name)
                tables.append(table)
                num_blobs += blobs
    except sqlite3.Error as error:
        other = f"--database {path}: {error}; give a SQLite database that can be read"
        raise ValueError(why_unavailable(error, path) or other) from error
    if not tables:
        more = f" that can be read: {format_unreadable(faults)}" if faults else " in it"
        raise ValueError(f"--database {path}: there is no table{more}; give a database with tables")
    others = [f"{kind} {name}" for name, kind in listed if kind in ("view", "virtual")]
    left_out = [f"not copied: {', '.join(others)}"] if others else []
    left_out += [f"not copied, since no statement can read it: {format_unreadable(faults)}"] if faults else []
    left_out += [f"binary cells shown as hex digits: {num_blobs}"] if num_blobs else []
    note = " ".join(map(_note, tables))
    task = Task(path.stem, "", "other", tuple(tables), Gold(), table_note=note, typed=True)
    return DatabaseCopy(task, tuple(left_out))


def _refuse_too_many(connection: sqlite3.Connection, names: list[str], path: Path) -> None:
    total = sum(connection.execute(f"SELECT count(*) FROM {quoted(name)}").fetchone()[0] for name in names)
    if total > MAX_ROWS:
        raise ValueError(f"--database {path}: {total:,} rows, at most {MAX_ROWS:,} are copied; give a smaller database")


def _unreadable(connection: sqlite3.Connection, name: str) -> str | None:
    """None if a statement can read the table. Another program's collation keeps every statement from it."""
    try:
        connection.execute(f"SELECT * FROM {quoted(name)} LIMIT 1").fetchall()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_ERROR:
            raise
        sql = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (name,)).fetchone()
        return why_unreadable(str(error), sql[0] if sql else None)
    return None


def _read_table(connection: sqlite3.Connection, name: str) -> tuple[Table, int]:
    cursor = connection.execute(f"SELECT * FROM {quoted(name)}")
    columns = [column[0] for column in cursor.description]
    raw = cursor.fetchall()
    blobs = sum(isinstance(cell, bytes) for row in raw for cell in row)
    rows: list[Row] = [tuple(cell.hex() if isinstance(cell, bytes) else cell for cell in row) for row in raw]
    types = [_type([row[k] for row in rows]) for k in range(len(columns))]
    kept = tuple(
        tuple(cell if cell is None or type_ != "TEXT" else str(cell) for cell, type_ in zip(row, types, strict=True))
        for row in rows
    )
    return Table(name, tuple(map(Column, columns, types)), kept), blobs


def _type(cells: list[Cell]) -> str:
    present = [cell for cell in cells if cell is not None]
    if not present or any(isinstance(cell, str) or not math.isfinite(cell) for cell in present):
        return "TEXT"
    return "BIGINT" if all(isinstance(cell, int) for cell in present) else "DOUBLE"


def _note(table: Table) -> str:
    return f"{NOTE[0]}`{table.name}`{NOTE[1]}{', '.join(f'`{column.name}`' for column in table.columns)}."

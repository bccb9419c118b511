"""Explains errors of references whose cause is the database and not the reference.

SQLite's own words are short: `string or blob too big` does not say which cell, or what is allowed.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from dbbench_adapter.engines.base import BackendUnavailable
from dbbench_adapter.engines.schema import TableInfo
from dbbench_adapter.engines.sqlite.foreign_schema import FOREIGN
from dbbench_adapter.engines.sqlite.read_only import connect
from dbbench_adapter.engines.sqlite.schema import quoted
from dbbench_adapter.engines.sqlite.user_database import MAX_VALUE_BYTES

_TOO_BIG = "string or blob too big"
_COLLATION = "no such collation sequence"
# SQLite's words where a table's key is sorted by a collation that it does not have.
_NO_PLAN = "no query solution"
_WORD = re.compile(r"\w+")
# Seconds of the search for a long cell, which reads tables.
_SEARCH_S = 5.0
_PROGRESS_OPCODES = 10_000


def of_database(fault: str) -> bool:
    """Whether a reference fails because of the database, so that nothing has to be corrected in it."""
    return fault.startswith((_TOO_BIG, _COLLATION, _NO_PLAN)) or fault.endswith(FOREIGN)


def explained(error: str, query: str, path: Path, tables: Sequence[TableInfo]) -> str:
    """
    Args:
        tables: those of the file; the ones that the query names are searched for the cell that is too long.
    """
    if error == _TOO_BIG:
        limit = f"a statement may use values and rows of at most {MAX_VALUE_BYTES:,} bytes"
        setting = "MAX_VALUE_BYTES in dbbench_adapter/engines/sqlite/user_database.py"
        remedy = "ask about other rows or columns, or shorten it in a copy of the file"
        words = set(_WORD.findall(query.lower()))
        named = [table for table in tables if not table.is_view and words >= set(_WORD.findall(table.name.lower()))]
        return f"{error}: {_long_cell(path, named or tables)}, and {limit} ({setting}); {remedy}"
    if error == _NO_PLAN:
        return f"{error}: a table is sorted by a collation that only the program which wrote it has; ask about others"
    if error.startswith(_COLLATION):
        return (
            f"{error}: only the program that wrote the database has it; write e.g. `column COLLATE NOCASE`, or ask "
            "about other columns"
        )
    return error


def _long_cell(path: Path, tables: Sequence[TableInfo]) -> str:
    """The first stored cell that is longer than a statement may use, as the beginning of a sentence."""
    deadline = time.monotonic() + _SEARCH_S
    try:
        with closing(connect(path)) as connection:
            connection.set_progress_handler(lambda: time.monotonic() > deadline, _PROGRESS_OPCODES)
            for table in tables:
                if not table.is_view and (found := _long_cell_of(connection, table)):
                    return found
    except (OSError, sqlite3.Error, BackendUnavailable):
        return "a cell or a result is longer"  # the search is a help: it must not become an error of its own
    return "no cell of the tables is longer, so the statement makes a longer value"


def _long_cell_of(connection: sqlite3.Connection, table: TableInfo) -> str | None:
    name = quoted(table.name)
    sizes = [f"coalesce(length(CAST({quoted(column.name)} AS BLOB)), 0)" for column in table.columns]
    columns = {column.name.lower() for column in table.columns}
    row_id = next((each for each in ("rowid", "_rowid_", "oid") if each not in columns), "NULL")
    query = "SELECT {}, {} FROM {} WHERE {} > ? LIMIT 1"
    arguments = (", ".join(sizes), name, " + ".join(sizes), (MAX_VALUE_BYTES,))
    try:
        row = connection.execute(query.format(row_id, *arguments[:3]), arguments[3]).fetchone()
    except sqlite3.OperationalError as error:
        if "no such column" not in str(error):  # a table WITHOUT ROWID has none
            raise
        row = connection.execute(query.format("NULL", *arguments[:3]), arguments[3]).fetchone()
    if row is None:
        return None
    size, column = max(zip(row[1:], (column.name for column in table.columns), strict=True))
    where = f"{table.name}" + (f", row {row[0]}" if row[0] is not None else "")
    return f"{column} of {where} has {size:,} bytes"

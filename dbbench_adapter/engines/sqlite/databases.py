"""Opens a user's own SQLite files, and explains errors that they cause.

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
from dbbench_adapter.engines.engine import TableInfo
from dbbench_adapter.engines.files import FileDatabases, FileSchema
from dbbench_adapter.engines.sqlite import SQLITE
from dbbench_adapter.engines.sqlite.foreign_schema import FOREIGN
from dbbench_adapter.engines.sqlite.read_only import connect_read_only
from dbbench_adapter.engines.sqlite.sandbox import Watchdog
from dbbench_adapter.engines.sqlite.schema import quoted, read_schema
from dbbench_adapter.engines.sqlite.user_database import TOO_BIG, ChangeableDatabase, UserDatabase, longest_value

_COLLATION = "no such collation sequence"
# SQLite's words where a table's key is sorted by a collation that it does not have.
_NO_PLAN = "no query solution"
_WORD = re.compile(r"\w+")
# Seconds of the search for a long cell, which reads tables.
_SEARCH_S = 5.0
_PROGRESS_OPCODES = 10_000


class DatabaseFiles(FileDatabases):
    engine = SQLITE
    changeable = True
    suffixes = (".sqlite", ".sqlite3", ".db")

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._watchdog = Watchdog()

    def _is_database(self, head: bytes) -> bool:
        return head in (b"", b"SQLite format 3\0")

    def _read_schema(self, file: Path) -> FileSchema:
        return read_schema(file)

    def open(self, db_id: str, *, statement_timeout_s: float) -> UserDatabase:
        self._watchdog.ensure_alive()
        return UserDatabase(self.files[db_id], self._watchdog, statement_timeout_s=statement_timeout_s)

    def open_view(self, db_id: str, *, statement_timeout_s: float) -> ChangeableDatabase:
        self._watchdog.ensure_alive()
        return ChangeableDatabase(self.files[db_id], self._watchdog, statement_timeout_s=statement_timeout_s)

    def explained(self, error: str, db_id: str, query: str) -> str:
        return _explained(error, query, self.files[db_id], self.schema(db_id))

    def is_to_blame(self, fault: str) -> bool:
        return fault.startswith((TOO_BIG, _COLLATION, _NO_PLAN)) or fault.endswith(FOREIGN)

    def close(self) -> None:
        self._watchdog.stop()


# Errors that a database causes ----------------------------------------------------------------------------------------


def _explained(error: str, query: str, path: Path, tables: Sequence[TableInfo]) -> str:
    """
    Args:
        tables: those of the file; the ones that the query names are searched for the cell that is too long.
    """
    if error.startswith(TOO_BIG):
        remedy = "ask about other rows or columns, or shorten it in a copy of the file"
        words = set(_WORD.findall(query.lower()))
        named = [table for table in tables if not table.is_view and words >= set(_WORD.findall(table.name.lower()))]
        return f"{error}: {_long_cell(path, named or tables, longest_value(query))}; {remedy}"
    if error == _NO_PLAN:
        return f"{error}: a table is sorted by a collation that only the program which wrote it has; ask about others"
    if error.startswith(_COLLATION):
        return (
            f"{error}: only the program that wrote the database has it; write e.g. `column COLLATE NOCASE`, or ask "
            "about other columns"
        )
    return error


def _long_cell(path: Path, tables: Sequence[TableInfo], limit: int) -> str:
    """The first stored cell that is longer than a statement may use, as the beginning of a sentence."""
    deadline = time.monotonic() + _SEARCH_S
    try:
        with closing(connect_read_only(path)) as connection:
            connection.set_progress_handler(lambda: time.monotonic() > deadline, _PROGRESS_OPCODES)
            for table in tables:
                if not table.is_view and (found := _long_cell_of(connection, table, limit)):
                    return found
    except (OSError, sqlite3.Error, BackendUnavailable):
        return "a cell or a result is longer"  # the search is a help: it must not become an error of its own
    return "no cell of the tables is longer, so the statement makes a longer value"


def _long_cell_of(connection: sqlite3.Connection, table: TableInfo, limit: int) -> str | None:
    name = quoted(table.name)
    sizes = [f"coalesce(length(CAST({quoted(column.name)} AS BLOB)), 0)" for column in table.columns]
    columns = {column.name.lower() for column in table.columns}
    row_id = next((each for each in ("rowid", "_rowid_", "oid") if each not in columns), "NULL")
    query = "SELECT {}, {} FROM {} WHERE {} > ? LIMIT 1"
    arguments = (", ".join(sizes), name, " + ".join(sizes), (limit,))
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

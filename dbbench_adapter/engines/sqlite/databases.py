"""Finds a user's own databases, one SQLite file or a folder with one per `db_id`, and explains errors that they cause.

SQLite's own words are short: `string or blob too big` does not say which cell, or what is allowed.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from agentgrpo.spelling import did_you_mean
from dbbench_adapter.datatypes import DatabaseError
from dbbench_adapter.engines.base import BackendUnavailable
from dbbench_adapter.engines.engine import Databases, TableInfo, format_unreadable
from dbbench_adapter.engines.sqlite import SQLITE
from dbbench_adapter.engines.sqlite.foreign_schema import FOREIGN
from dbbench_adapter.engines.sqlite.read_only import connect_read_only
from dbbench_adapter.engines.sqlite.sandbox import Watchdog
from dbbench_adapter.engines.sqlite.schema import FileSchema, quoted, read_schema
from dbbench_adapter.engines.sqlite.user_database import TOO_BIG, ChangeableDatabase, UserDatabase, longest_value

_COLLATION = "no such collation sequence"
# SQLite's words where a table's key is sorted by a collation that it does not have.
_NO_PLAN = "no query solution"
_WORD = re.compile(r"\w+")
# Seconds of the search for a long cell, which reads tables.
_SEARCH_S = 5.0
_PROGRESS_OPCODES = 10_000
# The first that a folder has is its database, as in the layout of Spider and BIRD; the others are stray files.
SUFFIXES = (".sqlite", ".sqlite3", ".db")


class DatabaseFiles(Databases):
    """Maps ids to SQLite files.

    Args:
        path: a file, whose id is its stem; or a folder in the layout of Spider and BIRD, `DB_ID/DB_ID.sqlite` in it or
            in its subfolder `database`.
    Raises:
        DatabaseError: there is no SQLite database.
    """

    engine = SQLITE
    changeable = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = _files(path)
        self._watchdog = Watchdog()
        self._schemas: dict[str, FileSchema] = {}

    @property
    def ids(self) -> Sequence[str]:
        return list(self.files)

    def db_id(self, name: str | None) -> str:
        db_id = self._named(name)
        self.schema(db_id)  # a broken file is an error of the questions about it alone
        return db_id

    def _named(self, name: str | None) -> str:
        if self.path.is_file() or (name is None and len(self.files) == 1):
            return next(iter(self.files))
        if name is None:
            raise DatabaseError(f"no db_id, and {self.path} holds {len(self.files)} databases: name one of them")
        if name not in self.files:
            known = ", ".join(list(self.files)[:5]) + (", ..." if len(self.files) > 5 else "")
            meant = did_you_mean(name, list(self.files))
            raise DatabaseError(f"no database {name!r} in {self.path}, which has {known}{meant}")
        return name

    def schema(self, db_id: str) -> tuple[TableInfo, ...]:
        return self._schema(db_id).tables

    def _schema(self, db_id: str) -> FileSchema:
        if db_id not in self._schemas:
            self._schemas[db_id] = read_schema(self.files[db_id])
        return self._schemas[db_id]

    def unreadable(self, db_id: str) -> dict[str, str]:
        return self._schema(db_id).unreadable

    def _broken(self) -> dict[str, str]:
        """Raises DatabaseError: none can be read."""
        broken = dict[str, str]()
        for db_id in self.files:
            try:
                self.schema(db_id)
            except DatabaseError as error:
                broken[db_id] = str(error)
        if len(broken) == len(self.files):
            raise DatabaseError(next(iter(broken.values())))
        return broken

    def check(self) -> None:
        self._broken()

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

    def summary(self) -> str:
        broken = self._broken()
        schemas = {db_id: self._schema(db_id) for db_id in self.files if db_id not in broken}
        tables = sum(len(schema.tables) for schema in schemas.values())
        size_mib = sum(file.stat().st_size for file in self.files.values()) / 1024**2
        left_out = [
            f"{format_unreadable(found.unreadable)} of {id}" for id, found in schemas.items() if found.unreadable
        ]
        left_out += [f"{id} ({fault.partition('; ')[0]})" for id, fault in broken.items()]
        left_out += [f"{file.name}, since {self.files[db_id].name} is there" for db_id, file in self._strays()]
        said = f"{len(schemas)} SQLite, {tables} tables and views, {size_mib:,.1f} MiB"
        return said + (f"; left out: {'; '.join(left_out)}" if left_out else "")

    def _strays(self) -> Iterator[tuple[str, Path]]:
        if not self.path.is_file():
            for db_id, file in self.files.items():
                others = (file.with_name(f"{db_id}{suffix}") for suffix in SUFFIXES)
                yield from ((db_id, other) for other in others if other != file and other.is_file())

    def close(self) -> None:
        self._watchdog.stop()


def _files(path: Path) -> dict[str, Path]:
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(16)
        if head and head != b"SQLite format 3\0":
            raise DatabaseError(f"{path} is no SQLite database; expected such a file, or a folder DB_ID/DB_ID.sqlite")
        return {path.stem: path}
    if not path.is_dir():
        expected = "a SQLite file, or a folder with DB_ID/DB_ID.sqlite"
        raise DatabaseError(f"{path} does not exist; expected {expected}{did_you_mean(path)}")
    for folder in (path, path / "database"):
        found = {
            inner.name: file
            for inner in sorted(folder.glob("*/"))
            for suffix in reversed(SUFFIXES)
            if (file := inner / f"{inner.name}{suffix}").is_file()
        }
        if found:
            return found
    expected = "DB_ID/DB_ID.sqlite in it, or in its subfolder `database`"
    raise DatabaseError(f"{path} holds no database; expected {expected}{_found_near(path)}")


def _found_near(path: Path) -> str:
    for suffix in SUFFIXES:
        if file := next(iter(sorted(path.glob(f"*{suffix}"))), None):
            return f"; it has {file.name}: give that file, or move each into a folder of its name"
        if file := next(iter(sorted(path.glob(f"*/*/*{suffix}"))), None):
            return f"; give {file.parent.parent}, which has {file.parent.name}/{file.name}"
    return ""


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

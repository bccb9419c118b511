"""Episodes on SQLite in memory: the embedded default, a database of its own per episode, MySQL's dialect and manners.

The sandbox: one statement per call, printed from a parsed tree; an authorizer that knows no files, pragmas, triggers,
views or virtual tables; a wall-clock limit per statement; limits on rows, values and the size of the database.
It does not guard against: one slow call inside a function (a catastrophic regular expression runs to its end and holds
the interpreter lock), memory of sorts and joins before the first row comes, or many large databases at once. It runs in
the process of its caller. Where MySQL would refuse (ONLY_FULL_GROUP_BY, strict dates) it may answer.
"""

from __future__ import annotations

import re
import sqlite3
import time
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from dbbench_adapter.backends.base import (
    MAX_ROWS,
    STATEMENT_TIMEOUT_S,
    Result,
    TableState,
    check_tables,
    hash_rows,
    join_hashes,
)
from dbbench_adapter.backends.mysql_dialect import COLLATION, Statement, StatementError, translate
from dbbench_adapter.backends.mysql_functions import AGGREGATES, FUNCTIONS, compare, like, text_of
from dbbench_adapter.backends.mysql_kinds import INT, TEXT, ColumnKinds, as_driver_shows, declared_kind
from dbbench_adapter.types import Cell, Table

MAX_VALUE_BYTES = 1_000_000
MAX_PAGES = 16_384
"""Of 4 KiB each: a database holds at most 64 MiB."""
_PROGRESS_OPCODES = 2_000
_ALLOWED = frozenset(
    getattr(sqlite3, f"SQLITE_{name}")
    for name in (
        *(
            "SELECT",
            "READ",
            "INSERT",
            "UPDATE",
            "DELETE",
            "TRANSACTION",
            "SAVEPOINT",
            "FUNCTION",
            "RECURSIVE",
            "REINDEX",
        ),
        *("CREATE_TABLE", "DROP_TABLE", "ALTER_TABLE", "CREATE_TEMP_TABLE", "DROP_TEMP_TABLE"),
        *("CREATE_INDEX", "DROP_INDEX"),
    )
)
_FORBIDDEN_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer"})


class SqliteBackend:
    """Makes SQLite databases in memory; there is nothing to start and nothing to clean up."""

    def __init__(self) -> None:
        self._live: weakref.WeakSet[SqliteDatabase] = weakref.WeakSet()

    def open(
        self, tables: Sequence[Table], *, typed: bool, statement_timeout_s: float = STATEMENT_TIMEOUT_S
    ) -> SqliteDatabase:
        check_tables(tables)
        database = SqliteDatabase(tables, typed=typed, statement_timeout_s=statement_timeout_s)
        self._live.add(database)
        return database

    def live_databases(self) -> int:
        return sum(not database.closed for database in self._live)

    def close(self) -> None: ...

    def __enter__(self) -> SqliteBackend:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class SqliteDatabase:
    """The database of one episode; see `Database` for what its methods promise."""

    def __init__(self, tables: Sequence[Table], *, typed: bool, statement_timeout_s: float) -> None:
        self._timeout_s = statement_timeout_s
        self._deadline = float("inf")
        self._trusted = True
        self.closed = False
        self._columns = _column_kinds(tables, typed=typed)
        self._connection = _connect()
        self._connection.set_authorizer(self._authorize)
        self._connection.set_progress_handler(self._expired, _PROGRESS_OPCODES)
        for table in tables:
            _make_table(self._connection, table, typed=typed)
        self._trusted = False

    def run(self, sql: str) -> Result:
        self._deadline = time.monotonic() + self._timeout_s
        try:
            return self._dispatch(translate(sql, self._columns))
        except StatementError as error:
            return Result(error=str(error))
        except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError, ValueError) as error:
            return Result(error=_driver_text(error))
        finally:
            self._deadline = float("inf")

    def table_hash(self, tables: Sequence[Table]) -> str | None:
        try:
            return join_hashes(hash_rows(self._joined_rows(table)) for table in tables)
        except sqlite3.Error:
            return None

    def snapshot(self) -> dict[str, TableState]:
        return {name: self._state(name) for name in self._table_names()}

    def close(self) -> None:
        self.closed = True
        self._connection.close()

    def __enter__(self) -> SqliteDatabase:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _dispatch(self, statement: Statement) -> Result:
        if statement.kind == "tables":
            names = [name for name in self._table_names() if like(statement.target, name)]
            return Result(tuple((name,) for name in names), ("Tables_in_dbbench",))
        if statement.kind == "columns":
            return self._describe(statement.target)
        if statement.kind == "create":
            return self._show_create(statement.target)
        if statement.kind in ("begin", "commit", "rollback", "nothing"):
            self._transaction(statement.kind)
            return Result()
        if statement.kind == "alter":
            self._drop_rounding(statement.target)
        cursor = self._connection.execute(statement.sql)
        if statement.kind != "query":
            cursor.close()
            return Result()
        return _fetched(cursor, statement)

    def _transaction(self, kind: str) -> None:
        if self._connection.in_transaction and kind != "nothing":
            self._connection.execute("ROLLBACK" if kind == "rollback" else "COMMIT")
        if kind == "begin":
            self._connection.execute("BEGIN")

    def _drop_rounding(self, table: str) -> None:
        """SQLite refuses to alter columns that a trigger names; an altered table does without the rounding."""
        self._trusted = True
        try:
            for event in ("INSERT", "UPDATE"):
                self._connection.execute(f"DROP TRIGGER IF EXISTS {_quoted(_trigger_name(table, event))}")
        finally:
            self._trusted = False

    def _table_names(self) -> list[str]:
        rows = self._read("SELECT name FROM main.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%'")
        return sorted(name for (name,) in rows)

    def _state(self, name: str) -> TableState:
        self._trusted = True
        try:
            cursor = self._connection.execute(f"SELECT * FROM main.{_quoted(name)}")
            return TableState(tuple(column[0] for column in cursor.description), tuple(cursor.fetchall()))
        finally:
            self._trusted = False

    def _joined_rows(self, table: Table) -> list[str]:
        columns = ", ".join(_quoted(column.name) for column in table.columns)
        rows = self._read(f"SELECT {columns} FROM main.{_quoted(table.name)}")
        return [",".join(text_of(cell) for cell in row if cell is not None) for row in rows]

    def _read(self, sql: str, *values: Cell) -> list[tuple[Any, ...]]:
        self._trusted = True
        try:
            return self._connection.execute(sql, values).fetchall()
        finally:
            self._trusted = False

    def _columns_of(self, table: str) -> list[tuple[str, str]]:
        columns = self._read("SELECT name, type FROM pragma_table_info(?)", table)
        if not columns:
            raise _no_table(table)
        return [(name, (declared or "text").lower()) for name, declared in columns]

    def _describe(self, table: str) -> Result:
        rows = tuple((name, declared, "YES", "", None, "") for name, declared in self._columns_of(table))
        return Result(rows, ("Field", "Type", "Null", "Key", "Default", "Extra"))

    def _show_create(self, table: str) -> Result:
        lines = ",\n  ".join(f"`{name}` {declared}" for name, declared in self._columns_of(table))
        text = f"CREATE TABLE `{table}` (\n  {lines}\n) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"
        return Result(((table, text),), ("Table", "Create Table"))

    def _authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if self._trusted:
            return sqlite3.SQLITE_OK
        forbidden = action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FORBIDDEN_FUNCTIONS
        return sqlite3.SQLITE_OK if action in _ALLOWED and not forbidden else sqlite3.SQLITE_DENY

    def _expired(self) -> bool:
        return time.monotonic() > self._deadline


def _connect() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.execute(f"PRAGMA max_page_count = {MAX_PAGES}")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
    connection.create_collation(COLLATION, compare)
    for name, (count, function) in FUNCTIONS.items():
        connection.create_function(name, count, function)
    for name, (count, aggregate) in AGGREGATES.items():
        connection.create_aggregate(name, count, aggregate)  # pyright: ignore[reportArgumentType]
    return connection


def _column_kinds(tables: Sequence[Table], *, typed: bool) -> ColumnKinds:
    kinds: dict[str, set[Any]] = {}
    for table in tables:
        for column in table.columns:
            kinds.setdefault(column.name.lower(), set()).add(declared_kind(column.type) if typed else TEXT)
    return frozenset((name, found.pop()) for name, found in kinds.items() if len(found) == 1)


def _make_table(connection: sqlite3.Connection, table: Table, *, typed: bool) -> None:
    columns = [(column.name, declared_kind(column.type) if typed else TEXT, column.type) for column in table.columns]
    declared = ", ".join(_column_sql(name, kind.name) for name, kind, _ in columns)
    connection.execute(f"CREATE TABLE {_quoted(table.name)} ({declared})")
    marks = ", ".join("?" for _ in columns)
    rows = [[cell if cell is None or typed else str(cell) for cell in row] for row in table.rows]
    connection.execute("BEGIN")
    connection.executemany(f"INSERT INTO {_quoted(table.name)} VALUES ({marks})", rows)
    connection.execute("COMMIT")
    integers = [name for name, kind, _ in columns if kind == INT]
    if integers:
        _round_integers(connection, table.name, integers)


def _column_sql(name: str, kind: str) -> str:
    column = _quoted(name)
    if kind == "int":  # MySQL's strict mode refuses text in an INT column
        return f"{column} INT CONSTRAINT {column} CHECK (typeof({column}) <> 'text')"
    return f"{column} TEXT COLLATE {COLLATION}" if kind == "text" else f"{column} {kind.upper()}"


def _round_integers(connection: sqlite3.Connection, table: str, columns: list[str]) -> None:
    """MySQL rounds decimals into INT columns; SQLite would keep them, so triggers round after each change."""
    sets = ", ".join(f"{_quoted(c)} = cast_signed({_quoted(c)})" for c in columns)
    needed = " OR ".join(f"typeof(new.{_quoted(c)}) = 'real'" for c in columns)
    for event in ("INSERT", "UPDATE"):
        connection.execute(
            f"CREATE TRIGGER {_quoted(_trigger_name(table, event))} AFTER {event} ON {_quoted(table)} WHEN {needed} "
            f"BEGIN UPDATE {_quoted(table)} SET {sets} WHERE rowid = new.rowid; END"
        )


def _trigger_name(table: str, event: str) -> str:
    return f"round {event} {table}"


def _fetched(cursor: sqlite3.Cursor, statement: Statement) -> Result:
    columns = tuple(column[0] for column in cursor.description)
    rows = cursor.fetchmany(MAX_ROWS)
    cursor.close()
    if len(statement.kinds) != len(columns):
        return Result(tuple(rows), columns)
    kinds = statement.kinds
    shown = (tuple(as_driver_shows(cell, kind) for cell, kind in zip(row, kinds, strict=True)) for row in rows)
    return Result(tuple(shown), columns)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _no_table(name: str) -> StatementError:
    return StatementError(f"1146 (42S02): Table 'dbbench.{name}' doesn't exist")


_DRIVER_TEXTS = (
    (r"no such table: (?:main\.)?(.*)", "1146 (42S02): Table 'dbbench.{0}' doesn't exist"),
    (r"no such column: (.*)", "1054 (42S22): Unknown column '{0}' in 'field list'"),
    (r"table (.*) has no column named (.*)", "1054 (42S22): Unknown column '{1}' in 'field list'"),
    (r"ambiguous column name: (.*)", "1052 (23000): Column '{0}' in field list is ambiguous"),
    (r"no such function: (.*)", "1305 (42000): FUNCTION dbbench.{0} does not exist"),
    (r"table `?(.*?)`? already exists", "1050 (42S01): Table '{0}' already exists"),
    (
        r"table .* has (\d+) columns but (\d+) values were supplied",
        "1136 (21S01): Column count doesn't match value count",
    ),
    (r"(\d+) values for (\d+) columns", "1136 (21S01): Column count doesn't match value count at row 1"),
    (r"misuse of aggregate.*", "1111 (HY000): Invalid use of group function"),
    (r"CHECK constraint failed: (.*)", "1366 (HY000): Incorrect integer value for column '{0}' at row 1"),
    (r"UNIQUE constraint failed: (.*)", "1062 (23000): Duplicate entry for key '{0}'"),
    (r"NOT NULL constraint failed: (.*)", "1048 (23000): Column '{0}' cannot be null"),
    (r"interrupted", "3024 (HY000): Query execution was interrupted, maximum statement execution time exceeded"),
    (r'near "(.*)": syntax error', "1064 (42000): You have an error in your SQL syntax near '{0}' at line 1"),
    (r"not authorized|access to .* is prohibited", "1142 (42000): command denied to user"),
)


def _driver_text(error: Exception) -> str:
    """SQLite's complaint in the words of MySQL's driver, so that an agent reads the same on either backend."""
    for pattern, text in _DRIVER_TEXTS:
        if match := re.fullmatch(pattern, str(error), re.DOTALL):
            return text.format(*match.groups())
    return f"1105 (HY000): {error}"

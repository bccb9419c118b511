"""Episodes on SQLite in memory: the embedded default, a database of its own per episode, MySQL's dialect and manners.

The sandbox: one statement per call, printed from a parsed tree; an authorizer that knows this database's tables and
MySQL's functions, and no files, pragmas, triggers, views or virtual tables; a deadline that parser, functions,
collation, progress handler and an interrupting watchdog all look at; limits on length, depth, expansion, sorts, pages,
rows, columns, values and results (below, in `mysql_limits` and in `functions`), and on how far memory grows meanwhile.
It does not guard against: a fault in SQLite or in the `regex` package, which run in the process of the caller; many
databases that fill up at once (`MAX_PAGES` each); memory that a statement takes within the first 2,000 operations;
memory at all where there is no /proc. Strict dates are not refused as in MySQL.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from types import TracebackType
from typing import Any

from dbbench_adapter.backends.base import (
    MAX_RESULT_CHARS,
    MAX_ROWS,
    STATEMENT_TIMEOUT_S,
    Result,
    TableState,
    check_tables,
    hash_rows,
    join_hashes,
)
from dbbench_adapter.backends.clock import StatementTimeout, expired, time_limit
from dbbench_adapter.backends.functions import AGGREGATES, FUNCTIONS, MAX_VALUE_BYTES, collate, like, text_of
from dbbench_adapter.backends.mysql_dialect import Statement, translate
from dbbench_adapter.backends.mysql_kinds import INT, TEXT, ColumnKinds, as_driver_shows, declared_kind
from dbbench_adapter.backends.mysql_syntax import COLLATION, StatementError
from dbbench_adapter.types import Cell, Table

MAX_PAGES = 4_096
"""Of 4 KiB each: a database holds at most 16 MiB, its temporary tables as much again."""
MAX_COLUMNS = 256
MAX_SORT_OPCODES = 4_000_000
"""Steps of SQLite's machine in a statement that sorts: its sort looks at no clock, so what goes into it is bounded."""
MAX_GROWTH_BYTES = 256 * 1024**2
"""Of the process, while one statement runs."""
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MAX_VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_COLUMN: MAX_COLUMNS,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 200,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 10,
}
_PROGRESS_OPCODES = 2_000
_WATCH_S = 0.1
_ALLOWED = frozenset(
    getattr(sqlite3, f"SQLITE_{name}")
    for name in (
        *("SELECT", "READ", "INSERT", "UPDATE", "DELETE", "TRANSACTION", "SAVEPOINT", "RECURSIVE", "REINDEX"),
        *("CREATE_TABLE", "DROP_TABLE", "ALTER_TABLE", "CREATE_TEMP_TABLE", "DROP_TEMP_TABLE"),
        *("CREATE_INDEX", "DROP_INDEX"),
    )
)
_BUILT_IN = (
    "abs avg char coalesce count ifnull iif ltrim max min nullif quote round rtrim soundex substr substring sum trim "
    "typeof acos asin atan atan2 cos sin tan degrees radians current_date current_time current_timestamp "
    "row_number rank dense_rank percent_rank cume_dist ntile lag lead first_value last_value nth_value"
)
_CALLABLE = frozenset([*FUNCTIONS, *AGGREGATES, *_BUILT_IN.split()])


class _Watchdog:
    """Interrupts statements whose time is up, from a thread of its own.

    The progress handler looks every 2,000 operations; an interrupt is heeded at the next jump, which matters where each
    operation is slow.
    """

    def __init__(self) -> None:
        self._running: dict[int, tuple[float, sqlite3.Connection]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def ensure_alive(self) -> None:
        """Start the thread, also once more in a forked child."""
        if self._thread is None or not self._thread.is_alive():
            self._stop.clear()
            self._thread = threading.Thread(target=self._watch, name="sqlite-watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    @contextmanager
    def watching(self, connection: sqlite3.Connection, timeout_s: float) -> Iterator[None]:
        key = id(connection)
        self._running[key] = (time.monotonic() + timeout_s, connection)
        try:
            yield
        finally:
            with self._lock:  # no interrupt may reach the next statement
                del self._running[key]

    def _watch(self) -> None:
        while not self._stop.wait(_WATCH_S):
            with self._lock:
                for deadline, connection in list(self._running.values()):
                    if time.monotonic() > deadline:
                        connection.interrupt()


class SqliteBackend:
    """Makes SQLite databases in memory; nothing outlives it."""

    def __init__(self) -> None:
        self._live: weakref.WeakSet[SqliteDatabase] = weakref.WeakSet()
        self._watchdog = _Watchdog()

    def open(
        self, tables: Sequence[Table], *, typed: bool, statement_timeout_s: float = STATEMENT_TIMEOUT_S
    ) -> SqliteDatabase:
        check_tables(tables)
        self._watchdog.ensure_alive()
        database = SqliteDatabase(tables, self._watchdog, typed=typed, statement_timeout_s=statement_timeout_s)
        self._live.add(database)
        return database

    def live_databases(self) -> int:
        return sum(not database.closed for database in self._live)

    def close(self) -> None:
        self._watchdog.stop()

    def __enter__(self) -> SqliteBackend:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class SqliteDatabase:
    """The database of one episode; see `Database` for what its methods promise."""

    def __init__(
        self, tables: Sequence[Table], watchdog: _Watchdog, *, typed: bool, statement_timeout_s: float
    ) -> None:
        self._timeout_s, self._watchdog = statement_timeout_s, watchdog
        self._trusted = True
        self._altering = False  # ALTER TABLE calls functions of SQLite's own
        self._guard = _Guard()
        self.closed = False
        self._columns = _column_kinds(tables, typed=typed)
        self._connection = _connect()
        self._connection.set_authorizer(self._authorize)
        for table in tables:
            _make_table(self._connection, table, typed=typed)
        self._connection.set_progress_handler(self._stopped, _PROGRESS_OPCODES)
        self._trusted = False

    def run(self, sql: str) -> Result:
        with time_limit(self._timeout_s), self._watchdog.watching(self._connection, self._timeout_s):
            try:
                return self._dispatch(translate(sql, self._columns))
            except StatementError as error:
                return Result(error=str(error))
            except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError, ValueError, StatementTimeout) as error:
                late = expired() or isinstance(error, StatementTimeout) or "interrupted" in str(error)
                return Result(error=_INTERRUPTED if late else _driver_text(error))
            except MemoryError:
                return Result(error="1038 (HY001): Out of memory")

    def new_session(self) -> None:
        self._transaction("commit")
        for (name,) in self._read("SELECT name FROM temp.sqlite_master WHERE type = 'table'"):
            self._read(f"DROP TABLE temp.{_quoted(name)}")

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
        self._altering = statement.kind == "alter"
        if self._altering:
            self._drop_rounding(statement.target)
        self._guard = _Guard(MAX_SORT_OPCODES if statement.sorts else None)
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
        if action == sqlite3.SQLITE_FUNCTION:
            known = (second or "").lower()
            return sqlite3.SQLITE_OK if known in _CALLABLE or self._altering else sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_READ and (first or "").lower() in _virtual_tables():
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY

    def _stopped(self) -> bool:
        return not self._trusted and (expired() or self._guard.exceeded())


class _Guard:
    """What one statement may take, looked at by the progress handler."""

    def __init__(self, max_opcodes: int | None = None) -> None:
        self._opcodes_left = max_opcodes
        self._memory_bytes: int | None = None

    def exceeded(self) -> bool:
        if self._opcodes_left is not None:
            self._opcodes_left -= _PROGRESS_OPCODES
            if self._opcodes_left < 0:
                return True
        now = _memory_bytes()
        if self._memory_bytes is None:
            self._memory_bytes = now
        return now - self._memory_bytes > MAX_GROWTH_BYTES


def _memory_bytes() -> int:
    """What of this process is in memory; 0 where nobody tells."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@cache
def _virtual_tables() -> frozenset[str]:
    """The names that SQLite answers without any table: json_each, pragma_..., dbstat, ..."""
    with closing(sqlite3.connect(":memory:")) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM pragma_module_list")}
        names |= {f"pragma_{name}" for (name,) in connection.execute("SELECT name FROM pragma_pragma_list")}
    return frozenset(name.lower() for name in names)


def _connect() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.execute(f"PRAGMA max_page_count = {MAX_PAGES}")
    connection.execute(f"PRAGMA temp.max_page_count = {MAX_PAGES}")
    connection.execute("PRAGMA temp_store = MEMORY")
    for limit, value in _LIMITS.items():
        connection.setlimit(limit, value)
    connection.create_collation(COLLATION, collate)
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
    rows: list[tuple[Any, ...]] = []
    chars = 0
    for row in cursor:
        rows.append(row)
        chars += sum(len(cell) for cell in row if isinstance(cell, str | bytes))
        if len(rows) >= MAX_ROWS or chars > MAX_RESULT_CHARS:
            break
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


_INTERRUPTED = "3024 (HY000): Query execution was interrupted, maximum statement execution time exceeded"
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
    (r"not authorized to use function: (.*)", "1305 (42000): FUNCTION dbbench.{0} does not exist"),
    (r"parser stack overflow|Expression tree is too large.*", "1064 (42000): the statement is nested too deeply"),
    (
        r"too many terms in compound SELECT|too many columns.*|at most .* tables in a join",
        "1117 (HY000): Too many columns or tables",
    ),
    (r"string or blob too big|database or disk is full|out of memory", "1114 (HY000): The table is full"),
    (r"user-defined (?:function|aggregate).*", "1690 (22003): value is out of range, or no such argument is taken"),
    (r'near "(.*)": syntax error', "1064 (42000): You have an error in your SQL syntax near '{0}' at line 1"),
    (r"not authorized|access to .* is prohibited", "1142 (42000): command denied to user"),
)


def _driver_text(error: Exception) -> str:
    """SQLite's complaint in the words of MySQL's driver, so that an agent reads the same on either backend."""
    for pattern, text in _DRIVER_TEXTS:
        if match := re.fullmatch(pattern, str(error), re.DOTALL):
            return text.format(*match.groups())
    return f"1105 (HY000): {error}"

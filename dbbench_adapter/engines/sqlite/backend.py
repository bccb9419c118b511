"""Runs episodes on SQLite in memory (the default): each has its own database and sees MySQL's dialect and behaviour.

The sandbox runs one statement per call, printed from a parsed tree. An authorizer knows this database's tables and
MySQL's functions, and allows no files, pragmas, triggers, views or virtual tables. Parser, functions, collation,
progress handler and a watchdog check one deadline. Length, depth, expansion, sorts, pages, rows, columns, values,
results and the growth of memory are limited (`sandbox`, `dialect.limits`, `functions`). Definitions hold no
computation (`dialect.allowed_sql`), and a judge reads within limits too.

The sandbox does not guard against: a sort of long texts, which may run for a second after its time; a fault in SQLite
or in the `regex` package, which run in the process of the caller; many databases that fill up at once (`MAX_PAGES`
each); memory that a statement takes within the first 2,000 operations; memory at all where there is no /proc.

Statements that SQLite could only answer by guessing are refused (`dialect.allowed_sql`). SQLite makes its own choice
where MySQL leaves one: MIN and MAX of texts may be either of `Plum` and `plum`.
"""

from __future__ import annotations

import math
import re
import sqlite3
import sys
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from dbbench_adapter.datatypes import Cell, Column, Rows, Table
from dbbench_adapter.dialect.functions.storing import stored_as, surely_holds
from dbbench_adapter.dialect.functions.values import to_text
from dbbench_adapter.dialect.sql_types import (
    DATE,
    DATETIME,
    TEXT,
    Columns,
    TableColumn,
    as_driver_shows,
    declared_type,
    mysql_type,
    sqlite_type,
)
from dbbench_adapter.dialect.syntax import COLLATION, StatementError
from dbbench_adapter.dialect.translate import Statement, translate
from dbbench_adapter.engines.base import (
    KEPT_CHARS,
    MAX_ROWS,
    STALLED,
    STATEMENT_TIMEOUT_S,
    UNREADABLE,
    Backend,
    BackendUnavailable,
    Database,
    KeptTables,
    Result,
    TableError,
    TableState,
    backquoted,
    check_tables,
    first_rows,
    hash_rows,
    join_hashes,
)
from dbbench_adapter.engines.sqlite.catalogue import (
    Read,
    catalogue_answer,
    column_names,
    make_views,
    no_table,
    table_names,
)
from dbbench_adapter.engines.sqlite.sandbox import (
    FUNCTION_NAMES,
    LIMIT_TEMPORARY,
    MAX_SORT_GROWTH_BYTES,
    MAX_SORT_OPCODES,
    PROGRESS_OPCODES,
    Guard,
    Watchdog,
    add_functions,
    allows,
    connect_in_memory,
    renew_temporary,
)
from dbbench_adapter.statement_clock import (
    LEFT_OUT,
    Refused,
    StatementTimeout,
    check_deadline,
    expired,
    left_out,
    stalled,
    statement_refusal,
    time_limit,
)

# A judge reads at most this much memory in Python; SQLite does not store the default of an added column per row.
MAX_JUDGED_BYTES = 64 * 1024**2
JUDGE_TIMEOUT_S = 10.0
# These errors keep a judge from reading a table; the agent that changed the table caused them.
_UNREADABLE = (sqlite3.Error, OverflowError, StatementTimeout, MemoryError)


@dataclass(frozen=True)
class Image:
    """A database as an episode begins with it."""

    content: bytes | None
    """As SQLite writes it to a file; None if there is no table."""
    columns: Columns
    stored: Mapping[str, tuple[str, ...]]
    """The columns of each table as they are named."""
    typed: bool
    """Whether the columns have their declared types, and MySQL its strict mode."""
    schema_version: int
    """SQLite counts it up with each change of a schema."""


class SqliteBackend(Backend):
    # They exist no longer than the backend does.

    def __init__(self) -> None:
        self._live: weakref.WeakSet[SqliteDatabase] = weakref.WeakSet()
        self._watchdog = Watchdog()
        self._images = KeptTables[Image](lambda image: len(image.content or b""))

    def open(
        self, tables: Sequence[Table], *, typed: bool, statement_timeout_s: float = STATEMENT_TIMEOUT_S
    ) -> SqliteDatabase:
        image = self._images.of(tables, lambda: _build_image(tables, typed=typed), typed=typed)
        self._watchdog.ensure_alive()
        database = SqliteDatabase(image, self._watchdog, statement_timeout_s=statement_timeout_s)
        self._live.add(database)
        return database

    def live_databases(self) -> int:
        return sum(not database.closed for database in self._live)

    def close(self) -> None:
        self._watchdog.stop()


class SqliteDatabase(Database):
    def __init__(self, image: Image, watchdog: Watchdog, *, statement_timeout_s: float) -> None:
        self.statement_timeout_s, self._watchdog, self.used_s = statement_timeout_s, watchdog, 0.0
        self._trusted = False
        self._altering = False  # ALTER TABLE calls SQLite's internal functions
        self._guard = Guard()
        self._bytes_left = MAX_JUDGED_BYTES
        self._autocommit = True
        self.closed = False
        self._image, self._names, self._columns = image, frozenset(image.stored), image.columns
        self._functions_left = FUNCTION_NAMES
        self._connection = connect_in_memory(image.content)
        self._connection.set_authorizer(self._authorize)
        self._connection.set_progress_handler(self._stopped, PROGRESS_OPCODES)

    def run(self, sql: str) -> Result:
        began = time.thread_time()
        try:
            return self._run(sql)
        finally:
            self.used_s += time.thread_time() - began

    def _run(self, sql: str) -> Result:
        self._guard, timeout_s = Guard(), self.statement_timeout_s
        with time_limit(timeout_s), self._watchdog.watching(self._connection, timeout_s):
            try:
                result = self._dispatch(translate(sql, self._columns, strict=self._image.typed))
                late = result.rows is not None and expired()  # past the deadline the collation no longer compares
                return Result(error=_INTERRUPTED) if late else result
            except (StatementError, Refused) as error:
                return Result(error=str(error))
            except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError, ValueError, StatementTimeout) as error:
                if (said := statement_refusal()) is not None:
                    return Result(error=said)
                if self._guard.out_of_memory:
                    return Result(error=_OUT_OF_MEMORY)
                if self._guard.out_of_steps:
                    return Result(error=_OUT_OF_STEPS)
                if stalled():
                    raise BackendUnavailable(STALLED) from None
                late = expired() or isinstance(error, StatementTimeout) or "interrupted" in str(error)
                return Result(error=_INTERRUPTED if late else _driver_text(error, sql))
            except MemoryError:
                return Result(error=_OUT_OF_MEMORY)

    def new_session(self) -> None:
        self._transaction("autocommit on")
        self._trusted = True
        try:
            renew_temporary(self._connection)
        finally:
            self._trusted = False

    def table_hash(self, tables: Sequence[Table]) -> str | None:
        with self._judging():
            try:
                return join_hashes(hash_rows(self._joined_rows(table)) for table in tables)
            except _UNREADABLE:
                return None

    def snapshot(self) -> dict[str, TableState]:
        with self._judging():
            try:
                is_first = self._read("PRAGMA main.schema_version") == [(self._image.schema_version,)]
                known = self._image.stored if is_first else {}
                return {name: self._state(name, known.get(name)) for name in table_names(self._read)}
            except _UNREADABLE:  # the schema itself cannot be read
                return {"": UNREADABLE}

    def close(self) -> None:
        self.closed = True
        self._connection.close()

    def _dispatch(self, statement: Statement) -> Result:
        if (answer := catalogue_answer(statement, self._read)) is not None:
            return answer
        if statement.kind in ("begin", "commit", "rollback", "nothing", "autocommit on", "autocommit off"):
            self._transaction(statement.kind)
            return Result()
        self._altering = statement.kind == "alter"
        defines = self._altering or statement.sql.startswith("CREATE")
        self._make_ready(statement.sql, every=defines or statement.catalogue)
        if statement.catalogue:
            make_views(self._read)
        self._refuse_other_case(statement)
        self._guard = Guard(MAX_SORT_OPCODES, max_growth_bytes=MAX_SORT_GROWTH_BYTES) if statement.sorts else Guard()
        if not self._autocommit and statement.kind == "change" and not self._connection.in_transaction:
            self._connection.execute("BEGIN")
        cursor = self._connection.execute(statement.sql)
        if statement.kind != "query":
            cursor.close()
            if defines:
                self._columns = _columns(self._read)
            return Result()
        return _fetched(cursor, statement)

    def _make_ready(self, sql: str, *, every: bool) -> None:
        # SQLite calls what a statement names. Where it defines something SQLite also calls functions by itself, then or
        # whenever it reads the definition.
        named = self._functions_left if every else self._functions_left.intersection(_WORD.findall(sql.lower()))
        add_functions(self._connection, named)
        self._functions_left -= named
        if every:
            self._read(LIMIT_TEMPORARY)

    def _refuse_other_case(self, statement: Statement) -> None:
        # MySQL on Linux tells `T` from `t`, SQLite does not.
        unsure = [name for name in statement.tables if name not in self._names]
        if unsure:
            self._names = frozenset(table_names(self._read))
            folded = {name.lower() for name in self._names}
            for name in unsure:
                if name not in self._names and name.lower() in folded:
                    raise no_table(name)

    def _transaction(self, kind: str) -> None:
        if kind.startswith("autocommit"):
            self._autocommit = kind == "autocommit on"
        if self._connection.in_transaction and kind not in ("nothing", "autocommit off"):
            self._connection.execute("ROLLBACK" if kind == "rollback" else "COMMIT")
        if kind == "begin":
            self._connection.execute("BEGIN")

    @contextmanager
    def _judging(self) -> Iterator[None]:
        """Let a judge read with the episode's rights and within limits, without a limit on the memory of the process.

        Raises:
            sqlite3.ProgrammingError: the database has been closed.
            BackendUnavailable: the disk does not answer.
        """
        _ = self._connection.total_changes
        self._guard, self._bytes_left = Guard(max_growth_bytes=math.inf), MAX_JUDGED_BYTES
        with time_limit(JUDGE_TIMEOUT_S), self._watchdog.watching(self._connection, JUDGE_TIMEOUT_S):
            yield
            if stalled():
                raise BackendUnavailable(STALLED)

    def _state(self, name: str, columns: tuple[str, ...] | None = None) -> TableState:
        try:
            columns = columns or column_names(name, self._read)
            return TableState(columns, self._stored(name, columns)) if columns else UNREADABLE
        except _UNREADABLE:
            return UNREADABLE

    def _joined_rows(self, table: Table) -> list[str]:
        rows = self._stored(table.name, [column.name for column in table.columns])
        return [",".join(to_text(cell) for cell in row if cell is not None) for row in rows]

    def _stored(self, table: str, columns: Sequence[str]) -> Rows:
        """Raises _UNREADABLE: the rows cannot be read; one of these errors is raised."""
        rows = []
        for row in self._connection.execute(
            f"SELECT {', '.join(map(backquoted, columns))} FROM main.{backquoted(table)}"
        ):
            check_deadline()
            rows.append(row)
            self._bytes_left -= sys.getsizeof(row) + sum(map(sys.getsizeof, row))
            if self._bytes_left < 0:
                raise OverflowError(f"more than {MAX_JUDGED_BYTES} bytes")
        return tuple(rows)

    def _read(self, sql: str, *values: Cell) -> list[tuple[object, ...]]:
        check_deadline()
        self._trusted = True
        try:
            return self._connection.execute(sql, values).fetchall()
        finally:
            self._trusted = False

    def _authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        allowed = self._trusted or allows(action, first, second, altering=self._altering)
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    def _stopped(self) -> bool:
        return not self._trusted and (expired() or self._guard.exceeded())


def _columns(read: Read) -> Columns:
    found = []
    temporary = read("SELECT name FROM temp.sqlite_master WHERE type = 'table'")
    for table in dict.fromkeys([*table_names(read), *(name for (name,) in temporary)]):
        for column, declared in read("SELECT name, type FROM pragma_table_info(?)", table):
            found.append(_column(table, column, declared))
    return tuple(found)


def _column(table: str, column: str, declared: str) -> TableColumn:
    named = mysql_type(declared)
    return TableColumn(table.lower(), column.lower(), declared_type(named), named)


def _build_image(tables: Sequence[Table], *, typed: bool) -> Image:
    """Raises TableError: a table cannot be made."""
    check_tables(tables)
    with closing(connect_in_memory()) as connection:
        for table in tables:
            _make_table(connection, table, typed=typed)
        ((version,),) = connection.execute("PRAGMA schema_version")
        content = connection.serialize() if tables else None  # SQLite writes no database without tables
    tables = sorted(tables, key=lambda table: table.name)
    columns = (
        _column(table.name, column.name, sqlite_type(column.type) if typed else "TEXT")
        for table in tables
        for column in table.columns
    )
    stored = {table.name: tuple(column.name for column in table.columns) for table in tables}
    return Image(content, tuple(columns), stored, typed, version)


def _make_table(connection: sqlite3.Connection, table: Table, *, typed: bool) -> None:
    """Raises TableError: SQLite cannot make the table."""
    marks = ", ".join("?" for _ in table.columns)
    try:
        declared = ", ".join(_column_sql(column.name, column.type if typed else "TEXT") for column in table.columns)
        rows = [[cell if cell is None or typed else str(cell) for cell in row] for row in table.rows]
        if typed:
            columns = [(column, surely_holds(column.type)) for column in table.columns]
            rows = [
                [
                    cell if holds(cell) else _held(cell, column)
                    for cell, (column, holds) in zip(row, columns, strict=True)
                ]
                for row in rows
            ]
        connection.execute(f"CREATE TABLE {backquoted(table.name)} ({declared})")
        connection.execute("BEGIN")
        connection.executemany(f"INSERT INTO {backquoted(table.name)} VALUES ({marks})", rows)
        connection.execute("COMMIT")
    except (sqlite3.Error, OverflowError, ValueError) as error:  # a text that UTF-8 cannot hold is a ValueError
        raise TableError(f"table {table.name!r}: {error}; correct the task file") from None


def _held(cell: Cell, column: Column) -> Cell:
    """Raises Refused: the column does not take the cell, or SQLite does not hold it as MySQL does."""
    return None if cell is None else stored_as(column.type, column.name, cell)


def _column_sql(name: str, declared: str) -> str:
    known = sqlite_type(declared)
    return f"{backquoted(name)} {known}{' COLLATE ' + COLLATION if declared_type(declared) in _COLLATED else ''}"


def _fetched(cursor: sqlite3.Cursor, statement: Statement) -> Result:
    columns, kinds = tuple(column[0] for column in cursor.description), statement.kinds
    rows = first_rows(cursor, MAX_ROWS, KEPT_CHARS, other=0)
    cursor.close()
    if len(kinds) != len(columns):
        return Result(rows, columns)
    shown = (tuple(as_driver_shows(cell, kind) for cell, kind in zip(row, kinds, strict=True)) for row in rows)
    return Result(tuple(shown), columns)


_WORD = re.compile(r"\w+")
_INTERRUPTED = "3024 (HY000): Query execution was interrupted, maximum statement execution time exceeded"
_OUT_OF_STEPS = (
    "1038 (HY001): Out of sort memory: a statement that sorts, groups or removes duplicates may take "
    f"{MAX_SORT_OPCODES:,} steps; read fewer rows"
)
_COLLATED = (TEXT, DATE, DATETIME)
_OUT_OF_MEMORY = "1038 (HY001): Out of memory"
_DROP = re.compile(r"\s*DROP\b", re.IGNORECASE)
_DRIVER_TEXTS = (
    (r"no such table: (?:main\.)?(.*)", "1146 (42S02): Table 'dbbench.{0}' doesn't exist"),
    (r"no such column: (.*)", "1054 (42S22): Unknown column '{0}' in 'field list'"),
    (r"table (.*) has no column named (.*)", "1054 (42S22): Unknown column '{1}' in 'field list'"),
    (r"ambiguous column name: (.*)", "1052 (23000): Column '{0}' in field list is ambiguous"),
    (r"(?:no such function|not authorized to use function): (\W+)", left_out("{0}")),
    (r"no such function: (.*)", "1305 (42000): FUNCTION dbbench.{0} does not exist"),
    (r"table `?(.*?)`? already exists", "1050 (42S01): Table '{0}' already exists"),
    (
        r"table .* has (\d+) columns but (\d+) values were supplied",
        "1136 (21S01): Column count doesn't match value count",
    ),
    (r"(\d+) values for (\d+) columns", "1136 (21S01): Column count doesn't match value count at row 1"),
    (
        r"wrong number of arguments to function (.*)\(\)",
        "1582 (42000): Incorrect parameter count in the call to native function '{0}'",
    ),
    (r"misuse of aggregate.*", "1111 (HY000): Invalid use of group function"),
    (r"Cannot add a NOT NULL column.*", left_out("a NOT NULL column without a default in ALTER TABLE")),
    (r"the query contains a null character", left_out("the character 0")),
    (r"integer overflow", left_out("whole numbers of 2^63 and more")),
    (r"sub-select returns \d+ columns - expected (\d+)", "1241 (21000): Operand should contain {0} column(s)"),
    (r"table only_rows has \d+ values for (\d+) columns", "1241 (21000): Operand should contain {0} column(s)"),
    (r"table stored_rows has .*", "1136 (21S01): Column count doesn't match value count at row 1"),
    (r"UNIQUE constraint failed: (.*)", "1062 (23000): Duplicate entry for key '{0}'"),
    (r"NOT NULL constraint failed: (.*)", "1048 (23000): Column '{0}' cannot be null"),
    (r"not authorized to use function: (.*)", "1305 (42000): FUNCTION dbbench.{0} does not exist"),
    (r"parser stack overflow|Expression tree is too large.*", "1064 (42000): the statement is nested too deeply"),
    (
        r"too many terms in compound SELECT|too many columns.*|at most .* tables in a join",
        "1117 (HY000): Too many columns or tables",
    ),
    (r"string or blob too big|database or disk is full|out of memory", "1114 (HY000): The table is full"),
    (
        r"user-defined (?:function|aggregate).*",
        f"1690 (22003): value is out of range, or such an argument is {LEFT_OUT}",
    ),
    (
        r'near "(.*)": syntax error',
        "1064 (42000): You have an error in your SQL syntax; check the manual that corresponds to your MySQL server "
        "version for the right syntax to use near '{0}' at line 1",
    ),
    (r"not authorized|access to .* is prohibited", "1142 (42000): command denied to user"),
)


def _driver_text(error: Exception, sql: str) -> str:
    # An agent reads the same on either backend.
    if _DROP.match(sql) and (match := re.fullmatch(r"no such table: (?:main\.)?(.*)", str(error))):
        return f"1051 (42S02): Unknown table 'dbbench.{match[1]}'"
    if isinstance(error, UnicodeError):
        return "1300 (HY000): Invalid utf8mb4 character string"
    for pattern, text in _DRIVER_TEXTS:
        if match := re.fullmatch(pattern, str(error), re.DOTALL):
            return text.format(*match.groups())
    return f"1105 (HY000): {error}"

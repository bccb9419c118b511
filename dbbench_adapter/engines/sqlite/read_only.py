"""Opens a SQLite file that an agent may read and nothing may change.

The file is opened read-only (`mode=ro`, `query_only`), and an authorizer allows SELECT alone: no ATTACH, PRAGMA or
other virtual table, and only known functions. Each call runs one statement; time, steps, sorts, memory, values,
columns, rows and the length of a statement are limited. Any number of episodes read one file at once, whatever its
size. It does not guard against a fault in SQLite, which runs in the process of the caller.
"""

from __future__ import annotations

import re
import shlex
import sqlite3
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

from dbbench_adapter.clock import StatementTimeout, expired, stalled, time_limit
from dbbench_adapter.engines.base import MAX_ROWS, STALLED, BackendUnavailable, Result, first_rows
from dbbench_adapter.engines.sqlite.foreign_schema import Unparsed, denying, load_schema
from dbbench_adapter.engines.sqlite.planning import fault_of_plan
from dbbench_adapter.engines.sqlite.sandbox import MAX_SORT_OPCODES, PROGRESS_OPCODES, Guard, Watchdog, virtual_tables

MAX_SQL_CHARS = 20_000
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1_000_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: MAX_SQL_CHARS,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 20,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 20,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 1_000_000,
}
CATALOGUES = frozenset(("sqlite_master", "sqlite_schema", "sqlite_temp_master", "sqlite_temp_schema"))
_EXPLAIN = re.compile(r"(?>[\s;\ufeff]+|--[^\n]*|/\*.*?(?:\*/|\Z))*+explain\b", re.IGNORECASE | re.DOTALL)
_SORTS = re.compile(r"\b(order|group|distinct|union|intersect|except|over)\b", re.IGNORECASE)
_GONE = frozenset(
    (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_BUSY)
)
# One result may hold at most this much text: `max_chars` drops whole rows, and a single row could hold 400 MB.
_MAX_TEXT_BYTES = 16_000_000
# SQLite may use at most this much memory in this process, over all connections: its planner checks no clock and may
# expand a short statement to gigabytes.
MAX_HEAP_BYTES = 512 * 1024**2
# A file with this version in its header has its changes first written to a file beside it.
_WAL = 2
# Python functions by their SQL names, each with its number of arguments (-1 for any number).
Functions = Mapping[str, tuple[int, Callable[..., Any]]]


def connect(path: Path) -> sqlite3.Connection:
    """Open a read-only connection for our own statements; an agent's statements go through `ReadOnlyDatabase`.

    Raises:
        BackendUnavailable: another program keeps the file from being read, or has left it unfinished.
        sqlite3.DatabaseError: the file is no database that can be read.
    """
    return opened(path)[0]


def opened(path: Path) -> tuple[sqlite3.Connection, tuple[Unparsed, ...]]:
    """What `connect` returns, and what of the schema cannot be parsed, which the connection never reads."""
    uri = f"{path.resolve().as_uri()}?mode=ro"
    with path.open("rb") as file:
        header = file.read(20)
    if header[18:19] == bytes([_WAL]):
        log = Path(f"{path.resolve()}-wal")  # beside what a link points to
        if log.exists() and log.stat().st_size:
            raise BackendUnavailable(
                f"{path} is in WAL mode and its newest changes are in {log.name}; close the programs that write to it, "
                f"and write what is left into the file: {_settle_command(path)}"
            )
        uri += "&immutable=1"  # otherwise a reader would make files beside it
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=1.0)
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA trusted_schema = OFF")  # a view calls none of the functions that are added
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA hard_heap_limit = {MAX_HEAP_BYTES}")
    try:
        unparsed = load_schema(connection)
    except sqlite3.Error as error:
        connection.close()
        if (why := why_unavailable(error, path)) is not None:
            raise BackendUnavailable(why) from None
        raise
    if unparsed:
        connection.set_authorizer(denying(unparsed))
    return connection, unparsed


def why_unavailable(error: sqlite3.Error, path: Path) -> str | None:
    """Why a healthy file cannot be read now, with what to do; None if the error is another one."""
    code = getattr(error, "sqlite_errorcode", 0)
    if code & 0xFF == sqlite3.SQLITE_BUSY:
        return f"{path} is locked by a program that is changing it; wait until it has finished, or close it"
    if code == sqlite3.SQLITE_READONLY_ROLLBACK:
        return (
            f"a program was stopped while it changed {path}, and left {path.name}-journal to undo it; undo it: "
            f"{_settle_command(path)}"
        )
    return None


def _settle_command(path: Path) -> str:
    # Python is there, the `sqlite3` shell may not be. The PRAGMA writes a log into the file, and as every reading of a
    # schema that may write, it undoes half a change first.
    code = 'import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute("PRAGMA wal_checkpoint(TRUNCATE)"))'
    return shlex.join([sys.executable, "-c", code, str(path.resolve())])


class ReadOnlyDatabase:
    """The database of one episode; only one thread at a time may use it.

    Args:
        tables: lower-case names of the tables that may be read; None allows the whole file and its schema.
        functions: functions that are added to SQLite's, or replace them.
        callable_functions: lower-case names of the functions that may be called.
        refusal: the text that the agent reads if something is not allowed.
        max_sort_opcodes: most steps of a statement that sorts, as a sort checks no clock; None limits only its memory.
        max_rows, max_chars: the longest result, in rows and in characters of its texts (any other cell counts as one
            character); the rest is dropped.
        limits: those of SQLite's limits that differ from `_LIMITS`.
        trusted_schema: whether views and generated columns of the file may call the functions that are added.
    Raises:
        BackendUnavailable: the file cannot be opened; `run` raises it too, if the file can no longer be read.
    """

    undecodable: ClassVar[str] = "replace"
    """What Python's codecs do with the bytes of a text that are no UTF-8."""

    def __init__(
        self,
        path: Path,
        watchdog: Watchdog,
        *,
        tables: Collection[str] | None,
        functions: Functions,
        callable_functions: Collection[str],
        refusal: str,
        statement_timeout_s: float,
        max_sort_opcodes: int | None = MAX_SORT_OPCODES,
        max_rows: int = MAX_ROWS,
        max_chars: int = 1_000_000,
        limits: Mapping[int, int] = {},
        trusted_schema: bool = False,
    ) -> None:
        self._path, self._watchdog, self._guard = path, watchdog, Guard()
        self.statement_timeout_s, self.used_s = statement_timeout_s, 0.0
        self._tables, self._callable, self._refusal = tables, frozenset(callable_functions), refusal
        self._max_sort_opcodes, self._max_rows, self._max_chars = max_sort_opcodes, max_rows, max_chars
        try:
            self._connection, unparsed = self._opened()
            names = {row[0].lower() for row in self._connection.execute("SELECT name FROM sqlite_master")}
        except (OSError, sqlite3.Error, MemoryError) as error:
            raise BackendUnavailable(f"{path} cannot be opened: {error}; leave it in place during the run") from None
        self._others = names - set(tables or names) | CATALOGUES
        self._unparsed = {
            entry.name.lower(): f"{entry.name} cannot be read: {entry.why}" for entry in unparsed if entry.is_read
        }  # a trigger may have a table's name
        self._why_denied: str | None = None
        self._connection.execute(f"PRAGMA trusted_schema = {int(trusted_schema)}")
        limits = {**_LIMITS, **limits}
        for limit, value in limits.items():
            self._connection.setlimit(limit, value)
        self._max_sql = limits[sqlite3.SQLITE_LIMIT_SQL_LENGTH]
        self._bytes_left = 0
        self._connection.text_factory = self._text
        for name, (count, function) in functions.items():
            self._connection.create_function(name, count, function, deterministic=trusted_schema)
        self._connection.set_authorizer(self._authorize)
        self._connection.set_progress_handler(self._has_to_stop, PROGRESS_OPCODES)

    def _opened(self) -> tuple[sqlite3.Connection, tuple[Unparsed, ...]]:
        return opened(self._path)

    def run(self, sql: str) -> Result:
        began = time.thread_time()
        try:
            return self._run(sql)
        finally:
            self.used_s += time.thread_time() - began

    def _run(self, sql: str) -> Result:
        if len(sql) > self._max_sql:  # a parser in Python would take seconds for it
            return Result(error=f"the statement is longer than {self._max_sql} characters")
        if self._tables is not None and _EXPLAIN.match(sql):  # EXPLAIN would name other tables
            return Result(error=self._refusal)
        self._guard = Guard(self._max_sort_opcodes if _SORTS.search(sql) else None)
        if (fault := fault_of_plan(sql)) is not None:
            return Result(error=fault)
        self._bytes_left, self._why_denied = _MAX_TEXT_BYTES, None
        with time_limit(self.statement_timeout_s), self._watchdog.watching(self._connection, self.statement_timeout_s):
            try:
                with closing(self._connection.execute(sql)) as cursor:
                    rows = first_rows(cursor, self._max_rows, self._max_chars)
                    return Result(rows, tuple(column[0] for column in cursor.description or ()))
            except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, StatementTimeout, MemoryError) as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF in _GONE:
                    raise BackendUnavailable(
                        f"{self._path} can no longer be read: {error}; leave it as it is until the run ends"
                    ) from None
                if stalled():
                    raise BackendUnavailable(STALLED) from None
                return Result(error=self._error_text(error))

    def close(self) -> None:
        self._connection.close()

    def _text(self, raw: bytes) -> str:
        # No limit applies within a row, so its texts are counted one by one.
        self._bytes_left -= len(raw)
        if self._bytes_left < 0:
            raise MemoryError("too many long texts")
        return raw.decode("utf-8", self.undecodable)

    def _authorize(
        self, action: int, first: str | None, second: str | None, _schema: str | None, inside: str | None
    ) -> int:
        """
        Args:
            inside: the view or CTE in which it is. A CTE may have a table's name, so it permits nothing.
        """
        read = (first or "") if action == sqlite3.SQLITE_READ else ""
        for name in (read, inside or ""):
            if (why := self._unparsed.get(name.lower())) is not None:
                self._why_denied = why
                return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK if self._allows(action, first or "", second or "") else sqlite3.SQLITE_DENY

    def _allows(self, action: int, first: str, second: str) -> bool:
        return (
            action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE)
            or (action == sqlite3.SQLITE_READ and self._may_read(first.lower(), second))
            or (action == sqlite3.SQLITE_FUNCTION and second.lower() in self._callable)
        )

    def _has_to_stop(self) -> bool:
        return expired() or self._guard.exceeded()

    def _may_read(self, name: str, column: str) -> bool:
        if self._tables is None:
            return name not in virtual_tables()
        # a read without a column counts rows; its name comes from the statement and may be a sub-query's
        return name in self._tables or (not column and name not in self._others)

    def _error_text(self, error: BaseException) -> str:
        text = str(error)
        if self._guard.out_of_memory or isinstance(error, MemoryError):
            return "the statement takes too much memory"
        if expired() or isinstance(error, StatementTimeout) or "interrupted" in text:
            return "the statement takes too long; ask for less"
        if any(
            words in text for words in ("not authorized", "prohibited", "authorization denied", "vtable constructor")
        ):
            return self._why_denied or self._refusal  # SQLite's message would name columns of other tables
        return text or type(error).__name__

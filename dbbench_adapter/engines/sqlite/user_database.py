"""Runs an agent's statements on a user's own SQLite file, or on a view of it that they may change.

Each call runs one statement, a SELECT over the file's tables and SQLite's functions: no ATTACH, PRAGMA or other virtual
table. Time, steps, memory, values, columns, rows and the length of a statement are limited. Any number of episodes read
one file at once, whatever its size. A fault in SQLite, which runs in the caller's process, is not guarded against.

The functions are SQLite's own, so a statement gives the same result as in a `sqlite3` shell and in the evaluators of
Spider and BIRD. Not allowed are functions that change something, read files, return the version or draw random numbers.
The limit of a value's length bounds functions of SQLite that take quadratic time; a statement that meets a longer cell
is run once more with other limits and without these functions.

On a view a statement may also be an INSERT, UPDATE or DELETE, with the triggers that the file has for it. Foreign
keys are not enforced, as in a `sqlite3` shell. A statement that changes more than an episode may (`copy_on_write`) is
undone.
"""

from __future__ import annotations

import math
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from dbbench_adapter.datatypes import SqlValue
from dbbench_adapter.engines.base import STALLED, BackendUnavailable, Result, first_rows, row_chars
from dbbench_adapter.engines.engine import MAX_RESULT_CHARS, MAX_RESULT_ROWS, TOO_LONG, Changes
from dbbench_adapter.engines.planning import check_plan
from dbbench_adapter.engines.sqlite import SQLITE
from dbbench_adapter.engines.sqlite.copy_on_write import MAX_CHANGED_ROWS, MAX_WRITTEN_BYTES, CopyOnWrite
from dbbench_adapter.engines.sqlite.foreign_schema import Unparsed
from dbbench_adapter.engines.sqlite.read_only import opened
from dbbench_adapter.engines.sqlite.sandbox import PROGRESS_OPCODES, Guard, Watchdog, virtual_tables
from dbbench_adapter.statement_clock import StatementTimeout, expired, stalled, time_limit

REFUSAL = "not allowed: only SELECT over the tables of this database, with SQLite's functions"
CHANGE_REFUSAL = (
    "not allowed: only SELECT, INSERT, UPDATE and DELETE over the tables of this database, with SQLite's functions"
)
TOO_LARGE = (
    f"the change is too large: all statements together may change {MAX_CHANGED_ROWS:,} rows and write "
    f"{MAX_WRITTEN_BYTES // 1024**2} MiB"
)
_CHANGING = (sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE)
# The longest value and the longest row of a statement; `instr` and `replace` then take 0.5 s at most (measured).
MAX_VALUE_BYTES = 200_000
# A parser in Python would take seconds for a longer statement.
MAX_SQL_CHARS = 20_000
# One result may hold at most this much text: whole rows are dropped, and a single row could hold 400 MB.
_MAX_TEXT_BYTES = 16_000_000
_GONE = frozenset(
    (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_BUSY)
)
_MAX_PATTERN_BYTES = 1_000
# A short statement may use values that are so many times as long, with patterns as many times shorter: LIKE, and a
# statement of nothing but functions, then take the time that they take within the usual limits.
_LONGER = 20
TOO_BIG = "string or blob too big"
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MAX_VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: _MAX_PATTERN_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: MAX_SQL_CHARS,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 1_000_000,
    # SQLite's own
    sqlite3.SQLITE_LIMIT_COLUMN: 2_000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 1_000,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 500,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 127,
}
_BUILT_IN = (
    "abs avg ceil ceiling char coalesce concat concat_ws count date datetime exp floor format glob group_concat hex "
    "ifnull iif instr julianday length like ln log log10 log2 lower ltrim max min mod nullif octet_length pi pow "
    "power printf quote radians degrees replace round rtrim sign sqrt strftime string_agg substr substring subtype "
    "sum time timediff total trim trunc typeof unicode unixepoch upper acos asin atan atan2 cos sin tan likely "
    "unlikely likelihood soundex zeroblob if acosh asinh atanh cosh sinh tanh cume_dist dense_rank first_value lag "
    "last_value lead nth_value ntile percent_rank rank row_number json json_array json_array_length "
    "json_error_position json_extract json_group_array json_group_object json_object json_quote json_type json_valid "
    "-> ->> json_insert json_pretty json_remove json_replace json_set jsonb jsonb_array jsonb_extract "
    "jsonb_group_array jsonb_group_object jsonb_insert jsonb_object jsonb_remove jsonb_replace jsonb_set current_date "
    "current_time current_timestamp"
)
_CALLABLE = frozenset(_BUILT_IN.split())


def _strip(left: bool, right: bool) -> Callable[[SqlValue, SqlValue], SqlValue]:
    # A replacement of `trim`, `ltrim` or `rtrim` that takes linear time. SQLite's own compares every character of the
    # text with every one of the set. So does Python's `str.strip`, which no other thread can interrupt.

    def stripped(text: SqlValue, characters: SqlValue) -> SqlValue:
        if text is None or characters is None:
            return None
        text, gone = _text(text), set(_text(characters))
        start = next((i for i, c in enumerate(text) if c not in gone), len(text)) if left else 0
        after = next((i for i in range(len(text), start, -1) if text[i - 1] not in gone), start) if right else len(text)
        return text[start:after]

    return stripped


def _text(value: SqlValue) -> str:
    if not isinstance(value, float):
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    digits, e, exponent = f"{value + 0.0:.15g}".partition("e")
    return (digits if "." in digits else f"{digits}.0") + e + exponent


_STRIPS = {"trim": (True, True), "ltrim": (True, False), "rtrim": (False, True)}
_WIDTHS = re.compile(r"%[^a-zA-Z%]*[a-zA-Z%]")
# Largest number of digits of a width or a precision in a format.
_MAX_WIDTH = 4


def _formatted(*values: SqlValue) -> SqlValue:
    # SQLite's own `printf` writes the whole width before it checks the length limit.
    for spec in _WIDTHS.findall(str(values[0]) if values else ""):
        if "*" in spec or any(len(digits) > _MAX_WIDTH for digits in re.findall(r"\d+", spec)):
            raise ValueError(f"{spec} is wider than 9999 characters, or takes its width from an argument")
    with closing(sqlite3.connect(":memory:")) as plain:
        plain.text_factory = lambda raw: raw.decode("utf-8", "replace")  # a precision counts bytes
        plain.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        made = plain.execute(f"SELECT printf({', '.join('?' * len(values))})", values).fetchone()[0]
    if made is None and values and values[0] is not None:
        raise ValueError("the text is too long")  # SQLite's own gives NULL
    return made


# Python functions that replace SQLite's, each with its number of arguments (-1 for any number).
_FUNCTIONS: Mapping[str, tuple[int, Callable[..., Any]]] = {
    **{name: (2, _strip(*sides)) for name, sides in _STRIPS.items()},
    "printf": (-1, _formatted),
    "format": (-1, _formatted),
}


def _found_at(text: SqlValue, part: SqlValue) -> SqlValue:
    if text is None or part is None:
        return None
    if isinstance(text, bytes) and isinstance(part, bytes):
        return text.find(part) + 1
    return _text(text).find(_text(part)) + 1


def _replaced(value: SqlValue, old: SqlValue, new: SqlValue) -> SqlValue:
    if value is None or old is None or new is None:
        return None
    text, old, new = _text(value), _text(old), _text(new)
    if not old or old[0] == "\0":
        return value
    if len(text) + text.count(old) * (len(new) - len(old)) > _LONGER * MAX_VALUE_BYTES:
        raise OverflowError  # SQLite then says that it is too big
    return text.replace(old, new)


# In place of those that take quadratic time.
_LINEAR: Mapping[str, tuple[int, Callable[..., Any]]] = {"instr": (2, _found_at), "replace": (3, _replaced)}


def longest_value(sql: str) -> int:
    """The most bytes of a value and of a row that the statement may use."""
    return MAX_VALUE_BYTES * (_LONGER if len(sql) * _LONGER <= MAX_SQL_CHARS else 1)


class UserDatabase:
    """Opens the database for one episode, or for a judge, which gives statements more time; one thread at a time.

    Raises:
        BackendUnavailable: the file cannot be opened; `run` raises it when the file can no longer be read.
    """

    refusal: ClassVar[str] = REFUSAL
    """What the agent reads about a statement that is not allowed."""

    def __init__(self, path: Path, watchdog: Watchdog, *, statement_timeout_s: float) -> None:
        self._path, self._watchdog, self._guard = path, watchdog, Guard()
        self.statement_timeout_s, self.used_s = statement_timeout_s, 0.0
        try:
            self._connection, unparsed = self._opened()
        except (OSError, sqlite3.Error, MemoryError) as error:
            raise BackendUnavailable(f"{path} cannot be opened: {error}; leave it in place during the run") from None
        self._unparsed = {
            entry.name.lower(): f"{entry.name} cannot be read: {entry.why}" for entry in unparsed if entry.is_read
        }  # a trigger may have a table's name
        self._why_denied: str | None = None
        self._bytes_left = 0
        # the added functions replace SQLite's own, which a view may call
        self._connection.execute("PRAGMA trusted_schema = ON")
        for limit, value in _LIMITS.items():
            self._connection.setlimit(limit, value)
        self._connection.text_factory = self._text
        for name, (count, function) in _FUNCTIONS.items():
            self._connection.create_function(name, count, function, deterministic=True)
        self._connection.set_authorizer(self._authorize)
        self._connection.set_progress_handler(self._has_to_stop, PROGRESS_OPCODES)

    def _opened(self) -> tuple[sqlite3.Connection, tuple[Unparsed, ...]]:
        return opened(self._path)

    def run(self, sql: str) -> Result:
        result = self._run(sql)
        if result.error != TOO_BIG:
            return result
        if longest_value(sql) > MAX_VALUE_BYTES:
            with self._long_values():
                result = self._run(sql)
        if result.error != TOO_BIG:
            return result
        return Result(error=f"{TOO_BIG}: a value or a row has more than {longest_value(sql):,} bytes")

    @contextmanager
    def _long_values(self) -> Iterator[None]:
        for name, (count, function) in _LINEAR.items():
            self._connection.create_function(name, count, function, deterministic=True)
        more = {
            sqlite3.SQLITE_LIMIT_LENGTH: _LONGER * MAX_VALUE_BYTES,
            sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: _MAX_PATTERN_BYTES // _LONGER,
        }
        usual = {limit: self._connection.setlimit(limit, value) for limit, value in more.items()}
        try:
            yield
        finally:
            for limit, value in usual.items():
                self._connection.setlimit(limit, value)

    def _run(self, sql: str) -> Result:
        # A result that is too long is an error, because a judge would take the rows that are left for the whole result.
        began = time.thread_time()
        try:
            result = self._execute(sql)
        finally:
            self.used_s += time.thread_time() - began
        chars = sum(map(row_chars, result.rows or ()))
        return Result(error=TOO_LONG) if chars > MAX_RESULT_CHARS else result

    def _execute(self, sql: str) -> Result:
        if len(sql) > MAX_SQL_CHARS:
            return Result(error=f"the statement is longer than {MAX_SQL_CHARS} characters")
        self._guard = Guard()
        if (fault := check_plan(sql, SQLITE)) is not None:
            return Result(error=fault)
        self._bytes_left, self._why_denied = _MAX_TEXT_BYTES, None
        with time_limit(self.statement_timeout_s), self._watchdog.watching(self._connection, self.statement_timeout_s):
            try:
                with closing(self._connection.execute(sql)) as cursor:
                    # one more shows that there are too many
                    rows = first_rows(cursor, MAX_RESULT_ROWS + 1, MAX_RESULT_CHARS)
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
        return raw.decode("utf-8", "surrogateescape")  # different texts stay different, and a judge sees the bytes

    def _authorize(
        self, action: int, first: str | None, second: str | None, _schema: str | None, inside: str | None
    ) -> int:
        # `inside` is the view or the CTE in which it is.
        read = (first or "") if action == sqlite3.SQLITE_READ else ""
        for name in (read, inside or ""):
            if (why := self._unparsed.get(name.lower())) is not None:
                self._why_denied = why
                return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK if self._allows(action, first or "", second or "") else sqlite3.SQLITE_DENY

    def _allows(self, action: int, first: str, second: str) -> bool:
        return (
            action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE)
            or (action == sqlite3.SQLITE_READ and first.lower() not in virtual_tables())
            or (action == sqlite3.SQLITE_FUNCTION and second.lower() in _CALLABLE)
        )

    def _has_to_stop(self) -> bool:
        return expired() or self._guard.exceeded()

    def _error_text(self, error: BaseException) -> str:
        text = str(error)
        if self._guard.out_of_memory or isinstance(error, MemoryError):
            return "the statement takes too much memory"
        if expired() or isinstance(error, StatementTimeout) or "interrupted" in text:
            return "the statement takes too long; ask for less"
        if any(
            words in text for words in ("not authorized", "prohibited", "authorization denied", "vtable constructor")
        ):
            return self._why_denied or self.refusal
        return text or type(error).__name__


class ChangeableDatabase(UserDatabase):
    """Opens a view of the file for one episode, or for a reference.

    Raises:
        BackendUnavailable: the file cannot be opened; `run` and `changes` raise it when somebody else has changed it.
    """

    refusal = CHANGE_REFUSAL

    def _opened(self) -> tuple[sqlite3.Connection, tuple[Unparsed, ...]]:
        self._view = CopyOnWrite(self._path)
        return self._view.connection, self._view.unparsed

    def _run(self, sql: str) -> Result:
        """One that changes rows gives their number, triggers included, or what RETURNING gives. Returned rows that are
        too long are left out, because the change stands.
        """
        self._view.begin()
        changed_before = self._connection.total_changes
        result = super()._run(sql)
        changed = self._connection.total_changes - changed_before
        if result.columns or (result.error is not None and not (result.error == TOO_LONG and changed)):
            return result
        return Result(((changed,),), ("rows changed",))

    def changes(self) -> Changes:
        self._guard = Guard(max_growth_bytes=math.inf)
        return self._view.changes()

    def close(self) -> None:
        self._view.close()

    def _allows(self, action: int, first: str, second: str) -> bool:
        if action in _CHANGING:
            self._why_denied = self._view.unchangeable.get(first, self._why_denied)
            return first in self._view.writable and first.lower() not in virtual_tables()
        return super()._allows(action, first, second)

    def _has_to_stop(self) -> bool:
        return super()._has_to_stop() or self._view.full()

    def _error_text(self, error: BaseException) -> str:
        if self._view.full() or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
            return TOO_LARGE
        return super()._error_text(error)

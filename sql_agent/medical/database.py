"""A read-only medical database: the checks of its contents, and a sandbox for an agent's statements.

The file is opened read-only (`mode=ro`, `query_only`) and an authorizer allows SELECT over `drugs_info` and `disease`
alone: no other table of the file, no schema, no ATTACH, PRAGMA or virtual table, and functions that work in time
proportional to what they read. One statement a call; time, steps, sorts, memory, values, columns, rows and the length
of a statement are limited, with the parts that DB-Bench's sandbox is made of (`dbbench_adapter.backends`).
It does not guard against a fault in SQLite, which runs in the process of the caller.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from dbbench_adapter.backends import BackendUnavailable, Result
from dbbench_adapter.backends.clock import StatementTimeout, expired, time_limit
from dbbench_adapter.backends.mysql_on_sqlite.functions import FUNCTIONS
from dbbench_adapter.backends.sqlite.sandbox import MAX_SORT_OPCODES, PROGRESS_OPCODES, Guard, Watchdog
from sql_agent.medical.datatypes import TABLES, MedicalDataError, Question, Schema

MAX_ROWS = 200
MAX_FETCHED_CHARS = 100_000
"""Longest result in the sandbox, counted over its texts; rows beyond it are dropped."""
MAX_RESULT_CHARS = 2_000
"""Longest result as the policy reads it; a field of a label fits, a whole table does not."""
TRUNCATED = "[TRUNCATED]"
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1_000_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 20_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 20,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 20,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}
_OURS = ("like", "instr", "replace", "lower", "upper", "concat")
"""Replacements of SQLite's functions: none searches a long text in quadratic time, and each obeys the time limit."""
_BUILT_IN = "abs avg coalesce count group_concat ifnull iif length max min nullif round substr substring sum total"
_CALLABLE = frozenset([*_OURS, *_BUILT_IN.split()])
_CATALOGUES = frozenset(("sqlite_master", "sqlite_schema", "sqlite_temp_master", "sqlite_temp_schema"))
_EXPLAIN = re.compile(r"(?>[\s;\ufeff]+|--[^\n]*|/\*.*?(?:\*/|\Z))*+explain\b", re.IGNORECASE | re.DOTALL)
_SORTS = re.compile(r"\b(order|group|distinct|union|intersect|except|over)\b", re.IGNORECASE)
_GONE = frozenset(
    (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_BUSY)
)


def read_schema(path: Path) -> Schema:
    """The tables and columns of a database that can be used: at least one of `TABLES`, with `id`, a name and rows.

    Raises:
        MedicalDataError: says what is missing.
    """
    if not path.is_file():
        raise MedicalDataError(
            f"no database at {path}; name one with --set env.database=FILE, or make one of invented entries: "
            f"python scripts/make_medical_db.py --output {path}"
        )
    try:
        with closing(connect(path)) as connection:
            present = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            folded = {name.lower() for name in present}
            schema = {table: _columns(connection, table) for table in TABLES if table in folded}
            wrong = [said for table in schema if "id" in schema[table] for said in _wrong_ids(connection, table)]
            rows = sum(len(connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchall()) for table in schema)
    except sqlite3.Error as error:
        raise MedicalDataError(
            f"{path} cannot be read as a SQLite database ({error}); name one with --set env.database=FILE"
        ) from None
    if not schema:
        found = ", ".join(sorted(present)) or "none at all"
        raise MedicalDataError(
            f"{path} has neither of the tables {' and '.join(TABLES)}; its tables (not views): {found}; "
            "doc/medical.md says what they hold"
        )
    for table, columns in schema.items():
        missing = [name for name in ("id", TABLES[table].name_column) if name not in columns]
        if missing:
            raise MedicalDataError(
                f"{path}: table {table} has no column {' and no column '.join(missing)}; see doc/medical.md"
            )
    if not rows:
        raise MedicalDataError(f"{path}: {' and '.join(schema)} hold no row; add entries, or name another database")
    if wrong:
        raise MedicalDataError(f"{path}: {'; '.join(wrong)}; give every row its own number or text as `id`")
    return schema


def missing(schema: Schema) -> list[str]:
    """The tables of doc/medical.md that the database lacks, and missing columns of those that it has."""
    tables = [table for table in TABLES if table not in schema]
    columns = [f"{table}.{name}" for table in schema for name in TABLES[table].columns if name not in schema[table]]
    return tables + columns


def check_questions(questions: Sequence[Question], path: Path, schema: Schema) -> None:
    """Refuse questions about fields that are empty or missing in the database.

    Raises:
        MedicalDataError: names the first such question and their number.
    """
    with closing(connect(path)) as connection:
        unfounded = [q for q in questions if q.table is not None and not _holds(connection, schema, q)]
    if unfounded:
        first = unfounded[0]
        raise MedicalDataError(
            f"{len(unfounded)} of {len(questions)} questions rest on what {path} does not hold; the first is "
            f"{first.id!r}: {first.table}, id {first.row_id}, {first.column}; "
            "give their own database with --set env.database=FILE, or this one's questions"
        )


def _holds(connection: sqlite3.Connection, schema: Schema, question: Question) -> bool:
    if question.column not in schema.get(question.table or "", ()):
        return False
    sql = f'SELECT "{question.column}" FROM {question.table} WHERE id = ?'
    row = connection.execute(sql, (question.row_id,)).fetchone()
    return row is not None and row[0] not in (None, "")


def _columns(connection: sqlite3.Connection, table: str) -> tuple[str, ...]:
    """A table's columns, spelled as in doc/medical.md where that names them; SQLite ignores case."""
    ours = {"id", TABLES[table].name_column, *TABLES[table].columns}
    names = [row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]
    return tuple(name.lower() if name.lower() in ours else name for name in names)


def _wrong_ids(connection: sqlite3.Connection, table: str) -> list[str]:
    """The reasons why `id` does not identify a row. It is compared as text: to a question 7 and '7' are the same."""
    sql = f"SELECT count(*), count(DISTINCT CAST(id AS TEXT)) FROM {table} WHERE typeof(id) IN ('integer', 'text')"
    good, distinct = connection.execute(sql).fetchone()
    (total,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    problems = {"that is no whole number or text": total - good, "that another row has": good - distinct}
    return [f"table {table} has rows with an id {what} ({n} of {total})" for what, n in problems.items() if n]


def connect(path: Path) -> sqlite3.Connection:
    """A read-only connection for our own statements; an agent's go through `ReadOnlyDatabase`."""
    uri = f"{path.resolve().as_uri()}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=1.0)
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


class ReadOnlyDatabase:
    """The database of one episode; for one thread at a time.

    Raises:
        BackendUnavailable: the file cannot be opened; so does `run` when it can no longer be read.
    """

    def __init__(self, path: Path, schema: Schema, watchdog: Watchdog, *, statement_timeout_s: float) -> None:
        self._path, self._tables, self._watchdog = path, frozenset(schema), watchdog
        self._timeout_s, self._guard = statement_timeout_s, Guard()
        try:
            self._connection = connect(path)
            names = {row[0] for row in self._connection.execute("SELECT name FROM sqlite_master")}
        except sqlite3.Error as error:
            raise BackendUnavailable(f"{path} cannot be opened: {error}; leave it in place during the run") from None
        self._others = {name.lower() for name in names} - self._tables | _CATALOGUES
        for limit, value in _LIMITS.items():
            self._connection.setlimit(limit, value)
        for name in _OURS:
            self._connection.create_function(name, *FUNCTIONS[name])
        self._connection.set_authorizer(self._authorize)
        self._connection.set_progress_handler(lambda: expired() or self._guard.exceeded(), PROGRESS_OPCODES)

    def run(self, sql: str) -> Result:
        """Run one statement of the agent; its error is in `Result.error`."""
        if _EXPLAIN.match(sql):
            return Result(error=self._refusal())
        self._guard = Guard(MAX_SORT_OPCODES if _SORTS.search(sql) else None)
        with time_limit(self._timeout_s), self._watchdog.watching(self._connection, self._timeout_s):
            try:
                return _fetched(self._connection.execute(sql))
            except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, StatementTimeout, MemoryError) as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF in _GONE:
                    raise BackendUnavailable(
                        f"{self._path} can no longer be read: {error}; leave it as it is until the run ends"
                    ) from None
                return Result(error=self._error_text(error))

    def close(self) -> None:
        self._connection.close()

    def _authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        """SQLite's authorizer. Its last argument is not used: a CTE may have a table's name."""
        allowed = (
            action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE)
            or (
                action == sqlite3.SQLITE_READ
                and ((first or "").lower() in self._tables or self._counts_what_is_no_table(first, second))
            )
            or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _CALLABLE)
        )
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    def _counts_what_is_no_table(self, name: str | None, column: str | None) -> bool:
        """A read without a column counts rows; its name comes from the statement and may be a subquery's."""
        return not column and (name or "").lower() not in self._others

    def _error_text(self, error: BaseException) -> str:
        text = str(error)
        if self._guard.out_of_memory or isinstance(error, MemoryError):
            return "the statement takes too much memory"
        if expired() or isinstance(error, StatementTimeout) or "interrupted" in text:
            return "the statement takes too long; ask for less"
        if "not authorized" in text or "prohibited" in text:
            return self._refusal()
        return text or type(error).__name__

    def _refusal(self) -> str:
        """Our own message: SQLite's would name columns of the other tables."""
        return f"not allowed: only SELECT over {' and '.join(sorted(self._tables))}, with common functions"


def _fetched(cursor: sqlite3.Cursor) -> Result:
    rows: list[tuple[Any, ...]] = []
    chars = 0
    for row in cursor:
        rows.append(row)
        chars += sum(len(cell) for cell in row if isinstance(cell, str | bytes))
        if len(rows) >= MAX_ROWS or chars > MAX_FETCHED_CHARS:
            break
    columns = tuple(column[0] for column in cursor.description or ())
    cursor.close()
    return Result(tuple(rows), columns)


def _json_cell(cell: Any) -> Any:
    if isinstance(cell, float) and not math.isfinite(cell):
        return None  # JSON has no infinity
    return cell.hex() if isinstance(cell, bytes) else cell


def format_result(result: Result) -> str:
    """The text of a result for the policy: columns and rows as JSON, cut at `MAX_RESULT_CHARS`, or the error."""
    if result.error is not None:
        text = f"Error: {result.error}"
    else:
        rows = [[_json_cell(cell) for cell in row] for row in result.rows or ()]
        text = json.dumps({"columns": result.columns, "rows": rows}, ensure_ascii=False)
    text = text.encode("utf-8", "replace").decode()  # a lone surrogate would break the next request
    return text if len(text) <= MAX_RESULT_CHARS else text[:MAX_RESULT_CHARS] + TRUNCATED

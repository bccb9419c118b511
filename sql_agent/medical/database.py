"""Checks a medical database and runs an agent's read-only statements on it.

Statements may read only `drugs_info` and `disease`, no other table of the file and no schema. They may call functions
whose time is proportional to their input (`dbbench_adapter.engines.sqlite.read_only` has the other limits).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from agentgrpo.checks import UsageError
from agentgrpo.printed_commands import agentgrpo_command
from dbbench_adapter.dialect.functions import FUNCTIONS
from dbbench_adapter.engines import BackendUnavailable, Result
from dbbench_adapter.engines.base import json_cell
from dbbench_adapter.engines.sqlite.read_only import ReadOnlyDatabase, connect
from dbbench_adapter.engines.sqlite.sandbox import Watchdog
from sql_agent.medical.datatypes import TABLES, Question, Schema

MAX_ROWS = 200
# Longest result in the sandbox, counted over its texts; further rows are dropped.
MAX_FETCHED_CHARS = 100_000
# Longest result that the policy reads; a field of a label fits, a whole table does not.
MAX_RESULT_CHARS = 2_000
TRUNCATED = "[TRUNCATED]"
# Replacements of SQLite's functions; none takes quadratic time on a long text, and each obeys the time limit.
_OURS = ("like", "instr", "replace", "lower", "upper", "concat")
_BUILT_IN = "abs avg coalesce count group_concat ifnull iif length max min nullif round substr substring sum total"
_CALLABLE = frozenset([*_OURS, *_BUILT_IN.split()])


def read_schema(path: Path) -> Schema:
    """The usable tables and columns of a database: at least one of `TABLES`, with `id`, a name and rows.

    Raises:
        UsageError: something is missing; the message says what.
    """
    if not path.is_file():
        raise UsageError(
            f"no database at {path}; name one with --set env.database=FILE, or make one of invented entries: "
            f"{agentgrpo_command('tasks medical', '--output', path)}"
        )
    try:
        with closing(connect(path)) as connection:
            present = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            folded = {name.lower() for name in present}
            schema = {table: _columns(connection, table) for table in TABLES if table in folded}
            wrong = [said for table in schema if "id" in schema[table] for said in _wrong_ids(connection, table)]
            rows = sum(len(connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchall()) for table in schema)
    except BackendUnavailable as error:
        raise UsageError(str(error)) from None
    except sqlite3.Error as error:
        raise UsageError(
            f"{path} cannot be read as a SQLite database ({error}); name one with --set env.database=FILE"
        ) from None
    if not schema:
        found = ", ".join(sorted(present)) or "none at all"
        raise UsageError(
            f"{path} has neither of the tables {' and '.join(TABLES)}; its tables (not views): {found}; "
            "doc/medical.md says what they hold"
        )
    for table, columns in schema.items():
        missing = [name for name in ("id", TABLES[table].name_column) if name not in columns]
        if missing:
            raise UsageError(
                f"{path}: table {table} has no column {' and no column '.join(missing)}; see doc/medical.md"
            )
    if not rows:
        raise UsageError(f"{path}: {' and '.join(schema)} hold no row; add entries, or name another database")
    if wrong:
        raise UsageError(f"{path}: {'; '.join(wrong)}; give every row its own number or text as `id`")
    return schema


def missing(schema: Schema) -> list[str]:
    """Tables of doc/medical.md that the database lacks, and missing columns of those that it has."""
    tables = [table for table in TABLES if table not in schema]
    columns = [f"{table}.{name}" for table in schema for name in TABLES[table].columns if name not in schema[table]]
    return tables + columns


def check_questions(questions: Sequence[Question], path: Path, schema: Schema) -> None:
    """Refuse questions about fields that are empty or missing in the database.

    Raises:
        UsageError: there are such questions; the message has the first and their number.
    """
    with closing(connect(path)) as connection:
        unfounded = [q for q in questions if q.table is not None and not _holds(connection, schema, q)]
    if unfounded:
        first = unfounded[0]
        raise UsageError(
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
    ours = {"id", TABLES[table].name_column, *TABLES[table].columns}
    names = [row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]
    return tuple(name.lower() if name.lower() in ours else name for name in names)


def _wrong_ids(connection: sqlite3.Connection, table: str) -> list[str]:
    # Ids are compared as texts, because questions do not tell 7 from '7'.
    sql = f"SELECT count(*), count(DISTINCT CAST(id AS TEXT)) FROM {table} WHERE typeof(id) IN ('integer', 'text')"
    good, distinct = connection.execute(sql).fetchone()
    (total,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    problems = {"that is no whole number or text": total - good, "that another row has": good - distinct}
    return [f"table {table} has rows with an id {what} ({n} of {total})" for what, n in problems.items() if n]


class MedicalDatabase(ReadOnlyDatabase):
    """Opens the database for one episode, for SELECT over the tables of the schema with common functions.

    Raises:
        BackendUnavailable: the file cannot be opened; `run` raises it when the file can no longer be read.
    """

    def __init__(self, path: Path, schema: Schema, watchdog: Watchdog, *, statement_timeout_s: float) -> None:
        super().__init__(
            path,
            watchdog,
            tables=frozenset(schema),
            functions={name: FUNCTIONS[name] for name in _OURS},
            callable_functions=_CALLABLE,
            refusal=f"not allowed: only SELECT over {' and '.join(sorted(schema))}, with common functions",
            statement_timeout_s=statement_timeout_s,
            max_rows=MAX_ROWS,
            max_chars=MAX_FETCHED_CHARS,
        )


def format_result(result: Result) -> str:
    """A result's text for the policy: columns and rows as JSON, cut at `MAX_RESULT_CHARS`, or the error."""
    if result.error is not None:
        text = f"Error: {result.error}"
    else:
        rows = [[json_cell(cell) for cell in row] for row in result.rows or ()]
        text = json.dumps({"columns": result.columns, "rows": rows}, ensure_ascii=False)
    text = text.encode("utf-8", "replace").decode()  # a lone surrogate would break the next request
    return text if len(text) <= MAX_RESULT_CHARS else text[:MAX_RESULT_CHARS] + TRUNCATED

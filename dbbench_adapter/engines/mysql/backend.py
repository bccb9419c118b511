"""Runs episodes on MariaDB or MySQL through pymysql.

Each episode gets a database from a `pool` and uses it as a user without privileges elsewhere. The server's time limit
ends a statement; if it does not, another connection kills it a quarter of a second later, and if that fails too, we
stop waiting. The size of the database is measured after statements that may have filled it, and while one runs. The
agent sees database and user as `dbbench`.

This backend does not guard against: one long call of a function, which the server finishes on one core after it was
killed; sorts that fill the server's temporary folder while a statement runs; undo logs of long transactions; temporary
tables of one episode that fill the space which the private server keeps for those of all; and, on a server that others
run, any temporary table.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pymysql
from pymysql.cursors import Cursor, SSCursor

from dbbench_adapter.datatypes import Table
from dbbench_adapter.dialect.lexer import tokens
from dbbench_adapter.dialect.limits import exceeds_limits
from dbbench_adapter.dialect.sql_types import column_type
from dbbench_adapter.dialect.syntax import PARSER_ERRORS, parse_statements
from dbbench_adapter.engines.base import (
    KEPT_CHARS,
    MAX_ROWS,
    STATEMENT_TIMEOUT_S,
    Backend,
    Database,
    KeptTables,
    Result,
    TableError,
    TableState,
    backquoted,
    check_tables,
    row_chars,
)
from dbbench_adapter.engines.mysql.allowed_sql import may_write, refusal
from dbbench_adapter.engines.mysql.names import (
    NEUTRAL_NAME,
    as_sent,
    scrubbed,
    tells_messages,
    uses_catalogue,
    with_neutral_names,
)
from dbbench_adapter.engines.mysql.pool import MAX_DATABASE_BYTES, Connection, Pool, Slot, together
from dbbench_adapter.engines.mysql.state import StateReader
from dbbench_adapter.statement_clock import StatementTimeout, time_limit

MAX_SQL_BYTES = 1_000_000
# A database is measured after this much writing, about ten MiB; a measurement is a round trip and delays CREATE.
_MEASURE_AFTER_S = 0.05
_HARMLESS_SELECTS = 4
# A statement that sqlglot cannot parse may have at most this many SELECTs.
_MAX_UNREAD_SELECTS = 50
_PARSE_S = 0.3
_FULL = "1114 (HY000): The table is full"
_LOST = "2013 (HY000): Lost connection to MySQL server during query"
_NO_EXECUTE = 1370
_ROUTINE = re.compile(r"routine '[^']*\.([^'.]*)'")
_ALIASED_DELETE = re.compile(r"^\s*DELETE\s+FROM\s+(`[^`]+`|\w+)\s+(?:AS\s+)?(`[^`]+`|\w+)\s+WHERE\s", re.IGNORECASE)
_LEFT_ALONE = frozenset(["union", "except", "intersect", "order", "rollup"])
_AFTER_ORDER = frozenset(["limit", "offset", "for", "into", "lock", "procedure"])
_FAULT_KINDS = (pymysql.DataError, pymysql.IntegrityError, pymysql.ProgrammingError, pymysql.NotSupportedError)
# Numbers of errors about names, types and cells for which pymysql has no class of its own.
_FAULTS = frozenset(
    [1059, 1074, 1075, 1103, 1117, 1118, 1166, 1264, 1265, 1292, 1300, 1366, 1406, 1416, 1425, 1426, 1427, 1439, 4025]
)
# Rows that are inserted at once; the private server takes a statement of 1 MiB.
_INSERT_BYTES = 1_000_000
# So much is sent before an answer is read.
_TOGETHER_BYTES = 1_000_000
_KNOWN_TYPES = frozenset(
    [
        *("TINYINT", "BOOL", "BOOLEAN", "SMALLINT", "MEDIUMINT", "INT", "INTEGER", "BIGINT", "YEAR", "DOUBLE", "FLOAT"),
        *("REAL", "DATE", "DATETIME", "TIMESTAMP", "TIME", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT"),
    ]
)
# Types with their usual size.
_SIZED_TYPES = {
    **dict.fromkeys(["DECIMAL", "NUMERIC", "DEC"], 10),
    **dict.fromkeys(["CHAR", "VARCHAR", "NCHAR", "NVARCHAR"], 1),
}
_DECLARED_TYPE = re.compile(r"[A-Z]+( ?\( ?\d+( ?, ?\d+)? ?\))?( UNSIGNED)?", re.IGNORECASE)


class MysqlBackend(Backend):
    """`open` may be called from any thread.

    Args:
        url: `mysql://user:password@host:port` of a user who may create databases and users.
    Raises:
        ValueError: the address cannot be read.
        BackendUnavailable: on entering, if the server does not answer or refuses that user.
    """

    def __init__(self, url: str) -> None:
        self._pool = Pool(url)
        self._statements = KeptTables[tuple[_Making, ...]](lambda made: sum(len(each.rest) for each in made))

    def __enter__(self) -> MysqlBackend:
        self._pool.open()
        return self

    def open(
        self, tables: Sequence[Table], *, typed: bool, statement_timeout_s: float = STATEMENT_TIMEOUT_S
    ) -> MysqlDatabase:
        slot = self._pool.take()

        def make() -> tuple[_Making, ...]:
            with slot.admin.cursor() as cursor:
                return _statements(cursor, slot.name, tables, typed=typed, max_bytes=self._pool.max_statement_bytes)

        database = MysqlDatabase(self._pool, slot, typed=typed, statement_timeout_s=statement_timeout_s)
        try:
            with self._pool.failures_named():
                _make_tables(slot.admin, slot.name, self._statements.of(tables, make, typed=typed))
        except BaseException:  # Ctrl-C too leaves no database behind
            database.close()
            raise
        return database

    def live_databases(self) -> int:
        return self._pool.live_databases()

    def close(self) -> None:
        self._pool.close()


class MysqlDatabase(Database):
    def __init__(self, pool: Pool, slot: Slot, *, typed: bool, statement_timeout_s: float) -> None:
        self._pool, self._slot = pool, slot
        self._typed, self.statement_timeout_s, self.used_s = typed, statement_timeout_s, 0.0
        self._closed = self._full = False
        # Seconds that statements have written since the database was last measured.
        self._unmeasured_s = 0.0

    def run(self, sql: str) -> Result:
        if len(sql.encode("utf-8", "replace")) > MAX_SQL_BYTES:
            return Result(error=f"1153 (08S01): Got a packet bigger than {MAX_SQL_BYTES} bytes")
        refused = _FULL if self._full else refusal(sql) or explosion(sql)
        if refused:
            return Result(error=refused)
        if uses_catalogue(sql):
            self._pool.make_catalogue()
        agent = self._pool.session(self._slot, typed=self._typed, statement_timeout_s=self.statement_timeout_s)
        started = time.monotonic()
        try:
            with self._pool.reaper.watching(agent, self._slot.name, self.statement_timeout_s):
                result = self._answered(agent, sql, started + self.statement_timeout_s)
        finally:
            took_s = time.monotonic() - started
            self.used_s += took_s
        self._unmeasured_s += took_s if may_write(sql) else 0.0
        if self._unmeasured_s > _MEASURE_AFTER_S:
            with self._pool.failures_named():
                size_bytes = self._pool.sizes_bytes(self._slot.admin).get(self._slot.name, 0)
            self._full, self._unmeasured_s = size_bytes > MAX_DATABASE_BYTES, 0.0
        return Result(error=_FULL) if self._full and result.error is not None else result

    def new_session(self) -> None:
        if self._slot.settings is not None and self._slot.agent is not None:
            with self._pool.failures_named():
                self._pool.reset(self._slot, commit=True)  # always, as many settings leave a transaction open

    def table_hash(self, tables: Sequence[Table]) -> str | None:
        self.new_session()
        with self._pool.failures_named():
            return StateReader(self._pool, self._slot).table_hash(tables)

    def snapshot(self) -> dict[str, TableState]:
        self.new_session()
        with self._pool.failures_named():
            return StateReader(self._pool, self._slot).snapshot()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._pool.give_back(self._slot)

    def _answered(self, agent: Connection, sql: str, deadline: float) -> Result:
        cursor = SSCursor(agent)
        try:
            cursor.execute(self._as_sent(sql))
            return self._fetched(cursor, deadline, sql)
        except pymysql.Error as error:
            return Result(error=self._driver_text(error, sql)) if agent.open else self._after_loss()
        except UnicodeError:
            return Result(error="1300 (HY000): Invalid utf8mb4 character string")
        finally:
            self._pool.stop_reading(self._slot, cursor)

    def _as_sent(self, sql: str) -> str:
        sql = as_sent(sql, name=self._slot.name, catalogue=self._pool.catalogue)
        if not self._pool.is_mariadb:
            return sql
        # MariaDB before 11.6 lacks MySQL's DELETE FROM t AS x WHERE; DELETE x FROM t AS x means the same
        return unsorted_groups(_ALIASED_DELETE.sub(r"DELETE \2 FROM \1 AS \2 WHERE ", sql, count=1))

    def _fetched(self, cursor: SSCursor, deadline: float, sql: str) -> Result:
        if cursor.description is None:
            return Result()
        clean = partial(self._scrubbed, sql) if tells_messages(sql) else self._neutral
        rows: list[tuple[Any, ...]] = []
        chars = 0
        while len(rows) < MAX_ROWS and chars <= KEPT_CHARS and (row := cursor.fetchone()):
            rows.append(tuple(map(clean, row)))
            chars += row_chars(row, other=0)
            if time.monotonic() > deadline:  # rows that arrive one by one never exceed the wait for a single row
                return Result(error=_LOST)
        return Result(tuple(rows), tuple(self._neutral(column[0]) for column in cursor.description))

    def _after_loss(self) -> Result:
        # The agent caused the loss, unless the server is gone.
        with self._pool.failures_named():
            self._slot.admin.ping(reconnect=False)
            self._pool.end_session(self._slot)
        return Result(error=_LOST)

    def _neutral(self, cell: Any) -> Any:
        return with_neutral_names(cell, catalogue=self._pool.catalogue)

    def _scrubbed(self, sql: str, cell: object) -> object:
        if not isinstance(cell, str):
            return cell
        return scrubbed(cell, catalogue=self._pool.catalogue, private=self._pool.private, sql=sql)

    def _driver_text(self, error: pymysql.Error, sql: str) -> str:
        # AgentBench's driver words it so: `1146 (42S02): Table 'x.y' doesn't exist`.
        number, text = error.args if len(error.args) == 2 else (1105, str(error))
        if number == _NO_EXECUTE and (match := _ROUTINE.search(str(text))):
            return f"1305 (42000): FUNCTION {NEUTRAL_NAME}.{match[1]} does not exist"  # AgentBench's root reads this
        return f"{number} ({getattr(error, 'sqlstate', None) or 'HY000'}): {self._scrubbed(sql, str(text))}"


def explosion(sql: str) -> str | None:
    """Refuse a statement that MariaDB's optimizer, which ignores KILL, would never finish."""
    lowered = sql.lower()
    if lowered.count("select") <= _HARMLESS_SELECTS or "from" not in lowered:
        return None
    num_selects = sum(token.text.lower() == "select" for token in tokens(sql))
    if num_selects <= _HARMLESS_SELECTS:
        return None
    try:
        with time_limit(_PARSE_S):
            refused = any(tree is not None and exceeds_limits(tree) for tree in parse_statements(sql))
    except (RecursionError, *PARSER_ERRORS):
        refused = num_selects > _MAX_UNREAD_SELECTS
    except StatementTimeout:
        refused = True
    return "1116 (HY000): Too many tables; MariaDB can only use 61 tables in a join" if refused else None


def unsorted_groups(sql: str) -> str:
    """Add ORDER BY NULL where the outermost query groups without ordering: MariaDB sorts groups, MySQL 8 does not.

    `dialect.queries` says why it matters. Common table expressions, unions and WITH ROLLUP stay as they are.
    """
    depth = end = 0
    first = previous = ""
    cut: int | None = None
    grouped = False
    for token in tokens(sql, blanks=False):
        word = token.text.lower() if token.kind in ("word", "sign") else ""
        depth += (word == "(") - (word == ")")
        first = first or word
        if depth == 0 and word in _LEFT_ALONE:
            return sql
        grouped = grouped or (depth == 0 and (previous, word) == ("group", "by"))
        if grouped and depth == 0 and cut is None and word in _AFTER_ORDER:
            cut = token.start
        previous = word
        end = end if word == ";" else token.start + len(token.text)
    if first != "select" or not grouped:
        return sql
    cut = end if cut is None else cut
    return f"{sql[:cut].rstrip()} ORDER BY NULL {sql[cut:]}"


# The tables of a task -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Making:
    """A statement that makes or fills a table."""

    table: str
    verb: bytes
    rest: bytes
    """What follows the database's name."""

    def sent(self, database: str) -> bytes:
        return self.verb + database.encode() + b"." + self.rest


def _make_tables(admin: Connection, database: str, statements: Sequence[_Making]) -> None:
    """Raises TableError: the server does not take a name, a type or a cell; pymysql.Error: another error of it."""
    sent = [statement.sent(database) for statement in statements]
    few = sum(map(len, sent)) <= _TOGETHER_BYTES
    answers = together(admin, *sent) if few else (together(admin, each)[0] for each in sent)
    for statement, error in zip(statements, answers, strict=True):
        if isinstance(error, pymysql.Error):
            number, *text = error.args
            if not isinstance(error, _FAULT_KINDS) and number not in _FAULTS:
                raise error
            said = ": ".join(map(str, (number, *text))).replace(database, NEUTRAL_NAME)
            raise _fault(statement.table, said) from error


def _statements(
    cursor: Cursor, database: str, tables: Sequence[Table], *, typed: bool, max_bytes: int
) -> tuple[_Making, ...]:
    """The statements that make and fill the tables.

    Args:
        typed: use the declared types; False makes every column TEXT.
        max_bytes: the longest statement that is sent; the server ends the session over a longer one.
    Raises:
        TableError: a name or a cell cannot be sent.
    """
    check_tables(tables)
    found: list[_Making] = []
    for table in tables:
        try:
            found += _of_table(cursor, database, table, typed=typed, max_bytes=max_bytes)
        # `_check_size` raised it, or a text is no Unicode, or pymysql cannot write a float that is not finite
        except (ValueError, pymysql.ProgrammingError) as error:
            raise _fault(table.name, str(error)) from error
    return tuple(found)


def _of_table(cursor: Cursor, database: str, table: Table, *, typed: bool, max_bytes: int) -> Iterator[_Making]:
    columns = ", ".join(f"{backquoted(c.name)} {_column_type(c.type) if typed else 'TEXT'}" for c in table.columns)
    create = _Making(table.name, b"CREATE TABLE ", f"{backquoted(table.name)} ({columns})".encode())
    _check_size(create.sent(database), max_bytes)
    yield create
    values, marks = f"{backquoted(table.name)} VALUES ".encode(), f"({', '.join('%s' for _ in table.columns)})"
    longest = min(_INSERT_BYTES, max_bytes - len(_Making(table.name, b"INSERT INTO ", values).sent(database)))
    batch: list[bytes] = []
    size_bytes = 0
    for row in table.rows:
        text = cursor.mogrify(marks, [cell if cell is None or typed else str(cell) for cell in row]).encode()
        if batch and size_bytes + len(text) > longest:
            yield _Making(table.name, b"INSERT INTO ", values + b",".join(batch))
            batch, size_bytes = [], 0
        batch.append(text)
        size_bytes += len(text) + 1
        _check_size(_Making(table.name, b"INSERT INTO ", values + text).sent(database), max_bytes)
    if batch:
        yield _Making(table.name, b"INSERT INTO ", values + b",".join(batch))


def _check_size(sql: bytes, max_bytes: int) -> None:
    if len(sql) > max_bytes:
        raise ValueError(f"a statement of {len(sql)} bytes, the server takes {max_bytes}")


def _fault(table: str, reason: str) -> TableError:
    return TableError(f"table {table!r} cannot be made: {reason}; correct the task file")


def _column_type(declared: str) -> str:
    """A type as it is, or without what stands behind it, such as NOT NULL; TEXT for an unknown one."""
    if _DECLARED_TYPE.fullmatch(declared):
        return declared
    name, sizes, unsigned = column_type(declared)
    if name not in _KNOWN_TYPES and name not in _SIZED_TYPES:
        return "TEXT"
    sized = f"({','.join(map(str, sizes)) or _SIZED_TYPES[name]})" if name in _SIZED_TYPES else ""
    return f"{name}{sized}{' UNSIGNED' if unsigned else ''}"

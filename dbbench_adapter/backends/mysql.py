"""Episodes on MariaDB or MySQL through pymysql: the faithful backend.

Each episode gets a database, made and dropped with it, and talks to it as a user who may do nothing elsewhere. Users
and the administrator's connections are kept and used again. A statement that overruns is ended by the server, or by
us where the agent took that limit away. It does not guard against filling the server's disk or memory; and what a
killed process leaves on a server that others run (`agentgrpo_...` databases and users) stays there.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql
from pymysql.cursors import Cursor, SSCursor

from dbbench_adapter.backends.base import (
    MAX_ROWS,
    STATEMENT_TIMEOUT_S,
    BackendUnavailable,
    Result,
    TableError,
    TableState,
    check_tables,
    hash_rows,
    join_hashes,
)
from dbbench_adapter.backends.mysql_kinds import plain
from dbbench_adapter.types import Table

CONNECT_TIMEOUT_S = 10.0
ADMIN_TIMEOUT_S = 30.0
MAX_RESULT_CHARS = 4_000_000
_PREFIX = "agentgrpo_"
_GRANTS = "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX, CREATE TEMPORARY TABLES, CREATE VIEW, SHOW VIEW"
_MODES = (  # MySQL 8's defaults; MariaDB's are laxer
    "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
)
_GROUP_CONCAT_MAX_LEN = 1024  # MySQL's default; MariaDB's is 1 MiB
_DECLARED_TYPE = re.compile(r"[A-Z]+( ?\( ?\d+( ?, ?\d+)? ?\))?( UNSIGNED)?", re.IGNORECASE)
_ALIASED_DELETE = re.compile(r"^\s*DELETE\s+FROM\s+(`[^`]+`|\w+)\s+(?:AS\s+)?(`[^`]+`|\w+)\s+WHERE\s", re.IGNORECASE)
_CHUNK_ROWS = 100
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

_Connection = pymysql.Connection


@dataclass
class _Slot:
    """A database name, the user who may use it, and the administrator's connection that looks after both."""

    name: str
    password: str
    admin: _Connection


class MysqlBackend:
    """Makes databases on one server; `open` may be called from any thread.

    Args:
        url: `mysql://user:password@host:port` of a user who may create databases and users.
    Raises:
        BackendUnavailable: on entering; the server does not answer or refuses that user.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 3306
        self._user, self._password = unquote(parts.username or "root"), unquote(parts.password or "")
        self._free: deque[_Slot] = deque()
        self._all: list[_Slot] = []

    def __enter__(self) -> MysqlBackend:
        slot = self._new_slot()
        self._free.append(slot)
        self.is_mariadb = "mariadb" in slot.admin.get_server_info().lower()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def open(
        self, tables: Sequence[Table], *, typed: bool, statement_timeout_s: float = STATEMENT_TIMEOUT_S
    ) -> MysqlDatabase:
        check_tables(tables)
        slot = self._take_slot()
        database = MysqlDatabase(self, slot, typed=typed, statement_timeout_s=statement_timeout_s)
        try:
            with self.failures_named():
                self._make(slot, tables, typed=typed)
        except BaseException:
            database.close()
            raise
        return database

    def live_databases(self) -> int:
        with self.failures_named(), self._connect(self._user, self._password) as admin:
            cursor = admin.cursor()
            cursor.execute("SHOW DATABASES")
            return len({slot.name for slot in self._all} & {name for (name,) in cursor.fetchall()})

    def close(self) -> None:
        """Take what is ours off the server; databases still open are dropped under their episodes."""
        self._free.clear()
        slots, self._all = self._all, []
        with contextlib.suppress(pymysql.Error), self._connect(self._user, self._password) as admin:
            cursor = admin.cursor()
            for slot in slots:
                slot.admin.close()
                cursor.execute(f"DROP DATABASE IF EXISTS {slot.name}")
                cursor.execute(f"DROP USER IF EXISTS {slot.name}")

    def connect_agent(self, slot: _Slot, *, typed: bool, statement_timeout_s: float) -> _Connection:
        """A session of the episode's user with MySQL's manners, whichever server it is."""
        limit = f"max_execution_time = {round(statement_timeout_s * 1000)}"
        modes = _MODES
        if self.is_mariadb:
            limit = f"max_statement_time = {statement_timeout_s}"
            # Strict, it refuses UPDATE ... WHERE text = 1 over a text that is no number, where MySQL compares
            # (standard-278 and -295); in TEXT columns strictness has nothing else to say.
            modes = _MODES if typed else _MODES.replace("STRICT_TRANS_TABLES,", "")
        session = self._connect(
            slot.name,
            slot.password,
            sql_mode=modes,
            init_command=f"SET SESSION group_concat_max_len = {_GROUP_CONCAT_MAX_LEN}, {limit}",
            read_timeout=statement_timeout_s + 1,  # the server's own limit comes first, with the better message
        )
        with contextlib.suppress(pymysql.OperationalError):  # the agent dropped it: "no database selected" from now on
            session.select_db(slot.name)
        return session

    def give_back(self, slot: _Slot) -> None:
        """Drop the slot's database; a slot whose connection is gone is not used again."""
        try:
            with slot.admin.cursor() as cursor:
                cursor.execute(f"DROP DATABASE IF EXISTS {slot.name}")
        except pymysql.Error:
            return
        self._free.append(slot)

    @contextmanager
    def failures_named(self) -> Iterator[None]:
        """Turn what goes wrong between us and the server into `BackendUnavailable`."""
        try:
            yield
        except pymysql.Error as error:
            raise BackendUnavailable(
                f"database server at {self._host}:{self._port}: {error}; it has to run and let {self._user!r} create "
                "databases and users"
            ) from error

    def _take_slot(self) -> _Slot:
        while self._free:
            with contextlib.suppress(IndexError, pymysql.Error):  # another thread was faster; the server closed it
                slot = self._free.pop()
                slot.admin.ping()
                return slot
        return self._new_slot()

    def _new_slot(self) -> _Slot:
        with self.failures_named():
            admin = self._connect(self._user, self._password, read_timeout=ADMIN_TIMEOUT_S)
            slot = _Slot(f"{_PREFIX}{secrets.token_hex(8)}", secrets.token_hex(16), admin)
            with admin.cursor() as cursor:
                cursor.execute(f"CREATE USER {slot.name} IDENTIFIED BY '{slot.password}'")
                cursor.execute(f"GRANT {_GRANTS} ON {slot.name}.* TO {slot.name}")
        self._all.append(slot)
        return slot

    def _connect(self, user: str, password: str, *, sql_mode: str = _MODES, **more: Any) -> _Connection:
        return pymysql.connect(
            host=self._host,
            port=self._port,
            user=user,
            password=password,
            charset="utf8mb4",
            sql_mode=sql_mode,
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_S,
            write_timeout=ADMIN_TIMEOUT_S,
            ssl_disabled=self._host in _LOOPBACK,  # a TLS context costs 44 ms (measured), twice an episode
            **more,
        )

    def _make(self, slot: _Slot, tables: Sequence[Table], *, typed: bool) -> None:
        # ignore case and accents, heed trailing blanks: what MySQL 8 does by default
        collation = "utf8mb4_unicode_520_nopad_ci" if self.is_mariadb else "utf8mb4_0900_ai_ci"
        with slot.admin.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {slot.name} CHARACTER SET utf8mb4 COLLATE {collation}")
            for table in tables:
                try:
                    _make_table(cursor, slot.name, table, typed=typed)
                except (pymysql.DataError, pymysql.ProgrammingError, pymysql.NotSupportedError) as error:
                    raise TableError(f"table {table.name!r} cannot be made: {error}; correct the task file") from error


class MysqlDatabase:
    """The database of one episode; see `Database` for what its methods promise."""

    def __init__(self, backend: MysqlBackend, slot: _Slot, *, typed: bool, statement_timeout_s: float) -> None:
        self._backend, self._slot = backend, slot
        self._typed, self._timeout_s = typed, statement_timeout_s
        self._agent: _Connection | None = None
        self._closed = False

    def run(self, sql: str) -> Result:
        agent = self._agent = self._agent or self._session()
        try:
            with SSCursor(agent) as cursor:
                cursor.execute(_deletable(sql) if self._backend.is_mariadb else sql)
                return _fetched(cursor)
        except pymysql.Error as error:
            return Result(error=_driver_text(error)) if agent.open else self._after_loss(agent)
        except UnicodeError:
            return Result(error="1300 (HY000): Invalid utf8mb4 character string")

    def new_session(self) -> None:
        if self._agent is not None:
            with contextlib.suppress(pymysql.Error), self._agent:
                self._agent.commit()
            self._agent = None

    def table_hash(self, tables: Sequence[Table]) -> str | None:
        self.new_session()
        with self._backend.failures_named():
            try:
                return join_hashes(hash_rows(self._joined_rows(table)) for table in tables)
            except pymysql.Error:
                if not self._slot.admin.open:
                    raise
                return None

    def snapshot(self) -> dict[str, TableState]:
        self.new_session()
        with self._backend.failures_named(), self._slot.admin.cursor() as cursor:
            # unlike SHOW TABLES no error where the agent dropped the database
            of_ours = f"table_schema = '{self._slot.name}' AND table_type = 'BASE TABLE'"
            cursor.execute(f"SELECT table_name FROM information_schema.tables WHERE {of_ours}")
            return {name: self._state(cursor, name) for (name,) in cursor.fetchall()}

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._agent is not None and self._agent.open:
            self._agent.close()
        self._backend.give_back(self._slot)

    def __enter__(self) -> MysqlDatabase:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _session(self) -> _Connection:
        with self._backend.failures_named():
            return self._backend.connect_agent(self._slot, typed=self._typed, statement_timeout_s=self._timeout_s)

    def _after_loss(self, agent: _Connection) -> Result:
        """The agent's session is gone: ended by itself or overrun, its own doing as long as the server lives."""
        self._agent = None
        with self._backend.failures_named():
            self._slot.admin.ping()
        with contextlib.suppress(pymysql.Error), self._slot.admin.cursor() as cursor:
            cursor.execute(f"KILL {agent.thread_id()}")
        return Result(error="2013 (HY000): Lost connection to MySQL server during query")

    def _joined_rows(self, table: Table) -> Iterator[str]:
        columns = ", ".join(_quoted(column.name) for column in table.columns)
        with self._slot.admin.cursor() as cursor:
            cursor.execute(f"SELECT CONCAT_WS(',', {columns}) FROM {self._slot.name}.{_quoted(table.name)}")
            return (text for (text,) in cursor.fetchall())

    def _state(self, cursor: Cursor, name: str) -> TableState:
        cursor.execute(f"SELECT * FROM {self._slot.name}.{_quoted(name)}")
        columns = tuple(column[0] for column in cursor.description)
        return TableState(columns, tuple(tuple(plain(cell) for cell in row) for row in cursor.fetchall()))


def _make_table(cursor: Cursor, database: str, table: Table, *, typed: bool) -> None:
    columns = ", ".join(f"{_quoted(c.name)} {_column_type(c.type) if typed else 'TEXT'}" for c in table.columns)
    cursor.execute(f"CREATE TABLE {database}.{_quoted(table.name)} ({columns})")
    if table.rows:
        marks = ", ".join("%s" for _ in table.columns)
        name = _quoted(table.name).replace("%", "%%")
        rows = [[cell if cell is None or typed else str(cell) for cell in row] for row in table.rows]
        cursor.executemany(f"INSERT INTO {database}.{name} VALUES ({marks})", rows)


def _column_type(declared: str) -> str:
    return declared if _DECLARED_TYPE.fullmatch(declared) else "TEXT"


def _fetched(cursor: SSCursor) -> Result:
    if cursor.description is None:
        return Result()
    rows: list[tuple[Any, ...]] = []
    chars = 0
    while len(rows) < MAX_ROWS and chars < MAX_RESULT_CHARS and (chunk := cursor.fetchmany(_CHUNK_ROWS)):
        rows += chunk
        chars += sum(len(cell) for row in chunk for cell in row if isinstance(cell, str | bytes))
    return Result(tuple(rows), tuple(column[0] for column in cursor.description))


def _deletable(sql: str) -> str:
    """MariaDB before 11.6 knows no DELETE FROM t AS x WHERE, which MySQL does; DELETE x FROM t AS x is the same."""
    return _ALIASED_DELETE.sub(r"DELETE \2 FROM \1 AS \2 WHERE ", sql, count=1)


def _driver_text(error: pymysql.Error) -> str:
    """As AgentBench's driver words it: `1146 (42S02): Table 'x.y' doesn't exist`."""
    number, text = error.args if len(error.args) == 2 else (1105, str(error))
    return f"{number} ({getattr(error, 'sqlstate', None) or 'HY000'}): {text}"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"

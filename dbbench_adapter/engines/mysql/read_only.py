"""Reads a user's own database on a MySQL or MariaDB server, which others use too.

The account may read this one database and nothing else (`check_grants`), each statement is a query (`allowed_sql` with
the rules below) in a READ ONLY transaction, and the server's own time limit ends it. All episodes of a process share a
few connections, each for one statement at a time; after it the session is reset. It does not guard against a query
that keeps the server busy until its time is up, or a function that the server finishes after that.
"""

from __future__ import annotations

import contextlib
import datetime
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pymysql
from pymysql.cursors import SSCursor

from dbbench_adapter.dialect.lexer import tokens
from dbbench_adapter.dialect.sql_types import to_cell
from dbbench_adapter.engines.address import Address
from dbbench_adapter.engines.base import BackendUnavailable, Result, row_chars
from dbbench_adapter.engines.engine import TOO_LONG
from dbbench_adapter.engines.mysql import parse_address
from dbbench_adapter.engines.mysql.allowed_sql import refusal
from dbbench_adapter.engines.mysql.backend import explosion
from dbbench_adapter.engines.mysql.pool import (
    CONNECT_TIMEOUT_S,
    GIVE_UP_AFTER_S,
    MODES,
    Connection,
    drop_rest,
    hang_up,
    open_connection,
    reset_connection,
)
from dbbench_adapter.engines.server import MAX_SQL_CHARS, OUT_OF_TIME, REFUSAL, AccountError, ConnectionPool

_READING = frozenset(("USAGE", "SELECT", "SHOW VIEW"))
_QUERIES = ("select", "with", "values")
_CALLS = frozenset((("sleep", "("), ("benchmark", "(")))
# It shows the statements that run under the same account, and so the references of other rollouts.
_OTHER_SESSIONS = ("information_schema", ".", "processlist")
_LOCKS = frozenset((("for", "update"), ("for", "share"), ("share", "mode")))
# Errors of MariaDB and MySQL about a statement whose time is up.
_TOO_LONG = frozenset((1969, 3024))
_NAME = r"`(?:[^`]|``)*`|\*"
_GRANT = re.compile(rf"GRANT (.+?) ON (?:[A-Z ]+ )?({_NAME})\.({_NAME}) TO .*?( WITH GRANT OPTION)?$", re.DOTALL)
_ACCOUNT = re.compile(r"'[^']*'@'[^']*'")


def check_grants(grants: Sequence[str], address: Address, visible: Sequence[str] = ()) -> None:
    """Refuse an account that may do more than read its database.

    Args:
        grants: what SHOW GRANTS says about the account. It is not shown, since MariaDB's may hold the password's hash.
        visible: the databases that the account sees, since an underscore in a grant stands for any character.
    Raises:
        AccountError: the message says which privilege is too much, and gives the statements that make an account.
    """
    others = [name for name in visible if name.lower() != address.database.lower()]
    found = [excess for grant in grants if (excess := _excess(grant, address.database, others))]
    if not found:
        return
    database = "`" + re.sub(r"[_%]", r"\\\g<0>", address.database.replace("`", "``")) + "`"
    raise AccountError(
        f"{address.shown}: the account may do more than read this database: {'; '.join(found)}. Make one that may only "
        f"read, and give its address: CREATE USER 'agent_reader'@'%' IDENTIFIED BY '...'; "
        f"GRANT SELECT, SHOW VIEW ON {database}.* TO 'agent_reader'@'%';"
    )


def _excess(grant: str, database: str, others: Sequence[str]) -> str | None:
    """What a line of SHOW GRANTS allows too much.

    Args:
        others: further databases that the account sees.
    """
    match = _GRANT.match(grant)
    if match is None:
        role = re.match(r"GRANT (.+?) TO ", grant)  # else SET DEFAULT ROLE, which comes after the role
        return f"{role[1]} (a role, or a privilege that no table has)" if role else None
    listed, schema, table, may_grant = match.groups()
    privileges = [name.strip() for name in re.sub(r"\([^)]*\)", "", listed).split(",")]
    where = f"{schema}.{table}"
    if too_much := [name for name in privileges if name.upper() not in _READING]:
        return f"{', '.join(too_much)} on {where}"
    if may_grant:
        return f"GRANT OPTION on {where}"
    if privileges == ["USAGE"]:
        return None
    name = schema[1:-1].replace("``", "`")
    if name.replace("\\", "").lower() != database.lower():  # an underscore of the name may be escaped
        return f"{', '.join(privileges)} on {where}"
    also = [other for other in others if table == "*" and _pattern(name).fullmatch(other)]
    return f"{', '.join(privileges)} on {where}, which is also {', '.join(also)}" if also else None


def _pattern(name: str) -> re.Pattern[str]:
    # In a grant _ is any character and % any text, unless a backslash is before it.
    parts = re.findall(r"\\.|.", name, re.DOTALL)
    return re.compile("".join({"_": ".", "%": ".*"}.get(part) or re.escape(part[-1]) for part in parts), re.IGNORECASE)


def why_refused(sql: str) -> str | None:
    if len(sql) > MAX_SQL_CHARS:
        return f"the statement is longer than {MAX_SQL_CHARS} characters"
    parts = list(tokens(sql, blanks=False))
    while parts and parts[-1].text == ";":
        parts.pop()
    words = [part.text.lower() for part in parts]
    first = next((word for word in words if word != "("), "")
    if first not in _QUERIES or ";" in words or "into" in words or _LOCKS & {*pairwise(words)}:
        return REFUSAL
    names = [part.identifier or part.text for part in parts]
    if _CALLS & {*pairwise(names)} or _OTHER_SESSIONS in zip(names, names[1:], names[2:], strict=False):
        return REFUSAL
    return refusal(sql) or explosion(sql)


class MysqlReader:
    """Runs queries on the database at an address, from any thread; connections are made when they are needed.

    Raises:
        ValueError: the address cannot be read.
    """

    def __init__(self, spec: str) -> None:
        self.address = parse_address(spec, of_database=True)
        self._pool = ConnectionPool[Connection](
            self.address.shown, connect=self._connect, revive=_revived, reset=_reset, hang_up=hang_up
        )
        self._checked = False

    def run(self, sql: str, *, timeout_s: float, max_rows: int, max_chars: int) -> Result:
        """See `server.ReadOnlyServer`."""
        if (fault := why_refused(sql)) is not None:
            return Result(error=fault)
        with self._pool.lent() as connection:
            with self._failures_named():
                self._prepare(connection, timeout_s)
            started = time.monotonic()
            try:
                return _answer(connection, sql, timeout_s, max_rows, max_chars)
            except UnicodeError:
                return Result(error="the statement is no valid text")
            except pymysql.Error as error:
                number, text = error.args if len(error.args) == 2 else (0, str(error))
                if number in _TOO_LONG:
                    return Result(error=OUT_OF_TIME)
                if connection.open:
                    return Result(error=_ACCOUNT.sub("'agent'", f"{number}: {text}"))
            if time.monotonic() - started < timeout_s:
                raise BackendUnavailable(f"{self.address.shown}: the connection was lost during a statement")
            self._end(connection)
            return Result(error=OUT_OF_TIME)

    def query(self, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Raises AccountError, BackendUnavailable: see `run`."""
        with self._pool.lent() as connection, self._failures_named():
            self._prepare(connection, CONNECT_TIMEOUT_S)
            with connection.cursor() as cursor:
                cursor.execute(sql, arguments)
                return list(cursor.fetchall())

    def version(self) -> str:
        """Raises AccountError, BackendUnavailable: see `run`."""
        ((version,),) = self.query("SELECT VERSION()")
        return f"{'MariaDB' if 'mariadb' in version.lower() else 'MySQL'} {version.partition('-')[0]}"

    def close(self) -> None:
        self._pool.close()

    def _connect(self) -> Connection:
        with self._failures_named():
            return self._checked_connection()

    def _checked_connection(self) -> Connection:
        connection = open_connection(
            self.address.host,
            port=self.address.port,
            user=self.address.user,
            password=self.address.password,
            database=self.address.database,
            read_timeout=CONNECT_TIMEOUT_S,
            write_timeout=CONNECT_TIMEOUT_S,
        )
        if not self._checked:
            try:
                with connection.cursor() as cursor:
                    # otherwise the server may quote names in another way (ANSI_QUOTES), or not at all
                    cursor.execute(f"SET SESSION sql_mode = '{MODES}', SESSION sql_quote_show_create = 1")
                    cursor.execute("SHOW GRANTS")
                    grants = [str(grant) for (grant,) in cursor.fetchall()]
                    cursor.execute("SELECT schema_name FROM information_schema.schemata")  # SHOW DATABASES may be off
                    check_grants(grants, self.address, [str(name) for (name,) in cursor.fetchall()])
            except AccountError:
                hang_up(connection)
                raise
            self._checked = True
        return connection

    def _prepare(self, connection: Connection, timeout_s: float) -> None:
        limit = f"max_execution_time = {round(timeout_s * 1000)}"
        if "mariadb" in connection.get_server_info().lower():
            # KILL takes effect once per join buffer
            limit = f"max_statement_time = {timeout_s}, SESSION join_cache_level = 0"
        setattr(connection, "_read_timeout", timeout_s + GIVE_UP_AFTER_S)  # noqa: B010
        with connection.cursor() as cursor:
            # `allowed_sql` reads quotes as these modes do
            cursor.execute(f"SET NAMES utf8mb4, SESSION sql_mode = '{MODES}', SESSION {limit}")
            cursor.execute("START TRANSACTION READ ONLY")

    def _end(self, connection: Connection) -> None:
        # Every account may end its own statements through another connection.
        with self._failures_named():
            other = self._checked_connection()
            with other, other.cursor() as cursor, contextlib.suppress(pymysql.OperationalError):  # it has ended
                cursor.execute(f"KILL {connection.thread_id()}")

    @contextmanager
    def _failures_named(self) -> Iterator[None]:
        try:
            yield
        except (pymysql.Error, OSError) as error:
            raise BackendUnavailable(
                f"{self.address.shown}: {_ACCOUNT.sub('the account', str(error))}; the server has to run and let the "
                "account read the database"
            ) from None


def _revived(connection: Connection) -> bool:
    with contextlib.suppress(pymysql.Error, OSError):
        connection.ping(reconnect=False)
        return True
    return False


def _reset(connection: Connection) -> bool:
    with contextlib.suppress(pymysql.Error, OSError):
        reset_connection(connection)
        return True
    return False


def _answer(connection: Connection, sql: str, timeout_s: float, max_rows: int, max_chars: int) -> Result:
    deadline = time.monotonic() + timeout_s
    rows: list[tuple[Any, ...]] = []
    chars = 0
    cursor = SSCursor(connection)
    try:
        cursor.execute(sql)
        while (row := cursor.fetchone()) is not None:
            rows.append(tuple(map(_plain, row)))
            chars += row_chars(row)
            if chars > max_chars:
                return Result(error=TOO_LONG)
            if time.monotonic() > deadline:  # rows that come one by one never exceed the wait for one of them
                return Result(error=OUT_OF_TIME)
            if len(rows) >= max_rows:
                break
        return Result(tuple(rows), tuple(column[0] for column in cursor.description or ()))
    finally:
        if drop_rest(cursor):
            hang_up(connection)


def _plain(cell: object) -> object:
    # A cell as SQLite would give it: whole and other numbers, texts, bytes, NULL.
    if isinstance(cell, datetime.timedelta):
        return _time(cell)
    if isinstance(cell, set | frozenset):
        return ",".join(sorted(cell))
    return cell if isinstance(cell, bytes) else to_cell(cell)


def _time(value: datetime.timedelta) -> str:
    # Python writes -1 day, 22:30:00 and 5 days, 5:00:00 where MySQL writes -01:30:00 or 125:00:00.
    seconds, micros = divmod(abs(value) // datetime.timedelta(microseconds=1), 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    sign, fraction = "-" if value < datetime.timedelta() else "", f".{micros:06d}" if micros else ""
    return f"{sign}{hours:02d}:{minutes:02d}:{seconds:02d}{fraction}"

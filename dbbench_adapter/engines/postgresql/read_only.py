"""Reads a user's own database on a PostgreSQL server, which others use too.

The account may only read (`account`), each statement is a query (`allowed_sql`) in a READ ONLY transaction of its own,
sent by the extended protocol, which takes one statement; the server's own time limit ends it. Rows come one by one, and
the server refuses to send one that is too long. All episodes of a process share a few connections, each for one
statement at a time; before it the session is reset. It does not guard against a query that keeps the server busy, or
takes memory and temporary files there, until its time is up.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.pq.abc import PGconn

from dbbench_adapter.datatypes import DatabaseError
from dbbench_adapter.engines.address import parse_address
from dbbench_adapter.engines.base import BackendUnavailable, Result, row_chars
from dbbench_adapter.engines.engine import TOO_LONG
from dbbench_adapter.engines.planning import check_plan
from dbbench_adapter.engines.postgresql import FORM, POSTGRESQL
from dbbench_adapter.engines.postgresql.account import EXCESS, check_account
from dbbench_adapter.engines.postgresql.allowed_sql import FORBIDDEN, Forbidden, why_refused, without_end
from dbbench_adapter.engines.postgresql.exchange import ServerError, cells, execute, finish, results, rows
from dbbench_adapter.engines.server import OUT_OF_TIME, ConnectionPool

CONNECT_TIMEOUT_S = 10.0
# We stop waiting for the server this long after a statement's limit.
GIVE_UP_AFTER_S = 0.75
# MATERIALIZED is version 12's.
_OLDEST = 12
# pg_catalog comes first where it is not named.
_SEARCH_PATH = (
    "SELECT quote_ident(s) FROM unnest(current_schemas(false)) WITH ORDINALITY AS u(s, n) WHERE s <> 'pg_catalog' "
    "ORDER BY n"
)
# How results are written, and how texts are read.
_SETTINGS = (
    "SET LOCAL standard_conforming_strings = on; SET LOCAL DateStyle = 'ISO, MDY'; SET LOCAL IntervalStyle = postgres; "
    "SET LOCAL bytea_output = hex; SET LOCAL extra_float_digits = 1; "
    # compiling a join without statistics takes a hundred times as long as its answer (93 ms, measured)
    "SET LOCAL jit = off;"
)
# The query runs as it would alone, once, and the server measures each row before it sends it: libpq would hold a cell
# of a gigabyte whole. Beyond the limit the row is this error instead. A text may be twice as long in a row as alone.
_TOO_LONG = "agentgrpo: a row of "
_MEASURED = (
    "WITH q AS MATERIALIZED (\n{sql}\n) SELECT q.* FROM q WHERE CASE WHEN octet_length((q.*)::text) > {max_bytes} "
    f"THEN CAST('{_TOO_LONG}' || octet_length((q.*)::text) AS integer) = 0 ELSE true END LIMIT {{max_rows}}"
)
_BYTES_PER_CHAR = 8
# Classes of SQLSTATE that are no fault of the statement: conflicts with replication, shutdown, a lock's timeout.
_NO_FAULT = ("40", "57P", "55P03")
_CANCELLED = "57014"


class PostgresReader:
    """Runs queries on the database at an address, from any thread; connections are made when they are needed.

    Raises:
        ValueError: the address cannot be read.
    """

    def __init__(self, spec: str) -> None:
        self.address = parse_address(spec, form=FORM, port=5432)
        self._pool = ConnectionPool[psycopg.Connection[Any]](
            self.address.shown,
            connect=self._connect,
            revive=lambda connection: _does(connection, "DISCARD ALL"),
            reset=lambda connection: _does(connection, "ROLLBACK"),
            hang_up=lambda connection: connection.close(),
        )
        self._checked = False
        self._forbidden: Forbidden = frozenset()
        self._schemas: Sequence[str] = ()

    def run(self, sql: str, *, timeout_s: float, max_rows: int, max_chars: int) -> Result:
        """See `server.ReadOnlyServer`."""
        with self._pool.lent() as connection:
            if (fault := why_refused(sql, self._forbidden) or check_plan(sql, POSTGRESQL)) is not None:
                return Result(error=fault)
            if not _is_text(sql):
                return Result(error="the statement is no valid text")
            self._begin(connection, timeout_s)
            alone, max_bytes = without_end(sql), _BYTES_PER_CHAR * max_chars
            measured = _MEASURED.format(sql=alone, max_bytes=max_bytes, max_rows=max_rows)
            started = time.monotonic()
            try:
                # alone it has to be one whole statement, and the error is about what the agent wrote
                connection.pgconn.send_prepare(b"", sql.encode())
                finish(connection.pgconn, timeout_s + GIVE_UP_AFTER_S)
                left_s = timeout_s + GIVE_UP_AFTER_S - (time.monotonic() - started)
                return _answer(connection.pgconn, measured, left_s, max_chars)
            except ServerError as error:
                if error.state != _CANCELLED and not error.state.startswith(_NO_FAULT):
                    return Result(error=_shown(error, self.address.user))
                if time.monotonic() - started >= timeout_s:
                    return Result(error=OUT_OF_TIME)
                raise self._lost(str(error)) from None
            except TimeoutError:
                connection.close()
                return Result(error=OUT_OF_TIME)
            except psycopg.OperationalError:
                raise self._lost("the connection was lost during a statement") from None

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Raises AccountError, BackendUnavailable: see `run`."""
        with self._pool.lent() as connection, self._failures_named():
            self._begin(connection, CONNECT_TIMEOUT_S)
            return rows(connection.pgconn, sql, CONNECT_TIMEOUT_S)

    def version(self) -> str:
        """Raises AccountError, BackendUnavailable: see `run`."""
        ((version,),) = self.query("SHOW server_version")
        return f"PostgreSQL {version.partition(' ')[0]} (search_path {', '.join(self._schemas)})"

    def close(self) -> None:
        self._pool.close()

    def _connect(self) -> psycopg.Connection[Any]:
        address = self.address
        with self._failures_named():
            connection = psycopg.connect(
                host=address.host,
                port=address.port,
                user=address.user,
                password=address.password or None,
                dbname=address.database,
                client_encoding="utf8",
                connect_timeout=round(CONNECT_TIMEOUT_S),
                autocommit=True,
            )
            try:
                self._look_around(connection.pgconn)
            except BaseException:  # a refused account, or Ctrl-C, leaves no connection behind
                connection.close()
                raise
        return connection

    def _look_around(self, pgconn: PGconn) -> None:
        if pgconn.server_version < _OLDEST * 10_000:
            raise DatabaseError(
                f"{self.address.shown}: PostgreSQL {pgconn.server_version // 10_000}; {_OLDEST} or newer is needed"
            )

        def asked(sql: str) -> list[tuple[Any, ...]]:
            return rows(pgconn, sql, CONNECT_TIMEOUT_S)

        self._schemas = [name for (name,) in asked(_SEARCH_PATH)]
        if not self._checked:
            check_account([line for (line,) in asked(EXCESS)], self.address, self._schemas)
            self._checked = True
        self._forbidden = frozenset((kind, name) for kind, name in asked(FORBIDDEN))

    def _begin(self, connection: psycopg.Connection[Any], timeout_s: float) -> None:
        limit_ms = max(round(timeout_s * 1000), 1)
        path = ", ".join([*self._schemas, "pg_temp"])  # which would otherwise come first
        with self._failures_named():
            for sql in (
                "BEGIN READ ONLY",
                f"{_SETTINGS} SET LOCAL search_path = {path}; SET LOCAL statement_timeout = {limit_ms}; "
                f"SET LOCAL lock_timeout = {max(limit_ms // 2, 1)}; "
                f"SET LOCAL idle_in_transaction_session_timeout = {limit_ms + 10_000}",
            ):
                execute(connection.pgconn, sql, CONNECT_TIMEOUT_S)

    def _lost(self, why: str) -> BackendUnavailable:
        return BackendUnavailable(f"{self.address.shown}: {why}")

    @contextmanager
    def _failures_named(self) -> Iterator[None]:
        try:
            yield
        except (psycopg.Error, ServerError, OSError) as error:
            said = " ".join(str(error).split())
            raise self._lost(f"{said}; the server has to run and let the account read the database") from None


def _shown(error: ServerError, user: str) -> str:
    return TOO_LONG if _TOO_LONG in str(error) else str(error).replace(f'"{user}"', '"agent"')


def _is_text(sql: str) -> bool:
    try:
        return b"\0" not in sql.encode()
    except UnicodeError:
        return False


def _does(connection: psycopg.Connection[Any], sql: str) -> bool:
    with suppress(psycopg.Error, ServerError, OSError):
        execute(connection.pgconn, sql, CONNECT_TIMEOUT_S)
        return True
    return False


def _answer(pgconn: PGconn, sql: str, limit_s: float, max_chars: int) -> Result:
    pgconn.send_query_params(sql.encode(), [])
    pgconn.set_single_row_mode()
    found: list[tuple[Any, ...]] = []
    columns: tuple[str, ...] = ()
    chars = 0
    for result in results(pgconn, limit_s):
        columns = columns or tuple(
            (result.fname(place) or b"").decode("utf-8", "replace") for place in range(result.nfields)
        )
        for row in cells(result):
            found.append(row)
            chars += row_chars(row)
        if chars > max_chars:
            pgconn.finish()
            return Result(error=TOO_LONG)
    return Result(tuple(found), columns)

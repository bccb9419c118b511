"""Opens a user's database on a MySQL or MariaDB server: its schema, and an agent's queries there."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence

from dbbench_adapter.datatypes import DatabaseError
from dbbench_adapter.engines.base import Result, backquoted
from dbbench_adapter.engines.engine import (
    MAX_RESULT_CHARS,
    MAX_RESULT_ROWS,
    SAMPLED_ROWS,
    Databases,
    TableInfo,
    described_columns,
    format_unreadable,
)
from dbbench_adapter.engines.mysql import MYSQL
from dbbench_adapter.engines.mysql.read_only import ReadOnlyServer

_SAMPLES_S = 10.0


class ServerSession:
    # It holds no connection between statements.

    def __init__(self, server: ReadOnlyServer, statement_timeout_s: float) -> None:
        self._server, self.statement_timeout_s, self.used_s = server, statement_timeout_s, 0.0

    def run(self, sql: str) -> Result:
        began = time.monotonic()
        try:
            # one more row shows that there are too many
            return self._server.run(
                sql, timeout_s=self.statement_timeout_s, max_rows=MAX_RESULT_ROWS + 1, max_chars=MAX_RESULT_CHARS
            )
        finally:
            self.used_s += time.monotonic() - began

    def close(self) -> None:
        pass


class ServerDatabase(Databases):
    """The database at `mysql://user:password@host:port/database`.

    Raises:
        DatabaseError: the address cannot be read.
    """

    engine = MYSQL

    def __init__(self, spec: str) -> None:
        try:
            self._server = ReadOnlyServer(spec)
        except ValueError as error:
            raise DatabaseError(str(error)) from None
        self._read: tuple[tuple[TableInfo, ...], dict[str, str]] | None = None

    @property
    def ids(self) -> Sequence[str]:
        return [self._server.address.database]

    def schema(self, db_id: str) -> tuple[TableInfo, ...]:
        return self._schema()[0]

    def unreadable(self, db_id: str) -> dict[str, str]:
        return self._schema()[1]

    def _schema(self) -> tuple[tuple[TableInfo, ...], dict[str, str]]:
        if self._read is None:
            self._read = read_server_schema(self._server)
        return self._read

    def open(self, db_id: str, *, statement_timeout_s: float) -> ServerSession:
        return ServerSession(self._server, statement_timeout_s)

    def summary(self) -> str:
        tables, unreadable = self._schema()
        left_out = f"; left out: {format_unreadable(unreadable)}" if unreadable else ""
        return f"{self._server.version()}, {len(tables)} tables and views, an account that may only read{left_out}"

    def close(self) -> None:
        self._server.close()


def read_server_schema(server: ReadOnlyServer) -> tuple[tuple[TableInfo, ...], dict[str, str]]:
    """Read the tables and views of the database, by name.

    Returns:
        Those that can be read, and why the others cannot, such as a view whose definer or table is gone.
    Raises:
        AccountError: the account may do more than read.
        BackendUnavailable: the server does not answer.
        DatabaseError: there is no table that the account may read.
    """
    database = server.address.database
    listed = server.query(
        "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = %s ORDER BY table_name",
        database,
    )
    columns = defaultdict[str, list[tuple[str, str]]](list)
    for table, column, kind in server.query(
        "SELECT table_name, column_name, column_type FROM information_schema.columns WHERE table_schema = %s "
        "ORDER BY table_name, ordinal_position",
        database,
    ):
        columns[table].append((column, kind))
    keys = defaultdict[str, list[str]](list)
    references = defaultdict[str, list[tuple[str, str, str]]](list)
    for table, constraint, column, other, theirs in server.query(
        "SELECT table_name, constraint_name, column_name, referenced_table_name, referenced_column_name "
        "FROM information_schema.key_column_usage WHERE table_schema = %s "
        "ORDER BY table_name, constraint_name, ordinal_position",
        database,
    ):
        if constraint == "PRIMARY":
            keys[table].append(column)
        elif other is not None:
            references[table].append((column, other, theirs))
    tables, unreadable = [], dict[str, str]()
    for name, kind in listed:
        is_view = kind != "BASE TABLE"
        if (error := _answer(server, f"SELECT 1 FROM {backquoted(name)} LIMIT 0").error) is not None:
            unreadable[name] = f"{error}; a view needs its tables and the account that made it" if is_view else error
            continue
        found = None if is_view else _answer(server, f"SELECT * FROM {backquoted(name)} LIMIT {SAMPLED_ROWS}")
        infos = described_columns(columns[name], found.rows or () if found else ())
        tables.append(TableInfo(name, infos, tuple(keys[name]), tuple(references[name]), is_view, quote="`"))
    if not tables:
        more = f": {format_unreadable(unreadable)}" if unreadable else ""
        raise DatabaseError(f"{server.address.shown} holds no table that the account may read{more}")
    return tuple(tables), unreadable


def _answer(server: ReadOnlyServer, sql: str) -> Result:
    return server.run(sql, timeout_s=_SAMPLES_S, max_rows=SAMPLED_ROWS, max_chars=10_000_000)

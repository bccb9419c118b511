"""Opens a user's database on a MySQL or MariaDB server: its schema, and an agent's queries there."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence

from dbbench_adapter.datatypes import DatabaseError
from dbbench_adapter.engines.base import Result, quoted
from dbbench_adapter.engines.engine import (
    MAX_RESULT_CHARS,
    MAX_RESULT_ROWS,
    SAMPLED_ROWS,
    ColumnInfo,
    Databases,
    TableInfo,
    sample_values,
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
        self._schema: tuple[TableInfo, ...] | None = None

    @property
    def ids(self) -> Sequence[str]:
        return [self._server.address.database]

    def schema(self, db_id: str) -> tuple[TableInfo, ...]:
        if self._schema is None:
            self._schema = read_server_schema(self._server)
        return self._schema

    def open(self, db_id: str, *, statement_timeout_s: float) -> ServerSession:
        return ServerSession(self._server, statement_timeout_s)

    def summary(self) -> str:
        tables = len(self.schema(self.ids[0]))
        return f"{self._server.version()}, {tables} tables and views, an account that may only read"

    def close(self) -> None:
        self._server.close()


def read_server_schema(server: ReadOnlyServer) -> tuple[TableInfo, ...]:
    """Read the tables and views of the database, by name.

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
    tables = []
    for name, kind in listed:
        is_view = kind != "BASE TABLE"
        samples = {} if is_view else _samples(server, name, [column for column, _ in columns[name]])
        infos = tuple(ColumnInfo(column, kind, samples.get(column, ())) for column, kind in columns[name])
        if infos:  # a broken view has none
            tables.append(TableInfo(name, infos, tuple(keys[name]), tuple(references[name]), is_view, quote="`"))
    if not tables:
        raise DatabaseError(f"{server.address.shown} holds no table that the account may read")
    return tuple(tables)


def _samples(server: ReadOnlyServer, table: str, columns: list[str]) -> dict[str, tuple[str, ...]]:
    found = server.run(
        f"SELECT * FROM {quoted(table)} LIMIT {SAMPLED_ROWS}",
        timeout_s=_SAMPLES_S,
        max_rows=SAMPLED_ROWS,
        max_chars=10_000_000,
    )
    return sample_values(columns, found.rows or ())

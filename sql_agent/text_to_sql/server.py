"""Reads the schema of a user's database on a MySQL server, and runs an agent's queries there."""

from __future__ import annotations

from collections import defaultdict

from dbbench_adapter.backends import Result
from dbbench_adapter.backends.mysql.read_only import ReadOnlyServer
from dbbench_adapter.datatypes import DatabaseError
from sql_agent.text_to_sql.sandbox import MAX_RESULT_CHARS, MAX_RESULT_ROWS
from sql_agent.text_to_sql.schema import SAMPLED_ROWS, ColumnInfo, TableInfo, sample_values

_SAMPLES_S = 10.0


class ServerSession:
    """Runs the statements of one episode, or of a judge; it holds no connection between them."""

    def __init__(self, server: ReadOnlyServer, statement_timeout_s: float) -> None:
        self._server, self._timeout_s = server, statement_timeout_s

    def run(self, sql: str) -> Result:
        """Run one statement of the agent.

        Raises:
            BackendUnavailable: the server is gone.
        """
        # one more row shows that there are too many
        return self._server.run(
            sql, timeout_s=self._timeout_s, max_rows=MAX_RESULT_ROWS + 1, max_chars=MAX_RESULT_CHARS
        )

    def close(self) -> None:
        pass


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
    quoted = "`" + table.replace("`", "``") + "`"
    found = server.run(
        f"SELECT * FROM {quoted} LIMIT {SAMPLED_ROWS}",
        timeout_s=_SAMPLES_S,
        max_rows=SAMPLED_ROWS,
        max_chars=10_000_000,
    )
    return sample_values(columns, found.rows or ())

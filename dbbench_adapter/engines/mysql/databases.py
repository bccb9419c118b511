"""Opens a user's database on a MySQL or MariaDB server: its schema, and an agent's queries there."""

from __future__ import annotations

from collections import defaultdict

from dbbench_adapter.datatypes import DatabaseError
from dbbench_adapter.engines.base import Result, backquoted
from dbbench_adapter.engines.engine import SAMPLED_ROWS, TableInfo, described_columns
from dbbench_adapter.engines.mysql import MYSQL
from dbbench_adapter.engines.mysql.read_only import MysqlReader
from dbbench_adapter.engines.server import ServerDatabase

_SAMPLES_S = 10.0


class MysqlDatabase(ServerDatabase):
    """The database at `mysql://user:password@host:port/database`.

    Raises:
        DatabaseError: the address cannot be read.
    """

    engine = MYSQL

    def __init__(self, spec: str) -> None:
        try:
            self._mysql = MysqlReader(spec)
        except ValueError as error:
            raise DatabaseError(str(error)) from None
        super().__init__(self._mysql)

    def read_schema(self) -> tuple[list[TableInfo], dict[str, str]]:
        return read_server_schema(self._mysql)


def read_server_schema(server: MysqlReader) -> tuple[list[TableInfo], dict[str, str]]:
    """See `ServerDatabase.read_schema`; unreadable is a view whose definer or table is gone."""
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
    return tables, unreadable


def _answer(server: MysqlReader, sql: str) -> Result:
    return server.run(sql, timeout_s=_SAMPLES_S, max_rows=SAMPLED_ROWS, max_chars=10_000_000)

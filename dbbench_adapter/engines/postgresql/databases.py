"""Opens a user's database on a PostgreSQL server: the tables and views of the account's search path."""

from __future__ import annotations

from collections import defaultdict

from dbbench_adapter.datatypes import DatabaseError
from dbbench_adapter.engines.base import Result
from dbbench_adapter.engines.engine import SAMPLED_ROWS, TableInfo, described_columns
from dbbench_adapter.engines.postgresql import POSTGRESQL
from dbbench_adapter.engines.postgresql.read_only import PostgresReader
from dbbench_adapter.engines.server import ServerDatabase

_SAMPLES_S = 10.0
# Parts of a partitioned table are left out, and what extensions bring.
_TABLES = """
SELECT c.oid, relname, relkind, quote_ident(relname) FROM pg_class c
WHERE relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT relispartition AND pg_table_is_visible(oid)
    AND relnamespace::regnamespace::name = ANY (current_schemas(false)) AND has_any_column_privilege(oid, 'SELECT')
    AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = c.oid AND deptype = 'e')
ORDER BY relname
"""
_COLUMNS = """
SELECT attrelid, attname, format_type(atttypid, atttypmod), quote_ident(attname) FROM pg_attribute
WHERE attnum > 0 AND NOT attisdropped AND has_column_privilege(attrelid, attnum, 'SELECT') ORDER BY attrelid, attnum
"""
_KEYS = """
SELECT conrelid, contype, a.attname, confrelid, b.attname FROM pg_constraint,
    unnest(conkey, confkey) WITH ORDINALITY AS k(ours, theirs, place)
JOIN pg_attribute a ON a.attnum = ours LEFT JOIN pg_attribute b ON b.attnum = theirs
WHERE contype IN ('p', 'f') AND conparentid = 0 AND a.attrelid = conrelid
    AND (contype = 'p' OR b.attrelid = confrelid) ORDER BY conrelid, conname, place
"""


class PostgresDatabase(ServerDatabase):
    """The database at `postgresql://user:password@host:port/database`.

    Raises:
        DatabaseError: the address cannot be read.
    """

    engine = POSTGRESQL

    def __init__(self, spec: str) -> None:
        try:
            self._reader = PostgresReader(spec)
        except ValueError as error:
            raise DatabaseError(str(error)) from None
        super().__init__(self._reader)

    def read_schema(self) -> tuple[list[TableInfo], dict[str, str]]:
        listed = self._reader.query(_TABLES)
        names, written = {oid: name for oid, name, _, _ in listed}, {name: quoted for _, name, _, quoted in listed}
        columns = defaultdict[int, list[tuple[str, str]]](list)
        for oid, column, kind, quoted in self._reader.query(_COLUMNS):
            if oid in names:
                columns[oid].append((column, kind))
                written[column] = quoted
        keys, references = defaultdict[int, list[str]](list), defaultdict[int, list[tuple[str, str, str]]](list)
        for oid, kind, column, other, theirs in self._reader.query(_KEYS):
            if kind == "p":
                keys[oid].append(column)
            elif other in names:
                references[oid].append((column, names[other], theirs))
        plain = frozenset(name for name, quoted in written.items() if name == quoted)
        tables, unreadable = [], dict[str, str]()
        for oid, name, kind, _ in listed:
            chosen = ", ".join(written[column] for column, _ in columns[oid])
            if (error := self._sampled(f"SELECT {chosen} FROM {written[name]} LIMIT 0").error) is not None:
                unreadable[name] = error
                continue
            is_view = kind == "v"
            found = None if is_view else self._sampled(f"SELECT {chosen} FROM {written[name]} LIMIT {SAMPLED_ROWS}")
            infos = described_columns(columns[oid], found.rows or () if found else ())
            tables.append(TableInfo(name, infos, tuple(keys[oid]), tuple(references[oid]), is_view, plain=plain))
        return tables, unreadable

    def _sampled(self, sql: str) -> Result:
        return self._reader.run(sql, timeout_s=_SAMPLES_S, max_rows=SAMPLED_ROWS, max_chars=10_000_000)

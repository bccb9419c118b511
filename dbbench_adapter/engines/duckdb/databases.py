"""Opens a user's own DuckDB files: their schema, and an agent's queries there."""

from __future__ import annotations

import importlib.util
import json
import re
import time
from collections import defaultdict
from collections.abc import Container
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentgrpo.printed_commands import remedy_of
from dbbench_adapter.datatypes import DatabaseError
from dbbench_adapter.engines.base import BackendUnavailable, Result
from dbbench_adapter.engines.duckdb import DUCKDB, SUFFIXES, is_database
from dbbench_adapter.engines.duckdb.processes import Processes
from dbbench_adapter.engines.engine import (
    MAX_RESULT_CHARS,
    MAX_RESULT_ROWS,
    SAMPLED_ROWS,
    TableInfo,
    described_columns,
    format_unreadable,
)
from dbbench_adapter.engines.files import FileDatabases, FileSchema

_WORD = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_SCHEMA_S = 30.0
_MAX_CHARS = 10_000_000
# What belongs to the file itself, and not to DuckDB.
_OWN = "database_name = current_database() AND NOT internal"
_TABLES = f"""
SELECT schema_name, table_name, false FROM duckdb_tables() WHERE {_OWN} UNION ALL
SELECT schema_name, view_name, true FROM duckdb_views() WHERE {_OWN} ORDER BY 3, 1, 2
"""
_COLUMNS = f"""
SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE {_OWN} AND schema_name = 'main'
ORDER BY table_name, column_index
"""
_KEYS = """
SELECT table_name, constraint_type, constraint_column_names, referenced_table, referenced_column_names
FROM duckdb_constraints() WHERE database_name = current_database() AND schema_name = 'main'
AND constraint_type IN ('PRIMARY KEY', 'FOREIGN KEY') ORDER BY table_name, constraint_index
"""
_KEYWORDS = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category IN ('reserved', 'type_function')"


class DuckdbSession:
    # It holds no process between statements.

    def __init__(self, processes: Processes, file: Path, statement_timeout_s: float) -> None:
        self._processes, self._file = processes, file
        self.statement_timeout_s, self.used_s = statement_timeout_s, 0.0

    def run(self, sql: str) -> Result:
        began = time.monotonic()
        try:
            # one more row shows that there are too many
            return self._processes.run(
                self._file,
                sql,
                timeout_s=self.statement_timeout_s,
                max_rows=MAX_RESULT_ROWS + 1,
                max_chars=MAX_RESULT_CHARS,
            )
        finally:
            self.used_s += time.monotonic() - began

    def close(self) -> None:
        pass


class DuckdbFiles(FileDatabases):
    """Raises DatabaseError: the package duckdb is not installed."""

    engine = DUCKDB
    suffixes = SUFFIXES

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        if importlib.util.find_spec("duckdb") is None:
            raise DatabaseError(f"{path} needs the package duckdb, which is not installed; {remedy_of('duckdb')}")
        self._processes = Processes()

    def _is_database(self, head: bytes) -> bool:
        return is_database(head)

    def open(self, db_id: str, *, statement_timeout_s: float) -> DuckdbSession:
        return DuckdbSession(self._processes, self.files[db_id].resolve(), statement_timeout_s)

    def _read_schema(self, file: Path) -> FileSchema:
        try:
            found = self._read(file)
        except BackendUnavailable as error:
            raise DatabaseError(str(error)) from None
        if not found.tables:
            more = f" that can be read: {format_unreadable(found.unreadable)}" if found.unreadable else ""
            raise DatabaseError(f"{file} holds no table{more}; give the file of a database with tables")
        return found

    def _read(self, file: Path) -> FileSchema:
        columns = defaultdict[str, list[tuple[str, str]]](list)
        for table, column, kind in self._rows(file, _COLUMNS):
            columns[table].append((column, kind))
        keys = defaultdict[str, tuple[str, ...]](tuple)
        references = defaultdict[str, list[tuple[str, str, str]]](list)
        for table, kind, names, other, theirs in self._rows(file, _KEYS):
            if kind == "PRIMARY KEY":
                keys[table] = tuple(json.loads(names))
            else:
                references[table] += [(a, other, b) for a, b in zip(json.loads(names), json.loads(theirs), strict=True)]
        keywords = {word for (word,) in self._rows(file, _KEYWORDS)}
        tables, unreadable = list[TableInfo](), dict[str, str]()
        for schema, name, is_view in self._rows(file, _TABLES):
            if schema != "main":
                unreadable[f"{schema}.{name}"] = "only tables of the schema main are shown"
                continue
            # a view may read what is gone, or a file
            first = self._run(file, f"FROM {_quoted(name)} LIMIT {0 if is_view else SAMPLED_ROWS}")
            if first.error is not None and is_view:
                unreadable[name] = first.error.splitlines()[0]
                continue
            infos = described_columns(columns[name], first.rows or ())
            table = TableInfo(name, infos, keys[name], tuple(references[name]), bool(is_view))
            tables.append(replace(table, plain=_plain(table, keywords)))
        return FileSchema(tuple(tables), unreadable)

    def _rows(self, file: Path, sql: str) -> tuple[tuple[Any, ...], ...]:
        found = self._run(file, sql)
        if found.rows is None:
            raise DatabaseError(f"{file} cannot be read as a DuckDB database: {found.error}")
        return found.rows

    def _run(self, file: Path, sql: str) -> Result:
        limits = {"max_rows": _MAX_CHARS, "max_chars": _MAX_CHARS}
        return self._processes.run(file.resolve(), sql, timeout_s=_SCHEMA_S, **limits)

    def close(self) -> None:
        self._processes.close()


def _plain(table: TableInfo, keywords: Container[str]) -> frozenset[str]:
    names = {table.name, *(column.name for column in table.columns)}
    names |= {name for reference in table.foreign_keys for name in reference}
    return frozenset(name for name in names if _WORD.fullmatch(name) and name.lower() not in keywords)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

"""SQLite: users' files, which agents only read or change a view of, and DB-Bench's databases in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from dbbench_adapter.engines.base import Backend
from dbbench_adapter.engines.engine import Databases, Engine
from dbbench_adapter.engines.sqlite import lexer


class Sqlite(Engine):
    name = "SQLite"
    dialect = "sqlite"
    places = "FILE.sqlite, a folder DB_ID/DB_ID.sqlite"
    backends = ("sqlite",)

    def tokens(self, sql: str) -> Iterator[lexer.Token]:
        return lexer.tokens(sql)

    def statements(self, sql: str) -> list[str]:
        return lexer.statements(sql)

    def open_databases(self, place: Path | str) -> Databases:
        from dbbench_adapter.engines.sqlite.databases import DatabaseFiles

        return DatabaseFiles(Path(place))

    def open_backend(self, spec: str) -> AbstractContextManager[Backend]:
        from dbbench_adapter.engines.sqlite.backend import SqliteBackend

        return SqliteBackend()


SQLITE = Sqlite()

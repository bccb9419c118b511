"""DuckDB: users' files, which agents only read, each statement in a process with a limit of memory (`processes`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dbbench_adapter.engines.engine import Databases, Engine, TokenLike
from dbbench_adapter.engines.files import databases_of

SUFFIXES = (".duckdb",)
# It follows the checksum of the first block.
_MAGIC = b"DUCK"
_SQLITE = b"SQLite format 3\0"


def is_database(head: bytes) -> bool:
    """Whether a file that begins with these 16 bytes is one, of any version."""
    return head[8:12] == _MAGIC


class Duckdb(Engine):
    name = "DuckDB"
    dialect = "duckdb"
    places = "FILE.duckdb, a folder DB_ID/DB_ID.duckdb"

    def tokens(self, sql: str) -> Iterator[TokenLike]:
        from dbbench_adapter.engines.duckdb.lexer import tokens

        return tokens(sql)

    def has_path(self, path: Path) -> bool:
        if path.is_dir():
            return bool(databases_of(path, SUFFIXES)) and not databases_of(path, (".sqlite",))
        head = b""
        if path.is_file():
            with path.open("rb") as file:
                head = file.read(16)
        return is_database(head) or (path.suffix in SUFFIXES and head != _SQLITE)

    def open_databases(self, place: Path | str) -> Databases:
        from dbbench_adapter.engines.duckdb.databases import DuckdbFiles

        return DuckdbFiles(Path(place))


DUCKDB = Duckdb()

"""SQLite: users' files, which agents only read or change a view of, and DB-Bench's databases in memory.

A text is split here by SQLite's lexical rules; a quote or comment that is never closed is one token to the end.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, NamedTuple

from dbbench_adapter.engines.base import Backend
from dbbench_adapter.engines.engine import Databases, Engine

TokenKind = Literal["blank", "quoted", "word", "sign"]
_TOKEN = re.compile(
    r"""
    (?P<blank>\s++ | --[^\n]*+ | /\*(?:[^*]++|\*(?!/))*+(?:\*/)?)
    | (?P<quoted>'(?:[^']++|'')*+'? | "(?:[^"]++|"")*+"? | `(?:[^`]++|``)*+`? | \[[^\]]*+\]?)
    | (?P<word>[\w$]++)
    | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)
# Blanks and comments at the start of a statement.
_COMMENTS = re.compile(r"\A(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?(?:\*/|\Z))+", re.DOTALL)


class SqliteToken(NamedTuple):
    """A part of a text: blanks or a comment, a quoted text or name, a word or number, or any other character."""

    kind: TokenKind
    text: str


def tokens(sql: str) -> Iterator[SqliteToken]:
    for match in _TOKEN.finditer(sql):
        yield SqliteToken(match.lastgroup, match.group())  # pyright: ignore[reportArgumentType]


def statements(query: str) -> list[str]:
    # A comment alone is no statement.
    found = [""]
    for part in query.split(";"):
        found[-1] += part + ";"
        if sqlite3.complete_statement(found[-1]):
            found.append("")
    return [each for each in (text.removesuffix(";").strip() for text in found) if _COMMENTS.sub("", each)]


class Sqlite(Engine):
    name = "SQLite"
    dialect = "sqlite"
    places = "FILE.sqlite, a folder DB_ID/DB_ID.sqlite"
    backends = ("sqlite",)

    def tokens(self, sql: str) -> Iterator[SqliteToken]:
        return tokens(sql)

    def statements(self, sql: str) -> list[str]:
        return statements(sql)

    def open_databases(self, place: Path | str) -> Databases:
        from dbbench_adapter.engines.sqlite.databases import DatabaseFiles

        return DatabaseFiles(Path(place))

    def open_backend(self, spec: str) -> AbstractContextManager[Backend]:
        from dbbench_adapter.engines.sqlite.backend import SqliteBackend

        return SqliteBackend()


SQLITE = Sqlite()

"""PostgreSQL: users' own databases on a server, which agents only read. It has no backend of DB-Bench.

A text is split here by PostgreSQL's lexical rules with `standard_conforming_strings` on, which every session has; a
quote or comment that is never closed is one token to the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from agentgrpo.printed_commands import remedy_of
from dbbench_adapter.datatypes import DatabaseError
from dbbench_adapter.engines.engine import Databases, Engine

FORM = "postgresql://user:password@host:port/database"
_TOKEN = re.compile(
    r"""
    (?P<blank>[ \t\n\r\f\v]++ | --[^\n\r]*+)
    | (?P<comment>/\*)
    | (?P<escaped>[eE]'(?:[^'\\]++|''|\\.)*+'?)
    | (?P<text>(?:[bBxXnN]|[uU]&)?'(?:[^']++|'')*+'?)
    | (?P<dollars>\$(?P<tag>(?:[A-Za-z_\x80-\U0010FFFF][\w\x80-\U0010FFFF]*+)?)\$(?s:.*?)(?:\$(?P=tag)\$|\Z))
    | (?P<quoted>(?:[uU]&)?"(?:[^"]++|"")*+"?)
    | (?P<word>[A-Za-z_\x80-\U0010FFFF][\w$\x80-\U0010FFFF]*+)
    | (?P<number>(?:[0-9]++(?:\.(?!\.)[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?|\$[0-9]++)
    | (?P<operator>(?:(?!--|/\*)[-+*/<>=~!@\#%^&|`?])++)
    | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")

_MAX_NAME_BYTES = 63


def _folded(name: str) -> str:
    return "".join(letter.lower() if letter.isascii() else letter for letter in name)


class PostgresToken(NamedTuple):
    kind: str
    """A group of `_TOKEN`; a comment is `blank`."""
    text: str

    @property
    def name(self) -> str:
        """The name that the server reads in a word or in quotes; else empty. U& is never decoded."""
        if self.kind not in ("word", "quoted"):
            return ""
        found = self.text[1:-1].replace('""', '"') if self.kind == "quoted" else _folded(self.text)
        return found.encode("utf-8", "surrogatepass")[:_MAX_NAME_BYTES].decode("utf-8", "ignore")


def tokens(sql: str) -> Iterator[PostgresToken]:
    place = 0
    while match := _TOKEN.match(sql, place):
        kind, place = str(match.lastgroup), match.end()
        if kind == "comment":
            kind, place = "blank", _end_of_comment(sql, place)
        yield PostgresToken(kind, sql[match.start() : place])


def _end_of_comment(sql: str, place: int) -> int:
    depth = 1  # comments nest
    while depth:
        if (edge := _COMMENT_EDGE.search(sql, place)) is None:
            return len(sql)
        depth += 1 if edge[0] == "/*" else -1
        place = edge.end()
    return place


class Postgresql(Engine):
    name = "PostgreSQL"
    dialect = "postgres"
    places = FORM
    scheme = ("postgresql://", "postgres://")

    def tokens(self, sql: str) -> Iterator[PostgresToken]:
        return tokens(sql)

    def open_databases(self, place: Path | str) -> Databases:
        try:
            import psycopg  # noqa: F401
        except ImportError:
            raise DatabaseError(
                f"a PostgreSQL database needs the package psycopg, which is not installed; {remedy_of('psycopg')}"
            ) from None
        from dbbench_adapter.engines.postgresql.databases import PostgresDatabase

        return PostgresDatabase(str(place))


POSTGRESQL = Postgresql()

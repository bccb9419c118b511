"""Reads the schema of a file that another version of SQLite wrote, and says what of it cannot be parsed here.

SQLite parses the whole schema before the first statement, and one view or trigger in a newer syntax lets every
statement fail. `PRAGMA writable_schema` makes it pass over such entries. The setting is on only while the schema is
read, before any statement of an agent's. SQLite may then know an entry by the words before the one that it does not
understand, as another view or table than was meant, so nobody may read it: `denying` returns an authorizer for that.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache

FOREIGN = "another version of SQLite wrote its definition"
_MALFORMED = re.compile(r"malformed database schema \((.*?)\) - (.*)", re.DOTALL)
_LISTED = "SELECT type, name, tbl_name, rootpage > 0, sql FROM sqlite_master ORDER BY rowid"
_Entry = tuple[str, str, str, int, str | None]


@dataclass(frozen=True)
class Unparsed:
    """Names an entry of a schema that this SQLite cannot parse."""

    kind: str
    """`table`, `view`, `index` or `trigger`."""
    name: str
    table: str
    """The table or view that it belongs to, or itself."""
    error: str
    """SQLite's words."""

    @property
    def is_read(self) -> bool:
        """Return whether a statement could read it."""
        return self.kind in ("table", "view")

    @property
    def why(self) -> str:
        return f"{self.error}; {FOREIGN}"


def load_schema(connection: sqlite3.Connection) -> tuple[Unparsed, ...]:
    """Let a new connection read the schema of its file, and return what it cannot parse.

    Raises:
        sqlite3.DatabaseError: the file cannot be read, or its schema is damaged in another way.
    """
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        return ()
    except sqlite3.DatabaseError as error:
        if _MALFORMED.fullmatch(str(error)) is None:
            raise
        damaged = error
    connection.execute("PRAGMA writable_schema = ON")
    try:
        listed = tuple(connection.execute(_LISTED))
    finally:
        connection.execute("PRAGMA writable_schema = OFF")
    if (found := _unparsed(listed)) is None:
        raise damaged
    return found


def denying(unparsed: Collection[Unparsed]) -> Callable[..., int]:
    """Return an authorizer that lets no statement read these entries, in itself or inside a view."""
    names = {entry.name.lower() for entry in unparsed if entry.is_read}

    def authorize(action: int, first: str | None, _second: str | None, _schema: str | None, inside: str | None) -> int:
        read = (first or "").lower() if action == sqlite3.SQLITE_READ else ""
        return sqlite3.SQLITE_DENY if {read, (inside or "").lower()} & names else sqlite3.SQLITE_OK

    return authorize


@lru_cache(maxsize=64)
def _unparsed(listed: tuple[_Entry, ...]) -> tuple[Unparsed, ...] | None:
    """Return the entries that SQLite refuses in a database with this schema and nothing else; None if the schema itself
    is not to blame."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as probe:
        for number in range(len(listed)):
            probe.execute(f"CREATE TABLE t{number} (x)")  # makes a root page
        pages = [page for (page,) in probe.execute("SELECT rootpage FROM sqlite_master ORDER BY rowid").fetchall()]
        probe.execute("PRAGMA writable_schema = ON")
        probe.execute("DELETE FROM sqlite_master")
        rows = [
            (kind, name, table, has_page and page, sql)
            for (kind, name, table, has_page, sql), page in zip(listed, pages, strict=True)
        ]
        probe.executemany("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", rows)
        errors = dict(_refused(probe))
    found = [Unparsed(kind, name, table, errors[name]) for kind, name, table, *_ in listed if name in errors]
    return tuple(found) if found and len(found) == len(errors) else None


def _refused(probe: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    """Yield name and error of each entry that SQLite refuses; it names one at a time, which is then removed."""
    before = None
    while True:
        probe.execute("PRAGMA writable_schema = RESET")
        try:
            probe.execute("SELECT 1 FROM sqlite_master").fetchone()
            return
        except sqlite3.DatabaseError as error:
            match = _MALFORMED.fullmatch(str(error))
            if match is None or match[1] == before:
                return
            before = match[1]
            yield match[1], match[2]
        probe.execute("PRAGMA writable_schema = ON")
        probe.execute("DELETE FROM sqlite_master WHERE name = ?1 OR tbl_name = ?1", (before,))

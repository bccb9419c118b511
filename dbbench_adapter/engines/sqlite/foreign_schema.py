"""Reads the schema of a file that another version of SQLite wrote, and says what of it cannot be parsed here.

SQLite parses the whole schema before the first statement, and one view or trigger in a newer syntax lets every
statement fail. `PRAGMA writable_schema` makes it pass over such entries. The setting is on only while the schema is
read, before any statement of an agent's. SQLite may then know an entry by the words before the one that it does not
understand, as another view or table than was meant, so nobody may read it: `denying` returns an authorizer for that.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache

FOREIGN = "another version of SQLite wrote its definition"
# SQLite's words before the name of an entry that it refuses.
_MALFORMED = "malformed database schema ("
# SQLite knows the tables of a module that is loaded; those of sqlite-vec have these names.
_DATA_OF_VEC = r"_(info|chunks|rowids|auxiliary|vector_chunks\d+|metadatachunks\d+|metadatatext\d+)"
_LISTED = "SELECT type, name, tbl_name, rootpage > 0, sql FROM sqlite_master ORDER BY rowid"
_Entry = tuple[str, str, str, int, str | None]


@dataclass(frozen=True)
class Unparsed:
    kind: str
    """`table`, `view`, `index` or `trigger`."""
    name: str
    table: str
    """The table or view that it belongs to, or itself."""
    error: str

    @property
    def is_read(self) -> bool:
        """Whether a statement could read it."""
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
        if not str(error).startswith(_MALFORMED):
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
    # An entry must not be read inside a view either.
    names = {entry.name.lower() for entry in unparsed if entry.is_read}

    def authorize(action: int, first: str | None, _second: str | None, _schema: str | None, inside: str | None) -> int:
        read = (first or "").lower() if action == sqlite3.SQLITE_READ else ""
        return sqlite3.SQLITE_DENY if {read, (inside or "").lower()} & names else sqlite3.SQLITE_OK

    return authorize


def table_list(connection: sqlite3.Connection, unparsed: Collection[Unparsed]) -> list[tuple[str, str, int]]:
    """Name, type (`table`, `view`, `virtual`, or `shadow` for the data of a virtual one) and WITHOUT ROWID of each.

    `PRAGMA table_list` prepares a SELECT of each view to count its columns, which takes minutes where views use views
    over and over, and no handler interrupts it. Without the right to SELECT it does not.
    """
    connection.set_authorizer(lambda action, *_: (action == sqlite3.SQLITE_SELECT) * sqlite3.SQLITE_DENY)
    try:
        listed = connection.execute("PRAGMA main.table_list").fetchall()
    finally:
        connection.set_authorizer(denying(unparsed))
    virtual = [name for _, name, kind, *_ in listed if kind == "virtual"]
    data = [re.compile(re.escape(name) + _DATA_OF_VEC, re.IGNORECASE) for name in virtual]
    return [
        (name, "shadow" if kind == "table" and any(each.fullmatch(name) for each in data) else kind, without_rowid)
        for _, name, kind, _, without_rowid, _ in listed
    ]


@lru_cache(maxsize=64)
def _unparsed(listed: tuple[_Entry, ...]) -> tuple[Unparsed, ...] | None:
    # The entries that SQLite refuses in a database with this schema and nothing else; None if the schema itself is not
    # to blame.
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as probe:
        for number in range(len(listed)):
            probe.execute(f"CREATE TABLE t{number} (x)")  # makes a root page
        pages = [page for (page,) in probe.execute("SELECT rootpage FROM sqlite_master ORDER BY rowid").fetchall()]
        rows = [
            (kind, name, table, has_page and page, sql)
            for (kind, name, table, has_page, sql), page in zip(listed, pages, strict=True)
        ]
        return tuple(_refused(probe, rows)) or None


def _refused(probe: sqlite3.Connection, rows: list[_Entry]) -> Iterator[Unparsed]:
    while (problem := _problem(probe, rows)) is not None:
        named = [row[1] for row in rows if problem.startswith(f"{_MALFORMED}{row[1]}) - ")]
        if not named:
            return
        name = max(named, key=len)  # a name may hold a bracket
        start = f"{_MALFORMED}{name}) - "
        kind, _, table, *_ = blamed = _blamed(probe, rows, name, start)
        yield Unparsed(kind, name, table, problem.removeprefix(start))
        dependent = name if kind in ("table", "view") else None
        rows = [row for row in rows if row != blamed and row[2] != dependent]


def _blamed(probe: sqlite3.Connection, rows: list[_Entry], name: str, start: str) -> _Entry:
    # The entry of that name that SQLite refuses, of a trigger and a table with one name the first that fails together
    # with what stands before it.
    *others, last = (number for number, row in enumerate(rows) if row[1] == name)
    failing = (number for number in others if (_problem(probe, rows[: number + 1]) or "").startswith(start))
    return rows[next(failing, last)]


def _problem(probe: sqlite3.Connection, rows: Sequence[_Entry]) -> str | None:
    # What SQLite says against a schema with these entries; None if it reads it.
    probe.execute("PRAGMA writable_schema = ON")
    probe.execute("DELETE FROM sqlite_master")
    probe.executemany("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", rows)
    probe.execute("PRAGMA writable_schema = RESET")
    try:
        probe.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        return str(error)
    return None

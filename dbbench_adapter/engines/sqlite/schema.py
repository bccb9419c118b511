"""Reads the schema of a SQLite file: what can be read, and what of it no statement can use."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

from dbbench_adapter.datatypes import DatabaseError
from dbbench_adapter.engines.base import BackendUnavailable
from dbbench_adapter.engines.engine import SAMPLED_ROWS, TableInfo, described_columns, format_unreadable
from dbbench_adapter.engines.files import FileSchema
from dbbench_adapter.engines.sqlite.foreign_schema import table_list
from dbbench_adapter.engines.sqlite.read_only import opened

# A view may use this many views, those of its views included.
MAX_VIEW_USES = 1_000
_OF_FOREIGN = "it reads what another version of SQLite defined"
_OF_KIND = {"virtual": "a virtual table", "shadow": "it keeps the data of a virtual table"}
# SQLite's own; `pragma_collation_list` also lists those that a file names and nobody has.
_COLLATIONS = ("binary", "nocase", "rtrim")
_WORD = re.compile(r"\w+")
_COLLATION = re.compile(r"""\bcollate\s+(?:(\w+)|"([^"]+)"|`([^`]+)`|\[([^]]+)\]|'([^']+)')""", re.IGNORECASE)


def read_schema(path: Path) -> FileSchema:
    """Read the tables and views of a file in their order.

    SQLite's own tables are left out, and so are virtual tables with those that keep their data, and views of views of
    more than `MAX_VIEW_USES` tables, which take SQLite seconds. A table that is sorted by another program's collation,
    a view that names missing tables, and what another version of SQLite defined in a syntax of its own can be read by
    no statement; the others can.

    Raises:
        DatabaseError: the file cannot be read, or has no table.
    """
    tables, unreadable = [], dict[str, str]()
    try:
        connection, unparsed = opened(path)
        with closing(connection):
            listed = connection.execute(
                "SELECT name, type, sql FROM sqlite_master WHERE type IN ('table', 'view') "
                "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY rowid"
            ).fetchall()
            large = _large_views({name: sql for name, kind, sql in listed if kind == "view"})
            known = dict.fromkeys(large, f"it uses more than {MAX_VIEW_USES:,} views")
            known |= {name: _OF_KIND[kind] for name, kind, _ in table_list(connection, unparsed) if kind in _OF_KIND}
            known |= {entry.name: entry.why for entry in unparsed if entry.is_read}
            for name, kind, sql in listed:
                if name in known:
                    unreadable[name] = known[name]
                    continue
                try:
                    tables.append(_read_table(connection, name, kind == "view"))
                except sqlite3.DatabaseError as error:
                    code = error.sqlite_errorcode & 0xFF
                    if code not in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_AUTH):
                        raise
                    unreadable[name] = _OF_FOREIGN if code == sqlite3.SQLITE_AUTH else why_unreadable(str(error), sql)
            for entry in unparsed:
                if not entry.is_read:
                    unreadable[f"{entry.kind} {entry.name} of {entry.table}"] = f"{entry.why}; its rows cannot change"
    except BackendUnavailable as error:
        raise DatabaseError(str(error)) from None
    except (OSError, sqlite3.Error) as error:
        raise DatabaseError(f"{path} cannot be read as a SQLite database ({error}); give an intact copy") from None
    if not tables:
        more = f" that can be read: {format_unreadable(unreadable)}" if unreadable else ""
        raise DatabaseError(f"{path} holds no table{more}; give the file of a database with tables")
    return FileSchema(tuple(tables), unreadable)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def why_unreadable(error: str, sql: str | None) -> str:
    """Say why no statement can read a table; SQLite itself names the collation of a table's key in few cases."""
    named = [next(filter(None, match)) for match in _COLLATION.findall(sql or "")]
    foreign = [name for name in dict.fromkeys(named) if name.lower() not in _COLLATIONS]
    return f"{error}; the collation {', '.join(foreign)} is another program's" if foreign else error


def _large_views(views: dict[str, str]) -> set[str]:
    # SQLite expands a view once for each time that a view names it, which no progress handler interrupts.
    folded = {name.lower(): name for name in views}
    named = {
        name: [other for word in _WORD.findall(sql.lower()) if (other := folded.get(word)) not in (None, name)]
        for name, sql in views.items()
    }
    uses = dict.fromkeys(views, 1)
    for _ in views:  # a view may stand before those that it names
        new = {name: min(1 + sum(uses[other] for other in named[name]), MAX_VIEW_USES + 1) for name in views}
        if new == uses:
            break
        uses = new
    return {name for name, count in uses.items() if count > MAX_VIEW_USES}


def _read_table(connection: sqlite3.Connection, name: str, is_view: bool) -> TableInfo:
    """Raises sqlite3.OperationalError: no statement can read it, or the file cannot be read."""
    # only table_xinfo lists generated columns; hidden = 1 marks hidden columns of virtual tables
    found = connection.execute("SELECT name, type, pk FROM pragma_table_xinfo(?) WHERE hidden <> 1", (name,)).fetchall()
    # a view is only prepared, since its rows may take long; this finds collations that are missing
    rows = connection.execute(f"SELECT * FROM {quoted(name)} LIMIT {0 if is_view else SAMPLED_ROWS}")
    columns = described_columns([(column, kind) for column, kind, _ in found], rows)
    key = tuple(column for column, _, place in sorted(found, key=lambda row: row[2]) if place)
    return TableInfo(name, columns, key, _foreign_keys(connection, name), is_view)


def _foreign_keys(connection: sqlite3.Connection, name: str) -> tuple[tuple[str, str, str], ...]:
    found = connection.execute(
        'SELECT "from", "table", "to", seq FROM pragma_foreign_key_list(?) ORDER BY id, seq', (name,)
    ).fetchall()
    return tuple((ours, other, theirs or _key(connection, other, place, ours)) for ours, other, theirs, place in found)


def _key(connection: sqlite3.Connection, table: str, place: int, default: str) -> str:
    # A foreign key without a named column refers to the primary key's.
    found = connection.execute("SELECT name FROM pragma_table_info(?) WHERE pk = ?", (table, place + 1)).fetchone()
    return found[0] if found else default

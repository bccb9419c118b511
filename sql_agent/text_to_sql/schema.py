"""Renders the schema of a database for the policy, cut to a length, and reads that of a SQLite file.

It shows tables, columns with types, keys, and a few values of each column. Leaves out indexes, triggers and checks.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from dbbench_adapter.backends import BackendUnavailable
from dbbench_adapter.backends.sqlite.read_only import opened
from dbbench_adapter.datatypes import DatabaseError

SAMPLED_ROWS = 1_000
"""Example values come from this many first rows, so that a large table is not read whole."""
SAMPLES = 2
SAMPLE_CHARS = 24
MAX_VIEW_USES = 1_000
"""A view may use this many views, those of its views included."""
_OF_FOREIGN = "it reads what another version of SQLite defined"
_COLLATIONS = ("binary", "nocase", "rtrim")
"""SQLite's own; `pragma_collation_list` also lists those that a file names and nobody has."""
_WORD = re.compile(r"\w+")
_COLLATION = re.compile(r"""\bcollate\s+(?:(\w+)|"([^"]+)"|`([^`]+)`|\[([^]]+)\]|'([^']+)')""", re.IGNORECASE)
_KEYWORDS = (
    "add all alter and as autoincrement between case cast check collate commit constraint create current_date "
    "current_time current_timestamp default deferrable delete distinct drop else escape except exists foreign from "
    "group having in index insert intersect into is isnull join limit not nothing notnull null on or order primary "
    "raise references returning select set table then to transaction union unique update using values when where"
)
"""Words that are names in SQLite only if they are quoted."""


@dataclass(frozen=True)
class ColumnInfo:
    name: str
    type: str
    """The declared type; empty if none is declared."""
    samples: tuple[str, ...] = ()
    """Values as SQL literals."""


@dataclass(frozen=True)
class TableInfo:
    name: str
    columns: tuple[ColumnInfo, ...]
    primary_key: tuple[str, ...] = ()
    foreign_keys: tuple[tuple[str, str, str], ...] = ()
    """Column, other table, its column."""
    is_view: bool = False
    quote: str = '"'
    """What a name stands in; backquotes stand around every name, since MySQL's versions differ in their keywords."""


@dataclass(frozen=True)
class FileSchema:
    tables: tuple[TableInfo, ...]
    unreadable: dict[str, str]
    """Tables and views that no statement can read, and indexes and triggers that this SQLite cannot parse, each with
    the reason."""


def read_schema(path: Path) -> FileSchema:
    """Read the tables and views of a file in their order.

    SQLite's own tables are left out, and so are virtual tables, and views of views of more than `MAX_VIEW_USES` tables,
    which take SQLite seconds. A table that is sorted by another program's collation, a view that names missing tables,
    and what another version of SQLite defined in a syntax of its own can be read by no statement; the others can.

    Raises:
        DatabaseError: the file cannot be read, or has no table.
    """
    tables, unreadable = [], dict[str, str]()
    try:
        connection, unparsed = opened(path)
        with closing(connection):
            listed = connection.execute(
                "SELECT name, type, sql FROM sqlite_master WHERE type IN ('table', 'view') "
                "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' "
                "AND coalesce(sql, '') NOT LIKE 'CREATE VIRTUAL %' ORDER BY rowid"
            ).fetchall()
            large = _large_views({name: sql for name, kind, sql in listed if kind == "view"})
            known = dict.fromkeys(large, f"it uses more than {MAX_VIEW_USES:,} views")
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
    except (OSError, sqlite3.Error, BackendUnavailable) as error:
        raise DatabaseError(f"{path} cannot be read as a SQLite database ({error})") from None
    if not tables:
        more = f" that can be read: {said_unreadable(unreadable)}" if unreadable else ""
        raise DatabaseError(f"{path} holds no table{more}; give the file of a database with tables")
    return FileSchema(tuple(tables), unreadable)


def said_unreadable(unreadable: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({why})" for name, why in unreadable.items())


def quoted(name: str) -> str:
    """Return a name as SQLite's statements hold it, whatever it is."""
    return '"' + name.replace('"', '""') + '"'


def why_unreadable(error: str, sql: str | None) -> str:
    """Say why no statement can read a table; SQLite itself names the collation of a table's key in few cases."""
    named = [next(filter(None, match)) for match in _COLLATION.findall(sql or "")]
    foreign = [name for name in dict.fromkeys(named) if name.lower() not in _COLLATIONS]
    return f"{error}; the collation {', '.join(foreign)} is another program's" if foreign else error


@dataclass(frozen=True)
class Rendered:
    """Holds a schema as the policy reads it, and the names of what it leaves out."""

    statements: Sequence[str]
    values: bool = True
    """Whether it shows example values."""
    columns: tuple[tuple[str, str], ...] = ()
    """Table and column of each column that wide tables lose, also where the whole table is among `tables`."""
    tables: tuple[str, ...] = ()
    """Tables whose columns are all left out."""

    @property
    def text(self) -> str:
        """Return the schema, never empty; the last line counts columns and does not name them, to be short."""
        said = [] if self.values else ["example values"]
        if self.columns:
            said.append(f"{len(self.columns)} column{'s' if len(self.columns) > 1 else ''}")
        if self.tables:
            said.append(f"the columns of {', '.join(self.tables)}")
        return "\n".join(self.statements) + (f"\n-- left out: {', '.join(said)}" if said else "")


def render(tables: Sequence[TableInfo], max_chars: int | None = None) -> Rendered:
    """Return the schema as the policy reads it.

    A schema that is too long loses, in this order: example values; columns of wide tables; the last tables.

    Args:
        max_chars: the longest text; None: no limit.
    """
    for rendered in _cuts(tables):
        if max_chars is None or len(rendered.text) <= max_chars:
            break
    return rendered


def lengths(tables: Sequence[TableInfo]) -> list[int]:
    """Return the lengths, in characters, of the shortened schemas that `render` chooses from, longest first."""
    return [len(rendered.text) for rendered in _cuts(tables)][1:]


def _cuts(tables: Sequence[TableInfo]) -> Iterator[Rendered]:
    """Yield ever smaller schemas."""
    yield Rendered([*map(_statement, tables)])
    cut = [_without_values(table) for table in tables]
    statements, gone = [*map(_statement, cut)], ()
    yield Rendered(statements, values=False)
    for most in (40, 20, 10, 5):
        narrow = [_narrow(table, most) for table in cut]
        if narrow != cut:
            cut, statements, gone = narrow, [*map(_statement, narrow)], _gone(tables, narrow)
            yield Rendered(statements, values=False, columns=gone)
    for count in range(len(cut) - 1, 0, -1):
        names = tuple(table.name for table in cut[count:])
        yield Rendered(statements[:count], values=False, columns=gone, tables=names)


def _gone(tables: Sequence[TableInfo], cut: Sequence[TableInfo]) -> tuple[tuple[str, str], ...]:
    """Return table and column of each column that the second schema lacks."""
    gone: list[tuple[str, str]] = []
    for table, kept in zip(tables, cut, strict=True):
        names = {column.name for column in kept.columns}
        gone += [(table.name, column.name) for column in table.columns if column.name not in names]
    return tuple(gone)


def _without_values(table: TableInfo) -> TableInfo:
    return replace(table, columns=tuple(replace(column, samples=()) for column in table.columns))


def _narrow(table: TableInfo, most: int) -> TableInfo:
    """Return the table with at most `most` columns, those of keys first."""
    if len(table.columns) <= most:
        return table
    keys = {*table.primary_key, *(column for column, _, _ in table.foreign_keys)}
    kept = {c.name for c in sorted(table.columns, key=lambda column: column.name not in keys)[:most]}
    return replace(table, columns=tuple(column for column in table.columns if column.name in kept))


def _statement(table: TableInfo) -> str:
    name = partial(_name, quote=table.quote)
    lines = []
    for column in table.columns:
        shown = f" -- {', '.join(column.samples)}" if column.samples else ""
        lines.append((f"  {name(column.name)} {column.type}".rstrip(), shown))
    if table.primary_key:
        lines.append((f"  PRIMARY KEY ({', '.join(map(name, table.primary_key))})", ""))
    for column, other, theirs in table.foreign_keys:
        lines.append((f"  FOREIGN KEY ({name(column)}) REFERENCES {name(other)}({name(theirs)})", ""))
    body = "\n".join(f"{line}{',' if i < len(lines) - 1 else ''}{shown}" for i, (line, shown) in enumerate(lines))
    return f"CREATE {'VIEW' if table.is_view else 'TABLE'} {name(table.name)} (\n{body}\n);"


def _name(name: str, quote: str) -> str:
    plain = quote == '"' and name.isidentifier() and name.isascii() and name.lower() not in _KEYWORDS.split()
    return name if plain else quote + name.replace(quote, 2 * quote) + quote


def _large_views(views: dict[str, str]) -> set[str]:
    """Return the views that SQLite would expand to more than `MAX_VIEW_USES` views.

    SQLite expands a view once for each time that a view names it, which no progress handler interrupts.
    """
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
    """Read one table.

    Raises:
        sqlite3.OperationalError: no statement can read it, or the file cannot be read.
    """
    # only table_xinfo lists generated columns; hidden = 1 marks hidden columns of virtual tables
    found = connection.execute("SELECT name, type, pk FROM pragma_table_xinfo(?) WHERE hidden <> 1", (name,)).fetchall()
    # a view is only prepared, since its rows may take long; this finds collations that are missing
    rows = connection.execute(f"SELECT * FROM {quoted(name)} LIMIT {0 if is_view else SAMPLED_ROWS}")
    samples = sample_values([column for column, _, _ in found], rows)
    columns = tuple(ColumnInfo(column, kind, samples.get(column, ())) for column, kind, _ in found)
    key = tuple(column for column, _, place in sorted(found, key=lambda row: row[2]) if place)
    return TableInfo(name, columns, key, _foreign_keys(connection, name), is_view)


def _foreign_keys(connection: sqlite3.Connection, name: str) -> tuple[tuple[str, str, str], ...]:
    found = connection.execute(
        'SELECT "from", "table", "to", seq FROM pragma_foreign_key_list(?) ORDER BY id, seq', (name,)
    ).fetchall()
    return tuple((ours, other, theirs or _key(connection, other, place, ours)) for ours, other, theirs, place in found)


def _key(connection: sqlite3.Connection, table: str, place: int, default: str) -> str:
    """Return the column that a foreign key without a named column refers to: that of the primary key."""
    found = connection.execute("SELECT name FROM pragma_table_info(?) WHERE pk = ?", (table, place + 1)).fetchone()
    return found[0] if found else default


def sample_values(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> dict[str, tuple[str, ...]]:
    """Return the first few values of each column as SQL literals."""
    found: dict[str, dict[str, None]] = {column: {} for column in columns}
    for row in rows:
        for column, cell in zip(columns, row, strict=False):
            if len(found[column]) < SAMPLES and cell is not None and not isinstance(cell, bytes):
                found[column][_literal(cell)] = None
    return {column: tuple(values) for column, values in found.items()}


def _literal(cell: Any) -> str:
    if not isinstance(cell, str):
        return repr(cell)
    text = " ".join(cell.split())  # one line
    text = text if len(text) <= SAMPLE_CHARS else text[:SAMPLE_CHARS] + "..."
    return "'" + text.replace("'", "''") + "'"

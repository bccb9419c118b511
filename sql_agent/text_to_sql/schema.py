"""Renders the schema of a database for the policy, cut to a length.

It shows tables, columns with types, keys, and a few values of each column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dbbench_adapter.engines.engine import TableInfo

# Words that are names in SQLite only if they are quoted.
_KEYWORDS = (
    "add all alter and as autoincrement between case cast check collate commit constraint create current_date "
    "current_time current_timestamp default deferrable delete distinct drop else escape except exists foreign from "
    "group having in index insert intersect into is isnull join limit not nothing notnull null on or order primary "
    "raise references returning select set table then to transaction union unique update using values when where"
)


@dataclass(frozen=True)
class Rendered:
    """A schema as the policy reads it, and the names of what it leaves out."""

    statements: Sequence[str]
    values: bool = True
    """Whether it shows example values."""
    columns: tuple[tuple[str, str], ...] = ()
    """Table and column of each column that wide tables lose, also where the whole table is among `tables`."""
    tables: tuple[str, ...] = ()
    """Tables whose columns are all left out."""

    @property
    def text(self) -> str:
        """The schema, never empty; the last line counts columns and does not name them, to be short."""
        said = [] if self.values else ["example values"]
        if self.columns:
            said.append(f"{len(self.columns)} column{'s' if len(self.columns) > 1 else ''}")
        if self.tables:
            said.append(f"the columns of {', '.join(self.tables)}")
        return "\n".join(self.statements) + (f"\n-- left out: {', '.join(said)}" if said else "")


def render_schema(tables: Sequence[TableInfo], max_chars: int | None = None) -> Rendered:
    """The schema as the policy reads it.

    A schema that is too long loses, in this order: example values; columns of wide tables; the last tables.

    Args:
        max_chars: the longest text; None: no limit.
    """
    for rendered in _cuts(tables):
        if max_chars is None or len(rendered.text) <= max_chars:
            break
    return rendered


def lengths(tables: Sequence[TableInfo]) -> list[int]:
    """The lengths, in characters, of the shortened schemas that `render_schema` chooses from, longest first."""
    return [len(rendered.text) for rendered in _cuts(tables)][1:]


def _cuts(tables: Sequence[TableInfo]) -> Iterator[Rendered]:
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
    gone: list[tuple[str, str]] = []
    for table, kept in zip(tables, cut, strict=True):
        names = {column.name for column in kept.columns}
        gone += [(table.name, column.name) for column in table.columns if column.name not in names]
    return tuple(gone)


def _without_values(table: TableInfo) -> TableInfo:
    return replace(table, columns=tuple(replace(column, samples=()) for column in table.columns))


def _narrow(table: TableInfo, most: int) -> TableInfo:
    """Columns of keys stay first."""
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

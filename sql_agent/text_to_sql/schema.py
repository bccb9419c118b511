"""Renders the schema of a database for the policy, cut to a length.

`compact` is one line a table, and `qualified` the same with `table.column`; `ddl` is CREATE statements, three times as
long.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from dbbench_adapter.engines.engine import SAMPLES, ColumnInfo, TableInfo
from sql_agent.settings.groups import SchemaForm

# Words that are names in SQLite only if they are quoted.
_KEYWORDS = (
    "add all alter and as autoincrement between case cast check collate commit constraint create current_date "
    "current_time current_timestamp default deferrable delete distinct drop else escape except exists foreign from "
    "group having in index insert intersect into is isnull join limit not nothing notnull null on or order primary "
    "raise references returning select set table then to transaction union unique update using values when where"
)
# Values that `compact` shows, for their form or because they are codes.
_DATE = re.compile(r"'\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}.*'|'\d{1,2}:\d{2}.*'")
_CODE_CHARS = 16
# The most characters of the names of tables that `compact` does not show.
_REST_CHARS = 600

LinkedTables = tuple[tuple[str, tuple[str, ...]], ...]
"""Tables, the most relevant one first, each with those of its columns that a prompt shows."""


@dataclass(frozen=True)
class Rendered:
    """A schema as the policy reads it, and the names of what it leaves out."""

    text: str
    values: bool = True
    """Whether it shows example values."""
    columns: tuple[tuple[str, str], ...] = ()
    """Table and column of each column that wide tables lose, also where the whole table is among `tables`."""
    tables: tuple[str, ...] = ()
    """Tables whose columns are all left out."""

    @property
    def is_whole(self) -> bool:
        return self.values and not self.columns and not self.tables


def render_schema(
    tables: Sequence[TableInfo],
    max_chars: int | None = None,
    *,
    form: SchemaForm = "compact",
    linked: LinkedTables | None = None,
) -> Rendered:
    """The schema as the policy reads it.

    A schema that is too long loses, in this order: example values; columns of wide tables; the last tables.

    Args:
        max_chars: the longest text; None: no limit.
        linked: what it shows at most; None: everything.
    """
    for rendered in _ever_shorter(_cuts(tables, linked, form)):
        if max_chars is None or len(rendered.text) <= max_chars:
            break
    return rendered


def lengths(
    tables: Sequence[TableInfo], *, form: SchemaForm = "compact", linked: LinkedTables | None = None
) -> list[int]:
    """The lengths, in characters, of the shortened schemas that `render_schema` chooses from, longest first."""
    return [len(rendered.text) for rendered in _ever_shorter(_cuts(tables, linked, form))][1:]


def describe_table(table: TableInfo) -> str:
    return _line(table, whole=table, form="compact")


def _ever_shorter(cuts: Iterable[Rendered]) -> Iterator[Rendered]:
    # to name a small table may take more than to show it
    before: int | None = None
    for cut in cuts:
        if before is None or len(cut.text) < before:
            before = len(cut.text)
            yield cut


def _cuts(tables: Sequence[TableInfo], linked: LinkedTables | None, form: SchemaForm) -> Iterator[Rendered]:
    wholes = {table.name: table for table in tables}
    if linked is not None:
        kept = [_with_columns(wholes[name], columns) for name, columns in linked]
    else:
        kept = [*tables] if form == "ddl" else sorted(tables, key=_is_idle)
    names = [table.name for table in kept]
    names += [name for name in wholes if name not in set(names)]

    def parts_of(tables: Sequence[TableInfo]) -> list[_Part]:
        return [_part(table, wholes[table.name], form) for table in tables]

    whole = parts_of(kept)
    yield _rendered(whole, names[len(whole) :], values=True, form=form)
    cut = [replace(table, columns=tuple(replace(column, samples=()) for column in table.columns)) for table in kept]
    parts = parts_of(cut)
    rendered = partial(_rendered, values=parts == whole, form=form)
    if parts != whole:
        yield rendered(parts, names[len(parts) :])
    for most in (40, 20, 10, 5):
        narrow = [_narrow(table, most) for table in cut]
        if narrow != cut:
            cut, parts = narrow, parts_of(narrow)
            yield rendered(parts, names[len(parts) :])
    for count in range(len(parts) - 1, 0, -1):
        yield rendered(parts[:count], names[count:])


class _Part(NamedTuple):
    """One table of a rendered schema."""

    text: str
    gone: list[tuple[str, str]]
    """Columns that it has lost."""


def _part(table: TableInfo, whole: TableInfo, form: SchemaForm) -> _Part:
    shown = {column.name for column in table.columns}
    gone = [(table.name, column.name) for column in whole.columns if column.name not in shown]
    return _Part(_statement(table) if form == "ddl" else _line(table, whole=whole, form=form), gone)


def _rendered(parts: Sequence[_Part], rest: Sequence[str], *, values: bool, form: SchemaForm) -> Rendered:
    columns = tuple(column for part in parts for column in part.gone)
    if form == "ddl":
        last = _format_left_out(len(columns), rest, values=values)
    else:
        last = f"More tables, by DESCRIBE: {_listed(rest)}" if rest else ""
    return Rendered(
        "\n".join([*(part.text for part in parts), *([last] if last else [])]), values, columns, tuple(rest)
    )


def _listed(names: Sequence[str]) -> str:
    listed = ", ".join(names)
    if len(listed) <= _REST_CHARS:
        return listed
    shown = listed[:_REST_CHARS].rpartition(", ")[0].split(", ")
    return f"{', '.join(shown)} and {len(names) - len(shown)} more"


def _format_left_out(columns: int, tables: Sequence[str], *, values: bool) -> str:
    # Columns are counted, to be short.
    said = [] if values else ["example values"]
    if columns:
        said.append(f"{columns} column{'s' if columns > 1 else ''}")
    if tables:
        said.append(f"the columns of {', '.join(tables)}")
    return f"-- left out: {', '.join(said)}" if said else ""


def _is_idle(table: TableInfo) -> int:
    """Sorts tables that few questions are about, views and empty ones, behind the others."""
    return 1 if table.is_view else 0 if any(column.samples for column in table.columns) else 2


def _with_columns(table: TableInfo, names: Collection[str]) -> TableInfo:
    return replace(table, columns=tuple(column for column in table.columns if column.name in names))


def _narrow(table: TableInfo, most: int) -> TableInfo:
    """Columns of keys stay first, and bytes go first."""
    keys = {*table.primary_key, *(column for column, _, _ in table.foreign_keys)}

    def place(column: ColumnInfo) -> int:
        return 0 if column.name in keys else 2 if column.type.upper() == "BLOB" else 1

    return _with_columns(table, {column.name for column in sorted(table.columns, key=place)[:most]})


def _line(table: TableInfo, *, whole: TableInfo, form: SchemaForm) -> str:
    """`name(column, column key, column = table.column, column 'F' 'M')`, with `...` for columns that are left out.
    `qualified` has `name.column` in place of `column`."""
    name = partial(sql_name, table=table)
    owner = f"{name(table.name)}." if form == "qualified" else ""
    references = {column: f" = {name(other)}.{name(theirs)}" for column, other, theirs in table.foreign_keys}
    columns = []
    for column in table.columns:
        key = " key" if column.name in table.primary_key else ""
        columns.append(f"{owner}{name(column.name)}{key}{references.get(column.name) or _values(column)}")
    more = ["..."] if len(table.columns) < len(whole.columns) else []
    return f"{name(table.name)}({', '.join([*columns, *more])})"


def _values(column: ColumnInfo) -> str:
    if column.is_code and len(column.samples) > 1 and all(len(value) <= _CODE_CHARS for value in column.samples):
        return "".join(f" {value}" for value in column.samples)
    return next((f" {value}" for value in column.samples[:1] if _DATE.fullmatch(value)), "")


def _statement(table: TableInfo) -> str:
    name = partial(sql_name, table=table)
    lines = []
    for column in table.columns:
        shown = f" -- {', '.join(column.samples[:SAMPLES])}" if column.samples else ""
        lines.append((f"  {name(column.name)} {column.type}".rstrip(), shown))
    if table.primary_key:
        lines.append((f"  PRIMARY KEY ({', '.join(map(name, table.primary_key))})", ""))
    for column, other, theirs in table.foreign_keys:
        lines.append((f"  FOREIGN KEY ({name(column)}) REFERENCES {name(other)}({name(theirs)})", ""))
    body = "\n".join(f"{line}{',' if i < len(lines) - 1 else ''}{shown}" for i, (line, shown) in enumerate(lines))
    return f"CREATE {'VIEW' if table.is_view else 'TABLE'} {name(table.name)} (\n{body}\n);"


def sql_name(name: str, table: TableInfo) -> str:
    """
    Args:
        table: whose name it is, or whose column's, or which refers to it.
    """
    return name if table.quote == '"' and is_plain(name, table) else quoted(name, table.quote)


def is_plain(name: str, table: TableInfo) -> bool:
    """Whether a name needs no quotes."""
    if table.plain is not None:
        return name in table.plain
    return is_plain_in_sqlite(name)


def is_plain_in_sqlite(name: str) -> bool:
    return name.isidentifier() and name.isascii() and name.lower() not in _KEYWORDS.split()


def quoted(name: str, quote: str) -> str:
    return quote + name.replace(quote, 2 * quote) + quote


def folded(name: str) -> str:
    """As SQLite compares names, where only the case of ASCII's letters is free."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in name)

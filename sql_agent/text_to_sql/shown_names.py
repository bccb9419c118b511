"""Writes a reference query as a demonstration shows it: names as the prompt spells them, and even blanks."""

from __future__ import annotations

from collections.abc import Sequence

from dbbench_adapter.engines.engine import Engine, TableInfo

# A column of such a name stands in quotes, so the bare word is never one.
_CLAUSES = frozenset({
    "all", "and", "as", "asc", "between", "by", "case", "cast", "cross", "desc", "distinct", "else", "end", "except",
    "exists", "from", "group", "having", "in", "inner", "intersect", "is", "join", "left", "like", "limit", "natural",
    "not", "null", "offset", "on", "or", "order", "outer", "select", "then", "union", "using", "when", "where",
})  # fmt: skip


def as_shown(query: str, tables: Sequence[TableInfo], engine: Engine) -> str:
    """The query with the tables and columns that it reads in the schema's spelling, without comments.

    People write `employee_id` where the schema has `EMPLOYEE_ID`. Both run, and their tokens have nothing in common, so
    a policy could not learn to copy names from its prompt.

    Args:
        tables: the database's.
    """
    parts = list(engine.tokens(query))
    words = {part.text.lower() for part in parts}
    read = [table for table in tables if table.name.lower() in words]
    names = [name for table in read for name in (table.name, *(column.name for column in table.columns))]
    spelled = {name.lower(): name for name in reversed(names) if name.lower() not in _CLAUSES}
    text, blank = "", False
    for number, part in enumerate(parts):
        if part.kind == "blank":
            blank = True
            continue
        called = "".join(after.text for after in parts[number + 1 :][:2]).lstrip().startswith("(")
        close = part.text in (",", ";", ")") or text.endswith("(") or not text
        text += " " if (blank or text.endswith(",")) and not close else ""
        text += part.text if called else spelled.get(part.text.lower(), part.text)
        blank = False
    return text.rstrip("; ")

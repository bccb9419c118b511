"""Writes a reference query as a demonstration shows it: names as the prompt spells them, and even blanks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dbbench_adapter.engines.engine import Engine, TableInfo

# Words that are a clause far more often than a column's name.
CLAUSES = frozenset({
    "all", "and", "as", "asc", "between", "by", "case", "cast", "cross", "desc", "distinct", "else", "end", "except",
    "exists", "from", "group", "having", "in", "inner", "intersect", "is", "join", "left", "like", "limit", "natural",
    "not", "null", "offset", "on", "or", "order", "outer", "select", "then", "union", "using", "when", "where",
})  # fmt: skip


def as_shown(query: str, tables: Sequence[TableInfo], engine: Engine) -> str:
    """The query with the bare names of tables and columns in the schema's spelling, without comments, and with T1, T2
    for what it calls its tables (`AS`).

    People write `employee_id` where the schema has `EMPLOYEE_ID`. Both run, and their tokens have nothing in common, so
    a policy could not learn to copy names from its prompt. A query that names tables of its own (WITH) keeps its words.

    Args:
        tables: the database's. Where two spell a name differently, the one that the query has stays, or else the first
            that the query names counts.
    """
    parts = list(engine.tokens(query))
    words = {folded(part.text.strip('`"[]')) for part in parts}
    read = [] if "with" in words else [table for table in tables if folded(table.name) in words]
    names = [name for table in read for name in (table.name, *(column.name for column in table.columns))]
    spelled = {folded(name): name for name in reversed(names) if folded(name) not in CLAUSES}
    spelled |= _aliases([folded(part.text) for part in parts if part.kind != "blank"], read, spelled.keys())
    text, blank = "", False
    for number, part in enumerate(parts):
        if part.kind == "blank":
            blank = True
            continue
        called = "".join(after.text for after in parts[number + 1 :][:2]).lstrip().startswith("(")
        close = part.text in (",", ";", ")") or text.endswith("(") or not text
        text += " " if (blank or text.endswith(",")) and not close else ""
        text += part.text if called or part.text in names else spelled.get(folded(part.text), part.text)
        blank = False
    return text.rstrip("; ")


def _aliases(words: Sequence[str], read: Sequence[TableInfo], names: Collection[str]) -> dict[str, str]:
    """T1, T2, ... by what a query calls its tables; empty if one of these words has another meaning there too."""
    tables = {folded(table.name) for table in read}
    given = [
        alias for name, word, alias in zip(words, words[1:], words[2:], strict=False) if name in tables and word == "as"
    ]
    aliases = {alias: f"T{number}" for number, alias in enumerate(dict.fromkeys(given), 1)}
    others = {*words} - aliases.keys()
    is_plain = all(alias.isidentifier() and alias not in names for alias in aliases)
    return aliases if is_plain and not others & {each.lower() for each in aliases.values()} else {}


def folded(name: str) -> str:
    """As SQLite compares names, where only the case of ASCII's letters is free."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in name)

"""Writes a reference query as a demonstration shows it: names as the prompt spells them, and tables before columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from dbbench_adapter.engines.engine import Engine, TableInfo
from sql_agent.text_to_sql.qualified import qualified
from sql_agent.text_to_sql.schema import folded

# Words that are a clause far more often than a column's name.
CLAUSES = frozenset({
    "all", "and", "as", "asc", "between", "by", "case", "cast", "cross", "desc", "distinct", "else", "end", "except",
    "exists", "from", "group", "having", "in", "inner", "intersect", "is", "join", "left", "like", "limit", "natural",
    "not", "null", "offset", "on", "or", "order", "outer", "select", "then", "union", "using", "when", "where",
})  # fmt: skip
_AGGREGATES = frozenset({"avg", "count", "max", "min", "sum"})


def as_shown(query: str, tables: Sequence[TableInfo], engine: Engine) -> str:
    """The query in the one form that fine-tuning shows, of the many in which people write it.

    - The bare names of tables and columns have the schema's spelling. People write `employee_id` where the schema has
      `EMPLOYEE_ID`; their tokens have nothing in common, so a policy could not learn to copy names from its prompt.
    - Each column stands behind its table's name (`qualified`). A table that needs an alias (`AS`) has T1, T2.
    - Clauses and aggregates are in capitals, blanks are even, comments are gone.

    A query that names tables of its own (WITH) keeps its names.

    Args:
        tables: the database's. Where two spell a name differently, the one that the query has stays, or else the first
            that the query names counts.
    """
    words = {folded(part.text.strip('`"[]')) for part in engine.tokens(query)}
    read = [] if "with" in words else [table for table in tables if folded(table.name) in words]
    names = [name for table in read for name in (table.name, *(column.name for column in table.columns))]
    spelled = {folded(name): name for name in reversed(names) if folded(name) not in CLAUSES}
    even = qualified(_even(query, names, spelled, engine), tables, engine)
    parts = list(engine.tokens(even))
    aliases = _aliases([folded(part.text) for part in parts if part.kind != "blank"], read, spelled)
    return "".join(aliases.get(folded(part.text), part.text) for part in parts)


def _even(query: str, names: Collection[str], spelled: Mapping[str, str], engine: Engine) -> str:
    parts = list(engine.tokens(query))
    text, blank = "", False
    for number, part in enumerate(parts):
        if part.kind == "blank":
            blank = True
            continue
        called = "".join(after.text for after in parts[number + 1 :][:2]).lstrip().startswith("(")
        close = part.text in (",", ";", ")") or text.endswith("(") or not text
        text += " " if (blank or text.endswith(",")) and not close else ""
        word = folded(part.text)
        if word in CLAUSES or (called and word in _AGGREGATES):
            text += part.text.upper()
        else:
            text += part.text if called or part.text in names else spelled.get(word, part.text)
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

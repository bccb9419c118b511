"""Writes conversations about a database again, with other names for its tables and columns.

A policy learns the names of its training databases by heart. For a database that it never saw it then writes names that
the prompt does not have (doc/project/results.md). With names drawn anew only the prompt tells them.
"""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dbbench_adapter.engines.engine import Engine, TableInfo
from dbbench_adapter.interaction import Message
from sql_agent.settings.groups import SchemaForm
from sql_agent.text_to_sql.schema import folded, is_plain, is_plain_in_sqlite, render_schema
from sql_agent.text_to_sql.shown_names import CLAUSES

_STYLES: tuple[Callable[[list[str]], str], ...] = (
    lambda words: "_".join(words).lower(),
    lambda words: "_".join(words).upper(),
    lambda words: "_".join(word.capitalize() for word in words),
    lambda words: "".join(word.capitalize() for word in words),
    lambda words: words[0].lower() + "".join(word.capitalize() for word in words[1:]),
    lambda words: "".join(words).lower(),
)
_MORE = ("data", "full", "info", "item", "list", "main", "new", "old", "rec", "ref", "set", "std", "val", "value", "x")
"""Words that say little, as people put them before and behind names."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_TRIES = 20
# Words of SQL that are no keyword everywhere, and that a query may hold beside a column of that name.
_SYNTAX = frozenset({
    "blob", "current", "delete", "filter", "first", "if", "insert", "integer", "into", "key", "last", "nocase", "nulls",
    "numeric", "over", "partition", "range", "real", "recursive", "replace", "row", "rows", "text", "update", "window",
    "with",
})  # fmt: skip
_HIDDEN = frozenset({"_rowid_", "oid", "rowid"})
"""Columns that every table of SQLite has."""
_BY_PLACE = re.compile(r"\*|\bwith\b|\b(from|join|into)\s*'|\.\s*'", re.IGNORECASE)
_COUNTED = re.compile(r"count\s*\(\s*\*\s*\)", re.IGNORECASE)


def renamed_copies(
    conversations: Sequence[tuple[str, list[Message]]],
    schema_of: Callable[[str], Sequence[TableInfo]],
    engine: Engine,
    *,
    form: SchemaForm,
    together: int,
    draw: random.Random,
) -> list[list[Message]]:
    """
    Args:
        conversations: the database of each, and its messages, whose calls hold a query as `sql`.
        form: how prompts show a schema.
        together: conversations about one database that share a draw of names, so that a batch computes one schema.
    Returns:
        The copies, in an order of their own. A conversation has none if its prompt does not show the whole schema, if
        it names a column outside of its query, or if its query is no SELECT, or one whose meaning hangs on the order of
        columns (`*`) or on names in single quotes or of its own (WITH).
    """
    groups: dict[str, list[list[Message]]] = defaultdict(list)
    for database, messages in conversations:
        groups[database].append(messages)
    copies = []
    for database, members in groups.items():
        tables = schema_of(database)
        shown = render_schema(tables, form=form).text
        whole = [messages for messages in members if _can_be_renamed(messages, shown, tables)]
        draw.shuffle(whole)
        for at in range(0, len(whole), together):
            part = whole[at : at + together]
            words = _words(part, engine)
            quoted = {folded(word.strip('`"[]')) for word in words if word[:1] in ('"', "`", "[")}
            names = draw_names(tables, quoted, draw, taken={folded(word) for word in words})
            if all(old == folded(new) for old, new in names.items()):
                continue
            text = render_schema(with_names(tables, names, draw), form=form).text
            copies += [_copy(messages, shown, text, names, engine) for messages in part]
    return copies


def draw_names(
    tables: Sequence[TableInfo], kept: Collection[str], draw: random.Random, taken: Collection[str] = ()
) -> dict[str, str]:
    """Draw a name for each name of the schema, in one style for tables and one for columns.

    Half of them lose or gain something too: a word more, words cut short or without vowels, the plural. Names that
    need quotes stay.

    Args:
        kept: names that stay, folded.
        taken: words that no new name may be, such as aliases, folded.
    Returns:
        The new names by the old ones, folded.
    """
    of_tables, of_columns = draw.choice(_STYLES), draw.choice(_STYLES)
    given = [(table.name, of_tables, table) for table in tables]
    given += [(column.name, of_columns, table) for table in tables for column in table.columns]
    stays = {*kept, *CLAUSES, *_SYNTAX, *(folded(name) for name, _, table in given if not is_plain(name, table))}
    names: dict[str, str] = {folded(name): name for name, _, _ in given if folded(name) in stays}
    used = {*stays, *_HIDDEN, *taken, *(folded(name) for name, _, _ in given)}
    for name, style, _ in given:
        if folded(name) not in names:
            names[folded(name)] = _other(name, style, used, draw)
            used.add(folded(names[folded(name)]))
    return names


def with_names(tables: Sequence[TableInfo], names: Mapping[str, str], draw: random.Random) -> list[TableInfo]:
    """The tables under other names, and their columns behind the first one, in an order drawn anew."""

    def of(name: str) -> str:
        return names.get(folded(name), name)

    renamed = []
    for table in tables:
        columns = [replace(column, name=of(column.name)) for column in table.columns]
        rest = columns[1:]
        draw.shuffle(rest)
        renamed.append(
            replace(
                table,
                name=of(table.name),
                columns=(*columns[:1], *rest),
                primary_key=tuple(map(of, table.primary_key)),
                foreign_keys=tuple((of(own), of(other), of(theirs)) for own, other, theirs in table.foreign_keys),
                plain=frozenset(map(of, table.plain)) if table.plain is not None else None,
            )
        )
    draw.shuffle(renamed)
    return renamed


def query_with_names(query: str, names: Mapping[str, str], engine: Engine) -> str:
    """The query under other names. Words in quotes and names of functions stay."""
    parts = list(engine.tokens(query))
    text = ""
    for number, part in enumerate(parts):
        called = "".join(after.text for after in parts[number + 1 :][:2]).lstrip().startswith("(")
        before = next((earlier.text.lower() for earlier in reversed(parts[:number]) if earlier.kind != "blank"), "")
        is_name = folded(part.text) in names and (not called or before in (".", "from", "into", "join"))
        text += names[folded(part.text)] if is_name else part.text
    return text


def _other(name: str, style: Callable[[list[str]], str], taken: Collection[str], draw: random.Random) -> str:
    words = _WORD.findall(name) or [name]
    for _ in range(_TRIES):
        new = style(draw.choice(_CHANGES)(words, draw) if draw.random() < 0.5 else words)
        is_free = folded(new) == folded(name) or folded(new) not in {*taken, *CLAUSES, *_SYNTAX}
        if is_plain_in_sqlite(new) and is_free and not re.fullmatch(r"[tT]\d+", new):
            return new
    return name


def _plural(words: list[str], _: random.Random) -> list[str]:
    first = words[0]
    return [first[:-1] if first.lower().endswith("s") and len(first) > 1 else f"{first}s", *words[1:]]


_CHANGES: tuple[Callable[[list[str], random.Random], list[str]], ...] = (
    lambda words, draw: [*words, draw.choice(_MORE)],
    lambda words, draw: [draw.choice(_MORE), *words],
    lambda words, draw: [word[: draw.randint(3, 5)] for word in words],
    lambda words, _: [word[0] + re.sub("[aeiouAEIOU]", "", word[1:]) for word in words],
    _plural,
)


def _can_be_renamed(messages: Sequence[Message], shown: str, tables: Sequence[TableInfo]) -> bool:
    queries = [call["sql"] for call in _calls(messages)]
    own = {name for table in tables for name in (table.name, *(column.name for column in table.columns))}
    said = re.findall(r"\w+", " ".join(str(each.get("content") or "") for each in messages[1:]))
    return (
        shown in messages[0]["content"]
        and all(query.lstrip().lower().startswith("select") for query in queries)
        and not any(_BY_PLACE.search(_COUNTED.sub("", query)) for query in queries)
        and not any(word in own and not ((word.islower() and word.isalpha()) or word.istitle()) for word in said)
    )


def _words(conversations: Sequence[list[Message]], engine: Engine) -> set[str]:
    queries = [call["sql"] for messages in conversations for call in _calls(messages)]
    return {part.text for query in queries for part in engine.tokens(query)}


def _calls(messages: Sequence[Message]) -> list[dict[str, Any]]:
    calls = [json.loads(call["function"]["arguments"]) for each in messages for call in each.get("tool_calls") or ()]
    return [arguments for arguments in calls if "sql" in arguments]


def _copy(
    messages: Sequence[Message], shown: str, text: str, names: Mapping[str, str], engine: Engine
) -> list[Message]:
    copied: list[Message] = json.loads(json.dumps(messages))
    copied[0]["content"] = copied[0]["content"].replace(shown, text)
    for each in copied:
        for call in each.get("tool_calls") or ():
            arguments = json.loads(call["function"]["arguments"])
            if "sql" in arguments:
                arguments["sql"] = query_with_names(arguments["sql"], names, engine)
            call["function"]["arguments"] = json.dumps(arguments)
    return copied

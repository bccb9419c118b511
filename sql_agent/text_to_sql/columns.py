"""Which columns of a row of questions hold the database's name, the reference, the hints and the difficulty.

Spider writes `query` (and its parse as `sql`), BIRD `SQL`, `evidence` and `difficulty`. Other data sets have other
names. A column that nobody reads and that looks like SQL or like a part of the prompt is an error.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import PureWindowsPath
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from agentgrpo.column_names import unread_prompt, words

# Columns that name the database of a row without `db_id`; of a path its name without folder and suffix.
DATABASE_KEYS = (
    "db", "db_name", "dbname", "dbid", "database", "database_id", "database_name", "db_path", "db_file",
    "database_path", "database_file",
)  # fmt: skip
_SUFFIXES = (".sqlite", ".sqlite3", ".db", ".db3")
# What such a column may name instead: the program that runs the database.
_ENGINE = re.compile(
    r"(microsoft |ms|amazon |google |apache )?"
    r"(postgres(ql)?|mysql|mariadb|sqlite|sql ?server|sql|t-?sql|oracle( ?db)?|db2|duckdb|"
    r"snowflake|bigquery|redshift|clickhouse|presto|trino|spark( ?sql)?|hive|databricks)[\s_-]*v?[\d.]*",
    re.IGNORECASE,
)
# Columns of the reference; a value that is no text, as Spider's parse, is not read.
REFERENCE_KEYS = ("query", "SQL", "sql")
# Columns whose texts go into the prompt, behind the question, in this order.
HINT_KEYS = (
    "evidence", "external_knowledge", "knowledge", "hint", "hints", "background", "background_knowledge",
    "domain_knowledge", "knowledge_evidence", "formulaic_knowledge", "commonsense_knowledge", "oracle_knowledge",
    "definition", "definitions", "formula", "formulas", "glossary", "terminology",
)  # fmt: skip
# A column whose name has one of these words, or its plural, may hold a hint, or a remark that gives the answer away, so
# only the user can say whether the prompt should have it.
HINT_WORDS = frozenset((
    "definition", "note", "formula", "glossary", "term", "terminology", "fact", "rule", "assumption", "clarification",
    "guideline", "remark", "comment", "tip", "meaning", "concept", "convention", "info", "information", "doc",
    "documentation",
))  # fmt: skip
# A column whose name has one of these words belongs to earlier questions; SQL in it is no reference.
HISTORY_WORDS = frozenset((
    "previous", "prev", "prior", "preceding", "earlier", "history", "interaction", "turn", "turns", "conversation",
    "dialog", "dialogue",
))  # fmt: skip
# A column whose name has one of these words holds the reference, if it holds SQL.
SQL_WORDS = frozenset((
    "sql", "query", "gold", "golden", "reference", "answer", "solution", "target", "output", "truth", "label",
    "response", "completion", "statement", "program", "code",
))  # fmt: skip
# A column whose name has one of these words holds other SQL than the reference.
NO_REFERENCE_WORDS = frozenset((
    "pred", "predicted", "prediction", "generated", "wrong", "rejected", "negative", "incorrect", "bad", "error",
    "template", "toks", "tokens", "no", "schema", "context", "create", "ddl", "explanation", "prompt",
))  # fmt: skip


def database_of(row: dict[str, Any], known: Collection[str]) -> tuple[str, str] | None:
    """The column that names the row's database, and the name; None if there is none.

    Args:
        known: the names of the databases. If there is one, only `db_id` may call it by another name.
    Raises:
        ValueError: `db_id` is no text, or other columns name different databases and not one that is known.
    """
    named = database_names(row, known)
    if "db_id" in named or not named:
        return next(iter(named.items()), None)
    there = {name: value for name, value in named.items() if value in known} or (named if len(known) != 1 else {})
    if len(set(there.values())) > 1:
        first, other = list(dict.fromkeys(there.values()))[:2]
        columns = " and ".join(f"`{name}`" for name in there)
        raise ValueError(f"{columns} name different databases, {first!r} and {other!r}; write the right one as `db_id`")
    return next(iter(there.items()), None)


def database_names(row: dict[str, Any], known: Collection[str]) -> dict[str, str]:
    """What the columns of a row call its database: `db_id` alone if the row has it.

    Args:
        known: the names of the databases. The name of an engine, such as `postgres`, is left out unless it is known.
    Raises:
        ValueError: `db_id` is no text.
    """
    given = row.get("db_id")
    if given is not None and not isinstance(given, str):
        raise ValueError(f"`db_id` is {given!r}, expected a text")
    if given and given.strip():
        return {"db_id": given.strip()}
    named = {name: _database_name(row[name]) for name in DATABASE_KEYS if _is_database_name(row.get(name))}
    return {name: value for name, value in named.items() if value in known or (value and not _ENGINE.fullmatch(value))}


def _is_database_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and "\n" not in value.strip() and not _SCHEMA.match(value)


def _database_name(value: str) -> str:
    path = PureWindowsPath(value.strip())  # which reads the slashes of every system
    return path.stem if path.suffix.lower() in _SUFFIXES else path.name


def reference_of(row: dict[str, Any]) -> str | None:
    """Raises ValueError: columns hold different SQL, or a column that is not read holds it."""
    held = {name: row[name] for name in REFERENCE_KEYS if isinstance(row.get(name), str) and row[name].strip()}
    also = {name: text for name in row if name not in held and (text := _sql_in(name, row[name])) is not None}
    if not held and also:
        name = next(iter(also))
        if name in REFERENCE_KEYS:
            raise ValueError(f"`{name}` is a list, and a question has one reference; write that as a text")
        remedy = (
            'if that text is the answer itself, write it as rows, [["..."]]' if name == "answer" else "or remove it"
        )
        raise ValueError(f"`{name}` holds SQL, and no `query` or `SQL` does; rename it to `query`, {remedy}")
    texts = {name: _plain(text) for name, text in (held | also).items()}
    first = next(iter(texts), None)
    other = next((name for name in texts if texts[name] != texts[first]), None) if first else None
    if other is not None:
        raise ValueError(f"`{first}` and `{other}` hold different texts; keep the one that is the reference")
    return held[first].strip() if first else None


def _sql_in(name: str, value: Any) -> str | None:
    found = words(name)
    if found.isdisjoint(SQL_WORDS) or not found.isdisjoint(NO_REFERENCE_WORDS | HISTORY_WORDS):
        return None
    texts = value if isinstance(value, list) else [value]
    return "; ".join(texts) if texts and all(isinstance(text, str) and is_sql(text) for text in texts) else None


_START = r"(?:[\s(]|--[^\n]*\n|/\*.*?\*/)*"
_CHANGE = re.compile(
    _START + r"(insert\s+(or\s+\w+\s+)?into|replace\s+into|delete\s+from|update\s+\S+\s+set)\b",
    re.IGNORECASE | re.DOTALL,
)
_QUERY = re.compile(_START + r"(select|with|values)\b(?=\s*\S)", re.IGNORECASE | re.DOTALL)
_SELECT_FROM = re.compile(r".*\bselect\b.*\bfrom\b", re.IGNORECASE | re.DOTALL)


def is_sql(text: str) -> bool:
    # "Select Comfort" begins like a statement and is none.
    if _QUERY.match(text) is None:
        return _CHANGE.match(text) is not None
    try:
        tree = next(filter(None, sqlglot.parse(text, read="sqlite")), None)
    except (SqlglotError, RecursionError):
        return _SELECT_FROM.match(text) is not None
    return isinstance(tree, exp.Query | exp.Values) and (
        tree.find(exp.From) is not None or tree.find(exp.Column) is None
    )


def _plain(text: str) -> str:
    return " ".join(text.split()).rstrip("; ")


def hints_of(row: dict[str, Any]) -> str:
    """Each hint once.

    Raises:
        ValueError: a hint is no text, or the name of a file.
    """
    hints = (_hint(name, row[name]) for name in HINT_KEYS if row.get(name) is not None)
    return "\n".join(dict.fromkeys(hint for hint in hints if hint))


def _hint(name: str, value: Any) -> str:
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"`{name}` is {value!r}, expected a text; write what it stands for, or remove it")
    if file := next(
        (text for text in texts if re.fullmatch(r"\s*\S+\.(md|txt|json|jsonl|csv|pdf|html?)\s*", text)), None
    ):
        raise ValueError(f"`{name}` names the file {file.strip()!r}; write its text there, or remove it")
    return "\n".join(text.strip() for text in texts if text.strip())


def difficulty_of(row: dict[str, Any]) -> str:
    """A number is its text.

    Raises:
        ValueError: it is something else.
    """
    value = row.get("difficulty")
    if isinstance(value, int | float):
        return f"{value:g}"
    if value is not None and not isinstance(value, str):
        raise ValueError(f"`difficulty` is {value!r}, expected a text or a number")
    return (value or "").strip()


_READ = {"question", "db_id", "answer", "difficulty", *REFERENCE_KEYS, *HINT_KEYS}


def check_unread(row: dict[str, Any], question: str, hints: str) -> None:
    """Raises ValueError: a column has the name of a prompt or hint, and its text is neither in the question nor in the
    hints.
    """
    of_code = {
        name
        for name, value in row.items()
        if isinstance(value, str) and words(name).isdisjoint(HISTORY_WORDS) and (_SCHEMA.match(value) or is_sql(value))
    }
    if (name := unread_prompt(row, _READ | of_code, [question, hints], also=HINT_WORDS)) is not None:
        raise ValueError(
            f"`{name}` looks like a part of the prompt, and no prompt would hold it; put a hint into `evidence`, or "
            "remove it"
        )


# A column with a schema: the prompt has the database's own.
_SCHEMA = re.compile(r"\s*CREATE\s", re.IGNORECASE)

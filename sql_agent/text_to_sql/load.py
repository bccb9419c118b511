"""Reads questions in the forms of Spider and BIRD, and questions with answers.

A row is an object with `question`; `query` (Spider) or `SQL` (BIRD), or `answer`: a value, a list of values, or a list
of rows; `db_id`, which a single database does not need; `evidence` and `difficulty` (BIRD). `agentgrpo.columns` reads
them in any case, or by the user's names for them; other keys are not read.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.errors import SqlglotError

from agentgrpo.chat.conversations import RowError
from agentgrpo.checks import UsageError
from agentgrpo.columns import check_unread, columns_flag, known_columns, no_form, parse_columns
from agentgrpo.json_text import JsonObject
from agentgrpo.row_files import RowFileError, iter_rows
from agentgrpo.spelling import did_you_mean
from dbbench_adapter.datatypes import Cell, Rows
from dbbench_adapter.engines.engine import Databases, Engine
from dbbench_adapter.engines.sqlite import SQLITE
from sql_agent.settings.groups import NO_SPLIT, SPLIT_SEED
from sql_agent.text_to_sql.datatypes import Question

FORMS = (("question", "query"), ("question", "answer"))
_ALSO = ("db_id", "evidence", "difficulty")
_KNOWN = ("question", "query", "answer", *_ALSO)


def read_questions(path: Path, databases: Databases, columns: str | None = None) -> list[Question]:
    """Read JSON, JSONL or parquet.

    Args:
        columns: the user's names of the columns (`parse_columns`).
    Raises:
        UsageError: the file is missing or empty, or a row is not a question about one of the databases.
    """
    if not path.is_file():
        expected = "rows with `question` and `query`, JSON or JSONL"
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UsageError(f"{path} {what}; expected {expected}{did_you_mean(path)}")
    questions, given = [], parse_columns(columns)
    named: Counter[str] = Counter()
    for place, row in _rows(path):
        try:
            values = known_columns(row, _KNOWN, given, {"sql": "query"})
            questions.append(_question(row, values, f"{path.stem}-{place.rpartition(' ')[2]}", databases))
            if not given:
                read = [name for name in _KNOWN if name in values]
                check_unread(row, read, {*_KNOWN, "sql"}, ("question", "evidence", "db_id"))
        except (ValueError, TypeError) as error:
            fault = error.reason if isinstance(error, RowError) and error.field == "row" else error
            raise UsageError(f"{path}, {place}: {fault}") from None
        named.update([_database_name(values)] if values.get("db_id") else [])
    if len(databases.ids) == 1 and len(named) > 1:
        counts = ", ".join(f"{name} {count}" for name, count in named.most_common(5)) + ", ..." * (len(named) > 5)
        raise UsageError(
            f"{path} is about {len(named)} databases ({counts}), and --database is one; give the folder that holds "
            "them, with DB_ID/DB_ID.sqlite, or a file with the rows of one"
        )
    if not questions:
        raise UsageError(f"{path} holds no question; expected rows with `question` and `query`")
    return questions


def split_questions(questions: Sequence[Question], fraction: float) -> tuple[list[Question], list[Question]]:
    """Hold out a share of the questions: whole databases if there are several, else groups with the same reference.

    `SPLIT_SEED` draws them.

    Returns:
        Questions to train on, and held-out ones.
    Raises:
        ValueError: there is nothing left to train on.
    """
    keys = _groups(questions)
    distinct, several = list(dict.fromkeys(keys)), len({question.db_id for question in questions}) > 1
    held_out = set(random.Random(SPLIT_SEED).sample(distinct, math.ceil(fraction * len(distinct))))
    if len(held_out) == len(distinct):
        raise ValueError(
            f"{len(questions)} question(s) with {len(distinct)} different {'database' if several else 'reference'}(s) "
            f"are too few to hold some out; {NO_SPLIT}"
        )
    return _parted(questions, keys, held_out)


def _groups(questions: Sequence[Question]) -> list[str]:
    """What each question is held out with: its database if there are several, else its reference."""
    several = len({question.db_id for question in questions}) > 1
    return [q.db_id if several else " ".join((q.query or q.question).lower().split()) for q in questions]


def hold_out(questions: Sequence[Question], wanted: int) -> tuple[list[Question], list[Question]]:
    """Hold out whole groups, as `split_questions` does, until there are `wanted` questions, and never more than a half.

    Returns:
        Questions to train on, and held-out ones.
    Raises:
        ValueError: no group is small enough.
    """
    keys = _groups(questions)
    sizes = Counter(keys)
    held_out: set[str] = set()
    for key in random.Random(SPLIT_SEED).sample([*sizes], len(sizes)):
        count = sum(sizes[each] for each in held_out)
        if count < wanted and 2 * (count + sizes[key]) <= len(questions):
            held_out.add(key)
    if not held_out:
        raise ValueError(
            f"none of {len(questions)} question(s) can be held out: whole databases are, or questions with one "
            f"reference together, and at most a half; {NO_SPLIT}"
        )
    return _parted(questions, keys, held_out)


def _parted(
    questions: Sequence[Question], keys: Sequence[str], held_out: Container[str]
) -> tuple[list[Question], list[Question]]:
    train, val = (
        [q for q, key in zip(questions, keys, strict=True) if (key in held_out) == out] for out in (False, True)
    )
    return train, val


def changes_data(query: str, engine: Engine = SQLITE) -> bool:
    # The result of an INSERT, UPDATE or DELETE is the state of the tables.
    return any(_kind_of_change(statement, engine) is not None for statement in engine.statements(query))


def _kind_of_change(statement: str, engine: Engine) -> str | None:
    tree = parsed(statement, engine)
    if tree is None or isinstance(tree, exp.Command):  # databases know forms that sqlglot does not read
        verb = _verb(statement, engine)
        return verb if verb in _CHANGES else "insert" if verb == "replace" else None
    return next((name for name, node in _CHANGES.items() if isinstance(tree, node)), None)


_CHANGES: dict[str, Any] = {"insert": exp.Insert, "update": exp.Update, "delete": exp.Delete}
_VERBS = {*_CHANGES, "replace", "select", "values"}
_QUOTED = (TokenType.STRING, TokenType.IDENTIFIER)


def _verb(statement: str, engine: Engine) -> str | None:
    # The first verb outside of parentheses stands behind the queries of WITH.
    depth = 0
    try:
        for token in sqlglot.tokenize(statement, read=engine.dialect):
            depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
            if depth == 0 and (word := token.text.lower()) in _VERBS and token.token_type not in _QUOTED:
                return word
    except SqlglotError:
        pass
    return None


def kind_of(query: str, engine: Engine = SQLITE) -> str:
    """Classify a reference: the first that fits of `nested`, `set`, `join`, `group`, `aggregate` and `plain`.

    A reference that changes data is `insert`, `update` or `delete`, or `several` if it has several statements. One that
    does not parse is `other`.
    """
    if changes_data(query, engine):
        found = engine.statements(query)
        return _kind_of_change(found[0], engine) or "several" if len(found) == 1 else "several"
    tree = parsed(query, engine)
    if tree is None:
        return "other"
    if len(list(tree.find_all(exp.Select))) > 1 and not isinstance(tree, exp.SetOperation):
        return "nested"
    for kind, nodes in _KINDS.items():
        if tree.find(*nodes):
            return kind
    return "plain"


_KINDS: dict[str, tuple[Any, ...]] = {
    "set": (exp.SetOperation,),
    "join": (exp.Join,),
    "group": (exp.Group,),
    "aggregate": (exp.AggFunc,),
}


def named_in(query: str, columns: Iterable[tuple[str, str]], engine: Engine = SQLITE) -> tuple[str, ...]:
    """Those of some columns that a query names, as `table.column`, in their order.

    A column without a table in front belongs to every table of its name that the query reads, and `*` names none.

    Args:
        columns: table and column.
    """
    trees = [tree for statement in engine.statements(query) if (tree := parsed(statement, engine)) is not None]
    tables = [table for tree in trees for table in tree.find_all(exp.Table)]
    aliases = {(table.alias_or_name.lower(), table.name.lower()) for table in tables}
    read = {table.name.lower() for table in tables}
    named = {
        (table, column.name.lower())
        for tree in trees
        for column in tree.find_all(exp.Column)
        for table in ({name for alias, name in aliases if alias == column.table.lower()} if column.table else read)
    }
    # sqlglot has plain names, and no columns, in JOIN ... USING (name) and in INSERT INTO table (name)
    plain = [each for tree in trees for join in tree.find_all(exp.Join) for each in join.args.get("using") or ()]
    plain += [each for tree in trees for schema in tree.find_all(exp.Schema) for each in schema.expressions]
    named |= {(table, each.name.lower()) for each in plain for table in read}
    return tuple(f"{table}.{column}" for table, column in columns if (table.lower(), column.lower()) in named)


def orders_rows(query: str, engine: Engine = SQLITE) -> bool:
    """Whether the outermost query orders its rows.

    Of a query that does not parse it is an ORDER BY in no parenthesis.
    """
    tree = parsed(query, engine)
    while isinstance(tree, exp.Subquery) and tree.args.get("order") is None:
        tree = tree.this  # MySQL lets parentheses stand around a whole query
    if tree is not None:
        return tree.args.get("order") is not None
    return " order by " in " ".join(_outside_of_parentheses(query, engine))


def _outside_of_parentheses(query: str, engine: Engine) -> Iterator[str]:
    depth = 0
    for token in engine.tokens(query):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth == 0 and token.kind != "blank":
            yield token.text.lower()


def parsed(query: str, engine: Engine = SQLITE) -> exp.Expr | None:
    code = "".join(" " if token.kind == "blank" else token.text for token in engine.tokens(query))
    try:
        return next(filter(None, sqlglot.parse(code, read=engine.dialect)), None)
    except (SqlglotError, RecursionError):
        return None


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        for row in iter_rows(path):
            if fault := row.fault():
                raise UsageError(f"{path}, {fault}")
            yield row.place, row.value
    except RowFileError as error:
        raise UsageError(str(error)) from None


def _question(row: JsonObject, values: JsonObject, name: str, databases: Databases) -> Question:
    if not any(values.keys() >= {*form} for form in FORMS):
        raise no_form(row, FORMS, ("db_id", "evidence"))
    question, query = _text(values, "question"), _text(values, "query")
    if not question or not (query or "answer" in values):
        raise ValueError("`question` is empty" if not question else "`query` is empty, and there is no `answer`")
    db_id = databases.db_id(_database_name(values) or None)
    answer = None if query else _answer(values["answer"])
    texts = [] if query else values["answer"] if isinstance(values["answer"], list) else [values["answer"]]
    if texts and all(isinstance(text, str) and is_sql(text) for text in texts):
        reference = columns_flag(row, ("question", "query"), ())
        raise ValueError(f"`answer` holds SQL; read it as a reference by {reference}, or write it as rows, [[...]]")
    changes = bool(query) and changes_data(query, databases.engine)
    if changes and not databases.changeable:
        raise ValueError(
            f"the reference changes data, and a database of {databases.engine.name} is only read; leave the row out, "
            "or copy the database into a SQLite file, where tasks may change data"
        )
    kind = _difficulty(values) or (kind_of(query, databases.engine) if query else "answer")
    return Question(name, question, db_id, query or None, answer, _evidence(values), kind, changes=changes)


def _text(row: JsonObject, key: str) -> str:
    value = row.get(key, "")
    if not isinstance(value, str):
        raise ValueError(f"`{key}` is {value!r}, expected a text")
    return value.strip()


def _database_name(values: JsonObject) -> str:
    path = PureWindowsPath(_text(values, "db_id"))  # which reads the slashes of every system
    return path.stem if path.suffix.lower() in (".sqlite", ".sqlite3", ".db", ".db3", ".duckdb") else path.name


def _evidence(values: JsonObject) -> str:
    held = values.get("evidence") or ""
    parts = held if isinstance(held, list) else [held]
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) < len(parts):
        raise ValueError(f"`evidence` is {held!r}, expected a text or a list of texts")
    return "\n".join(text.strip() for text in texts if text.strip())


def _difficulty(values: JsonObject) -> str:
    value = values.get("difficulty", "")
    return f"{value:g}" if isinstance(value, int | float) else _text(values, "difficulty")


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


def _answer(value: object) -> Rows:
    """A value is one cell, a list of values one column, a list of lists whole rows."""
    rows = value if isinstance(value, list) else [value]
    return tuple(tuple(map(_cell, row)) if isinstance(row, list) else (_cell(row),) for row in rows)


def _cell(value: object) -> Cell:
    if isinstance(value, bool):
        return int(value)  # as SQLite stores it
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(f"`answer` holds {value!r}, expected numbers, texts or null, alone, in a list, or in rows")

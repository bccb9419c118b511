"""Answers SHOW, DESCRIBE and information_schema over an SQLite database, as far as agents use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dbbench_adapter.dialect.functions.patterns import like_exactly
from dbbench_adapter.dialect.sql_types import mysql_type
from dbbench_adapter.dialect.syntax import COLLATION, StatementError
from dbbench_adapter.dialect.translate import CATALOGUE, CATALOGUE_COUNTS, CATALOGUE_VIEWS, Statement
from dbbench_adapter.engines.base import Result, backquoted

# Runs one statement with all rights and returns its rows.
Read = Callable[..., list[tuple[Any, ...]]]

_SCHEMATA = ("dbbench", "information_schema")
# These columns hold names of files in MySQL, which are compared with case on Linux.
_EXACT = frozenset(["TABLE_SCHEMA", "TABLE_NAME", "SCHEMA_NAME"])


def no_table(name: str) -> StatementError:
    return StatementError(f"1146 (42S02): Table 'dbbench.{name}' doesn't exist")


def table_names(read: Read) -> list[str]:
    # LIKE and `=` would fold accents.
    rows = read("SELECT name FROM main.sqlite_master WHERE type = 'table'")
    return sorted(name for (name,) in rows if not name.startswith("sqlite_"))


def column_names(table: str, read: Read) -> tuple[str, ...] | None:
    columns = read("SELECT name, hidden FROM pragma_table_xinfo(?, 'main')", table)
    return None if any(hidden for _, hidden in columns) else tuple(name for name, _ in columns)


def catalogue_answer(statement: Statement, read: Read) -> Result | None:
    """None for every statement but SHOW and DESCRIBE.

    Raises:
        StatementError: the table does not exist.
    """
    match statement.kind:
        case "databases":
            return Result(tuple((name,) for name in _SCHEMATA), ("Database",))
        case "tables" | "full tables":
            more = ("BASE TABLE",) if statement.kind == "full tables" else ()
            names = [name for name in table_names(read) if like_exactly(statement.target, name)]
            return Result(tuple((name, *more) for name in names), ("Tables_in_dbbench", "Table_type")[: 1 + len(more)])
        case "columns":
            rows = tuple((name, _shown(kind), "YES", "", None, "") for name, kind in _columns(statement.target, read))
            return Result(rows, ("Field", "Type", "Null", "Key", "Default", "Extra"))
        case "index":
            _columns(statement.target, read)
            return Result((), ("Table", "Non_unique", "Key_name", "Seq_in_index", "Column_name"))
    return None


def make_views(read: Read) -> None:
    """Make the views of `CATALOGUE` again, as temporary tables."""
    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in CATALOGUE_VIEWS}
    rows["catalogue schemata"] = [("def", schema) for schema in _SCHEMATA]
    for table in table_names(read):
        count = read(f"SELECT COUNT(*) FROM main.{backquoted(table)}")[0][0]
        rows["catalogue tables"].append(("def", "dbbench", table, "BASE TABLE", "InnoDB", count))
        for place, (name, kind) in enumerate(_columns(table, read), 1):
            where = ("def", "dbbench", table, name, place, None)
            rows["catalogue columns"].append((*where, "YES", _shown(kind).partition("(")[0], _shown(kind), "", ""))
    for view in CATALOGUE.values():
        columns = CATALOGUE_VIEWS[view]
        kinds = (
            f"{name} {'INT' if name in CATALOGUE_COUNTS else 'TEXT' if name in _EXACT else f'TEXT COLLATE {COLLATION}'}"
            for name in columns
        )
        read(f"DROP TABLE IF EXISTS temp.{backquoted(view)}")
        read(f"CREATE TEMP TABLE {backquoted(view)} ({', '.join(kinds)})")
        for row in rows[view]:
            read(f"INSERT INTO temp.{backquoted(view)} VALUES ({', '.join('?' * len(columns))})", *row)


def _columns(table: str, read: Read) -> list[tuple[str, str]]:
    columns = read("SELECT name, type FROM pragma_table_info(?)", table) if table in _names(read) else []
    if not columns:
        raise no_table(table)
    return [(name, mysql_type(declared or "TEXT").lower()) for name, declared in columns]


# MariaDB shows how many digits an integer type has room for.
_WIDTHS = {"tinyint": 4, "smallint": 6, "mediumint": 9, "int": 11, "bigint": 20}


def _shown(kind: str) -> str:
    return "tinyint(1)" if kind == "boolean" else f"{kind}({_WIDTHS[kind]})" if kind in _WIDTHS else kind


def _names(read: Read) -> set[str]:
    names = read("SELECT name FROM main.sqlite_master UNION SELECT name FROM temp.sqlite_master")
    return {name for (name,) in names if not name.startswith("sqlite_")} - set(CATALOGUE.values())

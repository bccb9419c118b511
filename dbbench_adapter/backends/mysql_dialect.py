"""Translate what an agent writes for MySQL into SQLite, so that it also means what it means in MySQL.

Only what an agent needs passes, always printed from the parsed tree. Leaves out: WITH ROLLUP, user variables, views,
stored programs, EXPLAIN of a query.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from sqlglot import exp
from sqlglot.errors import ErrorLevel, SqlglotError

from dbbench_adapter.backends.mysql_kinds import ColumnKinds, Kind, KindFinder
from dbbench_adapter.backends.mysql_limits import blows_up
from dbbench_adapter.backends.mysql_rewrites import rewritten
from dbbench_adapter.backends.mysql_syntax import (
    Sqlite,
    StatementError,
    parse_one,
    syntax_error,
    unsupported,
)

_CACHED_CHARS = 2_000


@dataclass(frozen=True)
class Statement:
    """One translated statement."""

    kind: Literal["query", "change", "alter", "begin", "commit", "rollback", "nothing", "tables", "columns", "create"]
    """`tables`, `columns`, `create`: SHOW TABLES, DESCRIBE, SHOW CREATE TABLE, answered by the database itself."""
    sql: str = ""
    """SQLite's own SQL; empty where `kind` says it all."""
    target: str = ""
    """The table that `alter`, `columns` and `create` name; the pattern of `tables`."""
    sorts: bool = False
    """SQLite has to sort, or may have to."""
    kinds: tuple[Kind | None, ...] = ()
    """MySQL's type of each result column where it is known; empty for `SELECT *` and unions."""


def translate(sql: str, columns: ColumnKinds) -> Statement:
    """Translate one MySQL statement, within the thread's `time_limit`.

    Args:
        columns: MySQL's type of the columns, by lower-case name.
    Raises:
        StatementError: not exactly one statement, a syntax error, or something this translation leaves out.
        StatementTimeout: it takes too long.
    """
    return (_translated_often if len(sql) <= _CACHED_CHARS else _translated)(sql, columns)


def _translated(sql: str, columns: ColumnKinds) -> Statement:
    tree = parse_one(sql)
    if meta := _meta_statement(tree):
        return meta
    if not isinstance(tree, exp.Query | exp.Insert | exp.Update | exp.Delete | exp.Create | exp.Drop | exp.Alter) and (
        not isinstance(tree, exp.TruncateTable)
    ):
        raise unsupported(sql.split(maxsplit=1)[0].upper())
    _refuse_foreign_tables(tree)
    if blows_up(tree):
        raise StatementError("1116 (HY000): Too many tables; MySQL can only use 61 tables in a join")
    finder = KindFinder(tree, columns)
    try:
        selects = tree.selects if type(tree) is exp.Select and not tree.is_star else []
        kinds = tuple(finder.kind(item) for item in selects)
        tree = rewritten(tree, finder)
        printed = tree.sql(Sqlite, identify=True, unsupported_level=ErrorLevel.IGNORE)
    except (SqlglotError, RecursionError, ValueError) as error:
        raise unsupported(str(error)[:80]) from None
    except (AttributeError, TypeError, LookupError):
        # sqlglot parses some nonsense into trees of shapes that no rule foresees; MySQL calls it a syntax error
        raise syntax_error(sql) from None
    kind = "query" if isinstance(tree, exp.Query) else "alter" if isinstance(tree, exp.Alter | exp.Drop) else "change"
    table = tree.find(exp.Table) if kind == "alter" else None
    sorts = tree.find(*_SORTING) is not None
    return Statement(kind, printed, target=table.name if table else "", sorts=sorts, kinds=kinds)


_SORTING = (exp.Order, exp.Group, exp.Distinct, exp.Window, exp.SetOperation, exp.Create)
_translated_often = lru_cache(maxsize=512)(_translated)  # a group of rollouts says the same things


def _meta_statement(tree: exp.Expr) -> Statement | None:
    if isinstance(tree, exp.Transaction):
        return Statement("begin")
    if isinstance(tree, exp.Commit):
        return Statement("commit")
    if isinstance(tree, exp.Rollback):
        return Statement("rollback")
    if isinstance(tree, exp.Set):
        return Statement("nothing")
    if isinstance(tree, exp.Use):
        raise StatementError(f"1049 (42000): Unknown database '{tree.this.name if tree.this else ''}'")
    if isinstance(tree, exp.Describe) and isinstance(tree.this, exp.Table):
        return Statement("columns", target=tree.this.name)
    if isinstance(tree, exp.Show):
        target = tree.args.get("target")
        if tree.name == "TABLES":
            like = tree.args.get("like")
            return Statement("tables", target=like.name if like else "%")
        if tree.name in ("COLUMNS", "CREATE TABLE") and target is not None:
            return Statement("columns" if tree.name == "COLUMNS" else "create", target=target.name)
        raise unsupported(f"SHOW {tree.name}")
    return None


def _refuse_foreign_tables(tree: exp.Expr) -> None:
    for table in tree.find_all(exp.Table):
        if table.db or table.name.lower().startswith(("sqlite_", "pragma_")):
            name = f"{table.db or 'dbbench'}.{table.name}"
            raise StatementError(f"1146 (42S02): Table '{name}' doesn't exist")

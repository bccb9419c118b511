"""Translates a MySQL statement into SQLite's SQL with the same meaning.

Only the statements that an agent needs pass, and they are always printed from the parsed tree. This module leaves out
user and system variables, views, stored programs, and EXPLAIN of a query.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from sqlglot import exp
from sqlglot.errors import ErrorLevel, SqlglotError

from dbbench_adapter.dialect.allowed_sql import (
    refuse,
    refuse_definitions,
    refuse_other_kinds,
    refuse_reserved,
    refuse_row_ids,
    refuse_untranslated,
    settle_numbers,
)
from dbbench_adapter.dialect.limits import exceeds_limits
from dbbench_adapter.dialect.rewrites import SHIFTED, name_new_values, rewritten, shift_dates
from dbbench_adapter.dialect.sql_types import INT, TEXT, Columns, SqlType, TableColumn
from dbbench_adapter.dialect.syntax import (
    StatementError,
    nodes_of,
    parse_one,
    printed,
    syntax_error,
    too_deep,
    unparenthesise_operands,
    unparenthesised,
    unsupported,
)
from dbbench_adapter.dialect.type_inference import TypeInference
from dbbench_adapter.statement_clock import Refused

_CACHED_CHARS = 2_000


Executed = Literal["query", "change", "alter"]
Transactional = Literal["begin", "commit", "rollback", "nothing", "autocommit on", "autocommit off"]
# The catalogue answers SHOW DATABASES, SHOW [FULL] TABLES, DESCRIBE and SHOW INDEX.
Shown = Literal["databases", "tables", "full tables", "columns", "index"]


@dataclass(frozen=True)
class Statement:
    kind: Executed | Transactional | Shown
    sql: str = ""
    """SQLite's own SQL; empty unless `kind` is one of `Executed`."""
    catalogue: bool = False
    """Whether the statement reads one of `CATALOGUE`."""
    tables: tuple[str, ...] = ()
    """The names of tables as written, without those that the statement defines itself."""
    target: str = ""
    """The table that `columns` and `index` name, or the pattern of `tables`."""
    sorts: bool = False
    """Whether SQLite may have to sort."""
    kinds: tuple[SqlType | None, ...] = ()
    """MySQL's type of each result column; empty for what is no query."""


def translate(sql: str, columns: Columns, *, strict: bool = True) -> Statement:
    """Translate one MySQL statement, within the thread's `time_limit`.

    Args:
        columns: MySQL's type of the columns.
        strict: MySQL's strict mode, which typed tables have.
    Raises:
        StatementError: the text is not one statement, does not parse, or uses something that is not supported.
        StatementTimeout: the translation takes too long.
    """
    try:
        return (translated_often if len(sql) <= _CACHED_CHARS else _translated)(sql, columns, strict)
    except Refused as refusal:
        raise StatementError(str(refusal)) from None
    except RecursionError:
        raise too_deep() from None
    except (SqlglotError, ValueError):
        raise unsupported(sql.split(maxsplit=1)[0].upper()) from None
    except (AttributeError, TypeError, LookupError):
        # sqlglot parses some nonsense into trees that no rule expects; MySQL calls it a syntax error
        raise syntax_error(sql) from None


def _translated(sql: str, columns: Columns, strict: bool) -> Statement:
    tree = parse_one(sql)
    if meta := _meta_statement(tree):
        return meta
    refuse_other_kinds(tree, sql)
    tree = unparenthesised(tree)
    if isinstance(tree, exp.Insert) and (conflict := tree.args.get("conflict")):
        name_new_values(conflict)
    nodes = nodes_of(tree)
    if any(isinstance(node, SHIFTED) for node in nodes):
        shift_dates(tree)
        nodes = nodes_of(tree)
    if isinstance(tree, exp.Create | exp.Alter):
        refuse_definitions(tree)
    else:
        refuse_untranslated(nodes)
    settle_numbers(nodes)
    for node in nodes:
        if isinstance(node, exp.SetOperation):
            unparenthesise_operands(node)
    _drop_dual(nodes)
    refuse_row_ids(nodes, columns)
    if catalogue := _find_tables(nodes):
        columns += _CATALOGUE_COLUMNS
    tables = _named_tables(tree, nodes)
    sorts = any(_sorts(node) for node in nodes)
    if any(isinstance(node, _NESTED) for node in nodes) and exceeds_limits(tree):
        raise StatementError("1116 (HY000): Too many tables; MySQL can only use 61 tables in a join")
    changes = isinstance(tree, exp.Insert | exp.Update | exp.Delete)
    finder = TypeInference(nodes, columns, is_strict=strict and changes)
    refuse_reserved(node for node in nodes if isinstance(node, exp.Identifier))
    refuse((node for node in nodes if isinstance(node, exp.Select)), columns)
    kinds = finder.kinds_of(tree) if isinstance(tree, exp.Query) else ()
    unknown = isinstance(tree, exp.Query) and (None in kinds or not kinds)
    unknown = unknown and finder.knows_tables() and finder.knows_columns(tree)  # else SQLite names what is missing
    tree = rewritten(tree, nodes, finder)
    if unknown:
        raise unsupported("a result of unknown type")  # the driver writes values by their types
    kind = "query" if isinstance(tree, exp.Query) else "alter" if isinstance(tree, exp.Alter | exp.Drop) else "change"
    return Statement(kind, printed(tree), catalogue=catalogue, tables=tables, sorts=sorts, kinds=kinds)


def _drop_dual(nodes: list[exp.Expr]) -> None:
    for source in (node for node in nodes if isinstance(node, exp.From)):
        table, query = source.this, source.parent
        named = isinstance(table, exp.Table) and table.name.lower() == "dual" and not table.db
        if named and isinstance(query, exp.Select) and not query.args.get("joins"):
            query.set("from_", None)


def _named_tables(tree: exp.Expr, nodes: list[exp.Expr]) -> tuple[str, ...]:
    defined = {node.alias.lower() for node in nodes if isinstance(node, exp.CTE)}
    made = tree.this.find(exp.Table) if isinstance(tree, exp.Create) and tree.kind == "TABLE" else None
    tables = {node.name for node in nodes if isinstance(node, exp.Table) and node is not made}
    return tuple(name for name in tables if name.lower() not in defined)


def _sorts(node: exp.Expr) -> bool:
    # UNION ALL, which recursive queries use, only joins.
    return isinstance(node, _SORTING) or (isinstance(node, exp.SetOperation) and node.args.get("distinct") is not False)


_NESTED = (exp.Subquery, exp.CTE)
_SORTING = (exp.Order, exp.Group, exp.Distinct, exp.Window, exp.Create)
translated_often = lru_cache(maxsize=512)(_translated)  # rollouts of a group repeat statements


_TRANSACTIONAL: dict[type[exp.Expr], Transactional] = {
    exp.Transaction: "begin",
    exp.Commit: "commit",
    exp.Rollback: "rollback",
}
_SHOWN: dict[str, Shown] = {"COLUMNS": "columns", "INDEX": "index"}
_AUTOCOMMIT = re.compile(r"\bautocommit`?\s*:?=\s*'?(\w+)", re.IGNORECASE)


def _meta_statement(tree: exp.Expr) -> Statement | None:
    if kind := _TRANSACTIONAL.get(type(tree)):
        return Statement(kind)
    if isinstance(tree, exp.Set):
        wanted = _AUTOCOMMIT.search(tree.sql("mysql", unsupported_level=ErrorLevel.IGNORE))
        if wanted is None:
            return Statement("nothing")
        return Statement("autocommit off" if wanted[1].lower() in ("0", "off", "false") else "autocommit on")
    if isinstance(tree, exp.Use):
        name = tree.this.name if tree.this else ""
        if name != "dbbench":
            raise StatementError(f"1049 (42000): Unknown database '{name}'")
        return Statement("nothing")
    if isinstance(tree, exp.Describe) and isinstance(tree.this, exp.Table):
        return Statement("columns", target=tree.this.name)
    if isinstance(tree, exp.Show):
        target = tree.args.get("target")
        if tree.name == "TABLES":
            like = tree.args.get("like")
            return Statement("full tables" if tree.args.get("full") else "tables", target=like.name if like else "%")
        if tree.name == "DATABASES":
            return Statement("databases")
        if tree.name in _SHOWN and target is not None:
            return Statement(_SHOWN[tree.name], target=target.name)
        raise unsupported(f"SHOW {tree.name}")
    return None


def _find_tables(nodes: list[exp.Expr]) -> bool:
    """Remove the database's own name from the tables, and replace those of the catalogue by `CATALOGUE`'s.

    Returns:
        Whether the statement uses the catalogue.
    Raises:
        StatementError: a table belongs to another database.
    """
    found = False
    for table in (node for node in nodes if isinstance(node, exp.Table)):
        full = (table.db.lower(), table.name.lower())
        if full in CATALOGUE and not table.catalog:
            alias = table.alias or table.name
            table.set("this", exp.to_identifier(CATALOGUE[full], quoted=True))
            table.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
            found = True
        elif full[0] not in ("", "dbbench") or table.catalog or full[1].startswith(("sqlite_", "pragma_", *_OWN)):
            raise StatementError(f"1146 (42S02): Table '{table.db or 'dbbench'}.{table.name}' doesn't exist")
        table.set("db", None)
    for column in nodes if not found else ():
        if isinstance(column, exp.Column) and column.db.lower() == "dbbench":
            column.set("db", None)
    return found


# These views of information_schema are made, as temporary tables, for a statement that uses them.
CATALOGUE = {
    ("information_schema", "tables"): "catalogue tables",
    ("information_schema", "columns"): "catalogue columns",
    ("information_schema", "schemata"): "catalogue schemata",
}
CATALOGUE_VIEWS = {
    "catalogue tables": ("TABLE_CATALOG", "TABLE_SCHEMA", "TABLE_NAME", "TABLE_TYPE", "ENGINE", "TABLE_ROWS"),
    "catalogue columns": (
        *("TABLE_CATALOG", "TABLE_SCHEMA", "TABLE_NAME", "COLUMN_NAME", "ORDINAL_POSITION", "COLUMN_DEFAULT"),
        *("IS_NULLABLE", "DATA_TYPE", "COLUMN_TYPE", "COLUMN_KEY", "EXTRA"),
    ),
    "catalogue schemata": ("CATALOG_NAME", "SCHEMA_NAME"),
}
CATALOGUE_COUNTS = frozenset(["ORDINAL_POSITION", "TABLE_ROWS"])
_CATALOGUE_COLUMNS = tuple(
    TableColumn(view, name.lower(), INT if name in CATALOGUE_COUNTS else TEXT, "")
    for view, names in CATALOGUE_VIEWS.items()
    for name in names
)
_OWN = tuple(CATALOGUE.values())

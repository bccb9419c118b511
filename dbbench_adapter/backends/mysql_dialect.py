"""Translate what an agent writes for MySQL into SQLite, so that it also means what it means in MySQL.

sqlglot parses and prints; the rewrites here cover what changes results: text compared with numbers, collation of
computed text, UPDATE and DELETE with JOIN or LIMIT, dates, GROUP_CONCAT. Only what an agent needs passes, always
printed from the parsed tree. Leaves out: ONLY_FULL_GROUP_BY, WITH ROLLUP, ON DUPLICATE KEY, user variables,
information_schema, stored programs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import sqlglot
from sqlglot import exp
from sqlglot.dialects.mysql import MySQL
from sqlglot.dialects.sqlite import SQLite
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError

from dbbench_adapter.backends.clock import check
from dbbench_adapter.backends.functions import FUNCTIONS
from dbbench_adapter.backends.group_order import order_groups
from dbbench_adapter.backends.mysql_kinds import ColumnKinds, Kind, KindFinder
from dbbench_adapter.backends.mysql_limits import blows_up

COLLATION = "mysql_ci"
MAX_SQL_CHARS = 20_000
"""Takes 0.7 s to parse and print at worst (measured)."""
_CACHED_CHARS = 2_000

# An agent's odd statement is its own affair: it gets the error as its result, the log of the run does not.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


class StatementError(Exception):
    """A statement that MySQL would refuse, or that is left out here; the text reads like the driver's."""


def syntax_error(near: str) -> StatementError:
    return StatementError(
        "1064 (42000): You have an error in your SQL syntax; check the manual that corresponds to your MySQL server "
        f"version for the right syntax to use near '{near[:80]}' at line 1"
    )


def unsupported(what: str) -> StatementError:
    return StatementError(f"1235 (42000): This version of MySQL doesn't yet support '{what}'")


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


class _AgentMySQL(MySQL):
    """MySQL, but functions that we register keep their names instead of becoming sqlglot's own nodes.

    Going back over tokens takes sqlglot exponential time on some texts, so it looks at the deadline when it does.
    """

    class Parser(MySQL.Parser):
        FUNCTIONS = {name: make for name, make in MySQL.Parser.FUNCTIONS.items() if name.lower() not in FUNCTIONS}  # noqa: RUF012

        def _retreat(self, index: int) -> None:
            check()
            super()._retreat(index)


def _cast_sql(generator: SQLite.Generator, node: exp.Cast) -> str:
    value, target = node.this, node.to
    if target.this in (exp.DType.BIGINT, exp.DType.UBIGINT):  # SIGNED, UNSIGNED
        return generator.func("cast_signed", value)
    if target.this == exp.DType.DECIMAL:
        params = target.expressions
        scale = params[1].this if len(params) > 1 else exp.Literal.number(0)
        return generator.func("cast_decimal", value, scale)
    if target.this == exp.DType.BINARY:
        return f"({generator.sql(value)} COLLATE BINARY)"
    if target.this == exp.DType.DATE:
        return generator.func("date_of", value)
    if target.is_type(*exp.DataType.TEMPORAL_TYPES):
        return generator.func("datetime_of", value)
    name = "REAL" if target.is_type(*exp.DataType.REAL_TYPES) else "TEXT"
    name = "INTEGER" if target.is_type(*exp.DataType.INTEGER_TYPES) else name
    return f"CAST({generator.sql(value)} AS {name})"


def _collate_sql(generator: SQLite.Generator, node: exp.Collate) -> str:
    wanted = node.expression.name.lower()
    collation = "BINARY" if wanted.endswith("_bin") or wanted == "binary" else COLLATION
    return f"{generator.sql(node, 'this')} COLLATE {collation}"


def _shift(sign: str) -> Callable[[SQLite.Generator, exp.Expr], str]:
    def shift_sql(generator: SQLite.Generator, node: exp.Expr) -> str:
        unit = exp.Literal.string(node.args["unit"].name if node.args.get("unit") else "DAY")
        return generator.func("date_shift", node.this, exp.Literal.string(sign), node.expression, unit)

    return shift_sql


class _Sqlite(SQLite):
    """SQLite with names between backquotes: SQLite takes an unknown name between double quotes for a text."""

    class Tokenizer(SQLite.Tokenizer):
        IDENTIFIERS = ["`"]  # noqa: RUF012

    class Generator(SQLite.Generator):
        TRANSFORMS = {  # noqa: RUF012
            **SQLite.Generator.TRANSFORMS,
            exp.Cast: _cast_sql,
            exp.Collate: _collate_sql,
            exp.DateAdd: _shift("+"),
            exp.DateSub: _shift("-"),
            exp.Extract: lambda self, node: self.func("date_part", exp.Literal.string(node.name), node.expression),
            exp.IntDiv: lambda self, node: self.func("int_div", node.this, node.expression),
            exp.Stddev: lambda self, node: self.func("stddev_pop", node.this),
            exp.VariancePop: lambda self, node: self.func("var_pop", node.this),
            exp.Variance: lambda self, node: self.func("var_samp", node.this),
            exp.Xor: lambda self, node: f"(({self.sql(node, 'this')}) <> 0) <> (({self.sql(node, 'expression')}) <> 0)",
        }


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
    tree = _parse(sql)
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
        tree = _rewritten(tree, finder)
        printed = tree.sql(_Sqlite, identify=True, unsupported_level=ErrorLevel.IGNORE)
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


def parse(sql: str) -> list[exp.Expr | None]:
    """The trees of a MySQL text, within the thread's `time_limit`.

    Raises:
        SqlglotError, RecursionError, ValueError: it does not parse.
        StatementTimeout: it takes too long.
    """
    return sqlglot.parse(sql, read=_AgentMySQL)


def _parse(sql: str) -> exp.Expr:
    if len(sql) > MAX_SQL_CHARS:
        raise StatementError(f"1153 (08S01): Got a packet of {len(sql)} characters, at most {MAX_SQL_CHARS} are taken")
    try:
        trees = [tree for tree in parse(sql) if tree is not None]
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        raise syntax_error(f"{first.get('highlight') or ''}{first.get('end_context') or ''}") from None
    except (SqlglotError, RecursionError, ValueError) as error:
        raise syntax_error(str(error)[:80]) from None
    if not trees:
        raise StatementError("1065 (42000): Query was empty")
    if len(trees) > 1:
        raise syntax_error(trees[1].sql("mysql", unsupported_level=ErrorLevel.IGNORE))
    return trees[0]


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


# Rewrites -------------------------------------------------------------------------------------------------------------

_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ)


def _rewritten(tree: exp.Expr, finder: KindFinder) -> exp.Expr:
    assignments = {id(item) for update in tree.find_all(exp.Update) for item in update.expressions}
    for node in list(tree.walk()):
        check()
        if isinstance(node, _COMPARISONS) and id(node) not in assignments:
            _align(node, ("this", "expression"), finder)
        elif isinstance(node, exp.Between):
            _align(node, ("this", "low", "high"), finder)
        elif isinstance(node, exp.In):
            _align_in(node, finder)
        elif isinstance(node, exp.Count) and isinstance(node.this, exp.Distinct) and len(node.this.expressions) > 1:
            node.this.set("expressions", [exp.Anonymous(this="distinct_key", expressions=node.this.expressions)])
        elif isinstance(node, exp.Add | exp.Sub) and isinstance(node.expression, exp.Interval):
            interval = node.expression
            shift = exp.DateAdd if isinstance(node, exp.Add) else exp.DateSub
            node.replace(shift(this=node.this, expression=interval.this, unit=interval.args.get("unit")))
    for node in list(tree.find_all(exp.GroupConcat)):
        node.replace(_group_concat(node))
    _keep_written_decimals(tree)
    order_groups(tree)
    if isinstance(tree, exp.Update):
        return _sqlite_update(tree, finder)
    if isinstance(tree, exp.Delete):
        return _sqlite_delete(tree)
    if isinstance(tree, exp.TruncateTable):
        return exp.Delete(this=tree.expressions[0])
    return tree


def _align(node: exp.Expr, sides: tuple[str, ...], finder: KindFinder) -> None:
    """Compare as MySQL does: as numbers when one side is a number, else as text that ignores case and accents."""
    kinds = [finder.kind(node.args[side]) for side in sides]
    if any(kind is not None and kind.is_number for kind in kinds):
        for side, kind in zip(sides, kinds, strict=True):
            if (kind is None or not kind.is_number) and not isinstance(node.args[side], exp.Null | exp.Tuple):
                node.set(side, exp.cast(node.args[side], "double"))
    elif not any(isinstance(node.args[side], exp.Column | exp.Collate | exp.Cast | exp.Tuple) for side in sides):
        node.set(sides[0], exp.Collate(this=exp.paren(node.this), expression=exp.Var(this=COLLATION)))


def _align_in(node: exp.In, finder: KindFinder) -> None:
    items = node.expressions
    if not items or isinstance(node.this, exp.Tuple):
        return
    kinds = [finder.kind(item) for item in items]
    left = finder.kind(node.this)
    if all(kind is not None and kind.is_number for kind in kinds) and not (left is not None and left.is_number):
        node.set("this", exp.cast(node.this, "double"))


def _group_concat(node: exp.GroupConcat) -> exp.Expr:
    """`mysql_group_concat(distinct, separator, directions, value, sort keys...)`: SQLite sorts no aggregate itself."""
    value, order = node.this, None
    if isinstance(value, exp.Order):
        value, order = value.this, value.expressions
    distinct = isinstance(value, exp.Distinct)
    if isinstance(value, exp.Distinct):
        value = value.expressions[0]
    directions = "".join("-" if item.args.get("desc") else "+" for item in order or [])
    return exp.Anonymous(
        this="mysql_group_concat",
        expressions=[
            exp.Literal.number(int(distinct)),
            node.args.get("separator") or exp.Literal.string(","),
            exp.Literal.string(directions),
            value,
            *(item.this for item in order or []),
        ],
    )


def _keep_written_decimals(tree: exp.Expr) -> None:
    """A stored 1.10 stays 1.10 in a TEXT column; as text SQLite's column affinity still makes it a number elsewhere."""
    stored = [cell for values in tree.find_all(exp.Values) for row in values.expressions for cell in row.expressions]
    if isinstance(tree, exp.Update):
        stored += [item.expression for item in tree.expressions]
    for cell in stored:
        if isinstance(cell, exp.Literal) and not cell.is_string and "." in cell.name and "e" not in cell.name.lower():
            cell.replace(exp.Literal.string(cell.name))


def _sqlite_update(tree: exp.Update, finder: KindFinder) -> exp.Expr:
    target = tree.this
    for item in tree.expressions:
        column, value = item.this, item.expression
        if not isinstance(item, exp.EQ) or not isinstance(column, exp.Column):
            raise syntax_error(item.sql("mysql"))
        column_kind, value_kind = finder.kind(column), finder.kind(value)
        if column_kind is not None and column_kind.name == "text" and value_kind is not None and value_kind.is_number:
            item.set("expression", exp.Anonymous(this="as_text", expressions=[value]))
        if column.table and column.table.lower() != target.alias_or_name.lower():
            raise unsupported("UPDATE of a table that is not named first")
        column.set("table", None)
    joins = target.args.get("joins") or []
    if joins:
        _join_update(tree, joins)
    if tree.args.get("limit") or tree.args.get("order"):
        _limit_by_rowid(tree)
    return tree


def _join_update(tree: exp.Update, joins: list[exp.Join]) -> None:
    """MySQL's UPDATE a JOIN b ON c SET ... WHERE w is SQLite's UPDATE a SET ... FROM b WHERE c AND w."""
    if any(join.side or join.args.get("using") for join in joins):
        raise unsupported("UPDATE with an outer join or USING")
    tree.this.set("joins", None)
    conditions = [join.args["on"] for join in joins if join.args.get("on")]
    sources = [join.this for join in joins]
    first = sources[0]
    first.set("joins", [exp.Join(this=source, kind="CROSS") for source in sources[1:]] or None)
    tree.set("from_", exp.From(this=first))
    where = tree.args.get("where")
    tree.set("where", exp.Where(this=exp.and_(*conditions, *([where.this] if where else []))) if conditions else where)


def _sqlite_delete(tree: exp.Delete) -> exp.Expr:
    named, using = tree.args.get("tables") or [], tree.args.get("using") or []
    if named or using:
        return _join_delete(tree, named or [tree.this], tree.this if named else using[0])
    if tree.args.get("limit") or tree.args.get("order"):
        _limit_by_rowid(tree)
    return tree


def _join_delete(tree: exp.Delete, targets: list[exp.Expr], source: exp.Expr) -> exp.Expr:
    if len(targets) != 1:
        raise unsupported("DELETE from several tables")
    name = targets[0].name
    tables = [table for table in source.find_all(exp.Table) if table.alias_or_name.lower() == name.lower()]
    if not tables:
        raise StatementError(f"1109 (42S02): Unknown table '{name}' in MULTI DELETE")
    joins = source.args.pop("joins", None) or []
    rows = exp.select(exp.column("rowid", table=name)).from_(source)
    rows.set("joins", joins)
    rows.set("where", tree.args.get("where"))
    inside = exp.In(this=exp.column("rowid"), query=rows.subquery())
    return exp.Delete(this=exp.Table(this=exp.to_identifier(tables[0].name, quoted=True)), where=exp.Where(this=inside))


def _limit_by_rowid(tree: exp.Update | exp.Delete) -> None:
    target = tree.this
    name = target.alias_or_name
    rows = exp.select(exp.column("rowid", table=name)).from_(target.copy())
    for part in ("where", "order", "limit"):
        rows.set(part, tree.args.get(part))
        tree.set(part, None)
    tree.set("where", exp.Where(this=exp.In(this=exp.column("rowid", table=name), query=rows.subquery())))

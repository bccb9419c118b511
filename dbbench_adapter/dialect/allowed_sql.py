"""Refuses what MySQL refuses but SQLite would answer, what SQLite would answer otherwise, and some definitions.

A statement holds the nodes of `_TRANSLATED` and functions that have a row in `signatures`; every other one is refused.

The authorizer (`sqlite.sandbox`) decides what an allowed statement may touch. SQLite evaluates a schema whenever a
table is read or changed, also for the judge, and does not ask the authorizer then. Therefore a definition may hold only
the nodes listed here. CHECKs, foreign keys, generated columns, indexes on expressions and defaults that are no
constants are refused, and so is a column's place in its table.

MySQL accepts a column outside GROUP BY if keys, views or comparisons with `=` determine it. This module refuses it, as
MariaDB does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal

from sqlglot import exp
from sqlglot.errors import ErrorLevel
from sqlglot.generators.mysql import MySQLGenerator

from dbbench_adapter.dialect.signatures import NODES, SIGNATURES
from dbbench_adapter.dialect.sql_types import Columns
from dbbench_adapter.dialect.syntax import StatementError, syntax_error, unsupported
from dbbench_adapter.statement_clock import LEFT_OUT

_RUN = (exp.Query, exp.Insert, exp.Update, exp.Delete, exp.Create, exp.Drop, exp.Alter, exp.TruncateTable)
# Statements of MySQL or another engine that are refused; a tree of any other type is no statement at all.
_LEFT_OUT = (exp.Command, exp.Describe, exp.Pragma, exp.Attach, exp.Detach, exp.Kill, exp.Analyze)
_CONSTRAINTS = (
    *(exp.NotNullColumnConstraint, exp.PrimaryKeyColumnConstraint, exp.UniqueColumnConstraint, exp.ColumnConstraint),
    *(exp.AutoIncrementColumnConstraint, exp.CommentColumnConstraint, exp.CharacterSetColumnConstraint),
    *(exp.CollateColumnConstraint, exp.OnUpdateColumnConstraint, exp.IndexColumnConstraint, exp.Constraint),
    *(exp.PrimaryKey, exp.InvisibleColumnConstraint),
)
_TABLE_PARTS = (
    *(exp.Create, exp.Alter, exp.Schema, exp.Table, exp.Identifier, exp.ColumnDef, exp.DataType, exp.DataTypeParam),
    *(exp.Properties, exp.Property, exp.Index, exp.IndexParameters, exp.Column),
    *(exp.Drop, exp.ModifyColumn, exp.RenameColumn, exp.AlterRename, exp.Literal),
    *(exp.Var, exp.Null, exp.Boolean),
)
_CONSTANTS = (exp.Literal, exp.Null, exp.Boolean)
_MOMENTS = (exp.CurrentTimestamp, exp.CurrentDate, exp.CurrentTime)

_TRANSLATED = frozenset(
    [
        *(exp.Select, exp.Union, exp.Subquery, exp.With, exp.CTE, exp.From, exp.Join),
        *(exp.Where, exp.Group, exp.Having, exp.Order, exp.Ordered, exp.Limit, exp.Offset, exp.Distinct, exp.Lock),
        *(exp.Insert, exp.Update, exp.Delete, exp.TruncateTable, exp.Values, exp.OnConflict, exp.Schema, exp.Drop),
        *(exp.Table, exp.TableAlias, exp.Alias, exp.Column, exp.Identifier, exp.Star, exp.Var, exp.Tuple, exp.Paren),
        *(exp.Literal, exp.Null, exp.Boolean, exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Window, exp.WindowSpec),
        *(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.Is, exp.In, exp.Between, exp.Exists),
        *(exp.And, exp.Or, exp.Not, exp.Escape, exp.Case, exp.If, exp.Coalesce, exp.Cast, exp.Collate),
        *(exp.DataType, exp.DataTypeParam, exp.Into, *NODES),
    ]
)
_SHOWN_CHARS = 60
_MAX_PLACES = 4096
_VARIABLES = (exp.Parameter, exp.SessionParameter)
_CAST_TO = {
    *(exp.DType.BIGINT, exp.DType.UBIGINT, exp.DType.INT, exp.DType.DECIMAL, exp.DType.DOUBLE, exp.DType.DATE),
    *(exp.DType.DATETIME, exp.DType.TEXT, exp.DType.CHAR, exp.DType.VARCHAR, exp.DType.BINARY),
}


def refuse_untranslated(nodes: Iterable[exp.Expr]) -> None:
    """Refuse nodes that are not in `_TRANSLATED`, and options that SQLite would pass over.

    Raises:
        StatementError: the message names what is left out.
    """
    for node in nodes:
        if isinstance(node, exp.Anonymous):
            if node.name.lower() not in SIGNATURES:
                raise StatementError(f"1305 (42000): FUNCTION dbbench.{node.name} does not exist, or is {LEFT_OUT}")
        elif isinstance(node, _VARIABLES):
            raise unsupported("user and system variables")
        elif isinstance(node, exp.Placeholder):
            raise syntax_error("?")
        elif type(node) not in _TRANSLATED:
            raise unsupported(node.sql("mysql", unsupported_level=ErrorLevel.IGNORE)[:_SHOWN_CHARS])
        elif isinstance(node, exp.Schema) and (twice := _repeated(node)):
            raise StatementError(f"1110 (42000): Column '{twice}' specified twice")
        elif option := _option(node):
            raise unsupported(option)


def _repeated(columns: exp.Schema) -> str | None:
    names = [part.name.lower() for part in columns.expressions]
    return next((name for name in names if names.count(name) > 1), None)


def _option(node: exp.Expr) -> str | None:
    if isinstance(node, exp.Group) and any(node.args.get(part) for part in ("rollup", "cube", "grouping_sets", "all")):
        return "WITH ROLLUP"
    if isinstance(node, exp.Ordered) and isinstance(node.this, exp.Literal) and not _is_place(node.this):
        return "ORDER BY a constant"
    if isinstance(node, exp.Not) and isinstance(
        node.parent, exp.Add | exp.Sub | exp.Mul | exp.Div | exp.IntDiv | exp.Mod
    ):
        return "NOT in a sum"
    if isinstance(node, exp.Lag | exp.Lead) and node.args.get("default"):
        return "LAG and LEAD with a default"
    if isinstance(node, exp.Cast) and (node.to.this not in _CAST_TO or _has_size(node.to)):
        return f"CAST AS {node.to.sql('mysql')}"
    if isinstance(node, exp.WindowSpec) and node.text("kind").upper() == "RANGE":
        moved = (node.args.get(part) for part in ("start", "end"))
        return "RANGE over numbers" if any(isinstance(part, exp.Expr) for part in moved) else None
    if isinstance(node, exp.Insert) and node.args.get("ignore"):
        return "INSERT IGNORE"
    return None


def _is_place(value: exp.Literal) -> bool:
    return value.is_int and int(value.name) <= _MAX_PLACES


def _has_size(kind: exp.DataType) -> bool:
    return bool(kind.expressions) and kind.this != exp.DType.DECIMAL


_LARGEST, _LARGEST_UNSIGNED = 2**63 - 1, 2**64 - 1


def settle_numbers(nodes: Iterable[exp.Expr]) -> None:
    """Cap the numbers of LIMIT, in place.

    Raises:
        StatementError: MySQL refuses a number too, or SQLite cannot hold it.
    """
    for node in nodes:
        if isinstance(node, exp.Limit | exp.Offset):
            _cap(node)
        elif (
            isinstance(node, exp.Literal) and not node.is_string and not isinstance(node.parent, exp.Limit | exp.Offset)
        ):
            _check_number(node)


def _cap(node: exp.Limit | exp.Offset) -> None:
    # The manual asks for all the rest with 18446744073709551615, more than SQLite reads.
    value = node.expression
    if not (isinstance(value, exp.Literal) and value.is_int and int(value.name) <= _LARGEST_UNSIGNED):
        if isinstance(value, _VARIABLES):
            raise unsupported("user and system variables")
        raise syntax_error(value.sql("mysql") if value is not None else "LIMIT")
    value.set("this", str(min(int(value.name), _LARGEST)))


def _check_number(node: exp.Literal) -> None:
    if math.isinf(float(node.name)):
        raise StatementError(f"1367 (22007): Illegal double '{node.name[:80]}' value found during parsing")
    if node.is_int:
        if int(node.name) > _LARGEST:
            raise unsupported("whole numbers of 2^63 and more")
    elif "e" not in node.name.lower() and Decimal(repr(float(node.name))) != Decimal(node.name):
        raise unsupported("decimals of more than 15 digits")


def refuse_other_kinds(tree: exp.Expr, sql: str) -> None:
    """SHOW, SET, USE and transactions never get here.

    Raises:
        StatementError: the kind is not supported, or `sql` is no statement.
    """
    if not isinstance(tree, _RUN):
        raise unsupported(sql.split(maxsplit=1)[0].upper()) if isinstance(tree, _LEFT_OUT) else syntax_error(sql)


def refuse_definitions(tree: exp.Create | exp.Alter) -> None:
    """
    Raises:
        StatementError: the message names what is not supported.
    """
    if isinstance(tree, exp.Create) and (tree.args.get("expression") or tree.find(exp.LikeProperty)):
        raise unsupported("CREATE TABLE from another table")  # its columns would have types that SQLite does not keep
    for node in tree.walk(prune=lambda node: isinstance(node, _WITH_VALUES)):
        if isinstance(node, exp.DefaultColumnConstraint | exp.OnUpdateColumnConstraint):
            if not _is_constant(node.this):
                raise unsupported("defaults that are expressions")
        elif isinstance(node, exp.CheckColumnConstraint):
            raise unsupported("CHECK")
        elif isinstance(node, exp.ComputedColumnConstraint | exp.GeneratedAsRowColumnConstraint):
            raise unsupported("generated columns")
        elif isinstance(node, exp.Ordered | exp.Where):
            if not (isinstance(node.this, exp.Column) or _is_prefix(node.this)):
                raise unsupported("indexes on expressions")
        elif not isinstance(node, _TABLE_PARTS + _CONSTRAINTS):
            raise unsupported(f"{type(node).__name__} in the definition of a table")


_WITH_VALUES = (
    *(exp.DefaultColumnConstraint, exp.OnUpdateColumnConstraint, exp.CheckColumnConstraint),
    *(exp.ComputedColumnConstraint, exp.Ordered, exp.Where),
)


def _is_constant(value: exp.Expr) -> bool:
    value = value.unnest()
    if isinstance(value, exp.Neg | exp.Collate):
        return isinstance(value.this.unnest(), _CONSTANTS)
    return isinstance(value, _CONSTANTS) or (isinstance(value, _MOMENTS) and not value.this)


def _is_prefix(call: exp.Expr) -> bool:
    return isinstance(call, exp.Anonymous) and all(
        isinstance(length, exp.Literal) and length.is_int for length in call.expressions
    )


# What MySQL refuses ---------------------------------------------------------------------------------------------------

_RESERVED = frozenset(MySQLGenerator.RESERVED_KEYWORDS) - {"default", "dual"}  # sqlglot also takes these two for names
_OPAQUE = (exp.AggFunc, exp.Query, exp.Subquery, exp.Window, exp.GroupConcat)


def refuse(selects: Iterable[exp.Select], columns: Columns) -> None:
    """Refuse a statement that parses but that MySQL 8 does not run.

    Args:
        selects: every SELECT in it.
    Raises:
        StatementError: the statement is refused; the message is that of MySQL 8.
    """
    known = {column.name for column in columns}
    for select in selects:
        _refuse_into(select)
        _refuse_hidden_names(select, known)
        _refuse_bare_columns(select)
        _refuse_aliases_in_where(select, known)
        for source in (select.args.get("from_"), *(select.args.get("joins") or [])):
            if source is not None and isinstance(source.this, exp.Subquery) and not source.this.alias:
                raise StatementError("1248 (42000): Every derived table must have its own alias")


def refuse_reserved(names: Iterable[exp.Identifier]) -> None:
    """Refuse a word that MySQL 8 reserves as a name without backquotes.

    Raises:
        StatementError: a name is reserved; the message is that of MySQL 8.
    """
    for name in names:
        if not name.quoted and name.name.lower() in _RESERVED:
            raise syntax_error(name.name)


_ROW_IDS = frozenset(["rowid", "oid", "_rowid_"])


def refuse_row_ids(nodes: Iterable[exp.Expr], columns: Columns) -> None:
    """Refuse SQLite's names for the row id, unless the database or the statement defines such a name.

    Raises:
        StatementError: no such column exists; the message is that of MySQL 8.
    """
    found = [node for node in nodes if isinstance(node, exp.Identifier) and node.name.lower() in _ROW_IDS]
    if not found:
        return
    given = {column.name for column in columns} | {
        node.name.lower() for node in found if not isinstance(node.parent, exp.Column | exp.Schema)
    }
    for name in found:
        if isinstance(name.parent, exp.Column) and name.arg_key == "this" and name.name.lower() not in given:
            raise StatementError(f"1054 (42S22): Unknown column '{name.name}' in 'field list'")


def _refuse_aliases_in_where(select: exp.Select, known: set[str]) -> None:
    where = select.args.get("where")
    if where is None:
        return
    aliases = {item.alias.lower() for item in select.expressions if isinstance(item, exp.Alias)} - known
    for column in _inside(where.this):
        if not column.table and column.name.lower() in aliases:
            raise StatementError(f"1054 (42S22): Unknown column '{column.name}' in 'where clause'")


def _refuse_hidden_names(select: exp.Select, known: set[str]) -> None:
    """Raises StatementError: MariaDB lets no HAVING filter rows, and a name may mean an alias or a column."""
    group, having = select.args.get("group"), select.args.get("having")
    if having and not group and not any(aggregates(item) for item in [*select.expressions, having]):
        raise unsupported("HAVING without groups; use WHERE")
    aliases = {
        item.alias.lower()
        for item in select.expressions
        if isinstance(item, exp.Alias)
        and item.alias.lower() in known
        and not (isinstance(item.this, exp.Column) and item.this.name.lower() == item.alias.lower())
    }
    for clause in filter(None, (group, having) if aliases else ()):
        for column in clause.find_all(exp.Column):
            if not column.table and column.name.lower() in aliases:
                raise unsupported(f"{column.name}, an alias and a column, in GROUP BY and HAVING")


def _refuse_into(select: exp.Select) -> None:
    into = select.args.get("into")
    if into is None or not isinstance(into.this.this, exp.Identifier):  # a user variable is refused elsewhere
        return
    if select.parent is not None:
        raise syntax_error(f"INTO {into.this.name}")
    raise StatementError(f"1327 (42000): Undeclared variable: {into.this.name}")


def _refuse_bare_columns(select: exp.Select) -> None:
    group = select.args.get("group")
    groups = list(group.expressions) if group is not None else []
    if group is not None and not groups:
        return  # sqlglot's extensions of GROUP BY have no plain keys
    if not groups and not any(aggregates(item) for item in select.expressions):
        return
    keys = [_resolved(key, select) for key in groups]
    fixed = [key for key in keys if isinstance(key, exp.Column)]
    for number, item in enumerate(select.expressions, 1):
        for column in _inside(item.unalias(), keys):
            if not any(_same(column, other) for other in fixed):
                raise _bare(column, number, grouped=bool(groups))


def _bare(column: exp.Column, number: int, *, grouped: bool) -> StatementError:
    name = ".".join(part for part in ("dbbench", column.table, column.name) if part)
    if grouped:
        return StatementError(
            f"1055 (42000): Expression #{number} of SELECT list is not in GROUP BY clause and contains nonaggregated "
            f"column '{name}' which is not functionally dependent on columns in GROUP BY clause; this is incompatible "
            "with sql_mode=only_full_group_by"
        )
    return StatementError(
        f"1140 (42000): In aggregated query without GROUP BY, expression #{number} of SELECT list contains "
        f"nonaggregated column '{name}'; this is incompatible with sql_mode=only_full_group_by"
    )


def _resolved(key: exp.Expr, select: exp.Select) -> exp.Expr:
    # A GROUP BY item may be a position or an alias.
    if isinstance(key, exp.Literal) and key.is_int and 1 <= int(key.name) <= len(select.expressions):
        return select.expressions[int(key.name) - 1].unalias()
    if isinstance(key, exp.Column) and not key.table:
        for item in select.expressions:
            if isinstance(item, exp.Alias) and item.alias.lower() == key.name.lower():
                return item.this
    return key


def _inside(node: exp.Expr, keys: Sequence[exp.Expr] = ()) -> Iterator[exp.Column]:
    """Columns in an expression, except in aggregates, windows, sub-queries and the expressions that are keys."""
    stack, texts = [node], None
    while stack:
        part = stack.pop()
        if isinstance(part, _OPAQUE):
            continue
        if keys and not isinstance(part, exp.Column | exp.Literal):
            texts = {_text(key) for key in keys} if texts is None else texts
            if _text(part) in texts:
                continue
        if isinstance(part, exp.Column):
            if not isinstance(part.this, exp.Star):
                yield part
            continue
        stack += list(part.iter_expressions())


def aggregates(item: exp.Expr) -> bool:
    stack = [item]
    while stack:
        part = stack.pop()
        if isinstance(part, exp.AggFunc | exp.GroupConcat):
            return True
        if not isinstance(part, exp.Query | exp.Subquery | exp.Window):
            stack += list(part.iter_expressions())
    return False


def _same(one: exp.Column, other: exp.Column) -> bool:
    if one.name.lower() != other.name.lower():
        return False
    return not (one.table and other.table) or one.table.lower() == other.table.lower()


def _text(node: exp.Expr) -> str:
    return node.sql("mysql").lower().replace("`", "")

"""What MySQL refuses and SQLite would answer: ONLY_FULL_GROUP_BY, aliases in WHERE, derived tables without a name.

Where keys or views would make MySQL accept a column beside a group, so do we not: tables of tasks have neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlglot import exp
from sqlglot.generators.mysql import MySQLGenerator

from dbbench_adapter.backends.mysql_on_sqlite.kinds import ColumnKinds
from dbbench_adapter.backends.mysql_on_sqlite.syntax import StatementError, syntax_error

_RESERVED = frozenset(MySQLGenerator.RESERVED_KEYWORDS) - {"default", "dual"}  # which sqlglot also takes for names
_OPAQUE = (exp.AggFunc, exp.Query, exp.Subquery, exp.Window, exp.GroupConcat)


def refuse(selects: Iterable[exp.Select], columns: ColumnKinds) -> None:
    """Refuse a statement that parses and that MySQL 8 does not run.

    Args:
        selects: every SELECT in it.
    Raises:
        StatementError: in the words of MySQL 8.
    """
    known = {name for name, _ in columns}
    for select in selects:
        _refuse_bare_columns(select)
        _refuse_aliases_in_where(select, known)
        for source in (select.args.get("from_"), *(select.args.get("joins") or [])):
            if source is not None and isinstance(source.this, exp.Subquery) and not source.this.alias:
                raise StatementError("1248 (42000): Every derived table must have its own alias")


def refuse_reserved(names: Iterable[exp.Identifier]) -> None:
    """Refuse a word that MySQL 8 reserves as a name without backquotes.

    Raises:
        StatementError: in the words of MySQL 8.
    """
    for name in names:
        if not name.quoted and name.name.lower() in _RESERVED:
            raise syntax_error(name.name)


_ROW_IDS = frozenset(["rowid", "oid", "_rowid_"])


def refuse_row_ids(nodes: Iterable[exp.Expr], columns: ColumnKinds) -> None:
    """Refuse SQLite's names for the number of a row, unless the database or the statement gives them to something.

    Raises:
        StatementError: in the words of MySQL 8.
    """
    found = [node for node in nodes if isinstance(node, exp.Identifier) and node.name.lower() in _ROW_IDS]
    if not found:
        return
    given = {name for name, _ in columns} | {
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


def _refuse_bare_columns(select: exp.Select) -> None:
    """ONLY_FULL_GROUP_BY for the select list."""
    group = select.args.get("group")
    groups = list(group.expressions) if group is not None else []
    if group is not None and not groups:
        return  # an extension of sqlglot's, not plain GROUP BY
    if not groups and not any(_aggregates(item) for item in select.expressions):
        return
    keys = [_resolved(key, select) for key in groups]
    fixed = _determined(select, [key for key in keys if isinstance(key, exp.Column)])
    texts = {_text(key) for key in keys}
    for number, item in enumerate(select.expressions, 1):
        for column in _inside(item.unalias(), texts):
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
    """A GROUP BY item that is a position or an alias as the expression that it stands for."""
    if isinstance(key, exp.Literal) and key.is_int and 1 <= int(key.name) <= len(select.expressions):
        return select.expressions[int(key.name) - 1].unalias()
    if isinstance(key, exp.Column) and not key.table:
        for item in select.expressions:
            if isinstance(item, exp.Alias) and item.alias.lower() == key.name.lower():
                return item.this
    return key


def _determined(select: exp.Select, keys: list[exp.Column]) -> list[exp.Column]:
    """The columns that the keys leave one value: themselves, and what WHERE or an inner JOIN equates with them or with
    a constant."""
    clauses = [where.this] if (where := select.args.get("where")) is not None else []
    clauses += [join.args["on"] for join in select.args.get("joins") or [] if join.args.get("on") and not join.side]
    equalities = [part for clause in clauses for part in _conjuncts(clause) if isinstance(part, exp.EQ)]
    fixed, count = list(keys), -1
    while count != len(fixed):
        count = len(fixed)
        for equality in equalities:
            for one, other in ((equality.left, equality.right), (equality.right, equality.left)):
                given = isinstance(other, exp.Literal | exp.Neg) or (
                    isinstance(other, exp.Column) and any(_same(other, column) for column in fixed)
                )
                if isinstance(one, exp.Column) and given and not any(_same(one, column) for column in fixed):
                    fixed.append(one)
    return fixed


def _conjuncts(node: exp.Expr) -> Iterator[exp.Expr]:
    stack = [node]
    while stack:
        part = stack.pop()
        if isinstance(part, exp.And):
            stack += [part.left, part.right]
        elif isinstance(part, exp.Paren):
            stack.append(part.this)
        else:
            yield part


def _inside(node: exp.Expr, group_texts: set[str] | None = None) -> Iterator[exp.Column]:
    """The columns of an expression outside aggregates, windows, subqueries and what is grouped by as a whole."""
    stack = [node]
    while stack:
        part = stack.pop()
        if isinstance(part, _OPAQUE) or (isinstance(part, exp.Anonymous) and part.name.lower() in _AGGREGATES):
            continue
        if group_texts and not isinstance(part, exp.Column | exp.Literal) and _text(part) in group_texts:
            continue
        if isinstance(part, exp.Column):
            if not isinstance(part.this, exp.Star):
                yield part
            continue
        stack += list(part.iter_expressions())


_AGGREGATES = frozenset(["any_value", "std", "bit_and", "bit_or", "bit_xor", "json_arrayagg", "json_objectagg"])


def _aggregates(item: exp.Expr) -> bool:
    """Whether an aggregate of this very query is in it, not of a subquery and none that is a window."""
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

"""Changes a statement's tree so that SQLite returns MySQL's result.

It handles UPDATE and DELETE with JOIN or LIMIT, GROUP_CONCAT and, by `comparisons` and `queries`, how values compare.
It leaves out outer joins in UPDATE, and several target tables.
"""

from __future__ import annotations

from sqlglot import exp

from dbbench_adapter.dialect.comparisons import cast_to_text, compare_as_mysql, take_arguments
from dbbench_adapter.dialect.queries import COLLATING, allow_one_row, collate_computed, order_groups, scalar_queries
from dbbench_adapter.dialect.ranges import guards, wrap_in_call
from dbbench_adapter.dialect.sql_types import mysql_type, sqlite_type
from dbbench_adapter.dialect.stored_values import store, stored_default
from dbbench_adapter.dialect.syntax import (
    COLLATION,
    StatementError,
    anonymous_call,
    as_table,
    syntax_error,
    unsupported,
)
from dbbench_adapter.dialect.type_inference import TypeInference
from dbbench_adapter.statement_clock import check_deadline

# Half of a statement's nodes; nothing below changes them for what they are.
_LEAVES = frozenset([exp.Identifier, exp.Column, exp.Table, exp.Literal, exp.Star])
# The nodes that `shift_dates` reads.
SHIFTED = (exp.Interval, exp.DateAdd, exp.DateSub, exp.TimestampAdd)
_UNITS = frozenset(["SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR"])


def name_new_values(conflict: exp.OnConflict) -> None:
    """Turn `VALUES(c)` of ON DUPLICATE KEY UPDATE into `excluded.c`, in place."""
    for called in list(conflict.find_all(exp.Anonymous)):
        if called.name.lower() == "values" and len(called.expressions) == 1:
            called.replace(exp.column(called.expressions[0].name, table="excluded"))


def shift_dates(tree: exp.Expr) -> None:
    """Raises StatementError: an interval has a unit that the functions do not know, or shifts nothing."""
    for interval in list(tree.find_all(exp.Interval)):
        node, unit = interval.parent, interval.args.get("unit")
        if not isinstance(node, exp.Add | exp.Sub) or unit is None:
            raise unsupported("INTERVAL as a function")
        value = node.expression if node.this is interval else node.this
        shift = exp.DateAdd if isinstance(node, exp.Add) else exp.DateSub
        node.replace(shift(this=value, expression=interval.this, unit=unit))
    for shift in tree.find_all(exp.DateAdd, exp.DateSub, exp.TimestampAdd):
        if shift.text("unit").upper() not in _UNITS:
            raise unsupported(f"INTERVAL ... {shift.text('unit').upper()}")


def rewritten(tree: exp.Expr, nodes: list[exp.Expr], finder: TypeInference) -> exp.Expr:
    """Change the tree for SQLite, mostly in place, and return its root.

    Raises:
        StatementError: the translation does not support something in it.
    """
    assignments = _assignments(tree)
    nodes = [node for node in nodes if type(node) not in _LEAVES]
    scalar, guarded = scalar_queries(nodes), guards(nodes, finder)
    for node in nodes:
        check_deadline()
        take_arguments(node, finder)
        if isinstance(node, exp.Count) and isinstance(node.this, exp.Distinct) and len(node.this.expressions) > 1:
            node.this.set("expressions", [anonymous_call("distinct_key", *node.this.expressions)])
    for node in nodes:
        if isinstance(node, COLLATING):
            collate_computed(node, finder)
        elif isinstance(node, exp.GroupConcat):
            node.replace(_group_concat(node, finder))
    for node in reversed(nodes):  # what contains a comparison sees what it became
        check_deadline()
        if id(node) not in assignments:
            compare_as_mysql(node, finder)
    if isinstance(tree, exp.Insert):
        _default_is_null(tree)
    store(tree, finder)
    if any(isinstance(node, exp.Group) for node in nodes):
        order_groups(tree)
    for node, name in guarded:
        wrap_in_call(node, name)
    for query in scalar:
        allow_one_row(query, finder)
    for union in (node for node in nodes if isinstance(node, exp.Union)):
        made = _distinct_union(union)
        tree = made if union is tree else tree
    if isinstance(tree, exp.Update):
        return _sqlite_update(tree)
    if isinstance(tree, exp.Delete):
        return _sqlite_delete(tree)
    if isinstance(tree, exp.TruncateTable):
        return exp.Delete(this=tree.expressions[0])
    if isinstance(tree, exp.Alter):
        _refuse_or_rename(tree, finder)
    if isinstance(tree, exp.Create | exp.Alter):
        keys = {name.name.lower() for key in tree.find_all(exp.PrimaryKey) for name in key.find_all(exp.Identifier)}
        for column in tree.find_all(exp.ColumnDef):
            stored_default(column)
            _collate_column(column)
            _key_column(column, keys)
    if isinstance(tree, exp.Create):
        _drop_index_prefixes(tree)
    return tree


def _assignments(tree: exp.Expr) -> set[int]:
    """The `column = value` of an UPDATE or of ON DUPLICATE KEY UPDATE, which compare nothing."""
    conflict = tree.args.get("conflict") if isinstance(tree, exp.Insert) else None
    changed = tree if isinstance(tree, exp.Update) else conflict
    return {id(item) for item in changed.expressions} if changed is not None else set()


def _distinct_union(union: exp.Union) -> exp.Expr:
    """Make `A UNION B` into `SELECT DISTINCT * FROM (A UNION ALL B)`: of equal texts (`Plum`, `plum`) SQLite's UNION
    keeps the last, its DISTINCT the first, as MySQL does."""
    with_ = union.find_ancestor(exp.With)
    if union.args.get("distinct") is False or (with_ is not None and with_.recursive):
        return union
    query = as_table(exp.Union(this=union.this, expression=union.expression, distinct=False)).distinct(copy=False)
    for part in ("with_", "order", "limit", "offset"):
        query.set(part, union.args.get(part))
    if isinstance(union.parent, exp.Insert):
        query.set("where", exp.Where(this=exp.true()))  # before ON CONFLICT, whose ON SQLite reads as a join's
    if union.parent is not None:
        union.replace(query)
    return query


def _drop_index_prefixes(tree: exp.Create) -> None:
    # MySQL indexes the first ten characters of `a(10)`, SQLite the whole text.
    if tree.kind == "INDEX":
        for prefix in list(tree.find_all(exp.Anonymous)):
            if tree.args.get("unique"):
                raise unsupported("UNIQUE over the first characters of a column")
            prefix.replace(exp.column(prefix.name))


def _collate_column(column: exp.ColumnDef) -> None:
    kind = column.args.get("kind")
    has_own = any(isinstance(item.kind, exp.CollateColumnConstraint) for item in column.constraints)
    if kind is not None and kind.is_type(*exp.DataType.TEXT_TYPES) and not has_own:
        collation = exp.CollateColumnConstraint(this=exp.Var(this=COLLATION))
        column.append("constraints", exp.ColumnConstraint(kind=collation))


def _key_column(column: exp.ColumnDef, keys: set[str]) -> None:
    # SQLite numbers the rows of an INTEGER key by itself, and lets other keys be NULL.
    kinds = [type(item.kind) for item in column.constraints]
    if exp.AutoIncrementColumnConstraint in kinds:
        column.set("kind", exp.Var(this="INTEGER"))
    elif exp.PrimaryKeyColumnConstraint in kinds or column.name.lower() in keys:
        column.append("constraints", exp.ColumnConstraint(kind=exp.NotNullColumnConstraint()))


def _default_is_null(tree: exp.Insert) -> None:
    # The tables of tasks declare no defaults.
    if isinstance(tree.expression, exp.Values):
        for row in tree.expression.expressions:
            for cell in row.expressions:
                if isinstance(cell, exp.Column | exp.Var) and cell.name.upper() == "DEFAULT":
                    cell.replace(exp.Null())


def _refuse_or_rename(tree: exp.Alter, finder: TypeInference) -> None:
    """Turn CHANGE into SQLite's RENAME COLUMN, which keeps the column's type, in place.

    Raises:
        StatementError: the type changes too, or there are several changes.
    """
    actions = tree.args.get("actions") or []
    if len(actions) != 1:
        raise unsupported("several changes in one ALTER TABLE")
    if isinstance(actions[0], exp.ModifyColumn):
        old, new = actions[0].args.get("rename_from"), actions[0].this
        if old is None or not isinstance(new, exp.ColumnDef):
            raise unsupported("ALTER TABLE ... MODIFY")
        kept = [column.declared for column in finder.columns_of(tree.this.name) if column.name == old.name.lower()]
        if new.constraints or kept not in ([], [mysql_type(sqlite_type(new.args["kind"].sql("mysql")))]):
            raise unsupported("ALTER TABLE ... CHANGE of a type")
        tree.set("actions", [exp.RenameColumn(this=exp.column(old.name), to=exp.column(new.name))])


def _group_concat(node: exp.GroupConcat, finder: TypeInference) -> exp.Expr:
    """Turn GROUP_CONCAT into our `mysql_group_concat(distinct, separator, directions, value, sort keys...)`.

    Raises:
        StatementError: it takes several values, a part of them, or sorts by a position.
    """
    value, order = node.this, None
    if isinstance(value, exp.Order):
        value, order = value.this, value.expressions
    distinct = isinstance(value, exp.Distinct)
    if isinstance(value, exp.Distinct):
        value = value.expressions[0] if len(value.expressions) == 1 else exp.Limit()
    kind = finder.kind(value)
    if distinct and any(item.this != value for item in order or []):
        raise unsupported("GROUP_CONCAT(DISTINCT ...) in the order of another value")
    if isinstance(value, exp.Limit) or any(isinstance(item.this, exp.Literal) for item in order or []):
        raise unsupported("GROUP_CONCAT with LIMIT, several values, or positions")
    if kind is None and finder.knows_columns(value):
        raise unsupported("GROUP_CONCAT of a value of unknown type")
    if kind is not None and kind.is_number and kind.scale:
        value = cast_to_text(value, kind)
    directions = "".join("-" if item.args.get("desc") else "+" for item in order or [])
    separator = node.args.get("separator") or exp.Literal.string(",")
    options = exp.Literal.number(int(distinct)), separator, exp.Literal.string(directions)
    return anonymous_call("mysql_group_concat", *options, value, *(item.this for item in order or []))


def _sqlite_update(tree: exp.Update) -> exp.Expr:
    target, assigned = tree.this, set[str]()
    for item in tree.expressions:
        column = item.this
        if not isinstance(item, exp.EQ) or not isinstance(column, exp.Column):
            raise syntax_error(item.sql("mysql"))
        if column.table and column.table.lower() != target.alias_or_name.lower():
            raise unsupported("UPDATE of a table that is not named first")
        if assigned & {read.name.lower() for read in item.expression.find_all(exp.Column)}:  # MySQL reads the new value
            raise unsupported("an assignment that reads a column assigned before it; use two statements")
        assigned.add(column.name.lower())
        column.set("table", None)
    joins = target.args.get("joins") or []
    if joins:
        read = (column for item in tree.expressions for column in item.expression.find_all(exp.Column))
        if any(column.table.lower() != target.alias_or_name.lower() for column in read):
            raise unsupported("UPDATE with values of a joined table")  # of several rows SQLite takes the last
        _join_update(tree, joins)
    if tree.args.get("limit") or tree.args.get("order"):
        _limit_by_rowid(tree)
    return tree


def _join_update(tree: exp.Update, joins: list[exp.Join]) -> None:
    # Turn UPDATE a JOIN b ON c SET ... WHERE w into SQLite's UPDATE a SET ... FROM b WHERE c AND w.
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

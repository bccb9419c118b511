"""Changes to a statement's tree after which SQLite gives MySQL's result.

Text compared with numbers, collation of computed text, UPDATE and DELETE with JOIN or LIMIT, dates, GROUP_CONCAT,
ANY and ALL, HAVING without groups. Leaves out WITH ROLLUP and user variables.
"""

from __future__ import annotations

from sqlglot import exp

from dbbench_adapter.backends.clock import check
from dbbench_adapter.backends.group_order import order_groups
from dbbench_adapter.backends.mysql_kinds import KindFinder
from dbbench_adapter.backends.mysql_syntax import COLLATION, StatementError, syntax_error, unsupported

_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ)


def rewritten(tree: exp.Expr, finder: KindFinder) -> exp.Expr:
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

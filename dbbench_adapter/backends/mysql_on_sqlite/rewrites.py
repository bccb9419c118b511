"""Changes a statement's tree so that SQLite returns MySQL's result.

It handles text compared with numbers, collation of computed text, UPDATE and DELETE with JOIN or LIMIT, dates,
GROUP_CONCAT, ANY and ALL, and HAVING without groups. It leaves out WITH ROLLUP, outer joins in UPDATE, and several
target tables.
"""

from __future__ import annotations

from sqlglot import exp

from dbbench_adapter.backends.clock import check
from dbbench_adapter.backends.group_order import order_groups
from dbbench_adapter.backends.mysql_on_sqlite.collation import COLLATING, collate_computed
from dbbench_adapter.backends.mysql_on_sqlite.kinds import TEXT, KindFinder
from dbbench_adapter.backends.mysql_on_sqlite.stored import join_with_digits, store
from dbbench_adapter.backends.mysql_on_sqlite.syntax import COLLATION, StatementError, syntax_error, unsupported

_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ)


def rewritten(tree: exp.Expr, nodes: list[exp.Expr], finder: KindFinder) -> exp.Expr:
    """Change the tree for SQLite, mostly in place, and return its root.

    Raises:
        StatementError: the translation does not support something in it.
    """
    assignments = {id(item) for item in tree.expressions} if isinstance(tree, exp.Update) else set()
    for node in nodes:
        check()
        if isinstance(node, _COMPARISONS) and id(node) not in assignments:
            _align(node, ("this", "expression"), finder)
        elif isinstance(node, exp.Case) and node.this is not None:
            _align_case(node, finder)
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
        elif isinstance(node, exp.Select) and node.args.get("having") and not node.args.get("group"):
            _having_as_where(node)
        elif isinstance(node, exp.Parameter | exp.SessionParameter):
            raise unsupported("user and system variables")
        elif isinstance(node, exp.BitwiseAndAgg | exp.BitwiseOrAgg | exp.BitwiseXorAgg):
            raise unsupported("BIT_AND, BIT_OR and BIT_XOR over rows")
        elif isinstance(node, exp.Placeholder):
            raise syntax_error("?")
    for node in nodes:
        if isinstance(node, COLLATING):
            collate_computed(node, finder)
        if isinstance(node, exp.Anonymous):
            join_with_digits(node, finder)
        if isinstance(node, _COMPARISONS) and isinstance(node.expression, exp.Any | exp.All):
            node.replace(_quantified(node))
        elif isinstance(node, exp.GroupConcat):
            node.replace(_group_concat(node))
    if isinstance(tree, exp.Insert):
        _default_is_null(tree)
    store(tree, finder)
    order_groups(tree)
    if isinstance(tree, exp.Update):
        return _sqlite_update(tree)
    if isinstance(tree, exp.Delete):
        return _sqlite_delete(tree)
    if isinstance(tree, exp.TruncateTable):
        return exp.Delete(this=tree.expressions[0])
    if isinstance(tree, exp.Create | exp.Alter):
        for column in tree.find_all(exp.ColumnDef):
            _collate_column(column)
    if isinstance(tree, exp.Create):
        _drop_index_prefixes(tree)
    if isinstance(tree, exp.Alter):
        return _sqlite_alter(tree)
    return tree


def _having_as_where(select: exp.Select) -> None:
    """Move a HAVING without groups into WHERE, where SQLite also knows the aliases of the select list."""
    having = select.args["having"]
    if any(item.find(exp.AggFunc) for item in [*select.expressions, having]):
        return
    where = select.args.get("where")
    select.set("having", None)
    select.set("where", exp.Where(this=exp.and_(where.this, having.this) if where else having.this))


def _quantified(node: exp.Binary) -> exp.Expr:
    """Turn `x > ANY (SELECT y ...)` into EXISTS a y that fits, `x > ALL (...)` into NOT EXISTS one that does not."""
    query = node.expression.this.unnest()
    if not isinstance(query, exp.Select) or len(query.selects) != 1:
        raise unsupported("ANY or ALL of this")
    query.set("expressions", [exp.alias_(query.selects[0].unalias(), "any_value")])
    fits = type(node)(this=node.this.copy(), expression=exp.column("any_value", table="any_of"))
    is_any = isinstance(node.expression, exp.Any)
    rows = exp.select("1").from_(query.subquery("any_of")).where(fits if is_any else exp.not_(exp.paren(fits)))
    exists = exp.Exists(this=rows)
    return exists if is_any else exp.not_(exists)


def _drop_index_prefixes(tree: exp.Create) -> None:
    """Drop the lengths in CREATE INDEX ... (a(10)): MySQL indexes the first ten characters, SQLite the whole text."""
    if tree.kind == "INDEX":
        for call in list(tree.find_all(exp.Anonymous)):
            call.replace(exp.column(call.name))


def _collate_column(column: exp.ColumnDef) -> None:
    kind = column.args.get("kind")
    has_own = any(isinstance(item.kind, exp.CollateColumnConstraint) for item in column.constraints)
    if kind is not None and kind.is_type(*exp.DataType.TEXT_TYPES) and not has_own:
        collation = exp.CollateColumnConstraint(this=exp.Var(this=COLLATION))
        column.append("constraints", exp.ColumnConstraint(kind=collation))


def _default_is_null(tree: exp.Insert) -> None:
    """Replace DEFAULT by NULL, since the tables of tasks declare no defaults."""
    if isinstance(tree.expression, exp.Values):
        for row in tree.expression.expressions:
            for cell in row.expressions:
                if isinstance(cell, exp.Column | exp.Var) and cell.name.upper() == "DEFAULT":
                    cell.replace(exp.Null())


def _sqlite_alter(tree: exp.Alter) -> exp.Expr:
    """Turn CHANGE old new TYPE into a renaming; unlike in MySQL the column keeps its type."""
    actions = tree.args.get("actions") or []
    if len(actions) == 1 and isinstance(actions[0], exp.ModifyColumn):
        old, new = actions[0].args.get("rename_from"), actions[0].this
        if old is None or not isinstance(new, exp.ColumnDef):
            raise unsupported("ALTER TABLE ... MODIFY")
        tree.set("actions", [exp.RenameColumn(this=exp.column(old.name), to=exp.column(new.name))])
    return tree


def _align(node: exp.Expr, sides: tuple[str, ...], finder: KindFinder) -> None:
    """Make a comparison numeric if one side is a number; otherwise compare texts without regard to case and accents."""
    kinds = [finder.kind(node.args[side]) for side in sides]
    if any(kind is not None and kind.is_number for kind in kinds):
        for side, kind in zip(sides, kinds, strict=True):
            if (kind is None or not kind.is_number) and not isinstance(node.args[side], exp.Null | exp.Tuple):
                node.set(side, exp.cast(node.args[side], "double"))
    elif not any(isinstance(node.args[side], exp.Column | exp.Collate | exp.Cast | exp.Tuple) for side in sides):
        node.set(sides[0], exp.Collate(this=exp.paren(node.this), expression=exp.Var(this=COLLATION)))


def _align_in(node: exp.In, finder: KindFinder) -> None:
    """Do the same for IN; the types of a sub-query's rows stay unknown."""
    if isinstance(node.this, exp.Tuple):
        return
    left, kinds = finder.kind(node.this), [finder.kind(item) for item in node.expressions]
    is_number = left is not None and left.is_number
    if kinds and not is_number and all(kind is not None and kind.is_number for kind in kinds):
        node.set("this", exp.cast(node.this, "double"))
    elif not isinstance(node.this, exp.Column | exp.Collate | exp.Cast) and (kinds or not is_number):
        node.set("this", exp.Collate(this=exp.paren(node.this), expression=exp.Var(this=COLLATION)))


def _align_case(node: exp.Case, finder: KindFinder) -> None:
    """Make CASE x WHEN 1 ... over numbers numeric: a text x counts as the number that it begins with."""
    kinds = [finder.kind(branch.this) for branch in node.args["ifs"]]
    if finder.kind(node.this) == TEXT and all(kind is not None and kind.is_number for kind in kinds):
        node.set("this", exp.cast(node.this, "double"))


def _group_concat(node: exp.GroupConcat) -> exp.Expr:
    """Turn GROUP_CONCAT into our `mysql_group_concat(distinct, separator, directions, value, sort keys...)`."""
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
        _join_update(tree, joins)
    if tree.args.get("limit") or tree.args.get("order"):
        _limit_by_rowid(tree)
    return tree


def _join_update(tree: exp.Update, joins: list[exp.Join]) -> None:
    """Turn UPDATE a JOIN b ON c SET ... WHERE w into SQLite's UPDATE a SET ... FROM b WHERE c AND w."""
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

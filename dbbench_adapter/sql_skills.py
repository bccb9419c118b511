"""Recognises which of the 22 skills of LifelongAgentBench an SQL statement shows.

The syntax tree (sqlglot, MySQL dialect) shows the skills; the text of the statement and the data do not matter. This
module leaves out other SQL dialects, several statements at once, and whether a skill was needed for the answer. `python
-m dbbench_adapter.skills` compares what it finds with the labels of a task file.
"""

from __future__ import annotations

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

# Every list of skills has this order.
SKILLS: tuple[str, ...] = (
    "select",
    "insert",
    "update",
    "delete",
    "where_single_condition",
    "where_multiple_conditions",
    "where_nested_conditions",
    "group_by_single_column",
    "group_by_multiple_columns",
    "having_single_condition_with_aggregate",
    "having_multiple_conditions_with_aggregate",
    "having_aggregate_calculation",
    "order_by_single_column",
    "order_by_multiple_columns_same_direction",
    "order_by_multiple_columns_different_directions",
    "limit_only",
    "limit_and_offset",
    "column_alias",
    "table_alias",
    "subquery_single",
    "subquery_multiple",
    "subquery_nested",
)

_VERBS = (("select", exp.Select), ("insert", exp.Insert), ("update", exp.Update), ("delete", exp.Delete))
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod)


class NotOneStatementError(ValueError):
    """The text is not one SQL statement that sqlglot can read."""


def recognise_skills(sql: str) -> tuple[str, ...]:
    """The skills that one statement shows, in the order of `SKILLS`.

    The definitions are those of LifelongAgentBench. GROUP BY, HAVING, ORDER BY and LIMIT count on the outermost
    statement only, not inside INSERT ... SELECT. WHERE and aliases are searched from the outside in and the first one
    found counts, so the WHERE of a sub-query counts if the outer statement has none. A condition in one pair of
    parentheses is a single condition. A sub-query in parentheses counts anywhere, except in EXISTS.

    Raises:
        NotOneStatementError: there is no statement, or several, or a syntax error.
    """
    tree = _parse(sql)
    found = {skill for skill, kind in _VERBS if tree.find(kind)}
    for skills in (_where_skills, _group_skills, _having_skills, _order_skills, _limit_skills, _alias_skills):
        found |= skills(tree)
    found |= _subquery_skills(tree)
    return tuple(skill for skill in SKILLS if skill in found)


def _parse(sql: str) -> exp.Expr:
    try:
        trees = [tree for tree in sqlglot.parse(sql, read="mysql") if tree is not None]
    except (SqlglotError, RecursionError) as error:
        raise NotOneStatementError(f"cannot read {sql[:120]!r} as MySQL: {str(error)[:120]}; correct it") from None
    if len(trees) != 1:
        raise NotOneStatementError(f"{len(trees)} statements in {sql[:120]!r}, expected one; give them one by one")
    return trees[0]


def _where_skills(tree: exp.Expr) -> set[str]:
    where = tree.find(exp.Where)
    if where is None:
        return set()
    if not isinstance(where.this, exp.And | exp.Or):
        return {"where_single_condition"}
    connectors = len(list(where.this.find_all(exp.And, exp.Or)))
    return {"where_multiple_conditions" if connectors == 1 else "where_nested_conditions"}


def _group_skills(tree: exp.Expr) -> set[str]:
    group = tree.args.get("group")
    if group is None:
        return set()
    return {"group_by_single_column" if len(group.expressions) == 1 else "group_by_multiple_columns"}


def _having_skills(tree: exp.Expr) -> set[str]:
    having = tree.args.get("having")
    if having is None:
        return set()
    if isinstance(having.this, exp.And | exp.Or):
        found = {"having_multiple_conditions_with_aggregate"}
    elif having.this.find(exp.Func):  # an alias of an aggregate does not count
        found = {"having_single_condition_with_aggregate"}
    else:
        return set()
    return found | ({"having_aggregate_calculation"} if having.this.find(*_ARITHMETIC) else set())


def _order_skills(tree: exp.Expr) -> set[str]:
    order = tree.args.get("order")
    if order is None:
        return set()
    if len(order.expressions) == 1:
        return {"order_by_single_column"}
    directions = {bool(key.args.get("desc")) for key in order.expressions}
    kind = "same_direction" if len(directions) == 1 else "different_directions"
    return {f"order_by_multiple_columns_{kind}"}


def _limit_skills(tree: exp.Expr) -> set[str]:
    if tree.args.get("limit") is None:
        return set()
    return {"limit_and_offset" if tree.args.get("offset") else "limit_only"}


def _alias_skills(tree: exp.Expr) -> set[str]:
    found = set()
    if (select := tree.find(exp.Select)) and any(isinstance(item, exp.Alias) for item in select.expressions):
        found.add("column_alias")
    if (source := tree.find(exp.From)) and source.this.alias:
        found.add("table_alias")
    return found


def _subquery_skills(tree: exp.Expr) -> set[str]:
    inner = [query.find_ancestor(exp.Subquery) is not None for query in tree.find_all(exp.Subquery)]
    num_outermost = inner.count(False)
    found = {"subquery_nested"} if any(inner) else set()
    if num_outermost > 1:
        return found | {"subquery_multiple"}
    return found or ({"subquery_single"} if num_outermost else set())

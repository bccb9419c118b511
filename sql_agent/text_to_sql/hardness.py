"""Spider's classes of queries, by which published results are broken down: easy, medium, hard and extra.

They agree with `Evaluator.eval_hardness` of taoyds/test-suite-sql-eval (evaluation.py, line 361), which counts parts of
the outermost query alone; of set operations that is the first query. Its count of aggregates takes a negated condition
of WHERE or HAVING for one, and none that stands in HAVING.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlglot import exp

from dbbench_adapter.engines.engine import Engine
from dbbench_adapter.engines.sqlite import SQLITE
from sql_agent.text_to_sql.load import parsed


def hardness(query: str, engine: Engine = SQLITE) -> str | None:
    """None: the query does not parse, or is no SELECT."""
    tree = parsed(query, engine)
    nested = 0
    while isinstance(tree, exp.SetOperation):
        tree, nested = tree.left, 1
    if not isinstance(tree, exp.Select):
        return None
    where, having = (list(_conditions(tree.args.get(name))) for name in ("where", "having"))
    joined = [condition for join in tree.args.get("joins") or () for condition in _conditions(join.args.get("on"))]
    group, order = (_expressions(tree.args.get(name)) for name in ("group", "order"))
    conditions = [*joined, *where, *having]
    nested += sum(_is_nested(condition) for condition in conditions)
    parts = sum(map(bool, (where, group, order, tree.args.get("limit")))) + len(tree.args.get("joins") or ())
    parts += sum(_ors(tree.args.get(name)) for name in ("where", "having"))
    parts += sum(isinstance(_positive(condition), exp.Like) for condition in conditions)
    aggregates = sum(_aggregates(each) for each in (*tree.expressions, *group, *order))
    aggregates += sum(isinstance(condition, exp.Not) for condition in where)
    others = sum((aggregates > 1, len(tree.expressions) > 1, len(where) > 1, len(group) > 1))
    return _class(parts, nested, others)


def _class(parts: int, nested: int, others: int) -> str:
    if parts <= 1 and others == 0 and nested == 0:
        return "easy"
    if nested == 0 and ((others <= 2 and parts <= 1) or (parts <= 2 and others < 2)):
        return "medium"
    if (nested == 0 and ((others > 2 and parts <= 2) or (2 < parts <= 3 and others <= 2))) or (
        parts <= 1 and others == 0 and nested <= 1
    ):
        return "hard"
    return "extra"


def _conditions(clause: Any) -> Iterator[exp.Expr]:
    node = clause.this if isinstance(clause, exp.Where | exp.Having) else clause
    if isinstance(node, exp.Paren):
        yield from _conditions(node.this)
    elif isinstance(node, exp.And | exp.Or):
        yield from _conditions(node.left)
        yield from _conditions(node.right)
    elif node is not None:
        yield node


def _ors(clause: Any) -> int:
    node = clause.this if isinstance(clause, exp.Where | exp.Having) else clause
    if isinstance(node, exp.Paren):
        return _ors(node.this)
    if isinstance(node, exp.And | exp.Or):
        return isinstance(node, exp.Or) + _ors(node.left) + _ors(node.right)
    return 0


def _positive(condition: exp.Expr) -> exp.Expr:
    return condition.this if isinstance(condition, exp.Not) else condition


def _is_nested(condition: exp.Expr) -> bool:
    inner = _positive(condition)
    sides = (inner.args.get(name) for name in ("expression", "query", "low", "high"))
    return any(isinstance(side, exp.Subquery | exp.Select) for side in sides)


def _expressions(clause: exp.Expr | None) -> list[exp.Expr]:
    return [] if clause is None else list(clause.expressions)


def _aggregates(node: exp.Expr) -> int:
    inner = node.this if isinstance(node, exp.Alias | exp.Ordered) else node
    return int(isinstance(inner, exp.AggFunc))

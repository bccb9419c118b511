"""The 22 skills of LifelongAgentBench, and which of them an SQL statement shows.

    python -m dbbench_adapter.skills FILE

prints how well the recognised skills agree with the `skills` of the tasks in FILE. A skill is read off the syntax tree
(sqlglot, MySQL dialect); the text of the statement and the data do not matter. Left out: other dialects, several
statements at once, and whether a skill was needed for the answer.
"""

from __future__ import annotations

from core.commands import execute, starting

if __name__ == "__main__":
    starting()

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from dbbench_adapter.datatypes import Task

SKILLS = (
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
"""In this order wherever skills are listed."""

_VERBS = (("select", exp.Select), ("insert", exp.Insert), ("update", exp.Update), ("delete", exp.Delete))
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod)


class NotOneStatementError(ValueError):
    """The text is not exactly one SQL statement that sqlglot can read."""


def recognise_skills(sql: str) -> tuple[str, ...]:
    """The skills that one statement shows, in the order of `SKILLS`.

    A skill means what it means in LifelongAgentBench, which has consequences worth knowing. GROUP BY, HAVING, ORDER BY
    and LIMIT count on the outermost statement only, not inside INSERT ... SELECT. Of WHERE and of aliases the first one
    from the outside in counts, so a sub-query's WHERE counts when the statement has none. A condition in one pair of
    parentheses is a single condition. A sub-query counts wherever it stands in parentheses, except in EXISTS.

    Raises:
        NotOneStatementError: no statement, several, or a syntax error.
    Source:
        FACTS 6; the definitions that the benchmark's own labels were made by.
    """
    tree = _parse(sql)
    found = {skill for skill, kind in _VERBS if tree.find(kind)}
    found |= _where_skills(tree) | _group_skills(tree) | _having_skills(tree) | _order_skills(tree)
    found |= _limit_skills(tree) | _alias_skills(tree) | _subquery_skills(tree)
    return tuple(skill for skill in SKILLS if skill in found)


def _parse(sql: str) -> exp.Expr:
    try:
        trees = [tree for tree in sqlglot.parse(sql, read="mysql") if tree is not None]
    except (SqlglotError, RecursionError) as error:
        raise NotOneStatementError(f"cannot read {sql[:120]!r} as SQL: {str(error)[:120]}") from None
    if len(trees) != 1:
        raise NotOneStatementError(f"{len(trees)} statements in {sql[:120]!r}, expected one")
    return trees[0]


def _where_skills(tree: exp.Expr) -> set[str]:
    where = tree.find(exp.Where)
    if where is None:
        return set()
    if not isinstance(where.this, exp.And | exp.Or):
        return {"where_single_condition"}
    connectors = sum(1 for _ in where.this.find_all(exp.And, exp.Or))
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
    select, source = tree.find(exp.Select), tree.find(exp.From)
    column = select is not None and any(isinstance(item, exp.Alias) for item in select.expressions)
    table = source is not None and bool(source.this.alias)
    return {skill for skill, shown in (("column_alias", column), ("table_alias", table)) if shown}


def _subquery_skills(tree: exp.Expr) -> set[str]:
    inner = [query.find_ancestor(exp.Subquery) is not None for query in tree.find_all(exp.Subquery)]
    outermost = len(inner) - sum(inner)
    found = {"subquery_nested"} if any(inner) else set()
    if outermost > 1:
        return found | {"subquery_multiple"}
    return found or ({"subquery_single"} if outermost else set())


# Agreement with labels ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Agreement:
    """How the recognised skills agree with the labels, for one skill."""

    skill: str
    labelled: int
    recognised: int
    both: int

    @property
    def precision(self) -> float | None:
        """Share of the recognised that are labelled, in [0, 1]; None where nothing is recognised."""
        return self.both / self.recognised if self.recognised else None

    @property
    def recall(self) -> float | None:
        """Share of the labelled that are recognised, in [0, 1]; None where nothing is labelled."""
        return self.both / self.labelled if self.labelled else None


def agreement(tasks: Iterable[Task]) -> tuple[Agreement, ...]:
    """Compare `Task.skills` with the skills of the reference statement; one entry per skill, in the order of `SKILLS`.

    Raises:
        NotOneStatementError: a task without a reference statement that can be read.
    """
    pairs = [(set(task.skills), set(recognise_skills(task.gold.sql or ""))) for task in tasks]
    return tuple(
        Agreement(
            skill,
            sum(skill in labelled for labelled, _ in pairs),
            sum(skill in recognised for _, recognised in pairs),
            sum(skill in labelled & recognised for labelled, recognised in pairs),
        )
        for skill in SKILLS
    )


def table_lines(agreements: Sequence[Agreement]) -> list[str]:
    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}"

    lines = [f"{'skill':46} {'labelled':>8} {'recognised':>10} {'precision':>9} {'recall':>6}"]
    return lines + [
        f"{a.skill:46} {a.labelled:8} {a.recognised:10} {share(a.precision):>9} {share(a.recall):>6}"
        for a in agreements
    ]


def main(argv: Sequence[str] | None = None) -> int:
    from dbbench_adapter.tasks.load import TaskFileError, load_tasks

    parser = argparse.ArgumentParser(
        prog="python -m dbbench_adapter.skills", description="Compare labelled with recognised skills."
    )
    parser.add_argument("file", type=Path, help="a task file with skills, e.g. LifelongAgentBench's entry_dict.json")
    path = parser.parse_args(argv).file
    try:
        tasks = load_tasks(path)
        labelled = [task for task in tasks if task.skills]
        if not labelled:
            raise TaskFileError(f"{path}: no task has skills; AgentBench files have none, give an entry_dict.json")
        lines = table_lines(agreement(labelled))
    except (TaskFileError, NotOneStatementError) as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join([*lines, f"{len(labelled)} of {len(tasks)} tasks have skills"]))
    return 0


if __name__ == "__main__":
    execute(main)

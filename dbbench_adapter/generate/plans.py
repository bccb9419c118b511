"""Draws the clauses of a task's reference statement so that it shows the wanted skills and difficulty.

A `Plan` names for each family of skills the member that the statement shows. `queries` and `changes` write the
statement.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from dbbench_adapter.sql_skills import SKILLS


class NoDraft(Exception):
    """The draws so far give no good task; the text is the reason, by which such draws are counted."""


def _fewest_skills(skill: str) -> int:
    if skill == "having_aggregate_calculation":
        return 4
    if skill in ("select", "insert", "update"):
        return 1
    return 3 if skill.startswith(("having", "subquery", "limit")) else 2


Difficulty = Literal["easy", "medium", "hard"]
# The fewest and most skills of a task. LifelongAgentBench has 212 easy, 177 medium and 111 hard tasks by this rule.
SKILL_COUNTS: Mapping[Difficulty, tuple[int, int]] = {"easy": (1, 3), "medium": (4, 5), "hard": (6, 9)}
LIFELONG_SHARES: Mapping[Difficulty, float] = {"easy": 0.424, "medium": 0.354, "hard": 0.222}
# The fewest skills of a task that shows this one, e.g. 3 for `limit_only`: it needs select and order.
FEWEST_SKILLS = {skill: _fewest_skills(skill) for skill in SKILLS}
# The most skills: INSERT ... SELECT can add only WHERE, sub-queries and a table alias to its two skills.
MOST_SKILLS = {skill: 5 if skill == "insert" else 9 for skill in SKILLS}

_CHANGES = ("insert", "update", "delete")
_ATTEMPTS = 60


@dataclass(frozen=True)
class Plan:
    """Names one member per family, or None if the statement has no such clause. Names are those of `SKILLS`."""

    verb: str
    where: str | None = None
    group: str | None = None
    having: str | None = None
    calculation: bool = False
    order: str | None = None
    limit: str | None = None
    column_alias: bool = False
    table_alias: bool = False
    subquery: str | None = None

    @property
    def is_copy(self) -> bool:
        return self.verb == "insert" and self.where is not None

    @property
    def wraps_subqueries(self) -> bool:
        """Whether sub-queries need a derived table, as MySQL demands in UPDATE and DELETE of their own table."""
        return self.verb in ("update", "delete") and self.subquery is not None

    def skills(self) -> tuple[str, ...]:
        """The skills that `recognise_skills` finds in a statement of this plan."""
        found = {self.verb, self.where, self.group, self.having, self.order, self.limit, self.subquery}
        if self.is_copy or self.wraps_subqueries:
            found.add("select")
        if self.wraps_subqueries:
            found.add("subquery_nested")
        if self.calculation:
            found.add("having_aggregate_calculation")
        if self.column_alias:
            found.add("column_alias")
        if self.table_alias or self.wraps_subqueries:
            found.add("table_alias")
        return tuple(skill for skill in SKILLS if skill in found)


def has_room(difficulty: Difficulty, skill: str) -> bool:
    low, high = SKILL_COUNTS[difficulty]
    return FEWEST_SKILLS[skill] <= high and MOST_SKILLS[skill] >= low


def draw_plan(
    rng: random.Random, skills: Mapping[str, float], counts: Mapping[str, int], difficulty: Difficulty
) -> Plan:
    """Draw one of `skills`, then more of all skills until the plan is as difficult as asked for.

    Args:
        skills: the weight of each skill that the task may be made for, each > 0.
        counts: the number of tasks that show a skill so far. A skill's weight is divided by that count plus one, which
            is LifelongAgentBench's rule for an even mix.
        difficulty: sets how many skills the task shows; it must have room for at least one of `skills`.
    """
    low, high = SKILL_COUNTS[difficulty]
    able = {skill: weight for skill, weight in skills.items() if has_room(difficulty, skill)}
    while True:
        targets = {_weighted(rng, able, counts)}
        for _ in range(_ATTEMPTS):
            plan = close_plan(rng, targets)
            if plan is None or len(plan.skills()) > high:
                targets = {_weighted(rng, able, counts)}
            elif len(plan.skills()) >= low and targets <= set(plan.skills()):
                return plan
            else:
                targets |= {_weighted(rng, _compatible(rng, targets), counts)}


def _weighted(rng: random.Random, skills: Mapping[str, float], counts: Mapping[str, int]) -> str:
    names = list(skills)
    return rng.choices(names, [skills[name] / (counts.get(name, 0) + 1) for name in names])[0]


def _compatible(rng: random.Random, targets: Collection[str]) -> dict[str, float]:
    """The other skills that a plan can show together with the targets, or the targets if there are none."""
    missing = [skill for skill in SKILLS if skill not in targets]
    fitting = [skill for skill in missing if close_plan(rng, {*targets, skill}) is not None]
    return dict.fromkeys(fitting or sorted(targets), 1.0)


def close_plan(rng: random.Random, targets: Collection[str]) -> Plan | None:
    """Make a plan with the targets and the clauses they need (HAVING needs GROUP BY); None if there is none."""
    families = [_family(skill) for skill in targets]
    if any(families.count(family) > 1 for family in families if family):
        return None
    verb = next((skill for skill in _CHANGES if skill in targets), "select")
    if verb != "select" and {"subquery_multiple", "where_single_condition"} <= set(targets):
        return None
    if verb == "insert":
        return _insert_plan(rng, targets)
    return _select_plan(rng, targets) if verb == "select" else _changing_plan(rng, verb, targets)


def _family(skill: str) -> str:
    """The family of a skill. A statement shows at most one skill of a family, or several of the family ""."""
    if skill in ("select", "column_alias", "table_alias", "having_aggregate_calculation"):
        return ""
    return "change" if skill in _CHANGES else skill.partition("_")[0]


def _one(targets: Collection[str], start: str, other_than: str = "") -> str | None:
    return next(
        (skill for skill in SKILLS if skill in targets and skill.startswith(start) and skill != other_than), None
    )


def _insert_plan(rng: random.Random, targets: Collection[str]) -> Plan | None:
    if any(skill.startswith(("group", "having", "order", "limit", "column")) for skill in targets):
        return None
    if set(targets) <= {"insert"}:
        return Plan("insert")
    where, subquery = _one(targets, "where"), _one(targets, "subquery")
    if subquery == "subquery_multiple":
        where = where or _two_conditions(rng)
    where = where or "where_single_condition"
    return Plan("insert", where=where, subquery=subquery, table_alias="table_alias" in targets)


def _changing_plan(rng: random.Random, verb: str, targets: Collection[str]) -> Plan | None:
    barred = ("group", "having", "column", "limit_and_offset", "subquery_single")
    if any(skill.startswith(barred) for skill in targets):
        return None
    where, order, limit = _one(targets, "where"), _one(targets, "order"), _one(targets, "limit")
    subquery = _one(targets, "subquery")
    if subquery is None and {"select", "table_alias"} & set(targets):
        subquery = "subquery_nested"
    if subquery == "subquery_multiple":
        where = where or _two_conditions(rng)
    if order or limit:
        order, limit = order or "order_by_single_column", "limit_only"
    if subquery or (not limit and (verb == "delete" or rng.random() < 0.8)):
        where = where or "where_single_condition"
    return Plan(verb, where=where, order=order, limit=limit, subquery=subquery)


def _select_plan(rng: random.Random, targets: Collection[str]) -> Plan | None:
    where, group, order = _one(targets, "where"), _one(targets, "group"), _one(targets, "order")
    having = _one(targets, "having", other_than="having_aggregate_calculation")
    limit, subquery = _one(targets, "limit"), _one(targets, "subquery")
    calculation = "having_aggregate_calculation" in targets
    if calculation and not having:
        several = rng.random() < 0.3
        having = f"having_{'multiple_conditions' if several else 'single_condition'}_with_aggregate"
    if having and not group:
        group = rng.choice(["group_by_single_column", "group_by_single_column", "group_by_multiple_columns"])
    if limit and not order:
        order = "order_by_single_column"
    if subquery and not (where or having):
        where = "where_single_condition"
    if subquery == "subquery_multiple" and where == "where_single_condition" and not having:
        if "where_single_condition" in targets:
            return None
        where = _two_conditions(rng)
    if subquery == "subquery_multiple" and where is None and having == "having_single_condition_with_aggregate":
        where = "where_single_condition"
    aliases = "column_alias" in targets, "table_alias" in targets
    return Plan("select", where, group, having, calculation, order, limit, *aliases, subquery)


def _two_conditions(rng: random.Random) -> str:
    return "where_nested_conditions" if rng.random() < 0.3 else "where_multiple_conditions"

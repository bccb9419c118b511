"""Writes INSERT, UPDATE and DELETE statements with their questions.

UPDATE and DELETE read their own table only through derived tables, as MySQL demands; with a limit they are ordered by
keys without ties. REPLACE, ON DUPLICATE KEY, TRUNCATE, DDL, and changes that empty the table are left out.
"""

from __future__ import annotations

import random

from dbbench_adapter.datatypes import Cell
from dbbench_adapter.generate.conditions import Where, draw_where
from dbbench_adapter.generate.phrases import PHRASES, join_words
from dbbench_adapter.generate.plans import NoDraft, Plan
from dbbench_adapter.generate.queries import (
    Output,
    QueryDraft,
    SortKey,
    both_decide,
    draw_cut,
    draw_keys,
    order_sql,
    order_words,
)
from dbbench_adapter.generate.themes import Field, Scene, literal

_ATTEMPTS = 12


def draw_change(rng: random.Random, scene: Scene, plan: Plan) -> QueryDraft:
    """Write an INSERT, UPDATE or DELETE of this plan.

    Raises:
        NoDraft: the table allows no such statement.
    """
    if plan.verb == "insert":
        return _copy(rng, scene, plan) if plan.is_copy else _insert(rng, scene)
    where = _where(rng, scene, plan, "")
    words, sql = (f" {where.words}", f" WHERE {where.sql}") if where else ("", "")
    name = scene.table.name
    if plan.verb == "delete":
        change, statement, action = "", f"DELETE FROM {name}", rng.choice(["delete", "remove"])
    else:
        change, assignments = _assignments(rng, scene)
        statement, action = f"UPDATE {name} SET {assignments}", "change"
    if plan.order:
        keys, count = _cut(rng, scene, plan, sql)
        question = rng.choice(_templates("first_rows", where)).format(
            among=f"all {scene.rows}{words}",
            order=order_words(rng, keys),
            action=action,
            rows="one" if count == 1 else f"{count} {scene.rows}",
        )
        question += f" {_then(rng, change, count)}" if change else ""
        return QueryDraft(plan.verb.upper(), question, f"{statement}{sql} {order_sql(keys)} LIMIT {count}")
    which = rng.choice([f"all {scene.rows}{words}", f"every {scene.row}{words}"])
    templates = _templates("updates", where) if change else PHRASES["deletes"]
    return QueryDraft(plan.verb.upper(), rng.choice(templates).format(which=which, change=change), f"{statement}{sql}")


def _templates(name: str, where: Where | None) -> list[str]:
    return PHRASES[name] + ([] if where and where.is_list else PHRASES[f"{name}_without_list"])


def _then(rng: random.Random, change: str, count: int) -> str:
    which = "that one" if count == 1 else f"those {count}"
    return rng.choice(["The change for {}: {}.", "For {}, {}."]).format(which, change)


def _insert(rng: random.Random, scene: Scene) -> QueryDraft:
    cells = dict(zip(scene.fields, scene.extra_row, strict=True))
    optional = [field for field in scene.fields if field.role not in ("key", "label")]
    left_out = rng.sample(optional, 1) if rng.random() < 0.25 else []
    given = {field: cell for field, cell in cells.items() if field not in left_out}
    values = join_words([f"{field.phrase} {literal(cell)}" for field, cell in given.items()])
    question = rng.choice(PHRASES["inserts"]).format(row=scene.row, values=values)
    if left_out:
        question += f" Its {left_out[0].phrase} is not known, so leave it NULL."
    columns = ", ".join(field.name for field in given)
    literals = ", ".join(literal(cell) for cell in given.values())
    return QueryDraft("INSERT", question, f"INSERT INTO {scene.table.name} ({columns}) VALUES ({literals})")


def _copy(rng: random.Random, scene: Scene, plan: Plan) -> QueryDraft:
    at = f"{scene.alias}." if plan.table_alias else ""
    where = _where(rng, scene, plan, at)
    assert where is not None, "a copy has conditions"
    key = scene.of("key")[0]
    step = rng.choice([1000, 5000, 10000])
    copied = {field: at + field.name for field in scene.fields} | {key: f"{at}{key.name} + {step}"}
    words = [f"the {key.phrase} is {step} higher"]
    if rng.random() < 0.6:
        field, value = _new_value(rng, scene)
        copied[field] = literal(value)
        words.append(f"the {field.phrase} is {literal(value)}")
    question = rng.choice(PHRASES["copies"]).format(
        row=scene.row, rows=scene.rows, where=where.words, changes=join_words(words)
    )
    columns = ", ".join(field.name for field in scene.fields)
    select = f"SELECT {', '.join(copied.values())} FROM {scene.source(at)} WHERE {where.sql}"
    return QueryDraft("INSERT", question, f"INSERT INTO {scene.table.name} ({columns}) {select}")


def _new_value(rng: random.Random, scene: Scene) -> tuple[Field, Cell]:
    """Draw a category or number with a value for it, either from the column or from the extra row."""
    field = rng.choice(scene.of("category", "amount", "level", "date"))
    value = scene.extra_row[scene.fields.index(field)]
    return field, value if field.role != "category" or rng.random() < 0.5 else rng.choice(scene.column(field))


def _assignments(rng: random.Random, scene: Scene) -> tuple[str, str]:
    words, sql, seen = [], [], set()
    for _ in range(rng.choice([1, 1, 1, 2])):
        field, value = _new_value(rng, scene)
        if field.name in seen:
            continue
        seen.add(field.name)
        if field.role == "amount" and rng.random() < 0.6:
            phrase, expression = _shift(rng, field, scene)
        else:
            phrase, expression = f"set the {field.phrase} to {literal(value)}", literal(value)
        words.append(phrase)
        sql.append(f"{field.name} = {expression}")
    return join_words(words), ", ".join(sql)


def _shift(rng: random.Random, field: Field, scene: Scene) -> tuple[str, str]:
    values = scene.column(field)
    step = rng.choice([step for step in (1, 2, 5, 10, 20, 50, 100, 500) if step <= max(1, max(values) // 4)])
    if rng.random() < 0.2:
        return f"double the {field.phrase}", f"{field.name} * 2"
    if min(values) >= step and rng.random() < 0.4:
        return f"decrease the {field.phrase} by {step}", f"{field.name} - {step}"
    return f"increase the {field.phrase} by {step}", f"{field.name} + {step}"


def _where(rng: random.Random, scene: Scene, plan: Plan, at: str) -> Where | None:
    num_subqueries = {None: 0, "subquery_multiple": 2}.get(plan.subquery, 1)
    return draw_where(rng, scene, plan, at, num_subqueries) if plan.where else None


def _cut(rng: random.Random, scene: Scene, plan: Plan, sql: str) -> tuple[list[SortKey], int]:
    """Draw sort keys that no two matching rows share, and the number of rows to take."""
    candidates = [Output(field.phrase, field.name, role=field.role) for field in scene.fields]
    for _ in range(_ATTEMPTS):
        keys = draw_keys(rng, plan, candidates)
        rows = scene.ask(f"SELECT {', '.join(key.output.sql for key in keys)} FROM {scene.table.name}{sql}")
        all_decide = len(keys) == 1 or both_decide([row[0] for row in rows])
        if len(set(rows)) == len(rows) and all_decide and (cut := draw_cut(rng, plan, rows)) is not None:
            return keys, cut[0]
    raise NoDraft("ties")

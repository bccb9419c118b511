"""Draws WHERE conditions in words and in SQL, sub-queries included, over values that the table holds.

Each condition matches some rows and not others, and each one in a combination changes the result. NOT, IS NULL, EXISTS,
sub-queries that refer to the outer row, and comparisons between two columns are left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dbbench_adapter.generate.plans import NoDraft, Plan
from dbbench_adapter.generate.themes import Field, Scene, read_data

# A condition matches at most this share of the rows.
_MOST = 0.85
_ATTEMPTS = 30


@dataclass(frozen=True)
class Condition:
    subject: str
    """The column as a noun without article."""
    predicate: str
    sql: str

    @property
    def clause(self) -> str:
        return f"the {self.subject} {self.predicate}"

    @property
    def has_own_condition(self) -> bool:
        # Another condition joined by `and` could be read as part of this one.
        return any(word in self.predicate for word in ("whose", "for which", "that ", "per ", " of all "))


@dataclass(frozen=True)
class Where:
    words: str
    """The words follow a noun: `whose price is above 4`, `where the price is above 4 or ...`."""
    sql: str
    """The text after WHERE."""
    # Numbered conditions should also end the sentence.
    is_list: bool = False


@dataclass(frozen=True)
class _Shape:
    """Joins two or three conditions in SQL, in words, and as a numbered list (`phrases.yaml`)."""

    sql: str
    words: Sequence[str]
    numbered: str
    num_required: int
    """Every row has to meet this many of the first conditions."""


_PHRASES = read_data("phrases")
# Ways to say each comparison operator.
NUMBER_WORDS: Mapping[str, Sequence[str]] = _PHRASES["numbers"]
DATE_WORDS: Mapping[str, Sequence[str]] = _PHRASES["dates"]
_SHAPES = {num: [_Shape(**shape) for shape in _PHRASES[name]] for num, name in ((2, "pairs"), (3, "triples"))}


def draw_where(rng: random.Random, scene: Scene, plan: Plan, at: str, num_subqueries: int) -> Where:
    """Draw one to three conditions, as the plan's `where` says.

    Args:
        at: the prefix of column names outside sub-queries: `t.`, or nothing without a table alias.
        num_subqueries: the number of conditions that compare with a sub-query.
    Raises:
        NoDraft: the table allows no such conditions.
    """
    size = {"where_single_condition": 1, "where_multiple_conditions": 2, "where_nested_conditions": 3}[plan.where or ""]
    # A server evaluates a sub-query when it first needs it. If rows can change before that, the result depends on the
    # order of evaluation. It does not if every row has to pass the sub-query, or if rows are sorted first.
    changes_under_way = plan.wraps_subqueries and not plan.order
    for _ in range(_ATTEMPTS):
        makers = [_subquery_maker(rng, plan)] * num_subqueries + [_plain] * (size - num_subqueries)
        if not changes_under_way:
            rng.shuffle(makers)
        conditions = [maker(rng, scene, at) for maker in makers]
        if len({condition.subject for condition in conditions}) < size:
            continue
        where = _combined(rng, conditions, num_required=num_subqueries if changes_under_way else 0)
        if _each_matters(scene, at, conditions, where):
            return where
    raise NoDraft("no_condition")


def _combined(rng: random.Random, conditions: list[Condition], *, num_required: int) -> Where:
    # Join conditions so that the first `num_required` have to hold for every row.
    if len(conditions) == 1:
        (only,) = conditions
        words = rng.choice([f"whose {only.subject} {only.predicate}", f"where {only.clause}"])
        return Where(words, only.sql)
    shape = rng.choice([shape for shape in _SHAPES[len(conditions)] if shape.num_required >= num_required])
    sql = shape.sql.format(*(condition.sql for condition in conditions))
    if rng.random() < 0.3 or any(condition.has_own_condition for condition in conditions):
        numbered = "; ".join(f"({number}) {condition.clause}" for number, condition in enumerate(conditions, start=1))
        return Where(f"meeting {shape.numbered}: {numbered}", sql, is_list=True)
    return Where(rng.choice(shape.words).format(*conditions), sql)


def _each_matters(scene: Scene, at: str, conditions: list[Condition], where: Where) -> bool:
    """Whether some rows match and some do not, and leaving out any condition changes which."""
    tests = [where.sql, *(condition.sql for condition in conditions)]
    columns = ", ".join(f"COALESCE(({sql}) <> 0, 0)" for sql in tests)
    whole, *parts = zip(*scene.ask(f"SELECT {columns} FROM {scene.source(at)}"), strict=True)
    if not 1 <= sum(whole) <= max(1, int(_MOST * len(whole))):
        return False
    if any(not 0 < sum(part) < len(part) for part in parts):
        return False
    if len(parts) == 1:
        return True
    if len(parts) == 2:
        return whole not in parts
    first, second, third = parts
    either = tuple(map(max, zip(second, third, strict=True)))
    both = tuple(map(min, zip(second, third, strict=True)))
    return first != whole and either not in (whole, second, third) and both not in (second, third, whole)


# Plain conditions -----------------------------------------------------------------------------------------------------


def _plain(rng: random.Random, scene: Scene, at: str) -> Condition:
    field = rng.choice(scene.fields)
    column = at + field.name
    values = scene.column(field)
    if field.role == "category":
        return _category(rng, field, column, values)
    if field.role == "label":
        return _label(rng, field, column, values)
    if field.role == "date":
        operator, value = rng.choice(list(DATE_WORDS)), rng.choice(values)
        words = rng.choice(DATE_WORDS[operator]).format(value)
        return Condition(field.phrase, words, f"{column} {operator} '{value}'")
    if rng.random() < 0.15:
        low, high = sorted(rng.sample(values, 2))
        if low < high:
            words = f"is between {low} and {high} inclusive"
            return Condition(field.phrase, words, f"{column} BETWEEN {low} AND {high}")
    operator = rng.choices(list(NUMBER_WORDS), [4, 4, 2, 2, 1])[0]
    value = _threshold(rng, field, values)
    words = rng.choice(NUMBER_WORDS[operator]).format(value)
    return Condition(field.phrase, words, f"{column} {operator} {value}")


def _threshold(rng: random.Random, field: Field, values: list[int]) -> int:
    value = rng.choice(values)
    if field.role == "amount" and value >= 40 and rng.random() < 0.5:
        step = 10 ** (len(str(value)) - 1) // 2
        return max(step, value // step * step)
    return value


def _category(rng: random.Random, field: Field, column: str, values: list[str]) -> Condition:
    kind = rng.random()
    value = rng.choice(values)
    others = sorted(set(values) - {value})
    if kind < 0.2 and len(others) >= 2:
        other = rng.choice(others)
        predicate = rng.choice(["is one of ('{}', '{}')", "is in the list ('{}', '{}')"]).format(value, other)
        return Condition(field.phrase, predicate, f"{column} IN ('{value}', '{other}')")
    if kind < 0.4:
        predicate = rng.choice([f"is not '{value}'", f"is different from '{value}'"])
        return Condition(field.phrase, predicate, f"{column} <> '{value}'")
    return Condition(field.phrase, rng.choice([f"is '{value}'", f"equals '{value}'"]), f"{column} = '{value}'")


def _label(rng: random.Random, field: Field, column: str, values: list[str]) -> Condition:
    value = rng.choice(values)
    words = value.replace("-", " ").split()
    if rng.random() < 0.5:
        predicate = rng.choice(["starts with '{}'", "begins with '{}'"]).format(words[0])
        return Condition(field.phrase, predicate, f"{column} LIKE '{words[0]}%'")
    return Condition(field.phrase, f"is '{value}'", f"{column} = '{value}'")


# Sub-queries ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _SubQuery:
    """A row of `subqueries` in phrases.yaml."""

    draws: str
    compares: str
    operator: str
    query: str
    words: Sequence[str]

    def __call__(self, rng: random.Random, scene: Scene, at: str) -> Condition:
        slots: dict[str, Any] = {"table": scene.table.name, "row": scene.row, "rows": scene.rows}
        for what in self.draws.split():
            slots |= _drawn(rng, scene, what, slots)
        words = (rng.choice(self.words) if len(self.words) > 1 else self.words[0]).format(**slots)
        field, operator, query = slots[self.compares], self.operator.format(**slots), self.query.format(**slots)
        return Condition(field.phrase, words, f"{at}{field.name} {operator} ({query})")


_SUBQUERIES = {name: [_SubQuery(**row) for row in rows] for name, rows in _PHRASES["subqueries"].items()}
_EXTREMES = [("MAX", "highest"), ("MIN", "lowest")]
_BOUNDS = [("MAX", "highest", ">=", "at least"), ("MIN", "lowest", "<=", "at most"), ("MIN", "lowest", ">", "above")]


def _subquery_maker(rng: random.Random, plan: Plan) -> Callable[[random.Random, Scene, str], Condition]:
    if plan.wraps_subqueries:
        return rng.choice(_SUBQUERIES["wrapped"])
    return rng.choice(_SUBQUERIES["nested" if plan.subquery == "subquery_nested" else "flat"])


def _drawn(rng: random.Random, scene: Scene, what: str, slots: Mapping[str, Any]) -> dict[str, Any]:
    match what:
        case "number":
            return {"number": rng.choice(scene.numbers)}
        case "category":
            return {"category": rng.choice(scene.of("category"))}
        case "side":
            return dict(zip(("operator", "side"), _side(rng), strict=True))
        case "filter":
            return dict(zip(("whose", "where"), _filter(rng, scene), strict=True))
        case "some" if rng.random() < 0.5:
            whose, sql = _filter(rng, scene)
            return {"some": f"the {scene.rows} {whose}", "where": f" WHERE {sql}"}
        case "some":
            return {"some": f"all {scene.rows}", "where": ""}
        case "bound":
            return dict(zip(("function", "extreme", "operator", "bound"), rng.choice(_BOUNDS), strict=True))
        case "extreme":
            return dict(zip(("function", "extreme"), rng.choice(_EXTREMES), strict=True))
        case "average":
            return dict(zip(("function", "extreme"), rng.choice([*_EXTREMES[::-1], ("AVG", "mean")]), strict=True))
        case "key":
            key = scene.of("key")[0]
            return {"key": key, "value": rng.choice(scene.column(key))}
        case "fifth":
            values = sorted(scene.column(slots["number"]))
            return {"value": values[-len(values) // 5] if slots["operator"] == ">" else values[len(values) // 5]}
    return dict(zip(("category", "group_words", "groups"), _grouped(rng, scene), strict=True))


def _side(rng: random.Random) -> tuple[str, str]:
    return rng.choice([(">", "is above"), (">", "is greater than"), ("<", "is below"), ("<", "is less than")])


def _filter(rng: random.Random, scene: Scene) -> tuple[str, str]:
    """The words that follow the rows' name, and the text after WHERE in a sub-query."""
    field = rng.choice(scene.of("category"))
    value = rng.choice(scene.column(field))
    return f"whose {field.phrase} is '{value}'", f"{field.name} = '{value}'"


def _grouped(rng: random.Random, scene: Scene) -> tuple[Field, str, str]:
    field = rng.choice(scene.of("category"))
    select = f"SELECT {field.name} FROM {scene.table.name} GROUP BY {field.name} HAVING"
    values = scene.column(field)
    if rng.random() < 0.5:
        count = rng.choice([values.count(value) for value in values])
        return field, f"is one that occurs for more than {count - 1} {scene.rows}", f"{select} COUNT(*) > {count - 1}"
    number, (operator, words) = rng.choice(scene.numbers), _side(rng)
    average = sum(scene.column(number)) // len(values)
    words = f"is one for which the average {number.phrase} {words} {average}"
    return field, words, f"{select} AVG({number.name}) {operator} {average}"

"""Writes SELECT statements with their questions: columns, groups, HAVING, order and limit as a plan has them.

If rows are ordered or cut off, rows that tie are equal in every column of the result. Joins, UNION, window functions,
and sub-queries in FROM or in the select list are left out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dbbench_adapter.datatypes import Cell
from dbbench_adapter.generate import phrases
from dbbench_adapter.generate.conditions import NUMBER_WORDS, Where, draw_where
from dbbench_adapter.generate.phrases import PHRASES
from dbbench_adapter.generate.plans import NoDraft, Plan
from dbbench_adapter.generate.themes import Field, Scene

_ATTEMPTS = 12


@dataclass(frozen=True)
class QueryDraft:
    """Not yet run by a backend."""

    kind: str
    """SELECT, INSERT, UPDATE or DELETE."""
    question: str
    sql: str
    ordered: bool = False


@dataclass(frozen=True)
class Output:
    phrase: str
    """A noun without article: `driver name`, `total distance`."""
    sql: str
    alias: str = ""
    role: str = ""
    """The role of its field; `aggregate` for a value that is computed over rows."""

    @property
    def select_item(self) -> str:
        return f"{self.sql} AS {self.alias}" if self.alias else self.sql

    @property
    def name(self) -> str:
        return self.alias or self.sql


@dataclass(frozen=True)
class SortKey:
    output: Output
    descending: bool

    @property
    def sql(self) -> str:
        return f"{self.output.name} {'DESC' if self.descending else 'ASC'}"


def draw_query(rng: random.Random, scene: Scene, plan: Plan) -> QueryDraft:
    """Write a SELECT of this plan.

    Raises:
        NoDraft: the table allows no such statement.
    """
    at = f"{scene.alias}." if plan.table_alias else ""
    in_where, in_having = _share_subqueries(rng, plan)
    where = draw_where(rng, scene, plan, at, in_where) if plan.where else None
    source = f"FROM {scene.source(at)}{f' WHERE {where.sql}' if where else ''}"
    if plan.group:
        outputs, groups = _grouped_outputs(rng, scene, plan, at)
        having_words, having_sql = _having(rng, scene, plan, at, groups, source, in_having)
        source += f" GROUP BY {', '.join(group.sql for group in groups)}{having_sql}"
        opening = phrases.grouped(rng, scene, where, _listed(groups), _named(rng, outputs))
        return _ordered(rng, scene, plan, outputs, outputs, source, opening + having_words)
    if not plan.order and rng.random() < 0.3:
        outputs = _aliased(rng, scene, plan, _summaries(rng, scene, at, most=3))
        counts_only = [output.select_item for output in outputs] == ["COUNT(*)"]
        opening = phrases.summary_phrase(rng, scene, where, _named(rng, outputs), counts_only=counts_only)
        return QueryDraft("SELECT", phrases.punctuate(opening), _select(outputs, source))
    outputs = _row_outputs(rng, scene, plan, at)
    if not plan.order and rng.random() < 0.12:
        return _distinct(rng, scene, plan, where, source, at)
    opening = phrases.rows(rng, scene, where, _named(rng, outputs))
    extra = [_plain_output(field, at) for field in scene.fields]
    candidates = outputs + [output for output in extra if output.sql not in {known.sql for known in outputs}]
    return _ordered(rng, scene, plan, outputs, candidates, source, opening)


def _share_subqueries(rng: random.Random, plan: Plan) -> tuple[int, int]:
    if plan.subquery is None:
        return 0, 0
    room = {"where_single_condition": 1, None: 0}.get(plan.where, 2)
    if plan.subquery != "subquery_multiple":
        return (0, 1) if plan.having and (room == 0 or rng.random() < 0.4) else (1, 0)
    if not plan.having:
        return 2, 0
    return (room, 2 - room) if room < 2 else rng.choice([(2, 0), (1, 1)])


def _select(outputs: Sequence[Output], source: str) -> str:
    return f"SELECT {', '.join(output.select_item for output in outputs)} {source}"


def _named(rng: random.Random, outputs: Sequence[Output]) -> str:
    # The columns in words: `driver name, start city and total distance (as total_distance)`.
    return _listed(outputs, rng.choice(PHRASES["namings"]))


def _listed(outputs: Sequence[Output], naming: str = "{}") -> str:
    words = [naming.format(output.phrase, output.alias) if output.alias else output.phrase for output in outputs]
    return phrases.join_words(words)


# Columns of the result ------------------------------------------------------------------------------------------------


def _plain_output(field: Field, at: str) -> Output:
    return Output(field.phrase, at + field.name, role=field.role)


def _row_outputs(rng: random.Random, scene: Scene, plan: Plan, at: str) -> list[Output]:
    fields = rng.sample(scene.fields, rng.choice([1, 2, 2, 3, 3, 4] if plan.limit or plan.where else [1, 1, 2, 2]))
    outputs = [_plain_output(field, at) for field in sorted(fields, key=scene.fields.index)]
    amounts = scene.of("amount")
    if plan.column_alias and len(amounts) == 2 and rng.random() < 0.35:
        words, operator, alias = rng.choice(PHRASES["calculations"])
        first, second = rng.sample(amounts, 2)
        sql = f"{at}{first.name} {operator} {at}{second.name}"
        return [*outputs[:2], Output(words.format(first.phrase, second.phrase), sql, alias, "aggregate")]
    return _aliased(rng, scene, plan, outputs)


def _aliased(rng: random.Random, scene: Scene, plan: Plan, outputs: list[Output]) -> list[Output]:
    """If the plan has column aliases, give one to every aggregate, or to one column if there is no aggregate."""
    if not plan.column_alias:
        return outputs
    computed = [output for output in outputs if output.role == "aggregate"]
    named = computed or rng.sample(outputs, 1)
    return [Output(o.phrase, o.sql, _alias(rng, scene, o), o.role) if o in named else o for o in outputs]


def _alias(rng: random.Random, scene: Scene, output: Output) -> str:
    taken = {field.name for field in scene.fields}
    function, _, argument = output.sql.rstrip(")").rpartition("(")
    column = argument.rpartition(".")[2]
    if function == "COUNT":
        return rng.choice([f"num_{_snake(scene.rows)}", f"{_snake(scene.row)}_count"])
    if function:
        word = {"SUM": "total", "AVG": "avg", "MAX": "max", "MIN": "min"}[function]
        name = f"{word}_{column}"
        return name if name not in taken and not column.startswith(word) else f"{function.lower()}_of_{column}"
    return rng.choice([f"listed_{column}", f"the_{column}", f"{column}_shown"])


def _snake(words: str) -> str:
    return words.replace(" ", "_").lower()


def _summaries(rng: random.Random, scene: Scene, at: str, most: int) -> list[Output]:
    pool = [Output(f"number of {scene.rows}", "COUNT(*)", role="aggregate")]
    for field in scene.numbers:
        for function, words in PHRASES["aggregates"].items():
            if function != "SUM" or field.role == "amount":
                pool.append(Output(f"{words} {field.phrase}", f"{function}({at}{field.name})", role="aggregate"))
    weights = [3.0] + [1.0] * (len(pool) - 1)
    chosen = rng.choices(pool, weights, k=rng.randint(1, most))
    return list(dict.fromkeys(chosen))


def _grouped_outputs(rng: random.Random, scene: Scene, plan: Plan, at: str) -> tuple[list[Output], list[Output]]:
    """The columns of the result (the groups first), and the groups alone."""
    size = 1 if plan.group == "group_by_single_column" else 2
    groups = [_plain_output(field, at) for field in rng.sample(scene.of("category"), size)]
    summaries = _aliased(rng, scene, plan, _summaries(rng, scene, at, most=2))
    return groups + summaries, groups


def _distinct(rng: random.Random, scene: Scene, plan: Plan, where: Where | None, source: str, at: str) -> QueryDraft:
    fields = rng.sample(scene.of("category"), rng.choice([1, 1, 2]))
    outputs = _aliased(rng, scene, plan, [_plain_output(field, at) for field in fields])
    opening = phrases.distinct(rng, scene, where, _named(rng, outputs), len(outputs))
    return QueryDraft(
        "SELECT", phrases.punctuate(opening), _select(outputs, source).replace("SELECT", "SELECT DISTINCT", 1)
    )


# HAVING ---------------------------------------------------------------------------------------------------------------


# A condition on a group, in words and in SQL.
_Test = tuple[str, str]


def _having(
    rng: random.Random, scene: Scene, plan: Plan, at: str, groups: list[Output], source: str, num_subqueries: int
) -> tuple[str, str]:
    # Words (a sentence that begins with the full stop before it) and SQL; both are empty without HAVING.
    if not plan.having:
        return "", ""
    by = ", ".join(group.sql for group in groups)
    size = 1 if plan.having == "having_single_condition_with_aggregate" else 2
    for _ in range(_ATTEMPTS):
        tests: list[_Test | None] = [_against_subquery(rng, scene, plan, at, groups) for _ in range(num_subqueries)]
        if plan.calculation and not num_subqueries:
            tests.append(_against_number(rng, scene, _calculation(rng, scene, at), source, by))
        while len(tests) < size:
            tests.append(_against_number(rng, scene, _summaries(rng, scene, at, most=1)[0], source, by))
        rng.shuffle(tests)
        drawn = [test for test in tests if test is not None]
        word = rng.choice(["AND", "AND", "OR"])
        sql = f" {word} ".join(test for _, test in drawn)
        if len(drawn) == size and _filters(scene, [sql, *(test for _, test in drawn)], source, by):
            words = f" {word.lower()} ".join(words for words, _ in drawn)
            return rng.choice(PHRASES["having"]).format(words=words), f" HAVING {sql}"
    raise NoDraft("no_having")


def _filters(scene: Scene, conditions: list[str], source: str, by: str) -> bool:
    """Whether the first condition keeps some groups but not all, and differs from each of several others."""
    columns = ", ".join(f"({condition}) <> 0" for condition in conditions)
    whole, *parts = zip(*scene.ask(f"SELECT {columns} {source} GROUP BY {by}"), strict=True)
    return 0 < sum(whole) < len(whole) and (len(parts) == 1 or whole not in parts)


def _calculation(rng: random.Random, scene: Scene, at: str) -> Output:
    number, amounts = rng.choice(scene.numbers), scene.of("amount")
    slots: dict[str, Any] = {"name": at + number.name, "phrase": number.phrase, "rows": scene.rows, "at": at}
    choices = PHRASES["having_calculations"][:3]
    if len(amounts) >= 2:
        slots["one"], slots["two"] = rng.sample(amounts, 2)
        choices = PHRASES["having_calculations"]
    words, sql = rng.choice(choices)
    return Output(words.format(**slots), sql.format(**slots), role="aggregate")


def _against_number(rng: random.Random, scene: Scene, output: Output, source: str, by: str) -> _Test | None:
    """Draw a condition on an aggregate that some groups meet and some do not; None if all groups are equal."""
    values = sorted({value for (value,) in scene.ask(f"SELECT {output.sql} {source} GROUP BY {by}")})
    if len(values) < 2:
        return None
    cut = rng.randrange(len(values) - 1)
    operator = rng.choice([">", "<", ">=", "<="])
    number = _between(values[cut], values[cut + 1], low_included=operator in (">", "<="))
    words = rng.choice(NUMBER_WORDS[operator]).format(number)
    return f"the {output.phrase} {words}", f"{output.sql} {operator} {number}"


def _between(low: float, high: float, *, low_included: bool) -> int:
    """A whole number from low to high, one of which is excluded; a round number if there is room."""
    first, last = (math.ceil(low), math.ceil(high) - 1) if low_included else (math.floor(low) + 1, math.floor(high))
    for step in (1000, 100, 50, 10, 5):
        if (round_number := -(-first // step) * step) <= last:
            return round_number
    return first if first <= last else math.floor(low)


def _against_subquery(rng: random.Random, scene: Scene, plan: Plan, at: str, groups: list[Output]) -> _Test:
    number = rng.choice(scene.of("amount"))
    name, phrase, table = number.name, number.phrase, scene.table.name
    operator, words = rng.choice([(">", "is above"), ("<", "is below"), (">", "is greater than")])
    factor, times = ("2 * ", "twice ") if plan.calculation else ("", "")
    if plan.subquery == "subquery_nested":
        function, word = rng.choice([("SUM", "total"), ("AVG", "average"), ("MAX", "highest")])
        outer, outer_word = rng.choice([("AVG", "mean"), ("AVG", "mean"), ("MIN", "lowest")])
        group = rng.choice(groups)
        inner = f"SELECT {function}({name}) AS group_value FROM {table} GROUP BY {group.sql.removeprefix(at)}"
        query = f"SELECT {outer}(d.group_value) FROM ({inner}) AS d"
        of_what = f"{outer_word} of the {word} {phrase} values computed per {group.phrase} over the whole table"
    else:
        choices = [("AVG", "average"), ("MAX", "highest"), ("MIN", "lowest"), ("SUM", "total")]
        function, word = rng.choice(choices)
        inner, inner_word = ("MAX", "highest") if function == "SUM" else ("AVG", "average")
        query = f"SELECT {inner}({name}) FROM {table}"
        of_what = f"{inner_word} {phrase} of all {scene.rows} in the whole table"
    sql = f"{function}({at}{name}) {operator} {factor}({query})"
    return f"the {word} {phrase} {words} {times}the {of_what}", sql


# ORDER BY and LIMIT ---------------------------------------------------------------------------------------------------


def _ordered(
    rng: random.Random,
    scene: Scene,
    plan: Plan,
    outputs: list[Output],
    candidates: list[Output],
    source: str,
    opening: str,
) -> QueryDraft:
    if not plan.order:
        return QueryDraft("SELECT", phrases.punctuate(opening), _select(outputs, source))
    for _ in range(_ATTEMPTS):
        keys = draw_keys(rng, plan, candidates)
        rows = _untied(scene, outputs, keys, source)
        if rows and (cut := draw_cut(rng, plan, rows)) is not None:
            count, skip = cut
            question = phrases.punctuate(opening + phrases.tail(rng, order_words(rng, keys), count, skip))
            limit = (f" LIMIT {count}" if count else "") + (f" OFFSET {skip}" if skip else "")
            return QueryDraft("SELECT", question, f"{_select(outputs, source)} {order_sql(keys)}{limit}", ordered=True)
    raise NoDraft("ties")


def draw_keys(rng: random.Random, plan: Plan, candidates: Sequence[Output]) -> list[SortKey]:
    """Draw one or two sort keys; the first of two is a column whose values repeat, if there is one."""
    if plan.order == "order_by_single_column":
        return [SortKey(rng.choice(candidates), rng.random() < 0.5)]
    repeating = [output for output in candidates if output.role in ("category", "level", "date")] or list(candidates)
    first = rng.choice(repeating)
    others = [output for output in candidates if output != first]
    if not others:
        raise NoDraft("one_column_to_sort_by")
    descending = rng.random() < 0.5
    same = plan.order == "order_by_multiple_columns_same_direction"
    return [SortKey(first, descending), SortKey(rng.choice(others), descending if same else not descending)]


def _untied(scene: Scene, outputs: list[Output], keys: list[SortKey], source: str) -> list[tuple[Cell, ...]] | None:
    # The rows of the result, unordered; None if different rows tie on every key. MySQL gives averages four decimals, so
    # averages that are closer together count as tied.
    columns = ", ".join(output.sql for output in [*outputs, *(key.output for key in keys)])
    rows = scene.ask(f"SELECT {columns} {source}")
    result_by_key: dict[tuple[Cell, ...], tuple[Cell, ...]] = {}
    for row in rows:
        result, key = row[: len(outputs)], row[len(outputs) :]
        rounded = tuple(round(cell, 3) if isinstance(cell, float) else cell for cell in key)
        if result_by_key.setdefault(rounded, result) != result:
            return None
    if len(keys) == 2 and not both_decide([row[len(outputs)] for row in rows]):
        return None
    return rows


def both_decide(first: Sequence[Cell]) -> bool:
    """Whether both of two sort keys matter: some values of the first one differ and some repeat."""
    return 1 < len(set(first)) < len(first)


def draw_cut(rng: random.Random, plan: Plan, rows: Sequence[object]) -> tuple[int, int] | None:
    """(LIMIT, OFFSET), 0 for none; None if there are too few rows to cut any off."""
    if not plan.limit:
        return (0, 0) if len(rows) >= 2 else None
    skip = rng.randint(1, min(5, len(rows) - 2)) if plan.limit == "limit_and_offset" and len(rows) >= 3 else 0
    left = len(rows) - skip
    if left < 2 or (plan.limit == "limit_and_offset" and not skip):
        return None
    return rng.randint(1, min(10, left - 1)), skip


def order_sql(keys: Sequence[SortKey]) -> str:
    return f"ORDER BY {', '.join(key.sql for key in keys)}"


def order_words(rng: random.Random, keys: Sequence[SortKey]) -> str:
    """`the price in descending order and then the city in ascending order`."""
    return phrases.keys(rng, [(key.output.phrase, key.descending, key.output.role) for key in keys])

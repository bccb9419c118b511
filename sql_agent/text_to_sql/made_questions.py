"""Makes questions with their SQL from a database alone: its schema, its keys and its values; no model has a part.

Each skill is a function of a table that draws one question, or none where the table has nothing for it. Tables and
columns are called by the words of their names, so a question reads as its database is named.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dbbench_adapter.engines.engine import Session
from sql_agent.text_to_sql.question_conditions import Condition, Scene, compared_by, condition, literal, predicate
from sql_agent.text_to_sql.question_tables import Column, Table, plural_of, with_article

MAX_ANSWER_ROWS = 1_000
MAX_IDLE = 100
WORDINGS = 2


class Made(NamedTuple):
    question: str
    query: str
    skill: str
    difficulty: str


class Asked(NamedTuple):
    question: str
    query: str
    first_two: str | None = None
    """The query for what the first two rows are sorted by, if the question asks for the first."""


Question = Asked | None


def count_all(scene: Scene) -> Question:
    if not scene.table.of("label", "category", "number", "date"):  # it only links others
        return None
    many = scene.table.plural
    question = scene.say(
        f"How many {many} are there?", f"How many {many} do we have?", f"What is the number of {many}?",
        f"Count the {many}.", f"Find the total number of {many}.",
    )  # fmt: skip
    return Asked(question, f"SELECT count(*) FROM {scene.table.sql}")


def count_distinct(scene: Scene) -> Question:
    column = scene.one("category")
    if column is None:
        return None
    named = plural_of(column.words)
    question = scene.say(
        f"How many different {named} do the {scene.table.plural} have?",
        f"How many distinct {named} of {scene.table.plural} are there?",
        f"Count the number of different {named} of {scene.table.plural}.",
    )
    return Asked(question, f"SELECT count(DISTINCT {column.sql}) FROM {scene.table.sql}")


def count_some(scene: Scene) -> Question:
    where = condition(scene, scene.table)
    if where is None:
        return None
    many = scene.table.plural
    question = scene.say(
        f"How many {many} {where.words} are there?", f"Count the {many} {where.words}.",
        f"What is the number of {many} {where.words}?", f"Find the number of {many} {where.words}.",
        f"How many {many} {predicate(where.words)}?",
    )  # fmt: skip
    return Asked(question, f"SELECT count(*) FROM {scene.table.sql} WHERE {where.sql}")


def list_some(scene: Scene) -> Question:
    where, shown = condition(scene, scene.table), scene.table.label or scene.one("category")
    if where is None or shown is None or shown == where.column:
        return None
    many, named = scene.table.plural, plural_of(shown.words)
    question = scene.say(
        f"What are the {named} of the {many} {where.words}?", f"List the {named} of {many} {where.words}.",
        f"Show the {shown.words} of each {scene.table.singular} {where.words}.",
        *(
            [f"List the {many} {where.words}.", f"Show all {many} {where.words}.",
             f"Which {many} {predicate(where.words)}?"]
            if shown.role == "label" else []
        ),
    )  # fmt: skip
    return Asked(question, f"SELECT {shown.sql} FROM {scene.table.sql} WHERE {where.sql}")


def both(scene: Scene) -> Question:
    one, other, shown = condition(scene, scene.table), condition(scene, scene.table), scene.table.label
    if one is None or other is None or shown is None or one.column == other.column:
        return None
    many = scene.table.plural
    question = scene.say(
        f"List the {plural_of(shown.words)} of {many} {one.words} and {other.words}.",
        f"Show the {many} {one.words} and {other.words}.",
        f"Which {many} {predicate(one.words)} and {predicate(other.words)}?",
    )
    return Asked(question, f"SELECT {shown.sql} FROM {scene.table.sql} WHERE {one.sql} AND {other.sql}")


def look_up(scene: Scene) -> Question:
    """A value of one row, which its label names."""
    label, wanted = scene.table.label, scene.one("number", "category", "date", "other")
    if label is None or wanted is None or not all(isinstance(each, str | int | float) for each in wanted.values):
        return None
    value = scene.rng.choice(label.values)
    wordings = [
        f"What is the {wanted.noun} of the {scene.table.singular} {value}?",
        f"Find the {wanted.noun} of the {scene.table.singular} whose {label.words} is {value}.",
    ]
    if not any(
        value in column.values for other in scene.tables.values() if other != scene.table for column in other.columns
    ):
        wordings += [f"What is the {wanted.noun} of {value}?", f"Show the {wanted.noun} of {value}."]
        wordings += [f"When was {value} {wanted.event}?"] if wanted.event else []
    question = scene.say(*wordings)
    return Asked(question, f"SELECT {wanted.sql} FROM {scene.table.sql} WHERE {label.sql} = {literal(value)}")


def list_two(scene: Scene) -> Question:
    shown, other = scene.table.label, scene.one("number", "category", "date")
    if shown is None or other is None:
        return None
    question = scene.say(
        f"Show the {shown.words} and the {other.noun} of every {scene.table.singular}.",
        f"What are the {shown.words} and {other.noun} of all {scene.table.plural}?",
        f"List the {plural_of(shown.words)} and {plural_of(other.noun)} of the {scene.table.plural}.",
    )
    return Asked(question, f"SELECT {shown.sql}, {other.sql} FROM {scene.table.sql}")


def _known(column: Column) -> str:
    """A group without a name is none that a question asks for."""
    return f" WHERE {column.sql} IS NOT NULL" if column.has_nulls else ""


def distinct(scene: Scene) -> Question:
    shown = scene.one("category")
    if shown is None:
        return None
    named = plural_of(shown.words)
    question = scene.say(
        f"What are the different {named} of {scene.table.plural}?",
        f"List all distinct {named} of the {scene.table.plural}.",
        f"Which {named} do the {scene.table.plural} have?",
        f"Show all {named} of the {scene.table.plural}, each once.",
    )
    return Asked(question, f"SELECT DISTINCT {shown.sql} FROM {scene.table.sql}{_known(shown)}")


def aggregate(scene: Scene) -> Question:
    column = scene.amount()
    if column is None:
        return None
    word, function = scene.rng.choice([("average", "avg"), ("highest", "max"), ("lowest", "min"), ("total", "sum")])
    where = condition(scene, scene.table) if scene.rng.random() < 0.4 else None
    of = f"{scene.table.plural} {where.words}" if where else f"all {scene.table.plural}"
    question = scene.say(
        f"What is the {word} {column.words} of {of}?", f"Find the {word} {column.words} of {of}.",
        f"Show the {word} {column.words} of {of}.",
    )  # fmt: skip
    rows = f"{scene.table.sql} WHERE {where.sql}" if where else scene.table.sql
    return Asked(question, f"SELECT {function}({column.sql}) FROM {rows}")


def superlative(scene: Scene) -> Question:
    shown, column = scene.table.label, scene.one("number", "date")
    if shown is None or column is None:
        return None
    most = scene.rng.random() < 0.5
    word = ("highest" if most else "lowest") if column.role == "number" else "latest" if most else "earliest"
    wordings = [
        f"Which {scene.table.singular} has the {word} {column.noun}?",
        f"What is the {shown.words} of the {scene.table.singular} with the {word} {column.noun}?",
        f"Find the {shown.words} of the {scene.table.singular} with the {word} {column.noun}.",
    ]
    if column.event:
        wordings += [f"Which {scene.table.singular} was {column.event} {'last' if most else 'first'}?"] * 2
    if (compared := compared_by(column, scene.table)) is not None:
        said = compared[2 if most else 3]
        wordings += [f"Which {scene.table.singular} is the {said}?", f"What is the {said} {scene.table.singular}?"]
    question = scene.say(*wordings)
    rows = f"FROM {scene.table.sql} WHERE {column.sql} IS NOT NULL ORDER BY {column.sql}{' DESC' if most else ''}"
    return Asked(question, f"SELECT {shown.sql} {rows} LIMIT 1", f"SELECT {column.sql} {rows} LIMIT 2")


def ordered(scene: Scene) -> Question:
    shown, column = scene.table.label, scene.one("number", "date")
    if shown is None or column is None:
        return None
    falling = scene.rng.random() < 0.5
    way = scene.say("descending" if falling else "ascending", "decreasing" if falling else "increasing")
    question = scene.say(
        f"List the {plural_of(shown.words)} of all {scene.table.plural} in {way} order of {column.noun}.",
        f"Show the {shown.words} of each {scene.table.singular}, sorted by {column.noun} in {way} order.",
        f"List all {scene.table.plural} by {column.noun}, the {'highest' if falling else 'lowest'} first.",
        f"What are the {plural_of(shown.words)} of {scene.table.plural}, ordered by {column.noun} {way}?",
    )
    return Asked(
        question, f"SELECT {shown.sql} FROM {scene.table.sql} ORDER BY {column.sql}{' DESC' if falling else ''}"
    )


def group(scene: Scene) -> Question:
    by = scene.one("category")
    if by is None:
        return None
    number = scene.amount()
    if number is not None and scene.rng.random() < 0.5:
        word, function = scene.rng.choice([("average", "avg"), ("highest", "max"), ("total", "sum")])
        question = scene.say(
            f"What is the {word} {number.words} of the {scene.table.plural} for each {by.words}?",
            f"For each {by.words}, show the {word} {number.words} of its {scene.table.plural}.",
        )
        counted = f"{function}({number.sql})"
    else:
        question = scene.say(
            f"How many {scene.table.plural} are there for each {by.words}?",
            f"How many {scene.table.plural} are there per {by.words}?",
            f"How many {scene.table.plural} does each {by.words} have?",
            f"For each {by.words}, show the number of {scene.table.plural}.",
            f"Count the {scene.table.plural} of each {by.words}.",
        )
        counted = "count(*)"
    return Asked(question, f"SELECT {by.sql}, {counted} FROM {scene.table.sql}{_known(by)} GROUP BY {by.sql}")


def most_common(scene: Scene) -> Question:
    by = scene.one("category")
    if by is None:
        return None
    most = scene.rng.random() < 0.7
    question = scene.say(
        f"Which {by.words} has the {'most' if most else 'fewest'} {scene.table.plural}?",
        f"What is the {'most' if most else 'least'} common {by.words} of {scene.table.plural}?",
        f"Find the {by.words} with the {'largest' if most else 'smallest'} number of {scene.table.plural}.",
    )
    rows = f"FROM {scene.table.sql}{_known(by)} GROUP BY {by.sql} ORDER BY count(*){' DESC' if most else ''}"
    return Asked(question, f"SELECT {by.sql} {rows} LIMIT 1", f"SELECT count(*) {rows} LIMIT 2")


def having(scene: Scene) -> Question:
    by = scene.one("category")
    if by is None:
        return None
    least = scene.rng.randint(2, max(2, scene.table.rows // len(by.values)))
    question = scene.say(
        f"Which {plural_of(by.words)} have at least {least} {scene.table.plural}?",
        f"What are the {plural_of(by.words)} with {least} or more {scene.table.plural}?",
    )
    rows = f"{scene.table.sql}{_known(by)} GROUP BY {by.sql}"
    return Asked(question, f"SELECT {by.sql} FROM {rows} HAVING count(*) >= {least}")


def above_average(scene: Scene) -> Question:
    shown, column = scene.table.label, scene.amount()
    if shown is None or column is None:
        return None
    wordings = [
        f"Which {scene.table.plural} have {with_article(column.words)} above the average?",
        f"List the {plural_of(shown.words)} of {scene.table.plural} whose {column.words} is higher than the average.",
    ]
    if (compared := compared_by(column, scene.table)) is not None:
        wordings += [f"Which {scene.table.plural} {predicate(compared[0])} the average?"]
    question = scene.say(*wordings)
    mean = f"(SELECT avg({column.sql}) FROM {scene.table.sql})"
    return Asked(question, f"SELECT {shown.sql} FROM {scene.table.sql} WHERE {column.sql} > {mean}")


def either(scene: Scene) -> Question:
    shown, column = scene.table.label, scene.one("category")
    if shown is None or column is None or len(column.values) < 3:
        return None
    one, other = scene.rng.sample(column.values, 2)
    question = f"List the {plural_of(shown.words)} of {scene.table.plural} whose {column.words} is {one} or {other}."
    where = f"{column.sql} = {literal(one)} OR {column.sql} = {literal(other)}"
    return Asked(question, f"SELECT {shown.sql} FROM {scene.table.sql} WHERE {where}")


def join_some(scene: Scene) -> Question:
    joined, shown = scene.parent(), scene.table.label or scene.one("category", "number", "date")
    if joined is None or shown is None:
        return None
    other, on = joined
    where = condition(scene, other, full=True)
    if other.label is not None and (where is None or scene.rng.random() < 0.5):
        value = scene.rng.choice(other.label.values)
        where = Condition(
            f"whose {other.label.words} is {value}", f"{other.label.full} = {literal(value)}", other.label
        )
    if where is None:
        return None
    of, many = f"{with_article(other.singular)} {where.words}", scene.table.plural
    wordings = [
        f"What are the {plural_of(shown.noun)} of the {many} of {other.plural} {where.words}?",
        f"Show the {shown.noun} of each {scene.table.singular} that belongs to {of}.",
    ]
    if shown.role == "label":
        wordings += [f"Which {many} belong to {of}?", f"List the {many} of {other.plural} {where.words}."]
        wordings += [f"Which {many} have {of}?", f"Which {many} come from {other.plural} {where.words}?"]
    counted = scene.rng.random() < 0.3
    if counted:
        wordings = [
            f"How many {many} belong to {of}?", f"How many {many} of {other.plural} {where.words} are there?",
            f"How many {many} do {other.plural} {where.words} have?",
        ]  # fmt: skip
    wanted = "count(*)" if counted else shown.full
    rows = f"FROM {scene.table.sql} JOIN {other.sql} ON {on} WHERE {where.sql}"
    return Asked(scene.say(*wordings), f"SELECT {wanted} {rows}")


def join_aggregate(scene: Scene) -> Question:
    """A number of the rows that belong to each row of another table."""
    joined, number = scene.parent(), scene.amount()
    if joined is None or number is None or joined[0].label is None or joined[0].name == scene.table.name:
        return None
    (other, on), label = joined, joined[0].label
    word, function = scene.rng.choice([("average", "avg"), ("total", "sum"), ("highest", "max")])
    question = scene.say(
        f"What is the {word} {number.words} of the {scene.table.plural} of each {other.singular}?",
        f"What is the {word} {number.words} in each {other.singular}?",
        f"For each {other.singular}, show the {label.words} and the {word} {number.words} of its {scene.table.plural}.",
        f"Show the {label.words} and the {word} {number.words} of {scene.table.plural} for every {other.singular}.",
    )
    rows = f"FROM {other.sql} JOIN {scene.table.sql} ON {on} GROUP BY {label.full}"
    return Asked(question, f"SELECT {label.full}, {function}({number.full}) {rows}")


def join_count(scene: Scene) -> Question:
    joined = scene.parent()
    if joined is None or joined[0].label is None or joined[0].name == scene.table.name:
        return None
    (other, on), label = joined, joined[0].label
    form = scene.rng.choice(["each", "most", "some"])
    rows = f"FROM {other.sql} JOIN {scene.table.sql} ON {on} GROUP BY {label.full}"  # no two rows have one label
    if form == "each":
        question = scene.say(
            f"How many {scene.table.plural} does each {other.singular} have?",
            f"How many {scene.table.plural} are there for each {other.singular}?",
            f"For each {other.singular}, show the {label.words} and the number of {scene.table.plural}.",
            f"Show the {label.words} of every {other.singular} and how many {scene.table.plural} belong to it.",
        )
        return Asked(question, f"SELECT {label.full}, count(*) {rows}")
    if form == "most":
        question = scene.say(
            f"Which {other.singular} has the most {scene.table.plural}?",
            f"What is the {label.words} of the {other.singular} with the largest number of {scene.table.plural}?",
        )
        rows += " ORDER BY count(*) DESC"
        return Asked(question, f"SELECT {label.full} {rows} LIMIT 1", f"SELECT count(*) {rows} LIMIT 2")
    least = scene.rng.randint(2, 3)
    question = f"Which {other.plural} have at least {least} {scene.table.plural}? Show their {plural_of(label.words)}."
    return Asked(question, f"SELECT {label.full} {rows} HAVING count(*) >= {least}")


def without(scene: Scene) -> Question:
    joined = scene.parent()
    if joined is None or joined[0].label is None or joined[0].name == scene.table.name:
        return None
    (other, on), label = joined, joined[0].label
    ours, _, theirs = on.partition(" = ")
    one, many = scene.table.singular, scene.table.plural
    counted = scene.rng.random() < 0.25
    question = scene.say(
        f"Which {other.plural} have no {many}?", f"Which {other.plural} do not have any {many}?",
        f"Which {other.plural} have never had {with_article(one)}?",
        f"List the {plural_of(label.words)} of {other.plural} without any {one}.",
    ) if not counted else scene.say(
        f"How many {other.plural} have no {one}?", f"Count the {other.plural} without any {one}.",
    )  # fmt: skip
    inner = f"SELECT {ours} FROM {scene.table.sql} WHERE {ours} IS NOT NULL"
    wanted = "count(*)" if counted else label.full
    return Asked(question, f"SELECT {wanted} FROM {other.sql} WHERE {theirs} NOT IN ({inner})")


class Skill(NamedTuple):
    difficulty: str
    share: float
    """Weight among the skills, about as often as Spider's training questions ask for it."""
    ask: Callable[[Scene], Question]


SKILLS = {
    "count": Skill("easy", 0.5, count_all),
    "count_where": Skill("easy", 0.5, count_some),
    "count_distinct": Skill("easy", 0.2, count_distinct),
    "filter": Skill("easy", 1.0, list_some),
    "look_up": Skill("easy", 0.6, look_up),
    "columns": Skill("easy", 0.5, list_two),
    "distinct": Skill("easy", 0.3, distinct),
    "aggregate": Skill("easy", 0.5, aggregate),
    "both": Skill("medium", 0.3, both),
    "superlative": Skill("medium", 0.7, superlative),
    "order": Skill("medium", 0.6, ordered),
    "group": Skill("medium", 0.6, group),
    "most_common": Skill("medium", 0.5, most_common),
    "either": Skill("medium", 0.2, either),
    "join": Skill("medium", 1.0, join_some),
    "having": Skill("hard", 0.3, having),
    "join_group": Skill("hard", 0.9, join_count),
    "join_aggregate": Skill("hard", 0.3, join_aggregate),
    "above_average": Skill("hard", 0.3, above_average),
    "without": Skill("hard", 0.6, without),
}


def made_questions(tables: Sequence[Table], session: Session, rng: random.Random) -> Iterator[Made]:
    """Draw questions whose answer says something, a skill after the other, until `MAX_IDLE` rounds have made none.

    A query is asked in `WORDINGS` ways at most. An answer is neither empty nor 0 nor longer than `MAX_ANSWER_ROWS`, and
    the first of several is the only first.
    """
    by_name = {table.name: table for table in tables}
    seen: Counter[str] = Counter()
    idle = 0
    while tables and idle < MAX_IDLE:
        idle += 1
        for name, skill in SKILLS.items():
            asked = skill.ask(Scene(rng, rng.choice(tables), by_name))  # large tables and small ones alike
            if asked is None or seen[asked.query] >= WORDINGS or seen[asked.question]:
                continue
            seen.update((asked.question, asked.query))
            if _says_something(asked, session):
                idle = 0
                yield Made(asked.question, asked.query, name, skill.difficulty)


def _says_something(asked: Asked, session: Session) -> bool:
    rows = session.run(asked.query).rows
    if not rows or len(rows) > MAX_ANSWER_ROWS or rows in (((0,),), ((None,),)):
        return False
    if asked.first_two is None:
        return True
    firsts = session.run(asked.first_two).rows or ()
    return len(firsts) < 2 or firsts[0] != firsts[1]

"""Makes questions with their SQL from a database alone: its schema, its keys and its values; no model has a part.

Each skill is a function of a table that draws one question, or none where the table has nothing for it. Tables and
columns are called by the words of their names, so a question reads as its database is named.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Decimal
from functools import cache, partial
from typing import NamedTuple, TypeVar

import inflect

from dbbench_adapter.engines.engine import ColumnInfo, Session, TableInfo
from sql_agent.text_to_sql.linking import NAME_PART
from sql_agent.text_to_sql.schema import sql_name

# Values of a column that are drawn from, and the most that a category has.
VALUES = 200
CATEGORIES = 30
MAX_ANSWER_ROWS = 1_000
MAX_IDLE = 100
WORDINGS = 2
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}.*")
_VALUES_IN_NAMES = {"average", "avg", "count", "highest", "lowest", "maximum", "minimum", "max", "min", "total", "sum"}
# Behind a number's name, as its words: `area_m2`, `weight_kg`.
_UNITS = ("m 2", "g", "kg", "m", "cm", "km", "eur", "usd")
_HAPPENED = {"born", "bought", "built", "made", "paid", "sent", "sold", "written"}
# Words of numbers that name something.
_NAMES = {"fax", "lat", "latitude", "lon", "longitude", "month", "phone", "postal", "postcode", "rank", "year", "zip"}
_words = inflect.engine()


T = TypeVar("T")


class Made(NamedTuple):
    question: str
    query: str
    skill: str
    difficulty: str


@dataclass(frozen=True)
class Column:
    name: str
    sql: str
    """As a statement of its table alone names it."""
    full: str
    """As a statement of several tables names it, with its table in front."""
    words: str
    values: tuple[object, ...]
    """Different values, in the order of the table; without NULL."""
    role: str
    """`number`, `date`, `flag` (0 and 1), `category`, `label` (a text that tells rows apart), `key` or `other`."""
    has_nulls: bool = False

    @property
    def event(self) -> str | None:
        """What happened at the dates of a column: `opened` of `opened_on`."""
        word = self.words.removesuffix(" on").removesuffix(" at")
        happened = word.endswith("ed") or word in _HAPPENED
        return word if self.role == "date" and word != self.words and " " not in word and happened else None

    @property
    def noun(self) -> str:
        return f"{self.event} date" if self.event else self.words


@dataclass(frozen=True)
class Table:
    name: str
    sql: str
    singular: str
    plural: str
    rows: int
    columns: tuple[Column, ...]
    references: tuple[tuple[str, str, str], ...]
    """Statements' names of an own column and of the other table's, and that table's name."""

    def of(self, *roles: str) -> list[Column]:
        return [column for column in self.columns if column.role in roles]

    @property
    def label(self) -> Column | None:
        """The column that says which row is meant."""
        labels = self.of("label")
        named = [column for column in labels if {"name", "title"} & set(column.words.split())]
        return next(iter([*named, *labels]), None)


def read_tables(tables: Sequence[TableInfo], session: Session) -> list[Table]:
    """Views, tables without rows and what has no name in letters or digits make no questions."""
    by_name = {table.name.lower(): table.name for table in tables}
    found = []
    for table in tables:
        of, name = sql_name(table.name, table.quote), partial(sql_name, quote=table.quote)
        counted = session.run(f"SELECT count(*) FROM {of}").rows
        if table.is_view or not counted or not counted[0][0] or not _in_words(table.name):
            continue
        columns = _without_units(
            [_column(table, column, counted[0][0], session) for column in table.columns if _in_words(column.name)]
        )
        # a key of several columns, or one of two to the same table, is none that a question could mean
        uses = Counter(other.lower() for _, other, _ in table.foreign_keys)
        references = tuple(
            (f"{of}.{name(ours)}", f"{name(by_name[other.lower()])}.{name(theirs)}", by_name[other.lower()])
            for ours, other, theirs in table.foreign_keys
            if other.lower() in by_name and uses[other.lower()] == 1
        )
        singular = _singular(_in_words(table.name))
        found.append(Table(table.name, of, singular, _plural(singular), counted[0][0], columns, references))
    return found


def _column(table: TableInfo, column: ColumnInfo, rows: int, session: Session) -> Column:
    of, name = sql_name(table.name, table.quote), sql_name(column.name, table.quote)
    asked = session.run(f"SELECT DISTINCT {name} FROM {of} WHERE {name} IS NOT NULL LIMIT {VALUES}").rows or ()
    values = tuple(_plain(value) for (value,) in asked)
    keys = {*table.primary_key, *(ours for ours, _, _ in table.foreign_keys)}
    words = _in_words(column.name)
    for begin in ("is", "has", _singular(_in_words(table.name))):
        words = words.removeprefix(f"{begin} ")
    nulls = bool(session.run(f"SELECT 1 FROM {of} WHERE {name} IS NULL LIMIT 1").rows)
    role = "key" if column.name in keys else _role(column.name, values, rows)
    if role == "label" and session.run(f"SELECT count(DISTINCT {name}) FROM {of}").rows != ((rows,),):
        role = "other"
    # only SQLite has this function, and texts among numbers
    if role == "number" and session.run(f"SELECT 1 FROM {of} WHERE typeof({name}) IN ('text', 'blob') LIMIT 1").rows:
        role = "other"
    return Column(column.name, name, f"{of}.{name}", words, values, role, nulls)


def _without_units(columns: Sequence[Column]) -> tuple[Column, ...]:
    """`weight_g` is the weight, unless another column of the table is too."""
    short = [column.words.removesuffix(f" {unit}") for column in columns for unit in [_unit(column.words)]]
    uses = Counter(short)
    return tuple(
        replace(column, words=words) if uses[words] == 1 else column
        for column, words in zip(columns, short, strict=True)
    )


def _unit(words: str) -> str:
    return next((unit for unit in _UNITS if words.endswith(f" {unit}")), "")


def _plain(value: object) -> object:
    """A server's numbers and dates as SQLite has them."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value) if isinstance(value, date) else value


def _role(name: str, values: Sequence[object], rows: int) -> str:
    words = _in_words(name).split()
    if not values or {"id", "code", "key", "nr"} & {*words} or words[-1] == "number":
        return "key"
    if {*values} == {0, 1}:
        return "flag"
    if all(isinstance(value, int | float) for value in values):
        # "the highest lowest" says nothing
        return "number" if len(values) > 2 and not _VALUES_IN_NAMES & set(words) else "other"
    if not all(isinstance(value, str) and 0 < len(value) <= 60 for value in values):
        return "other"
    if all(_DATE.fullmatch(str(value)) for value in values):
        return "date"
    if len(values) <= CATEGORIES and 2 * len(values) <= rows:
        return "category" if len(values) > 1 else "other"
    return "label" if len(values) == min(rows, VALUES) else "other"


def _in_words(name: str) -> str:
    return " ".join(part.lower() for part in NAME_PART.findall(name))


@cache
def _singular(words: str) -> str:
    *first, last = words.split()
    return " ".join([*first, _words.singular_noun(last) or last if _is_english(last) else last])


@cache
def _plural(singular: str) -> str:
    *first, last = singular.split()
    return " ".join([*first, _words.plural_noun(last) if _is_english(last) else last])


def _is_english(word: str) -> bool:
    return word.isascii() and word.isalpha()


def _many(words: str) -> str:
    """The plural of a column's words, which may be one already."""
    return _plural(_singular(words))


# Skills ---------------------------------------------------------------------------------------------------------------


class Scene(NamedTuple):
    rng: random.Random
    table: Table
    tables: dict[str, Table]

    def one(self, *roles: str) -> Column | None:
        columns = self.table.of(*roles)
        return self.rng.choice(columns) if columns else None

    def amount(self) -> Column | None:
        """A number that can be added up."""
        columns = [column for column in self.table.of("number") if not _NAMES & {*column.words.split()}]
        return self.rng.choice(columns) if columns else None

    def say(self, *wordings: T) -> T:
        return self.rng.choice(wordings)

    def parent(self) -> tuple[Table, str] | None:
        """A table that this one refers to, and the condition that joins them."""
        known = [reference for reference in self.table.references if reference[2] in self.tables]
        if not known:
            return None
        ours, theirs, other = self.rng.choice(known)
        return self.tables[other], f"{ours} = {theirs}"


class Asked(NamedTuple):
    question: str
    query: str
    first_two: str | None = None
    """The query for what the first two rows are sorted by, if the question asks for the first."""


Question = Asked | None


def literal(value: object) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


# How people say what a number, by a word of its column's name, is compared by.
_COMPARED = {
    "age": ("older than", "younger than", "oldest", "youngest"),
    "area": ("larger than", "smaller than", "largest", "smallest"),
    "capacity": ("larger than", "smaller than", "largest", "smallest"),
    "cost": ("that cost more than", "that cost less than", "most expensive", "cheapest"),
    "fee": ("that cost more than", "that cost less than", "most expensive", "cheapest"),
    "height": ("higher than", "lower than", "highest", "lowest"),
    "length": ("longer than", "shorter than", "longest", "shortest"),
    "population": ("larger than", "smaller than", "largest", "smallest"),
    "price": ("that cost more than", "that cost less than", "most expensive", "cheapest"),
    "rating": ("rated above", "rated below", "best rated", "worst rated"),
    "salary": ("that earn more than", "that earn less than", "best paid", "worst paid"),
    "size": ("larger than", "smaller than", "largest", "smallest"),
    "weight": ("heavier than", "lighter than", "heaviest", "lightest"),
}
_PLACES = {"city", "continent", "country", "county", "hometown", "region", "town"}
_STATES = {"condition", "kind", "status", "type"}


def _compared(column: Column, table: Table) -> tuple[str, str, str, str] | None:
    """None if another column of the table could be meant."""
    said = _COMPARED.get(column.words)
    alike = [each for each in table.of("number") if said and _COMPARED.get(each.words.split()[-1]) == said]
    return said if alike == [column] else None


class Condition(NamedTuple):
    words: str
    """Behind the plural of the table: `whose country is France`."""
    sql: str
    column: Column


def condition(scene: Scene, table: Table, *, full: bool = False) -> Condition | None:
    """
    Args:
        full: whether the statement has other tables too.
    """
    columns = table.of("category", "number", "date", "flag")
    if not columns:
        return None
    column = scene.rng.choice(columns)
    name = column.full if full else column.sql
    more = scene.rng.random() < 0.5
    words, sql = _SAID[column.role](scene._replace(table=table), column, more)
    return Condition(words, f"{name} {sql}", column)


def _predicate(words: str) -> str:
    """The words of a condition as what is said of the rows: `that cost more than 5` -> `cost more than 5`."""
    for begin, said in (("that ", ""), ("with ", "have "), ("without ", "do not have ")):
        if words.startswith(begin):
            return said + words.removeprefix(begin)
    if words.startswith("whose "):  # whose country is France
        return "have " + words.removeprefix("whose ").replace(" is ", " ", 1)
    return f"are {words}"


def _category(scene: Scene, column: Column, _more: bool) -> tuple[str, str]:
    value = scene.rng.choice(column.values)
    wordings = [f"whose {column.words} is {value}", f"with {column.words} {value}"]
    alike = [each for each in scene.table.columns if each.words.split()[-1] == column.words]
    if column.words in _PLACES and alike == [column]:  # no flight from a city that leaves another one
        wordings += [f"from {value}", f"in {value}"]
    wordings += [f"that are {value}"] if column.words in _STATES else []
    return scene.say(*wordings), f"= {literal(value)}"


def _date(scene: Scene, column: Column, more: bool) -> tuple[str, str]:
    moment = str(scene.rng.choice(column.values))
    day = moment[:10]
    if (happened := column.event) is not None:  # customers joined in 2024
        if column.has_nulls and more:
            return f"not {happened} yet", "IS NULL"
        return scene.say(
            (f"{happened} after {day}", _after(moment)), (f"{happened} in {day[:4]}", f"LIKE '{day[:4]}%'")
        )
    if more:
        return f"with {_words.a(column.words)} after {day}", _after(moment)
    return f"whose {column.words} is in {day[:4]}", f"LIKE '{day[:4]}%'"


def _after(moment: str) -> str:
    """The condition for days behind the one of a date, or of a date with a time."""
    day = moment[:10]
    if moment == day:
        return f"> {literal(day)}"
    try:
        return f">= {literal(str(date.fromisoformat(day) + timedelta(1)))}"
    except (ValueError, OverflowError):  # the 30th of February
        return f"> {literal(moment)}"


def _number(scene: Scene, column: Column, more: bool) -> tuple[str, str]:
    value, compared = scene.rng.choice(column.values), _compared(column, scene.table)
    words = scene.say(*(("above", "greater than", "more than") if more else ("below", "less than", "under")))
    wordings = [f"with {_words.a(column.words)} {words} {value}"]
    wordings += [f"{compared[0 if more else 1]} {value}"] if compared else []
    return scene.say(*wordings), f"{'>' if more else '<'} {value}"


def _flag(scene: Scene, column: Column, more: bool) -> tuple[str, str]:
    if column.words.endswith(("ed", "able", "ive", "al", "ing")):
        return f"that are {'' if more else 'not '}{column.words}", f"= {int(more)}"
    return f"{'with' if more else 'without'} {column.words}", f"= {int(more)}"


_SAID = {"category": _category, "date": _date, "number": _number, "flag": _flag}


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
    named = _many(column.words)
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
        f"How many {many} {_predicate(where.words)}?",
    )  # fmt: skip
    return Asked(question, f"SELECT count(*) FROM {scene.table.sql} WHERE {where.sql}")


def list_some(scene: Scene) -> Question:
    where, shown = condition(scene, scene.table), scene.table.label or scene.one("category")
    if where is None or shown is None or shown == where.column:
        return None
    many, named = scene.table.plural, _many(shown.words)
    question = scene.say(
        f"What are the {named} of the {many} {where.words}?", f"List the {named} of {many} {where.words}.",
        f"Show the {shown.words} of each {scene.table.singular} {where.words}.",
        *(
            [f"List the {many} {where.words}.", f"Show all {many} {where.words}.",
             f"Which {many} {_predicate(where.words)}?"]
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
        f"List the {_many(shown.words)} of {many} {one.words} and {other.words}.",
        f"Show the {many} {one.words} and {other.words}.",
        f"Which {many} {_predicate(one.words)} and {_predicate(other.words)}?",
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
        f"List the {_many(shown.words)} and {_many(other.noun)} of the {scene.table.plural}.",
    )
    return Asked(question, f"SELECT {shown.sql}, {other.sql} FROM {scene.table.sql}")


def _known(column: Column) -> str:
    """A group without a name is none that a question asks for."""
    return f" WHERE {column.sql} IS NOT NULL" if column.has_nulls else ""


def distinct(scene: Scene) -> Question:
    shown = scene.one("category")
    if shown is None:
        return None
    named = _many(shown.words)
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
    if (compared := _compared(column, scene.table)) is not None:
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
        f"List the {_many(shown.words)} of all {scene.table.plural} in {way} order of {column.noun}.",
        f"Show the {shown.words} of each {scene.table.singular}, sorted by {column.noun} in {way} order.",
        f"List all {scene.table.plural} by {column.noun}, the {'highest' if falling else 'lowest'} first.",
        f"What are the {_many(shown.words)} of {scene.table.plural}, ordered by {column.noun} {way}?",
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
        f"Which {_many(by.words)} have at least {least} {scene.table.plural}?",
        f"What are the {_many(by.words)} with {least} or more {scene.table.plural}?",
    )
    rows = f"{scene.table.sql}{_known(by)} GROUP BY {by.sql}"
    return Asked(question, f"SELECT {by.sql} FROM {rows} HAVING count(*) >= {least}")


def above_average(scene: Scene) -> Question:
    shown, column = scene.table.label, scene.amount()
    if shown is None or column is None:
        return None
    wordings = [
        f"Which {scene.table.plural} have {_words.a(column.words)} above the average?",
        f"List the {_many(shown.words)} of {scene.table.plural} whose {column.words} is higher than the average.",
    ]
    if (compared := _compared(column, scene.table)) is not None:
        wordings += [f"Which {scene.table.plural} {_predicate(compared[0])} the average?"]
    question = scene.say(*wordings)
    mean = f"(SELECT avg({column.sql}) FROM {scene.table.sql})"
    return Asked(question, f"SELECT {shown.sql} FROM {scene.table.sql} WHERE {column.sql} > {mean}")


def either(scene: Scene) -> Question:
    shown, column = scene.table.label, scene.one("category")
    if shown is None or column is None or len(column.values) < 3:
        return None
    one, other = scene.rng.sample(column.values, 2)
    question = f"List the {_many(shown.words)} of {scene.table.plural} whose {column.words} is {one} or {other}."
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
    of, many = f"{_words.a(other.singular)} {where.words}", scene.table.plural
    wordings = [
        f"What are the {_many(shown.noun)} of the {many} of {other.plural} {where.words}?",
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
    question = f"Which {other.plural} have at least {least} {scene.table.plural}? Show their {_many(label.words)}."
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
        f"Which {other.plural} have never had {_words.a(one)}?",
        f"List the {_many(label.words)} of {other.plural} without any {one}.",
    ) if not counted else scene.say(
        f"How many {other.plural} have no {one}?", f"Count the {other.plural} without any {one}.",
    )  # fmt: skip
    inner = f"SELECT {ours} FROM {scene.table.sql} WHERE {ours} IS NOT NULL"
    wanted = "count(*)" if counted else label.full
    return Asked(question, f"SELECT {wanted} FROM {other.sql} WHERE {theirs} NOT IN ({inner})")


class Skill(NamedTuple):
    difficulty: str
    share: float
    """Of the questions, beside the others: about as people ask, by Spider's training questions."""
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

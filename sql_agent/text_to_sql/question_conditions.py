"""Conditions on a table's rows, as people say them and as SQL has them."""

from __future__ import annotations

import random
from datetime import date, timedelta
from typing import NamedTuple, TypeVar

from sql_agent.text_to_sql.question_tables import Column, Table, with_article

T = TypeVar("T")
# Words of numbers that name something.
_NAMES = {"fax", "lat", "latitude", "lon", "longitude", "month", "phone", "postal", "postcode", "rank", "year", "zip"}


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


def compared_by(column: Column, table: Table) -> tuple[str, str, str, str] | None:
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


def predicate(words: str) -> str:
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
        return scene.say((f"{happened} after {day}", after(moment)), (f"{happened} in {day[:4]}", f"LIKE '{day[:4]}%'"))
    if more:
        return f"with {with_article(column.words)} after {day}", after(moment)
    return f"whose {column.words} is in {day[:4]}", f"LIKE '{day[:4]}%'"


def after(moment: str) -> str:
    """The condition for days behind the one of a date, or of a date with a time."""
    day = moment[:10]
    if moment == day:
        return f"> {literal(day)}"
    try:
        return f">= {literal(str(date.fromisoformat(day) + timedelta(1)))}"
    except (ValueError, OverflowError):  # the 30th of February
        return f"> {literal(moment)}"


def _number(scene: Scene, column: Column, more: bool) -> tuple[str, str]:
    value, compared = scene.rng.choice(column.values), compared_by(column, scene.table)
    words = scene.say(*(("above", "greater than", "more than") if more else ("below", "less than", "under")))
    wordings = [f"with {with_article(column.words)} {words} {value}"]
    wordings += [f"{compared[0 if more else 1]} {value}"] if compared else []
    return scene.say(*wordings), f"{'>' if more else '<'} {value}"


def _flag(scene: Scene, column: Column, more: bool) -> tuple[str, str]:
    if column.words.endswith(("ed", "able", "ive", "al", "ing")):
        return f"that are {'' if more else 'not '}{column.words}", f"= {int(more)}"
    return f"{'with' if more else 'without'} {column.words}", f"= {int(more)}"


_SAID = {"category": _category, "date": _date, "number": _number, "flag": _flag}

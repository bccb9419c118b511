"""Tables and columns as questions name them: by the words of their names, and by what their values are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from functools import cache, partial

import inflect

from dbbench_adapter.engines.engine import ColumnInfo, Session, TableInfo
from sql_agent.text_to_sql.linking import NAME_PART
from sql_agent.text_to_sql.schema import sql_name

# Values of a column that are drawn from, and the most that a category has.
VALUES = 200
CATEGORIES = 30
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}.*")
_VALUES_IN_NAMES = {"average", "avg", "count", "highest", "lowest", "maximum", "minimum", "max", "min", "total", "sum"}
# Behind a number's name, as its words: `area_m2`, `weight_kg`.
_UNITS = ("m 2", "g", "kg", "m", "cm", "km", "eur", "usd")
_HAPPENED = {"born", "bought", "built", "made", "paid", "sent", "sold", "written"}
_words = inflect.engine()


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
        of, name = sql_name(table.name, table), partial(sql_name, table=table)
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
    of, name = sql_name(table.name, table), sql_name(column.name, table)
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


def with_article(words: str) -> str:
    return str(_words.a(words))


def _is_english(word: str) -> bool:
    return word.isascii() and word.isalpha()


def plural_of(words: str) -> str:
    """The plural of a column's words, which may be one already."""
    return _plural(_singular(words))

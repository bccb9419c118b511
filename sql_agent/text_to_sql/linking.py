"""Chooses the tables and columns that a question is about, by its words alone: no model and no reference has a part.

A word counts where it is part of a name, both by their stems, and where it is a value of a column. Tables that lie
between two chosen ones by foreign keys are chosen too.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations

import regex
import snowballstemmer

from dbbench_adapter.engines.engine import Session, TableInfo
from sql_agent.text_to_sql.schema import LinkedTables, describe_table

# Distinct values of a column that are looked up, and the longest of them.
MAX_VALUES = 5_000
MAX_VALUE_CHARS = 40
# Words of a value that is looked up.
VALUE_WORDS = 5
# A table is chosen whose score is this share of the best one, and at least the second. This and the characters below
# show 99 % of what the references of Spider's training questions use.
NEAR_BEST = 0.25
LEAST = 0.3
# Tables of the next scores are chosen too, as long as all have at most this many characters.
FILLED_CHARS = 350
# The most tables that are chosen by their scores.
MAX_CHOSEN = 12
# Of a table that is wider the best columns are chosen, and its keys.
WIDE = 12
# They name nothing.
_STOP_WORDS = (
    "a all an and any are as at be by did do does each every find for from get give had has have how i in is it list "
    "many me more most much my no not of on or our please return show tell than that the their them there these they "
    "this those to was we were what when where which who whom whose with you your"
)
_STOP = frozenset(_STOP_WORDS.split())
NAME_PART = regex.compile(r"\p{Lu}?\p{Ll}+|\p{Lu}+(?!\p{Ll})|\p{Lo}+|\p{Nd}+")
_WORD = regex.compile(r"[\w'.&+-]+")
# What may stand around a value in a sentence.
_AROUND = "'.,-"

Column = tuple[str, str]
"""A table and its column."""


class SchemaLinker:
    """
    Args:
        values: columns by the values in them, as `column_values` finds them.
    """

    def __init__(self, tables: Sequence[TableInfo], values: Mapping[str, Collection[Column]]) -> None:
        self._tables = {table.name: table for table in tables}
        self._values = values
        self._table_parts = {table.name: _parts(table.name) for table in tables}
        self._column_parts = {(table.name, each.name): _parts(each.name) for table in tables for each in table.columns}
        names = [*self._table_parts.values(), *self._column_parts.values()]
        uses = Counter(part for parts in names for part in {*parts})
        self._weights = {part: math.log(1 + len(names) / count) for part, count in uses.items()}
        # what most tables begin with tells none of them from the others
        shared = Counter(part for parts in self._table_parts.values() for part in {*parts})
        self._weights |= {part: 0.0 for part, count in shared.items() if count > max(2, len(tables) / 2)}
        self._neighbours, self._keys = _foreign_keys(self._tables)

    def link(self, question: str, evidence: str = "") -> LinkedTables:
        """The tables to show, the most relevant one first, with their columns in the order of the table."""
        question = f"{question} {evidence}"
        stems = {_stem(word) for word in NAME_PART.findall(question) if word.lower() not in _STOP}
        found = self._found_values(question)
        columns = {key: self._share(parts, stems) + found.get(key, 0.0) for key, parts in self._column_parts.items()}
        scores = {name: 2 * self._share(parts, stems) for name, parts in self._table_parts.items()}
        for name, table in self._tables.items():
            named = (self._share(self._column_parts[name, each.name], stems) for each in table.columns)
            held = (found.get((name, each.name), 0.0) for each in table.columns)
            scores[name] += max(named, default=0.0) + max(held, default=0.0)
        ranked = sorted(scores, key=lambda name: -scores[name])
        least = max(NEAR_BEST * scores[ranked[0]], LEAST)
        best = [name for name in ranked[:MAX_CHOSEN] if scores[name] >= least] or ranked[:1]
        chosen = {*best, *(between for one, other in combinations(best, 2) for between in self._path(one, other))}
        ranked.sort(key=lambda name: (name not in chosen, self._tables[name].is_view))
        shown = [(name, self._best_columns(name, columns)) for name in ranked]
        return tuple(_filled(shown, chosen, self._tables))

    def _share(self, parts: Sequence[str], stems: Collection[str]) -> float:
        # A part inside a word, or a word inside a part, counts less: names are written together and shortened.
        total = sum(self._weights[part] for part in parts)
        if not total:
            return 0.0
        hits = (
            self._weights[part]
            * (1.0 if part in stems else 0.7 if any(_overlap(part, stem) for stem in stems) else 0.0)
            for part in parts
        )
        return sum(hits) / total

    def _found_values(self, question: str) -> dict[Column, float]:
        words = [word.lower().strip(_AROUND) for word in _WORD.findall(question)]
        found: dict[Column, float] = {}
        for count in range(1, VALUE_WORDS + 1):
            for start in range(len(words) - count + 1):
                text = " ".join(words[start : start + count])
                if text not in _STOP:
                    found |= dict.fromkeys(self._values.get(text, ()), 0.6 + 0.2 * count)
        return found

    def _best_columns(self, name: str, scores: Mapping[Column, float]) -> tuple[str, ...]:
        columns = [column.name for column in self._tables[name].columns]
        best = sorted(columns, key=lambda column: -scores[name, column])[:WIDE]
        return tuple(column for column in columns if column in best or column in self._keys[name])

    def _path(self, start: str, end: str) -> list[str]:
        """The tables of a shortest way between two, by foreign keys; [] if there is none."""
        before: dict[str, str | None] = {start: None}
        queue = deque([start])
        while queue and end not in before:
            here = queue.popleft()
            for other in self._neighbours[here]:
                if other not in before:
                    before[other] = here
                    queue.append(other)
        path, at = [], end if end in before else None
        while at is not None:
            path.append(at)
            at = before[at]
        return path


def column_values(tables: Sequence[TableInfo], session: Session) -> dict[str, set[Column]]:
    """The columns that hold a short text, by the text in lower case; of each column the first `MAX_VALUES` texts.

    A column that takes longer than a statement may is left out.
    """
    found: defaultdict[str, set[Column]] = defaultdict(set)
    for table in tables:
        for column in table.columns:
            if table.is_view or not column.samples or not column.samples[0].startswith("'"):
                continue
            name, of = (
                table.quote + each.replace(table.quote, 2 * table.quote) + table.quote
                for each in (column.name, table.name)
            )
            rows = session.run(f"SELECT DISTINCT {name} FROM {of} LIMIT {MAX_VALUES}").rows or ()
            for (value,) in rows:
                if isinstance(value, str) and 0 < len(value) <= MAX_VALUE_CHARS:
                    found[" ".join(word.strip(_AROUND) for word in value.lower().split())].add(
                        (table.name, column.name)
                    )
    return dict(found)


def _filled(
    ranked: Sequence[tuple[str, tuple[str, ...]]], chosen: Collection[str], tables: Mapping[str, TableInfo]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    room = FILLED_CHARS - sum(len(describe_table(tables[name])) for name in chosen)
    for name, columns in ranked:
        if name not in chosen:
            room -= len(describe_table(tables[name]))
            if room < 0:
                continue
        yield name, columns


def _foreign_keys(tables: Mapping[str, TableInfo]) -> tuple[dict[str, list[str]], dict[str, set[str]]]:
    """Find the tables that each table refers to or that refer to it, and the columns of its keys."""
    folded = {name.lower(): name for name in tables}
    neighbours: dict[str, list[str]] = {name: [] for name in tables}
    keys = {name: {*table.primary_key} for name, table in tables.items()}
    for name, table in tables.items():
        for column, other, theirs in table.foreign_keys:
            if other.lower() in folded:
                other = folded[other.lower()]
                neighbours[name].append(other)
                neighbours[other].append(name)
                keys[name].add(column)
                keys[other].update(each.name for each in tables[other].columns if each.name.lower() == theirs.lower())
    return neighbours, keys


def _parts(name: str) -> list[str]:
    return [_stem(part) for part in NAME_PART.findall(name)]


@cache
def _stem(word: str) -> str:
    return snowballstemmer.stemmer("english").stemWord(word.lower())


def _overlap(part: str, stem: str) -> bool:
    # a word of Chinese has two characters, and none stands between words
    least = 4 if part.isascii() else 2
    return min(len(part), len(stem)) >= least and (part in stem or stem in part)

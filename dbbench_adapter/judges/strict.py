"""Judges strictly, and is the default in training: it is hard to fool, and an accident does not satisfy it.

Answers are compared as multisets, or as lists if the task orders its rows. Whole numbers match exactly, others within a
tolerance, and a number never matches a text that is no number. NULL matches only NULL. Changes are judged by the
content of all tables, not by a hash of some columns.

An answer may be given as one item per value, or as one item per row printed as a tuple or list (`('Pear', 4)`). A
single row may also be given value by value, and any answer as one text that holds the list. A wrong gold is not
noticed.
"""

from __future__ import annotations

import itertools
import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from dbbench_adapter.datatypes import Cell, Gold, Row, Rows, Score
from dbbench_adapter.engines import Snapshot
from dbbench_adapter.judges.base import Answers, EndState, NoReferenceError, verdict
from dbbench_adapter.tasks.literals import parse_literal, parse_rows

RELATIVE_TOLERANCE = 1e-9
# MySQL gives averages four decimals. If the gold has no more, a number that rounds to it is the same answer.
DECIMALS = 4
_NULLS = frozenset({"none", "null"})
# A number as databases and Python print it; `007`, `+7` and `7.` are no such numbers.
_WHOLE_OR_DECIMAL = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?", re.ASCII)
# The exponent of a large or small number; it may follow if the gold is no whole number.
_POWER_OF_TEN = re.compile(r"[eE][-+]?\d{1,3}", re.ASCII)
# A longer text is not read as a number; no engine prints one.
_MAX_DIGITS = 300
# At most this many rows are paired by search, namely rows that differ only in the last digits of several numbers.
MAX_PAIRED = 1_000
# Every float from here on is a whole number.
_ALL_WHOLE = 2**53
_CELLS = str | int | float | None
# The value of a cell whose kind differs from that of the expected cell; it equals nothing.
_NO_SUCH = object()


def judge(end: EndState) -> Score:
    """An episode without a committed answer gets 0; `Score(None, ...)` if the task has no gold, or its reference does
    not run on this backend.
    """
    if not end.committed:
        return Score(0.0, "not_committed")
    if end.task.changes_state:
        return _judge_state(end)
    expected = _expected(end.task.gold)
    if expected is None:
        return Score(None, "no_gold")
    return verdict(same_answers(end.answers, expected, ordered=end.task.ordered))


def same_answers(answers: Answers, expected: Rows, *, ordered: bool) -> bool:
    width = len(expected[0]) if expected else 1
    return any(same_rows(given, expected, ordered=ordered) for given in readings(answers, width))


def same_rows(given: Rows, expected: Rows, *, ordered: bool) -> bool:
    if len(given) != len(expected):
        return False
    return all(map(_same_row, given, expected)) if ordered else _matched(given, expected)


def same_state(found: Snapshot, expected: Snapshot) -> bool:
    """Whether two databases of one engine have the same tables and views, declared alike, with the same rows in any
    order.
    """
    return found.keys() == expected.keys() and all(
        found[name].declared == expected[name].declared
        and found[name].columns == expected[name].columns
        and same_content(found[name].rows, expected[name].rows)
        for name in expected
    )


def readings(answers: Answers, width: int) -> Iterator[Rows]:
    """Yield the ways to read the committed answers as rows of `width` columns."""
    items: list[Any] = answers if isinstance(answers, list) else [answers]
    if answers is None or not all(map(_is_cell_or_row, items)):
        return
    if width == 1 and not any(isinstance(item, list) for item in items):
        yield tuple((item,) for item in items)
    yield tuple(_as_row(item, width) for item in items)
    if len(items) == width > 1:
        yield (tuple(items),)
    if len(items) == 1 and isinstance(items[0], str) and (listed := _listed(items[0])) is not None:
        yield tuple(_as_row(item, width) for item in listed)


def _is_cell_or_row(item: object) -> bool:
    return isinstance(item, _CELLS) or (isinstance(item, list) and all(isinstance(cell, _CELLS) for cell in item))


def _as_row(item: Any, width: int) -> Row:
    if isinstance(item, list | tuple):
        return tuple(item)
    if isinstance(item, str) and item.strip().startswith(("(", "[")):
        printed = parse_rows(f"[{item}]")
        if printed is not None and len(printed) == 1 and len(printed[0]) == width:
            return printed[0]
    return (item,)


def _listed(text: str) -> Sequence[object] | None:
    if (rows := parse_rows(text)) is not None:
        return rows
    try:
        items = parse_literal(text.strip())
    except ValueError:
        return None
    return items if isinstance(items, list) and all(isinstance(item, _CELLS) for item in items) else None


def _expected(gold: Gold) -> Rows | None:
    if gold.rows is not None:
        return gold.rows
    return None if gold.answers is None else tuple((meant(label),) for label in gold.answers)


def meant(label: Cell) -> Cell:
    """The number or NULL that a label, always a text, reads like, or else the text itself."""
    if not isinstance(label, str):
        return label
    if label.strip().casefold() in _NULLS:
        return None
    number = _number(label.strip(), whole=False)
    if number is None or not math.isfinite(number):
        return label
    return int(number) if label.strip().lstrip("-").isdigit() else float(number)


def _matched(given: Rows, expected: Rows) -> bool:
    # Most rows are identical, so the others are tried alone first. If they do not pair, all are: of 5.0 and 5, a given
    # 5.0 has to leave the identical 5.0 to '5e0', which is no whole number.
    counts = Counter(map(_typed, given)), Counter(map(_typed, expected))
    others = _rows(counts[0] - counts[1]), _rows(counts[1] - counts[0])
    return paired(_fitting(*others)) or (len(others[0]) < len(given) and paired(_fitting(given, expected)))


def _fitting(given: Rows, expected: Rows) -> list[list[Sequence[int]]]:
    """The expected rows that each given row equals, as shared lists of places (indices into `expected`).

    Places are looked up by the cells that are compared exactly and by one column of numbers with a tolerance, the one
    with the most distinct values. Therefore thousands of rows are judged in a second.
    """
    groups: dict[tuple[type, ...], dict[tuple[Any, ...], list[int]]] = {}
    for place, row in enumerate(expected):
        kinds = tuple(map(_kind, row))
        key = tuple(_exact(cell) for cell in row)
        groups.setdefault(kinds, {}).setdefault(key, []).append(place)
    numbers = {id(places): _by_float(places, expected) for keys in groups.values() for places in keys.values()}

    def find(row: Row) -> Iterator[Sequence[int]]:
        for kinds, keys in groups.items():
            places = keys.get(tuple(map(_as_kind, row, kinds))) if len(kinds) == len(row) else None
            if places and float in kinds:
                column, ascending, of_them = numbers[id(places)]
                near = _near(_read(row[column], whole=False), ascending, of_them)
                yield [place for place in near if _same_row(row, expected[place])]
            elif places:
                yield places

    found = {key: list(find(row)) for key, row in {_typed(row): row for row in given}.items()}
    return [found[_typed(row)] for row in given]


def _kind(expected: Cell) -> type:
    return next(kind for kind in (type(None), str, bool, int, float) if isinstance(expected, kind))


def _exact(expected: Cell) -> object:
    """The value that an equal cell must have; ... for a number with a tolerance."""
    if isinstance(expected, float):
        return ...
    return expected.strip() if isinstance(expected, str) else expected


def _as_kind(given: Cell, kind: type) -> object:
    """A given cell's value as the kind of the expected one; ... for a number with a tolerance."""
    if kind is type(None):
        return None if given is None or (isinstance(given, str) and given.strip().casefold() in _NULLS) else _NO_SUCH
    if kind is str:
        return given.strip() if isinstance(given, str) else _NO_SUCH
    if kind is bool and isinstance(given, bool):
        return given
    number = _read(given, whole=kind is not float)
    if number is None:
        return _NO_SUCH
    return ... if kind is float else number


def _by_float(places: Sequence[int], expected: Rows) -> tuple[int, list[float], list[int]]:
    # Rows sorted by one column of floats: the column with the most distinct values, its floats in ascending order, and
    # the places of their rows. NaN is left out, since it equals nothing. Without floats both lists are empty.
    floats = [column for column, cell in enumerate(expected[places[0]]) if isinstance(cell, float)]
    column = max(floats, key=lambda column: len({expected[place][column] for place in places}), default=0)
    cells = ((expected[place][column], place) for place in places)
    ascending = sorted((cell, place) for cell, place in cells if isinstance(cell, float) and not math.isnan(cell))
    return column, [cell for cell, _ in ascending], [place for _, place in ascending]


def _near(number: Any, ascending: list[float], places: list[int]) -> Sequence[int]:
    try:
        number = float(number)
    except OverflowError:  # the integer is beyond all floats
        return ()
    if not math.isfinite(number):
        return places
    reach = 10**-DECIMALS + 2 * RELATIVE_TOLERANCE * abs(number)
    return places[bisect_left(ascending, number - reach) : bisect_right(ascending, number + reach)]


def paired(fitting: Sequence[Sequence[Sequence[int]]]) -> bool:
    """Whether every given row gets its own place. Augmenting paths are searched, as closeness is not transitive.

    Args:
        fitting: for each given row, lists of the places that it fits.
    """
    row_at: dict[int, int] = {}  # place -> given row
    place_of: dict[int, int] = {}  # given row -> place
    untried = {id(places): iter(places) for lists in fitting for places in lists}  # most places need no path
    for i, lists in enumerate(fitting):
        place = next((j for places in lists for j in untried[id(places)] if j not in row_at), None)
        if place is not None:
            row_at[place], place_of[i] = i, place
    return all(i in place_of or _placed(i, fitting, row_at, place_of) for i in range(len(fitting)))


def same_content(found: Rows, expected: Rows) -> bool:
    """Whether two tables hold the same rows, except for the last digits of numbers that are not whole.

    Identical rows are paired first, then rows whose other cells are equal. One column of such numbers is paired in
    sorted order; several columns are paired by search, up to `MAX_PAIRED` rows.
    """
    if found == expected:  # right changes mostly leave the reference's order too
        return True
    counts = Counter(found), Counter(expected)
    if len(found) != len(expected):
        return False
    alike = _by_exact_cells(counts[0] - counts[1]), _by_exact_cells(counts[1] - counts[0])
    return alike[0].keys() == alike[1].keys() and all(
        len(rows) == len(alike[1][key])
        and (
            all(map(_close, rows, alike[1][key]))
            or (len(rows) <= MAX_PAIRED and paired([[_closest(row, alike[1][key])] for row in rows]))
        )
        for key, rows in alike[0].items()
    )


def _by_exact_cells(rows: Counter[Row]) -> dict[Row, list[Row]]:
    """The sorted floats of the rows, by their other cells; ... stands for a float."""
    alike: dict[Any, list[Row]] = {}
    for row in rows.elements():
        key = tuple(... if isinstance(cell, float) else cell for cell in row)
        alike.setdefault(key, []).append(tuple(cell for cell in row if isinstance(cell, float)))
    return {key: sorted(floats) for key, floats in alike.items()}


def _closest(found: Row, expected: Sequence[Row]) -> list[int]:
    return [place for place, row in enumerate(expected) if _close(found, row)]


def _close(found: Row, expected: Row) -> bool:
    return all(map(nearly_equal, found, expected))


def nearly_equal(found: Any, expected: Any, absolute: float = 0.0) -> bool:
    """Whether two numbers are equal up to rounding, or exactly if both are whole.

    A float tells a whole number below 2**53 from its neighbours, so another one is no rounding of it: 1234567890124.0
    is not 1234567890123. Larger floats are all whole.
    """
    both_whole = isinstance(found, int) and isinstance(expected, int)
    if both_whole or (abs(found) < _ALL_WHOLE > abs(expected) and found % 1 == 0 == expected % 1):
        return found == expected
    try:
        return math.isclose(found, expected, rel_tol=RELATIVE_TOLERANCE, abs_tol=absolute)
    except OverflowError:  # a whole number beyond all floats
        return False


def _typed(row: Row) -> tuple[tuple[type, Cell], ...]:
    return tuple((type(cell), cell) for cell in row)  # True equals 1, but is no number


def _rows(typed: Counter[tuple[tuple[type, Cell], ...]]) -> Rows:
    return tuple(tuple(cell for _, cell in row) for row in typed.elements())


def _placed(
    start: int, fitting: Sequence[Sequence[Sequence[int]]], row_at: dict[int, int], place_of: dict[int, int]
) -> bool:
    """Find a place for one more row, by moving others along an augmenting path."""
    reached: dict[int, int] = {}  # place -> the row that it was reached from
    waiting = [start]
    searched: set[int] = set()  # ids of lists, which equal rows share
    for i in waiting:
        lists = [places for places in fitting[i] if id(places) not in searched]
        searched.update(map(id, lists))
        for j in itertools.chain.from_iterable(lists):
            if j in reached:
                continue
            reached[j] = i
            if j in row_at:
                waiting.append(row_at[j])
                continue
            place: int | None = j
            while place is not None:  # each row on the path moves to the place that was reached from it
                row = reached[place]
                row_at[place] = row
                place, place_of[row] = place_of.get(row), place
            return True
    return False


def _same_row(given: Row, expected: Row) -> bool:
    return len(given) == len(expected) and all(map(_same_cell, given, expected))


def _same_cell(given: Cell, expected: Cell) -> bool:
    if type(given) is type(expected) and given == expected:
        return True
    if expected is None:
        return given is None or (isinstance(given, str) and given.strip().casefold() in _NULLS)
    if isinstance(expected, str):
        return isinstance(given, str) and given.strip() == expected.strip()
    whole = isinstance(expected, int)
    number = _read(given, whole=whole)
    if number is None:
        return False
    if whole:
        return number == expected
    # the gold may be an average
    return nearly_equal(number, expected, 0.5001 * 10**-DECIMALS if round(expected, DECIMALS) == expected else 0.0)


def _read(given: Cell, *, whole: bool) -> float | Decimal | None:
    """The number that a cell is or reads like; None if it is no number."""
    number = _number(given.strip(), whole=whole) if isinstance(given, str) else given
    return None if isinstance(number, bool) else number


def _number(text: str, *, whole: bool) -> Decimal | None:
    """The exact number that the whole text prints; None if it prints none.

    Args:
        whole: the gold is an integer, which no engine prints with a power of ten.
    """
    match = _WHOLE_OR_DECIMAL.match(text) if len(text) <= _MAX_DIGITS else None
    rest = text[match.end() :] if match else ""
    if match is None or (rest and (whole or not _POWER_OF_TEN.fullmatch(rest))):
        return None
    return Decimal(text)


def _judge_state(end: EndState) -> Score:
    try:
        expected = end.reference_snapshot()
    except NoReferenceError:
        return Score(None, "reference_failed")
    return verdict(same_state(end.snapshot(), expected), "wrong_state")

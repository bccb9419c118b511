"""Our own judge, the default in training: as hard to please by accident as to fool.

Answers are compared as multisets, in order only where the task orders; numbers with a tolerance, and never with texts
that are none; NULL only with NULL. Changes are judged by the content of all tables, not by a hash of some columns.

What counts as given: one answer per value, or per row printed as a tuple or list (`('Pear', 4)`); a lone row may also
come value by value, and everything as one text that holds the list. It does not guard against a gold that is wrong.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from dbbench_adapter.backends import Snapshot
from dbbench_adapter.judges.base import Answers, EndState, NoReferenceError
from dbbench_adapter.literals import parse_literal, parse_rows
from dbbench_adapter.types import Cell, Gold, Row, Rows, Score

RELATIVE_TOLERANCE = 1e-9
DECIMALS = 4
"""MySQL gives averages four decimals: where the gold has no more, what rounds to it is the same answer."""
_NULLS = frozenset({"none", "null"})
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE | re.ASCII)
_MAX_DIGITS = 300
_CELLS = str | int | float | None


def judge(end: EndState) -> Score:
    """1 or 0; nothing committed is 0.

    Returns:
        `Score(None, ...)` where the task has no gold, or its reference does not run on this backend.
    """
    if not end.committed:
        return Score(0.0, "not_committed")
    if end.task.changes_state:
        return _judge_state(end)
    expected = _expected(end.task.gold)
    if expected is None:
        return Score(None, "no_gold")
    same = same_answers(end.answers, expected, ordered=end.task.ordered)
    return Score(1.0, "match") if same else Score(0.0, "wrong_answer")


def same_answers(answers: Answers, expected: Rows, *, ordered: bool) -> bool:
    """Whether one of the ways to read what was committed gives these rows."""
    width = len(expected[0]) if expected else 1
    return any(same_rows(given, expected, ordered=ordered) for given in readings(answers, width))


def same_rows(given: Rows, expected: Rows, *, ordered: bool) -> bool:
    """Whether two results are equal, as lists when `ordered`, else as multisets."""
    if len(given) != len(expected):
        return False
    if ordered:
        return all(map(_same_row, given, expected))
    return _matched(given, expected)


def same_state(found: Snapshot, expected: Snapshot) -> bool:
    """Whether two databases hold the same tables, columns and rows; rows have no order."""
    return found.keys() == expected.keys() and all(
        found[name].columns == expected[name].columns
        and Counter(map(_row_key, found[name].rows)) == Counter(map(_row_key, expected[name].rows))
        for name in expected
    )


def readings(answers: Answers, width: int) -> Iterator[Rows]:
    """The ways to read what was committed as rows of `width` columns."""
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


def _is_cell_or_row(item: Any) -> bool:
    return isinstance(item, _CELLS) or (isinstance(item, list) and all(isinstance(cell, _CELLS) for cell in item))


def _as_row(item: Any, width: int) -> Row:
    if isinstance(item, list | tuple):
        return tuple(item)
    if isinstance(item, str) and item.strip().startswith(("(", "[")):
        printed = parse_rows(f"[{item}]")
        if printed is not None and len(printed) == 1 and len(printed[0]) == width:
            return printed[0]
    return (item,)


def _listed(text: str) -> Sequence[Any] | None:
    """The items of a text like `['Pear', 'Plum']` or `[('Pear', 4), ('Plum', Decimal('5'))]`."""
    if (rows := parse_rows(text)) is not None:
        return rows
    try:
        items = parse_literal(text.strip())
    except ValueError:
        return None
    return items if isinstance(items, list) and all(isinstance(item, _CELLS) for item in items) else None


def _expected(gold: Gold) -> Rows | None:
    """The gold rows, or the labels as rows of one value."""
    if gold.rows is not None:
        return gold.rows
    return None if gold.answers is None else tuple((meant(label),) for label in gold.answers)


def meant(label: Cell) -> Cell:
    """A label, which is a text whatever it means, as the number or NULL that it reads like."""
    if not isinstance(label, str):
        return label
    number = _number(label)
    return None if label.strip().casefold() in _NULLS else label if number is None else number


def _matched(given: Rows, expected: Rows) -> bool:
    """Whether the rows pair off one to one. Identical rows do first: that could only be wrong where numbers lie closer
    together than the tolerance. The rest by augmenting paths, for closeness is not transitive."""
    identical = Counter(map(_typed, given)) & Counter(map(_typed, expected))
    given, expected = _without(given, identical), _without(expected, identical)
    fitting = [[j for j, row in enumerate(expected) if _same_row(answer, row)] for answer in given]
    of_expected: dict[int, int] = {}  # index into expected -> index into given
    of_given: dict[int, int] = {}
    return all(_placed(i, fitting, of_expected, of_given) for i in range(len(given)))


def _typed(row: Row) -> tuple[tuple[type, Cell], ...]:
    return tuple((type(cell), cell) for cell in row)  # True equals 1, and is no number


def _without(rows: Rows, leave_out: Counter[tuple[tuple[type, Cell], ...]]) -> Rows:
    left = leave_out.copy()
    kept: list[Row] = []
    for row in rows:
        key = _typed(row)
        if left[key] > 0:
            left[key] -= 1
        else:
            kept.append(row)
    return tuple(kept)


def _placed(start: int, fitting: list[list[int]], of_expected: dict[int, int], of_given: dict[int, int]) -> bool:
    """Find a partner for one more row, by moving others along an augmenting path."""
    reached: dict[int, int] = {}  # index into expected -> the given row that it was reached from
    waiting = [start]
    for i in waiting:
        for j in fitting[i]:
            if j in reached:
                continue
            reached[j] = i
            if j in of_expected:
                waiting.append(of_expected[j])
                continue
            place: int | None = j
            while place is not None:  # each row on the path moves to the place that it was reached from
                row = reached[place]
                of_expected[place] = row
                place, of_given[row] = of_given.get(row), place
            return True
    return False


def _same_row(given: Row, expected: Row) -> bool:
    return len(given) == len(expected) and all(map(_same_cell, given, expected))


def _same_cell(given: Cell, expected: Cell) -> bool:
    if expected is None:
        return given is None or (isinstance(given, str) and given.strip().casefold() in _NULLS)
    if isinstance(expected, str):
        return isinstance(given, str) and given.strip() == expected.strip()
    number = _number(given)
    if number is None:
        return False
    if isinstance(number, int) and isinstance(expected, int):
        return number == expected
    is_average = isinstance(expected, float) and round(expected, DECIMALS) == expected
    absolute = 0.5001 * 10**-DECIMALS if is_average else 0.0
    try:
        return math.isclose(number, expected, rel_tol=RELATIVE_TOLERANCE, abs_tol=absolute)
    except OverflowError:  # an integer beyond all floats
        return False


def _number(cell: Cell) -> int | float | None:
    """A number, or the one that a text is from end to end."""
    if isinstance(cell, str):
        text = cell.strip()
        if not _NUMBER.fullmatch(text):
            return None
        return int(text) if text.lstrip("+-").isdigit() and len(text) <= _MAX_DIGITS else float(text)
    return None if isinstance(cell, bool) else cell


def _judge_state(end: EndState) -> Score:
    try:
        expected = end.reference_snapshot()
    except NoReferenceError:
        return Score(None, "reference_failed")
    return Score(1.0, "match") if same_state(end.snapshot(), expected) else Score(0.0, "wrong_state")


def _row_key(row: Row) -> Row:
    return tuple(float(f"{cell:.9g}") if isinstance(cell, float) else cell for cell in row)

"""Judges as LifelongAgentBench does, with all its quirks, so that scores compare with its numbers.

Rows are found by their parentheses, and their order always counts. Elements are split at commas and empty ones are
dropped. The clean-up of a number leaves one foreign character at either end. Numbers match within a millionth of their
size. The state of the tables counts whatever the episode's status is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from dbbench_adapter.datatypes import Cell, Gold, Score
from dbbench_adapter.judges.base import EndState, judge_state, verdict

TOLERANCE = 1e-6
_DECIMAL = "Decimal"
_WRAPPED = re.compile(r"""Decimal\((["']?)(?P<inner>.*?)(["']?)\)$""")
_OF_NUMBERS = frozenset("0123456789.-")


def judge(end: EndState) -> Score:
    """A missing answer counts as an empty one; `Score(None, ...)` if the file has no gold that this judge can use.

    Source:
        LifelongAgentBench `src/tasks/instance/db_bench/task.py`, commit d6f19b4.
    """
    if end.task.changes_state:
        return judge_state(end)
    expected = _expected(end.task.gold)
    if expected is None:
        return Score(None, "no_gold")
    answers = end.answers
    line = answers if isinstance(answers, str) else f"[{', '.join(map(str, answers))}]" if answers else ""
    return verdict(same_rows(line, expected))


def same_rows(line: str, expected: Sequence[Sequence[Cell]]) -> bool:
    """Whether the text after `Final Answer:` on its line, stripped, gives these rows in this order."""
    rows = row_texts(line)
    if rows is None:
        return False
    if not rows and len(expected) <= 1:
        return not expected or _same_row(line, expected[0])
    return len(rows) == len(expected) and all(map(_same_row, rows, expected))


def row_texts(line: str) -> list[str] | None:
    """The texts between parentheses, None if these do not pair. `Decimal(` hides itself and the next `)`."""
    rows: list[str] = []
    start: int | None = None
    hidden = False
    for place, char in enumerate(line):
        if char == "(" and line.startswith(_DECIMAL, place - len(_DECIMAL)) and place >= len(_DECIMAL):
            if hidden:
                return None
            hidden = True
        elif char == "(":
            start = place + 1
        elif char == ")" and hidden:
            hidden = False
        elif char == ")":
            if start is None:
                return None
            rows.append(line[start:place])
            start = None
    return None if start is not None else rows


def _same_row(text: str, expected: Sequence[Cell]) -> bool:
    elements = [element for element in map(str.strip, text.split(",")) if element]
    return len(elements) == len(expected) and all(map(_same_cell, elements, expected))


def _same_cell(element: str, expected: Cell) -> bool:
    if isinstance(expected, str):
        return _unquoted(element, expected) == expected
    if expected is None:
        return False
    try:
        return math.isclose(float(_number_text(element)), expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    except (ValueError, OverflowError):  # no number, or one that stops the original
        return False


def _unquoted(element: str, expected: str) -> str:
    """The element without one quote at either end, unless the expected text has it there too."""
    head = tail = False
    for quote in "'\"":
        if not head and element.startswith(quote) and not expected.startswith(quote):
            element, head = element[1:], True
        if not tail and element.endswith(quote) and not expected.endswith(quote):
            element, tail = element[:-1], True
    return element


def _number_text(element: str) -> str:
    """The element without `Decimal(...)` and with only the innermost of the foreign characters at either end."""
    if wrapped := _WRAPPED.match(element):
        element = wrapped["inner"]
    foreign = [char not in _OF_NUMBERS for char in element]
    head = next((k for k, is_foreign in enumerate(foreign) if not is_foreign), len(element))
    tail = next((k for k, is_foreign in enumerate(reversed(foreign)) if not is_foreign), len(element))
    return element[max(head - 1, 0) : len(element) - max(tail - 1, 0)]


def _expected(gold: Gold) -> Sequence[Sequence[Cell]] | None:
    if gold.rows is not None:
        return gold.rows
    return None if gold.answers is None else [(label,) for label in gold.answers]

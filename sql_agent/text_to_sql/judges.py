"""Compares a query's result with the reference's, by our own rule or those of Spider's and BIRD's published evaluators,
and what two tasks that change data have left behind.

By our own rule NULL is only NULL, a text only the same text, and bytes only the same bytes. Numbers are equal whatever
their type; two whole numbers exactly, others up to rounding. A number never equals a text.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Literal, get_args

from dbbench_adapter.datatypes import Row, Rows
from dbbench_adapter.engines.engine import Change, Changes, Engine
from dbbench_adapter.engines.sqlite import SQLITE
from dbbench_adapter.judges.strict import paired, same_content
from sql_agent.comparison import only_in
from sql_agent.text_to_sql import spider
from sql_agent.text_to_sql.load import orders_rows

# `strict`: typed rows as multisets, in order if the reference orders them (`same_rows`). `spider`: as
# `eval_exec_match` of taoyds/test-suite-sql-eval with its defaults, on one database. `bird`: as `evaluation_ex.py` of
# bird-bench/mini_dev, sets of rows.
ExecutionJudge = Literal["strict", "spider", "bird"]
# The evaluators of Spider and BIRD run SQLite, so their rules fit its SQL alone.
EVALUATED_DIALECT = "sqlite"
EXECUTION_JUDGES: dict[str, ExecutionJudge] = {name: name for name in get_args(ExecutionJudge)}
UNDECODABLE = "a text of the result is no UTF-8, which BIRD's evaluator does not read"
# What `surrogateescape` makes of such bytes.
_NO_UTF8 = re.compile(r"[\uDC80-\uDCFF]")
_UNCHANGED = Change((), ())


def as_run(judge: ExecutionJudge, query: str, engine: Engine = SQLITE) -> str:
    """The query as the judge runs it, for predictions and references.

    Spider's tokenized references have split operators, such as `! =`, which `strict` joins too, outside of texts.
    """
    if judge == "spider":
        return spider.as_run(query)
    return _joined(query, engine) if judge == "strict" else query


def _joined(query: str, engine: Engine) -> str:
    parts: list[str] = []
    for token in engine.tokens(query):
        if token.text == "=" and len(parts) > 1 and parts[-1].isspace() and parts[-2] in ("<", ">", "!"):
            parts.pop()
        parts.append(token.text)
    return "".join(parts)


def same_result(
    judge: ExecutionJudge,
    given: Rows,
    expected: Rows,
    reference: str | None,
    engine: Engine = SQLITE,
    ranks: Sequence[int] | None = None,
) -> bool:
    """Whether two results are equal by the judge's rule.

    Args:
        given, expected: the rows of the two queries `as_run`.
        reference: the reference query, which decides whether the order counts; None if there are only rows, which are
            compared as a multiset.
        engine: the one whose SQL the reference is.
        ranks: for `strict`, the rank of each expected row, which tied rows share; None: every row has its own.
    """
    if judge == "bird":
        return set(given) == set(expected)
    ordered = order_counts(judge, reference, engine)
    if judge == "spider":
        return spider.same_result(given, expected, ordered=ordered)
    if ordered and ranks is None:
        ranks = range(len(expected))
    return same_rows(given, expected, ranks=ranks if ordered else None, decimals=engine.average_decimals)


def order_counts(judge: ExecutionJudge, reference: str | None, engine: Engine = SQLITE) -> bool:
    """Whether the judge compares the order of rows too; for `bird` and without a reference it never does."""
    if judge == "bird" or reference is None:
        return False
    return spider.order_counts(reference) if judge == "spider" else orders_rows(reference, engine)


def undecodable(rows: Rows) -> bool:
    return any(isinstance(cell, str) and not cell.isascii() and _NO_UTF8.search(cell) for row in rows for cell in row)


def left_by_one(expected: Changes, given: Changes) -> tuple[list[Row], list[Row]]:
    """The rows that only `expected` leaves behind, and those that only `given` does, each after its table."""
    theirs, ours = dict[str, Rows](), dict[str, Rows]()
    for table in sorted(expected.keys() | given.keys()):
        wanted, done = expected.get(table, _UNCHANGED), given.get(table, _UNCHANGED)
        theirs[table], ours[table] = wanted.added + done.removed, done.added + wanted.removed
    return only_in(theirs, ours), only_in(ours, theirs)


def same_state(given: Changes, expected: Changes) -> bool:
    """Whether two databases that began alike hold the same rows, in any order.

    What one side added and the other removed is laid side by side, so a number that differs in its last digits alone is
    equal, as for `strict`, whether it was changed or not.
    """
    return all(
        same_content(ours.added + theirs.removed, theirs.added + ours.removed)
        for table in given.keys() | expected.keys()
        for ours, theirs in [(given.get(table, _UNCHANGED), expected.get(table, _UNCHANGED))]
    )


RELATIVE_TOLERANCE = 1e-9
# 0 equals a smaller number, which differences that cancel out leave behind.
NEARLY_ZERO = 1e-12


def same_rows(given: Rows, expected: Rows, *, ranks: Sequence[int] | None = None, decimals: int | None = None) -> bool:
    """
    Args:
        ranks: for each expected row its place among all, in ascending order; rows of one place are tied, and free to
        change theirs. None: the order does not count.
        decimals: an expected number with no more decimals than these equals one that rounds to it (MySQL's averages).
    """
    if len(given) != len(expected):
        return False
    places = groupby(range(len(expected)), key=ranks.__getitem__) if ranks is not None else [(0, range(len(expected)))]
    return all(
        _same_bag(given[tied[0] : tied[-1] + 1], expected[tied[0] : tied[-1] + 1], decimals)
        for tied in (list(group) for _, group in places)
        if tied
    )


def _same_bag(given: Rows, expected: Rows, decimals: int | None) -> bool:
    # Rows that are equal to the last digit are paired first.
    counts = Counter(given), Counter(expected)
    left = _by_other_cells(counts[0] - counts[1]), _by_other_cells(counts[1] - counts[0])
    return left[0].keys() == left[1].keys() and all(
        len(rows) == len(left[1][key]) and paired(_fitting(rows, left[1][key], decimals))
        for key, rows in left[0].items()
    )


def _by_other_cells(rows: Counter[Row]) -> dict[Row, list[Any]]:
    """The numbers of the rows, by their other cells; ... stands for a number."""
    alike: dict[Any, list[Any]] = {}
    for row in rows.elements():
        key = tuple(... if isinstance(cell, int | float) else cell for cell in row)
        alike.setdefault(key, []).append(tuple(cell for cell in row if isinstance(cell, int | float)))
    return alike


def _fitting(given: list[Any], expected: list[Any], decimals: int | None) -> list[list[list[int]]]:
    # The places of the expected rows that each given row equals. They are looked up by the column with the most
    # distinct values, so that thousands of rows take a second.
    width = range(len(expected[0]))
    pivot = max(width, key=lambda column: len({row[column] for row in expected}), default=None)
    if pivot is None:
        return [[list(range(len(expected)))] for _ in given]
    ascending = sorted((row[pivot], place) for place, row in enumerate(expected))
    keys = [key for key, _ in ascending]
    found = []
    for row in given:
        reach = _reach(row[pivot], decimals)
        near = ascending[bisect_left(keys, row[pivot] - reach) : bisect_right(keys, row[pivot] + reach)]
        found.append([[place for _, place in near if _close(row, expected[place], decimals)]])
    return found


def _reach(number: int | float, decimals: int | None) -> int | float:
    # Whole numbers may be beyond all floats.
    least = NEARLY_ZERO if decimals is None else 10**-decimals
    if isinstance(number, int):
        return abs(number) // 10**8 + 1
    return 2 * RELATIVE_TOLERANCE * abs(number) + least if math.isfinite(number) else 0.0


def _close(given: Row, expected: Row, decimals: int | None) -> bool:
    return all(_same_number(ours, theirs, decimals) for ours, theirs in zip(given, expected, strict=True))


def _same_number(given: Any, expected: Any, decimals: int | None) -> bool:
    if given == expected or (isinstance(given, int) and isinstance(expected, int)):
        return given == expected
    try:
        if 0 in (given, expected) and abs(given - expected) < NEARLY_ZERO:
            return True
        rounded = decimals is not None and isinstance(expected, float) and round(expected, decimals) == expected
        absolute = 0.5001 * 10 ** -(decimals or 0) if rounded else 0.0
        return math.isclose(given, expected, rel_tol=RELATIVE_TOLERANCE, abs_tol=absolute)
    except OverflowError:  # a whole number beyond all floats
        return False

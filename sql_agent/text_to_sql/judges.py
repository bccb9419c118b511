"""Compares a query's result with the reference's, by our own rule or those of Spider's and BIRD's published evaluators,
and what two tasks that change data have left behind.

By our own rule NULL is only NULL, a text only the same text, and bytes only the same bytes. Numbers are equal whatever
their type; two whole numbers exactly (`nearly_equal`), others up to rounding. A number never equals a text. Results
without a row are equal whatever their columns: no cell shows which were meant, and no such question is trained on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby, zip_longest
from typing import Any, Literal, get_args

from dbbench_adapter.datatypes import Row, Rows
from dbbench_adapter.engines.engine import Change, Changes, Engine
from dbbench_adapter.engines.sqlite import SQLITE
from dbbench_adapter.judges.strict import MAX_PAIRED, RELATIVE_TOLERANCE, nearly_equal, paired, same_content
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
_MISSING = object()


def as_run(judge: ExecutionJudge, query: str, engine: Engine = SQLITE) -> str:
    """The query as the judge runs it, for predictions and references.

    Spider's tokenized references have split operators, such as `! =`, which `strict` joins too, outside of texts.
    """
    if judge == "spider":
        return spider.executed_query(query)
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


def likeness(given: Rows, expected: Rows) -> float:
    """How like two results are, from 0 to 1: the mean of the F1 scores over their rows and over their columns.

    Both are multisets; a column is the multiset of its cells. Cells are equal as Python's are, 1 and 1.0 too. Rows of
    an answer may differ in length.
    """
    columns = (map(_multiset, zip_longest(*rows, fillvalue=_MISSING)) for rows in (given, expected))
    return (_f1(Counter(given), Counter(expected)) + _f1(*map(Counter, columns))) / 2


def _multiset(cells: Iterable[Any]) -> frozenset[tuple[Any, int]]:
    return frozenset(Counter(cells).items())


def _f1(given: Counter[Any], expected: Counter[Any]) -> float:
    total = given.total() + expected.total()
    return 2 * (given & expected).total() / total if total else 0.0


def order_counts(judge: ExecutionJudge, reference: str | None, engine: Engine = SQLITE) -> bool:
    """Whether the judge compares the order of rows too; for `bird` and without a reference it never does."""
    if judge == "bird" or reference is None:
        return False
    return spider.has_order_by(reference) if judge == "spider" else orders_rows(reference, engine)


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
    # Rows that are equal to the last digit are paired first, the others within those whose numbers could be equal.
    if {len(row) for row in given} != {len(row) for row in expected}:
        return False
    counts = Counter(given), Counter(expected)
    rows = [list((counts[k] - counts[1 - k]).elements()) for k in (0, 1)]
    numbers = [_numbered(column, decimals) for column in zip(*rows[0], *rows[1], strict=True)]
    ours, theirs = (_by_cells(side, numbers) for side in rows)
    if {key: len(side) for key, side in ours.items()} != {key: len(side) for key, side in theirs.items()}:
        return False
    # in nearly all cases the sorted rows pair; a search is for numbers that are close to some of the others alone
    pairs = [(sorted(side), sorted(theirs[key])) for key, side in ours.items()]
    unsettled = [pair for pair in pairs if not all(_close(*each, decimals) for each in zip(*pair, strict=True))]
    return sum(len(side) ** 2 for side, _ in unsettled) <= MAX_PAIRED**2 and all(
        paired([[[place for place, row in enumerate(side) if _close(each, row, decimals)]] for each in mine])
        for mine, side in unsettled
    )


def _by_cells(rows: Iterable[Row], numbers: Sequence[dict[object, int]]) -> dict[Row, list[Row]]:
    alike: dict[Row, list[Row]] = {}
    for row in rows:
        key = tuple(of[cell] if isinstance(cell, int | float) else cell for of, cell in zip(numbers, row, strict=True))
        alike.setdefault(key, []).append(row)
    return alike


def _numbered(cells: Iterable[object], decimals: int | None) -> dict[object, int]:
    """A number for each number of a column, the same for all that could be equal, directly or through others."""
    found: dict[object, int] = {}
    last = None
    for cell in sorted({cell for cell in cells if isinstance(cell, int | float)}):
        found[cell] = len(found) if last is None or _are_apart(last, cell, decimals) else found[last]
        last = cell
    return found


def _are_apart(less: float, more: float, decimals: int | None) -> bool:
    least = NEARLY_ZERO if decimals is None else 10**-decimals
    try:
        return more - less > 2 * RELATIVE_TOLERANCE * max(abs(less), abs(more)) + least
    except OverflowError:  # a whole number beyond all floats
        return True


def _close(given: Row, expected: Row, decimals: int | None) -> bool:
    return all(_same_number(ours, theirs, decimals) for ours, theirs in zip(given, expected, strict=True))


def _same_number(given: Any, expected: Any, decimals: int | None) -> bool:
    if given == expected or not isinstance(expected, int | float):
        return given == expected
    if 0 in (given, expected) and abs(given - expected) < NEARLY_ZERO:
        return True
    rounded = decimals is not None and isinstance(expected, float) and round(expected, decimals) == expected
    return nearly_equal(given, expected, 0.5001 * 10 ** -(decimals or 0) if rounded else 0.0)

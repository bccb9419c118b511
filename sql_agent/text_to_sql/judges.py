"""Compares a query's result with the reference's, by our own rule or those of Spider's and BIRD's published evaluators.

Leaves out the execution of queries (`sql_agent.text_to_sql.environment`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, get_args

from dbbench_adapter.datatypes import Row, Rows
from dbbench_adapter.judges.strict import same_rows
from sql_agent.text_to_sql.load import orders_rows

ExecutionJudge = Literal["strict", "spider", "bird"]
"""`strict`: rows as multisets, in order if the reference orders them, numbers as in `dbbench_adapter.judges.strict`.
`spider`: as `eval_exec_match` of taoyds/test-suite-sql-eval with its defaults, on one database. `bird`: as
`evaluation_ex.py` of bird-bench/mini_dev, sets of rows."""
EXECUTION_JUDGES: dict[str, ExecutionJudge] = {name: name for name in get_args(ExecutionJudge)}
_DISTINCT = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`)|\bdistinct\b""", re.IGNORECASE)
_THIS_YEAR = re.compile(r"year\s*\(\s*curdate\s*\(\s*\)\s*\)\s*", re.IGNORECASE)


def as_run(judge: ExecutionJudge, query: str) -> str:
    """Return the query as the judge runs it, for predictions and references.

    Spider's evaluator removes DISTINCT, replaces the current year by 2020, and joins operators that were split.
    """
    if judge != "spider":
        return query
    joined = query.replace("> =", ">=").replace("< =", "<=").replace("! =", "!=")
    return _THIS_YEAR.sub("2020", _DISTINCT.sub(lambda match: match[1] or "", joined))


def same_result(
    judge: ExecutionJudge, given: Rows, expected: Rows, reference: str | None, dialect: str = "sqlite"
) -> bool:
    """Return whether two results are equal by the judge's rule.

    Args:
        given, expected: the rows of the two queries `as_run`.
        reference: the reference query, which decides whether the order counts; None if there are only rows, which are
            compared as a multiset.
        dialect: sqlglot's name of the reference's SQL.
    """
    if judge == "bird":
        return set(given) == set(expected)
    ordered = order_counts(judge, reference, dialect)
    if judge == "spider":
        return _same_but_for_columns(given, expected, ordered=ordered)
    return same_rows(_plain(given), _plain(expected), ordered=ordered)


def order_counts(judge: ExecutionJudge, reference: str | None, dialect: str = "sqlite") -> bool:
    """Return whether the judge compares the order of rows too; for `bird` and without a reference it never does."""
    if judge == "bird" or reference is None:
        return False
    return "order by" in reference.lower() if judge == "spider" else orders_rows(reference, dialect)


def _plain(rows: Rows) -> Rows:
    """Return rows with binary cells as hex text, which `strict` can compare."""
    return tuple(tuple(f"x'{cell.hex()}'" if isinstance(cell, bytes) else cell for cell in row) for row in rows)


def _same_but_for_columns(given: Rows, expected: Rows, *, ordered: bool) -> bool:
    """Return whether some order of the columns makes the results equal; two empty results always are."""
    if not given and not expected:
        return True
    if len(given) != len(expected) or len(given[0]) != len(expected[0]):
        return False
    columns = list(zip(*given, strict=True)), list(zip(*expected, strict=True))
    if ordered:
        return Counter(columns[0]) == Counter(columns[1])
    if _by_cells(given) != _by_cells(expected):  # otherwise every order of the columns might be tried
        return False
    return _placed([()] * len(given), [()] * len(given), columns[1], columns[0])


def _by_cells(rows: Rows) -> Counter[frozenset[tuple[Any, int]]]:
    """Return the rows as a multiset in which the order of a row's cells does not count."""
    return Counter(frozenset(Counter(row).items()) for row in rows)


def _placed(
    given: Sequence[Row], expected: Sequence[Row], wanted: Sequence[tuple[Any, ...]], left: Sequence[tuple[Any, ...]]
) -> bool:
    """Return whether some order of the columns `left` completes `given` to the rows of `expected` and `wanted`.

    Rows are compared as multisets. `given` and `expected` hold the columns placed so far; a column that makes them
    differ is not tried further.
    """
    if not wanted:
        return True
    begun = [(*row, cell) for row, cell in zip(expected, wanted[0], strict=True)]
    bag, tried = Counter(begun), set()
    for place, column in enumerate(left):
        if column in tried:
            continue
        tried.add(column)
        rows = [(*row, cell) for row, cell in zip(given, column, strict=True)]
        if Counter(rows) == bag and _placed(rows, begun, wanted[1:], [*left[:place], *left[place + 1 :]]):
            return True
    return False

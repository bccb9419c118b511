"""Compares a query's result with the reference's, by our own rule or those of Spider's and BIRD's published evaluators,
and what two tasks that change data have left behind.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, get_args

from dbbench_adapter.datatypes import Row, Rows
from dbbench_adapter.engines.engine import Change, Changes, Engine
from dbbench_adapter.engines.sqlite import SQLITE
from dbbench_adapter.judges.strict import same_content
from sql_agent.comparison import only_in
from sql_agent.text_to_sql import spider
from sql_agent.text_to_sql.load import orders_rows
from sql_agent.text_to_sql.typed_rows import same_rows

# `strict`: typed rows as multisets, in order if the reference orders them (`typed_rows`). `spider`: as
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

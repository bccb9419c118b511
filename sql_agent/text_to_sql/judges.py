"""Compares a query's result with the reference's, by our own rule or those of Spider's and BIRD's published evaluators.

Leaves out the execution of queries (`sql_agent.text_to_sql.environment`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, get_args

from dbbench_adapter.datatypes import Rows
from sql_agent.text_to_sql import spider
from sql_agent.text_to_sql.load import orders_rows, tokens
from sql_agent.text_to_sql.typed_rows import same_rows

ExecutionJudge = Literal["strict", "spider", "bird"]
"""`strict`: typed rows as multisets, in order if the reference orders them (`typed_rows`). `spider`: as
`eval_exec_match` of taoyds/test-suite-sql-eval with its defaults, on one database. `bird`: as `evaluation_ex.py` of
bird-bench/mini_dev, sets of rows."""
EXECUTION_JUDGES: dict[str, ExecutionJudge] = {name: name for name in get_args(ExecutionJudge)}
UNDECODABLE = "a text of the result is no UTF-8, which BIRD's evaluator does not read"
_NO_UTF8 = re.compile(r"[\uDC80-\uDCFF]")
"""What `surrogateescape` makes of such bytes."""
_MYSQL_DECIMALS = 4
"""MySQL gives averages four decimals."""


def as_run(judge: ExecutionJudge, query: str, dialect: str = "sqlite") -> str:
    """Return the query as the judge runs it, for predictions and references.

    Spider's tokenized references have split operators, such as `! =`, which `strict` joins too, outside of texts.
    """
    if judge == "spider":
        return spider.as_run(query)
    return _joined(query, dialect) if judge == "strict" else query


def _joined(query: str, dialect: str) -> str:
    parts: list[str] = []
    for token in tokens(query, dialect):
        if token.text == "=" and len(parts) > 1 and parts[-1].isspace() and parts[-2] in ("<", ">", "!"):
            parts.pop()
        parts.append(token.text)
    return "".join(parts)


def same_result(
    judge: ExecutionJudge,
    given: Rows,
    expected: Rows,
    reference: str | None,
    dialect: str = "sqlite",
    ranks: Sequence[int] | None = None,
) -> bool:
    """Return whether two results are equal by the judge's rule.

    Args:
        given, expected: the rows of the two queries `as_run`.
        reference: the reference query, which decides whether the order counts; None if there are only rows, which are
            compared as a multiset.
        dialect: sqlglot's name of the reference's SQL.
        ranks: for `strict`, the rank of each expected row, which tied rows share; None: every row has its own.
    """
    if judge == "bird":
        return set(given) == set(expected)
    ordered = order_counts(judge, reference, dialect)
    if judge == "spider":
        return spider.same_result(given, expected, ordered=ordered)
    if ordered and ranks is None:
        ranks = range(len(expected))
    decimals = _MYSQL_DECIMALS if dialect == "mysql" else None
    return same_rows(given, expected, ranks=ranks if ordered else None, decimals=decimals)


def order_counts(judge: ExecutionJudge, reference: str | None, dialect: str = "sqlite") -> bool:
    """Return whether the judge compares the order of rows too; for `bird` and without a reference it never does."""
    if judge == "bird" or reference is None:
        return False
    return spider.order_counts(reference) if judge == "spider" else orders_rows(reference, dialect)


def undecodable(rows: Rows) -> bool:
    """Return whether a text of the result is no UTF-8."""
    return any(isinstance(cell, str) and not cell.isascii() and _NO_UTF8.search(cell) for row in rows for cell in row)

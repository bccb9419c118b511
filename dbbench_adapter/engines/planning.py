"""Refuses statements over which the planner of SQLite or PostgreSQL, which checks no clock, may exceed time or memory.

The planner expands every use of a sub-query, so nested queries are measured here first: by their tree
(`dialect.limits`), and where sqlglot cannot read what the engine can, by a bound that needs no tree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from sqlglot import parse
from sqlglot.errors import SqlglotError

from dbbench_adapter.dialect.limits import MAX_EXPANSION, MAX_TABLES, exceeds_limits
from dbbench_adapter.engines.engine import Engine, TokenLike
from dbbench_adapter.statement_clock import StatementTimeout, time_limit

TOO_COMPLEX = "the statement is too complex"
UNREADABLE = "the statement cannot be read; check its syntax, or write its sub-queries in a simpler way"
_PLANNING_S = 1.0
_QUOTES = "\"`[]'"
_KEYWORDS = (
    "all and as asc between by case cross desc distinct else end exists from group having in inner is join left like "
    "limit not null offset on or order outer recursive then union using when where with"
)


def check_plan(sql: str, engine: Engine) -> str | None:
    """None if the planner does not take too long."""
    code = [token for token in engine.tokens(sql) if token.kind != "blank"]
    words = [token.text.lower() for token in code]
    if words.count("select") < 2:
        return None
    if "lateral" in words and _may_exceed_limits(code):  # one beside the other, each may use the one before it twice
        return TOO_COMPLEX
    try:
        with time_limit(_PLANNING_S):
            return TOO_COMPLEX if any(map(exceeds_limits, filter(None, parse(sql, read=engine.dialect)))) else None
    except StatementTimeout:
        return TOO_COMPLEX
    except (SqlglotError, RecursionError):
        return UNREADABLE if _may_exceed_limits(code) else None
    return TOO_COMPLEX


def _may_exceed_limits(code: list[TokenLike]) -> bool:
    """Whether expanded sub-queries could exceed the limits, were each name a use of the widest one below it.

    An expression of a SELECT holds at most as many columns as the SELECT has names, and each of them stands for at most
    as many in the query that it comes from; of the tables of a SELECT, those with the name of a CTE are expanded.
    """
    ctes, selects = set(_names_of_ctes(code)), list(_names_of_selects(code))
    columns = math.prod(max(1, len(names)) for names in selects)
    tables = math.prod(1 + sum(name in ctes for name in names) for names in selects)
    return columns > MAX_EXPANSION or tables > MAX_TABLES


def _names_of_ctes(code: list[TokenLike]) -> Iterator[str]:
    """Yield the names before `AS (`, and those before a parenthesis where a CTE may begin."""
    words = ["", *(token.text.lower() for token in code), "", ""]
    for before, name, after, then in zip(words, words[1:], words[2:], words[3:], strict=False):
        named = after == "as" and then in ("(", "not", "materialized")
        if named or (after == "(" and before in (",", "with", "recursive")):
            yield name.strip(_QUOTES)


def _names_of_selects(code: list[TokenLike]) -> Iterator[list[str]]:
    """Yield the names that each SELECT has outside of the SELECTs in it, without keywords and what a dot follows."""
    open_selects: list[tuple[int, list[str]]] = []  # how deep in parentheses each one stands, and its names
    depth, keywords = 0, frozenset(_KEYWORDS.split())
    for token, after in zip(code, [*(token.text for token in code[1:]), ""], strict=True):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        while open_selects and open_selects[-1][0] > depth:
            yield open_selects.pop()[1]
        if (word := token.text.lower()) == "select":
            open_selects.append((depth, []))
        elif open_selects and _is_name(token) and word not in keywords and after != ".":
            open_selects[-1][1].append(word.strip(_QUOTES))
    yield from (names for _, names in open_selects)


def _is_name(token: TokenLike) -> bool:
    return token.kind == "quoted" or (token.kind == "word" and not token.text[0].isdigit())

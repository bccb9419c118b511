"""Follows `eval_exec_match` of taoyds/test-suite-sql-eval with its defaults, on one database.

That code reads a text as the library sqlparse does, which is no SQLite: a backslash may stand before a quote, `# `
begins a comment, and no comment begins behind an operator (`1+/*`). So the text is cut and changed here by those rules
before SQLite sees it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from dbbench_adapter.datatypes import Row, Rows

_TOKEN = re.compile(
    r"""
    (?P<comment>(?:--|\#\ )[^\r\n]* | /\*.*?\*/)
    | (?P<quoted>`(?:``|[^`])*` | '(?:''|\\'|[^'])*' | "(?:""|\\"|[^"])*" | (?<![\w\])])\[[^\]\[]+\])
    | (?P<word>\w[$\#\w]*)
    | (?P<blank>\s+)
    | (?P<sign>(?:@|\#\#?)[^\W\d_]\w+ | [+/@\#%^&|][+/@\#%^&|-]* | .)
    """,
    re.VERBOSE | re.DOTALL,
)
# What sqlparse counts to the statement behind whose semicolon it stands.
_REST_OF_LINE = re.compile(r"(?:[^\S\r\n]|(?:--|# )(?!\+)[^\r\n]*(?:\r\n|\r|\n|\Z))*")
_THIS_YEAR = re.compile(r"year\s*\(\s*curdate\s*\(\s*\)\s*\)\s*", re.IGNORECASE)
# A longer text is not run anyway; quotes that are never closed take quadratic time.
_MAX_CHARS = 20_000


def executed_query(query: str) -> str:
    """What the evaluator runs of a text: its first statement.

    Split operators are joined, in texts too; DISTINCT is removed wherever it is a word; the current year is 2020.
    """
    if len(query) > _MAX_CHARS:
        return query
    joined = query.replace("> =", ">=").replace("< =", "<=").replace("! =", "!=")
    parts = _TOKEN.finditer(joined[: _end_of_first(joined)])
    return _THIS_YEAR.sub("2020", "".join(part[0] for part in parts if part[0].lower() != "distinct"))


def has_order_by(reference: str) -> bool:
    """Whether the evaluator compares the order of rows: the words may stand in a sub-query, or in a text."""
    return "order by" in executed_query(reference).lower()


def _end_of_first(query: str) -> int:
    """Where the first statement ends: behind a semicolon that is in no parenthesis and in no block of BEGIN."""
    depth, blocks, begun = 0, list[str](), False
    for part in _TOKEN.finditer(query):
        if part.lastgroup in ("blank", "comment"):
            continue
        text = part[0]
        depth += {"(": 1, ")": -1}.get(text, 0)
        if text == ";":
            if begun:  # BEGIN; is a statement
                blocks.pop()
                depth -= 1
            if depth <= 0 and "begin" not in blocks:
                return _end_of_line(query, part.end())
        begun = False
        if part.lastgroup != "word" or re.match(r"\(|\s*\.(?!\d)", query[part.end() : part.end() + 9]):
            continue  # a name or a function
        word = text.lower()
        if text == "GO":
            return _end_of_line(query, part.end())
        begun = word == "begin"
        if begun or (word in ("case", "if") and "begin" in blocks):
            blocks.append(word)
            depth += 1
        elif word == "end":
            depth -= 1
            del blocks[-1:]
    return len(query)


def _end_of_line(query: str, place: int) -> int:
    match = _REST_OF_LINE.match(query, place)
    return match.end() if match else place


def same_result(given: Rows, expected: Rows, *, ordered: bool) -> bool:
    """Whether some order of the columns makes the results equal; two empty results always are."""
    if not given and not expected:
        return True
    if len(given) != len(expected) or len(given[0]) != len(expected[0]):
        return False
    given, expected = _readable(given), _readable(expected)
    sorted_rows = [_sorted_cells(row) for row in given], [_sorted_cells(row) for row in expected]
    columns = list(zip(*given, strict=True)), list(zip(*expected, strict=True))
    if ordered:
        return sorted_rows[0] == sorted_rows[1] and Counter(columns[0]) == Counter(columns[1])
    if set(sorted_rows[0]) != set(sorted_rows[1]):
        return False
    if _by_cells(given) != _by_cells(expected):  # otherwise every order of the columns might be tried
        return False
    return _placed([()] * len(given), [()] * len(given), columns[1], columns[0])


def _readable(rows: Rows) -> Rows:
    # The rows as the evaluator reads them: bytes of a text that are no UTF-8 are left out.
    return tuple(
        tuple(c.encode("utf-8", "surrogateescape").decode("utf-8", "ignore") if isinstance(c, str) else c for c in row)
        for row in rows
    )


def _sorted_cells(row: Row) -> Row:
    # The cells in the order of their texts and types. The evaluator rejects results whose rows differ then. So 1 is 1.0
    # where it stands alone, and not beside 1.5, since `1` and `1.0` sort to different sides of it.
    return tuple(sorted(row, key=lambda cell: f"{cell}{type(cell)}"))


def _by_cells(rows: Rows) -> Counter[frozenset[tuple[object, int]]]:
    """Multiset of rows in which the order of a row's cells does not count."""
    return Counter(frozenset(Counter(row).items()) for row in rows)


def _placed(given: Sequence[Row], expected: Sequence[Row], wanted: Sequence[Row], left: Sequence[Row]) -> bool:
    """Whether some order of the columns `left` completes `given` to the rows of `expected` and `wanted`.

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

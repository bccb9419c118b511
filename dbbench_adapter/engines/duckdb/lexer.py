"""Splits a text by DuckDB's lexical rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import regex

# Comments may be nested; a quote or comment that is never closed is one token to the end.
_TOKEN = regex.compile(
    r"""
    (?P<blank>\s++ | --[^\n]*+ | (?P<comment>/\*(?:[^*/]++ | \*(?!/) | /(?!\*) | (?&comment))*+(?:\*/)?))
    | (?P<quoted>[eE]'(?:[^'\\]++|''|\\.)*+'? | '(?:[^']++|'')*+'? | "(?:[^"]++|"")*+"? | `(?:[^`]++|``)*+`?
        | \$\$.*?(?:\$\$|\Z) | \$(?P<tag>[^\W\d]\w*+)\$.*?(?:\$(?P=tag)\$|\Z))
    | (?P<word>[\w$]++)
    | (?P<sign>.)
    """,
    regex.VERBOSE | regex.DOTALL,
)
_KINDS = ("blank", "quoted", "word", "sign")


class DuckdbToken(NamedTuple):
    kind: str
    """`blank`, `quoted`, `word` or `sign`."""
    text: str


def tokens(sql: str) -> Iterator[DuckdbToken]:
    for match in _TOKEN.finditer(sql):
        yield DuckdbToken(next(kind for kind in _KINDS if match[kind] is not None), match.group())

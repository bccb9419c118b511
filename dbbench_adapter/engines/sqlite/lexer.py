"""Splits a text by SQLite's lexical rules into tokens and into statements.

A quote or comment that is never closed is one token to the end.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from typing import Literal, NamedTuple

TokenKind = Literal["blank", "quoted", "word", "sign"]
_TOKEN = re.compile(
    r"""
    (?P<blank>\s++ | --[^\n]*+ | /\*(?:[^*]++|\*(?!/))*+(?:\*/)?)
    | (?P<quoted>'(?:[^']++|'')*+'? | "(?:[^"]++|"")*+"? | `(?:[^`]++|``)*+`? | \[[^\]]*+\]?)
    | (?P<word>[\w$]++)
    | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)
# Blanks and comments at the start of a statement.
_COMMENTS = re.compile(r"\A(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?(?:\*/|\Z))+", re.DOTALL)


class Token(NamedTuple):
    """A part of a text: blanks or a comment, a quoted text or name, a word or number, or any other character."""

    kind: TokenKind
    text: str


def tokens(sql: str) -> Iterator[Token]:
    for match in _TOKEN.finditer(sql):
        yield Token(match.lastgroup, match.group())  # pyright: ignore[reportArgumentType]


def statements(query: str) -> list[str]:
    # A comment alone is no statement.
    found = [""]
    for part in query.split(";"):
        found[-1] += part + ";"
        if sqlite3.complete_statement(found[-1]):
            found.append("")
    return [each for each in (text.removesuffix(";").strip() for text in found) if _COMMENTS.sub("", each)]

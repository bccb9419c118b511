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
_COMMENTS = re.compile(r"\A(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?(?:\*/|\Z))+", re.DOTALL)
"""Blanks and comments at the start of a statement."""


class Token(NamedTuple):
    """Holds a part of a text: blanks or a comment, a quoted text or name, a word or number, or any other character."""

    kind: TokenKind
    text: str


def tokens(sql: str) -> Iterator[Token]:
    """Yield the tokens of a text, whose joined texts are the text again."""
    for match in _TOKEN.finditer(sql):
        yield Token(match.lastgroup, match.group())  # pyright: ignore[reportArgumentType]


def statements(query: str) -> list[str]:
    """Return the statements of a reference, which semicolons part; a comment alone is none."""
    found = [""]
    for part in query.split(";"):
        found[-1] += part + ";"
        if sqlite3.complete_statement(found[-1]):
            found.append("")
    return [each for each in (text.removesuffix(";").strip() for text in found) if _COMMENTS.sub("", each)]

"""Splits a text by SQLite's lexical rules. A quote or comment that is never closed is one token to the end."""

from __future__ import annotations

import re
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


class Token(NamedTuple):
    """Holds a part of a text: blanks or a comment, a quoted text or name, a word or number, or any other character."""

    kind: TokenKind
    text: str


def tokens(sql: str) -> Iterator[Token]:
    """Yield the tokens of a text, whose joined texts are the text again."""
    for match in _TOKEN.finditer(sql):
        yield Token(match.lastgroup, match.group())  # pyright: ignore[reportArgumentType]

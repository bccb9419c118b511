"""Splits a text by MySQL's lexical rules into tokens and into statements.

Only ASCII blanks separate tokens; to the server any other blank is part of a name. This module leaves out the client's
DELIMITER command, compound bodies (BEGIN ... END) and the sql_modes that change how quotes are read: agents may use
none of them (`mysql.allowed_sql`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Literal, NamedTuple

_QUOTED = r"""'(?:[^'\\]++|\\.|'')*+'|"(?:[^"\\]++|\\.|"")*+"|`(?:[^`]++|``)*+`"""
_BLANK = r"[\t-\r\ ]++ | --(?=[\x00-\x20\x7f]|\Z)[^\n]*+ | \#[^\n]*+ | /\*(?!M?!).*?\*/"
_TOKEN = re.compile(
    rf"""
    (?P<executable>/\*(?:M?!|\+))
    | (?P<blank>{_BLANK})
    | (?P<name>`(?:[^`]++|``)*+`)
    | (?P<text>{_QUOTED})
    | (?P<word>[0-9A-Za-z$_\x80-\U0010ffff]++)
    | (?P<unclosed>['"`].*+ | /\*.*+)
    | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)

_EMPTY_CALL = re.compile(rf"(?:{_BLANK})*+\((?:{_BLANK})*+\)", re.VERBOSE | re.DOTALL)

TokenKind = Literal["executable", "blank", "name", "text", "word", "unclosed", "sign"]


class MySqlToken(NamedTuple):
    """Part of a text as the server's lexer sees it.

    `word` is unquoted, `name` is in backquotes, `text` is in quotes, and `blank` is a comment or blanks. `executable`
    opens a comment that some servers read as code or a hint. `unclosed` is the rest of the text after a quote or
    comment that is never closed.
    """

    kind: TokenKind
    text: str
    start: int
    """Index into the text."""

    @property
    def identifier(self) -> str | None:
        if self.kind == "word":
            return self.text.lower()
        return self.text[1:-1].replace("``", "`").lower() if self.kind == "name" else None


def tokens(sql: str, *, blanks: bool = True) -> Iterator[MySqlToken]:
    """Yield the tokens of a text, whose joined texts are the text again; without `blanks`, only tokens of code."""
    for match in _TOKEN.finditer(sql):
        if blanks or match.lastgroup != "blank":
            yield MySqlToken(match.lastgroup, match.group(), match.start())  # pyright: ignore[reportArgumentType]


def leading_words(sql: str, count: int) -> list[str]:
    return [token.text.lower() for token in islice(tokens(sql, blanks=False), count)]


def end_of_empty_call(sql: str, place: int) -> int | None:
    """Where the empty parentheses at a place end; None if they are not empty, or if there are none."""
    match = _EMPTY_CALL.match(sql, place)
    return match and match.end()


def split_statements(sql: str) -> list[str]:
    """Split a text into its statements, without the semicolons between them and the blanks around them.

    As on the server, a semicolon in quotes, backquotes or a comment separates nothing, and a part that holds only
    comments is no statement. The rest after an unclosed quote or comment is one statement, which the server refuses
    after it has run the earlier ones.

    Returns:
        [] for a text without any statement.
    """
    if ";" not in sql and sql[:1].isalpha():  # the first token is code, and one statement is all there is
        return [sql.strip()]
    statements: list[str] = []
    start, has_code = 0, False
    for token in tokens(sql):
        if token.kind == "unclosed":
            return [*statements, sql[start:].strip()]
        if token.text == ";":
            statements += [sql[start : token.start].strip()] if has_code else []
            start, has_code = token.start + 1, False
        elif token.kind != "blank":
            has_code = True
    return [*statements, sql[start:].strip()] if has_code else statements

"""MySQL's lexical rules: the tokens of a text, and where one statement ends and the next begins.

Blanks are those of ASCII: to the server any other is a part of a name. Leaves out DELIMITER, which is the command-line
client's, compound bodies (BEGIN ... END), which no agent may make, and the sql_modes that read quotes in other ways,
which no agent may set (`mysql_screen`).
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
    (?P<end>;)
    | (?P<blank>{_BLANK})
    | /\*M?!(?:{_QUOTED}|(?!\*/)[^'"`])*+\*/  # a versioned comment: its content is code
    | {_QUOTED}
    | [^\t-\r\ ;'"`/\#-]++
    | -(?!-(?:[\x00-\x20\x7f]|\Z)) | /(?!\*)
    """,
    re.VERBOSE | re.DOTALL,
)
_FINE_TOKEN = re.compile(
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


class Token(NamedTuple):
    """A part of a text as the server's lexer sees it: `word` is bare, `name` between backquotes, `text` in quotes,
    `blank` a comment or blanks, `executable` begins what is a comment to some servers and code or a hint to others,
    `unclosed` is the rest from a quote or comment on that ends nowhere."""

    kind: TokenKind
    text: str
    start: int
    """Index into the text."""

    @property
    def identifier(self) -> str | None:
        """What a word or a name names, in lower case; None for other tokens."""
        if self.kind == "word":
            return self.text.lower()
        return self.text[1:-1].replace("``", "`").lower() if self.kind == "name" else None


def tokens(sql: str, *, blanks: bool = True) -> Iterator[Token]:
    """All tokens of a text, which joined are the text, or all that are no blanks."""
    for match in _FINE_TOKEN.finditer(sql):
        if blanks or match.lastgroup != "blank":
            yield Token(match.lastgroup, match.group(), match.start())  # pyright: ignore[reportArgumentType]


def leading_words(sql: str, count: int) -> list[str]:
    """The first tokens that are no blanks, in lower case."""
    return [token.text.lower() for token in islice(tokens(sql, blanks=False), count)]


def end_of_empty_call(sql: str, place: int) -> int | None:
    """Where the parentheses end that stand at a place with nothing in them; None where others stand there, or none."""
    match = _EMPTY_CALL.match(sql, place)
    return match and match.end()


def split_statements(sql: str) -> list[str]:
    """The statements of a text, in order, without the semicolons between them and the blanks around them.

    Semicolons in quotes (backslash escapes and doubled quotes minded), backquotes and comments separate nothing.
    A part that holds only comments is no statement, as on the server. From an unclosed quote or comment on, the rest
    is one statement as it stands: the server refuses it after it has run those before.

    Returns:
        [] for a text without any statement.
    """
    statements: list[str] = []
    start = place = 0
    has_code = False
    while place < len(sql):
        token = _TOKEN.match(sql, place)
        if token is None:
            return [*statements, sql[start:].strip()]
        if token.lastgroup == "end":
            if has_code:
                statements.append(sql[start:place].strip())
            start, has_code = token.end(), False
        elif token.lastgroup != "blank":
            has_code = True
        place = token.end()
    return [*statements, sql[start:].strip()] if has_code else statements


def lexemes(sql: str) -> Iterator[tuple[str, bool]]:
    """The parts of a text, and whether each is bare code: not in quotes, no blank, no comment of any sort.

    From an unclosed quote or comment on, the rest is one part that is none.
    """
    place = 0
    while place < len(sql):
        token = _TOKEN.match(sql, place)
        if token is None:
            yield sql[place:], False
            return
        text, place = token.group(), token.end()
        yield text, token.lastgroup is None and not text.startswith(("'", '"', "`", "/*"))

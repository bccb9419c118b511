"""Where one MySQL statement ends and the next begins: top-level semicolons, by MySQL's lexical rules.

Leaves out DELIMITER, which is the command-line client's, and compound bodies (BEGIN ... END), which no agent may make.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_QUOTED = r"""'(?:[^'\\]++|\\.|'')*+'|"(?:[^"\\]++|\\.|"")*+"|`(?:[^`]++|``)*+`"""
_TOKEN = re.compile(
    rf"""
    (?P<end>;)
    | (?P<blank>\s++ | --(?=[\s\x00-\x1f]|\Z)[^\n]*+ | \#[^\n]*+ | /\*(?!M?!).*?\*/)
    | /\*M?!(?:{_QUOTED}|(?!\*/)[^'"`])*+\*/  # a versioned comment: its content is code
    | {_QUOTED}
    | [^\s;'"`/\#-]++
    | -(?!-(?:[\s\x00-\x1f]|\Z)) | /(?!\*)
    """,
    re.VERBOSE | re.DOTALL,
)


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


def words(sql: str) -> list[str]:
    """The bare words of a text in lower case, those in versioned comments included, those in quotes and other comments
    left out; up to the first unclosed quote or comment.
    """
    found: list[str] = []
    for part, is_code in lexemes(sql):
        if part.startswith(("/*!", "/*M!")):
            found += words(_VERSION.sub("", part[:-2]))
        elif is_code:
            found += re.findall(r"\w+", part.lower())
    return found


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


_VERSION = re.compile(r"/\*M?!\d*")

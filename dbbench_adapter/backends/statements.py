"""Where one MySQL statement ends and the next begins: top-level semicolons, by MySQL's lexical rules.

Leaves out DELIMITER, which is the command-line client's, and compound bodies (BEGIN ... END), which no agent may make.
"""

from __future__ import annotations

import re

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

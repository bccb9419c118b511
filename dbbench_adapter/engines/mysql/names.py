"""Hides the server's names: an agent sees its database and its user as `dbbench`, whatever the server calls them.

Real names replace the neutral ones in a statement, and neutral names replace the real ones in results and errors. A
statement can also compute with a name (`SUBSTRING(USER(), 3)`). Therefore the neutral text replaces functions that
return a name before the statement is sent, and the catalogue is read through views without real names
(`pool.Pool.catalogue`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dbbench_adapter.dialect.lexer import end_of_empty_call, leading_words, tokens

NEUTRAL_NAME = "dbbench"
# Every name that we make on a server begins with this prefix.
PREFIX = "agentgrpo_"
CATALOGUE = "information_schema"
_USER = f"'{NEUTRAL_NAME}@localhost'"
# These functions return a name; the text replaces their call.
_CALLS = {
    "user": _USER,
    "session_user": _USER,
    "system_user": _USER,
    "database": f"'{NEUTRAL_NAME}'",
    "schema": f"'{NEUTRAL_NAME}'",
}
# These functions return a name even without parentheses.
_BARE = {"current_user": _USER, "current_role": "NULL"}
_REPLACED = frozenset([NEUTRAL_NAME, CATALOGUE, *_CALLS, *_BARE])
_ANY = (*_REPLACED, "show")
_PATH = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+[\w.+-]*")
_ACCOUNT = re.compile(r"(['`]?)dbbench\1@(['`])[^'`]*\2")
# One of our names, or its beginning where the server cut off its message.
_CUT_NAME = re.compile(rf"{PREFIX}[0-9a-f]*(?:_\d*)?")
_LISTS = {
    "databases": f"SELECT * FROM (SELECT SCHEMA_NAME AS `Database` FROM {CATALOGUE}.SCHEMATA) AS found",
    "processlist": f"SELECT ID, USER, HOST, DB, COMMAND, TIME, STATE, INFO FROM {CATALOGUE}.PROCESSLIST",
}
# These queries of the catalogue's views replace SHOW.
_LISTS["schemas"] = _LISTS["databases"]


def uses_catalogue(sql: str) -> bool:
    lowered = sql.lower()
    return any(word in lowered for word in (CATALOGUE, *_LISTS))


def as_sent(sql: str, *, name: str, catalogue: str) -> str:
    """Replace neutral names by real ones, except in texts and comments; replace functions that return names by texts.

    Args:
        name: the name of the episode's database.
        catalogue: the name of the database that replaces information_schema.
    """
    lowered = sql.lower()
    if not any(word in lowered for word in _ANY):
        return sql
    sql = _in_place_of_show(sql)
    sent, done, before = [], 0, ""
    for kind, text, start in tokens(sql, blanks=False):
        found = text.strip("`").lower() if kind in ("word", "name") and before not in ("@", ".") else ""
        if found in _REPLACED:
            calls = end_of_empty_call(sql, start + len(text)) if before != "into" else None
            new, end = None, start + len(text)
            if found == CATALOGUE:
                new = catalogue
            elif text.strip("`") == NEUTRAL_NAME:
                new = name
            elif found in _BARE and kind == "word":
                new, end = _BARE[found], calls or end
            elif found in _CALLS and calls is not None:
                new, end = _CALLS[found], calls
            if new is not None and start >= done:
                sent += [sql[done:start], new]
                done = end
        before = text.lower()
    return "".join(sent) + sql[done:]


def _in_place_of_show(sql: str) -> str:
    # The catalogue shows no real name.
    if leading_words(sql, 1) != ["show"]:
        return sql
    code = [token for token in tokens(sql, blanks=False) if token.text != ";"]
    words = [token.text.lower() for token in code[:4]]
    place = 2 if words[1:2] == ["full"] else 1
    if len(words) <= place or words[place] not in _LISTS:
        return sql
    where = " WHERE `Database`" if words[place + 1 : place + 2] == ["like"] else ""
    rest = sql[code[place].start + len(words[place]) : code[-1].start + len(code[-1].text)]
    return f"{_LISTS[words[place]]}{where}{rest} ORDER BY 1"


def tells_messages(sql: str) -> bool:
    first, second = [*leading_words(sql, 2), "", ""][:2]
    return first in ("check", "analyze", "repair", "optimize") or (first == "show" and second in ("warnings", "errors"))


def scrubbed(text: str, *, catalogue: str, private: Mapping[str, str], sql: str) -> str:
    """Remove the names of database and user, hosts and paths from a message, unless the agent wrote them itself.

    Args:
        private: the names of the server's host and folder, each with its replacement.
    """
    text = _ACCOUNT.sub("'agent'", with_neutral_names(text, catalogue=catalogue))
    for known, neutral in private.items():
        if known not in sql:
            text = re.sub(rf"(?<!\w){re.escape(known)}(?!\w)", neutral, text)
    return _PATH.sub(lambda match: match[0] if match[0] in sql else "...", text)


def with_neutral_names(cell: Any, *, catalogue: str) -> Any:
    if isinstance(cell, bytes):
        return with_neutral_names(cell.decode("latin-1"), catalogue=catalogue).encode("latin-1")
    if not isinstance(cell, str) or PREFIX not in cell:
        return cell
    return _CUT_NAME.sub(NEUTRAL_NAME, cell.replace(catalogue, CATALOGUE))

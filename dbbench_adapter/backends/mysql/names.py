"""Names: an agent's database and user are called `dbbench` towards it, whatever they are called on the server.

They are turned where a statement holds them and back where results and errors do. Since a statement can also compute
with a name (`SUBSTRING(USER(), 3)`), functions that give one become the neutral text before it is sent, and the
catalogue is read through views that hold no other name (`mysql_pool.Pool.catalogue`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dbbench_adapter.backends.statements import end_of_empty_call, leading_words, tokens

NEUTRAL_NAME = "dbbench"
PREFIX = "agentgrpo_"
"""Every name that we give on a server begins so."""
CATALOGUE = "information_schema"
_USER = f"'{NEUTRAL_NAME}@localhost'"
_CALLS = {
    "user": _USER,
    "session_user": _USER,
    "system_user": _USER,
    "database": f"'{NEUTRAL_NAME}'",
    "schema": f"'{NEUTRAL_NAME}'",
}
"""Functions that tell a name, and what stands for their call."""
_BARE = {"current_user": _USER, "current_role": "NULL"}
"""Functions that tell a name also where their parentheses are left out."""
_TURNED = frozenset([NEUTRAL_NAME, CATALOGUE, *_CALLS, *_BARE])
_ANY = (*_TURNED, "show")
_PATH = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+[\w.+-]*")
_ACCOUNT = re.compile(r"(['`]?)dbbench\1@(['`])[^'`]*\2")
_CUT_NAME = re.compile(rf"{PREFIX}[0-9a-f]*(?:_\d*)?")
"""Ours, or what is left where the server cut its message."""
_LISTS = {
    "databases": f"SELECT * FROM (SELECT SCHEMA_NAME AS `Database` FROM {CATALOGUE}.SCHEMATA) AS found",
    "processlist": f"SELECT ID, USER, HOST, DB, COMMAND, TIME, STATE, INFO FROM {CATALOGUE}.PROCESSLIST",
}
_LISTS["schemas"] = _LISTS["databases"]
"""What the catalogue's views tell in place of SHOW."""


def uses_catalogue(sql: str) -> bool:
    """Whether a statement may ask the catalogue's views once it is sent."""
    lowered = sql.lower()
    return any(word in lowered for word in (CATALOGUE, *_LISTS))


def as_sent(sql: str, *, name: str, catalogue: str) -> str:
    """The statement with the real names for the neutral ones, but for its texts and comments, and with texts for the
    functions that would tell them.

    Args:
        name: of the episode's database.
        catalogue: of the database that stands for information_schema.
    """
    lowered = sql.lower()
    if not any(word in lowered for word in _ANY):
        return sql
    sql = _in_place_of_show(sql)
    sent, done, before = [], 0, ""
    for kind, text, start in tokens(sql, blanks=False):
        found = text.strip("`").lower() if kind in ("word", "name") and before not in ("@", ".") else ""
        if found in _TURNED:
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
    """SHOW DATABASES and SHOW PROCESSLIST as queries of the catalogue, which tells no real name; others as they are."""
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
    """Whether what a statement returns are the server's messages."""
    first, second = [*leading_words(sql, 2), "", ""][:2]
    return first in ("check", "analyze", "repair", "optimize") or (first == "show" and second in ("warnings", "errors"))


def scrubbed(text: str, *, catalogue: str, private: Mapping[str, str], sql: str) -> str:
    """A message of the server without the names of database and user, hosts and paths; what the agent wrote itself may
    stay.

    Args:
        private: names of host and folder of the server, and what stands for them.
    """
    text = _ACCOUNT.sub("'agent'", shown(text, catalogue=catalogue))
    for known, neutral in private.items():
        if known not in sql:
            text = re.sub(rf"(?<!\w){re.escape(known)}(?!\w)", neutral, text)
    return _PATH.sub(lambda match: match[0] if match[0] in sql else "...", text)


def shown(cell: Any, *, catalogue: str) -> Any:
    """A cell of a result with the neutral names for the real ones."""
    if isinstance(cell, bytes):
        return shown(cell.decode("latin-1"), catalogue=catalogue).encode("latin-1")
    if not isinstance(cell, str) or PREFIX not in cell:
        return cell
    return _CUT_NAME.sub(NEUTRAL_NAME, cell.replace(catalogue, CATALOGUE))

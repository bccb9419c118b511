"""What an agent may not send although its rights would let it, and what its error messages may not say.

Rights stop nearly everything (see `mysql_pool`). They do not stop: a prepared XA transaction, which outlives its
session and keeps locks for ever; SET PASSWORD for oneself; DATA DIRECTORY, which makes files elsewhere; SHOW GRANTS,
which shows the user's password hash; and dynamic SQL or compound statements, in which the others would hide. Where a
session's sql_mode or character set makes the server read quotes differently, words may hide here: the pool checks users
after every episode, the private server ignores DATA DIRECTORY, and everything else here is decided by the first words,
which no quote precedes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from dbbench_adapter.backends.statements import lexemes, words

_SENT = (
    "select with insert replace update delete create alter drop rename truncate show describe desc explain set start "
    "begin commit rollback savepoint release use values table do analyze check checksum optimize repair help lock "
    "unlock handler kill flush grant revoke load reset shutdown install uninstall purge change"
)
_REFUSED = "xa prepare execute deallocate call if case loop while repeat for declare signal resignal backup"
_FIRST, _NAMED = frozenset(_SENT.split()), frozenset(_REFUSED.split())
_SET_REFUSED = frozenset(["statement", "password", "global", "persist", "persist_only", "default", "role"])
_PATH = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+[\w.+-]*")
_ACCOUNT = re.compile(r"(['`]?)dbbench\1@(['`])[^'`]*\2")
NEUTRAL_NAME = "dbbench"
"""What the episode's database and user are called towards the agent, on every engine."""
_NEUTRAL = re.compile(rf"(?<![@\w]){NEUTRAL_NAME}(?!\w)")
_AT_HOST = re.compile(rf"(?<={NEUTRAL_NAME}@)[\w.:%-]+")
_CLIENT = re.compile(r"[\w.:%-]+:\d+")
_XPATH = 1105
_ABOUT_NAMES = frozenset([1052, 1054, 1064, 1146])
"""Errors that quote the statement's own words and what the server calls its clauses, never a value."""
_QUOTED = re.compile(r"'(.*)'|'(.*)", re.DOTALL)
"""From the first quote to the last, or to where the server cut its message: the value may hold quotes itself."""


def refusal(sql: str) -> str | None:
    """The driver's words for a statement that is not sent, or None."""
    first, *rest = words(sql) or [""]
    second = rest[0] if rest else ""
    if first in _NAMED:
        return f"1142 (42000): {first.upper()} command denied to user"
    if first and first not in _FIRST:  # a misspelling, or the label of a compound statement
        return (
            "1064 (42000): You have an error in your SQL syntax; check the manual that corresponds to your MariaDB "
            f"server version for the right syntax to use near '{sql.strip()[:80]}' at line 1"
        )
    if first == "begin" and rest and second != "work":
        return "1142 (42000): BEGIN NOT ATOMIC command denied to user"
    if first == "set" and (second in _SET_REFUSED or "password" in rest):
        return f"1227 (42000): Access denied; SET {second.upper()[:30]} needs a privilege that you do not have"
    if first == "show" and (second == "grants" or rest[:2] == ["create", "user"]):
        return "1142 (42000): SHOW GRANTS command denied to user"
    if ("procedure", "analyse") in pairwise(rest):  # MySQL 8 has none either
        return "1142 (42000): PROCEDURE ANALYSE command denied to user"
    if first in ("create", "alter") and "directory" in rest and {"data", "index"} & set(rest):
        return "1044 (42000): Access denied; DATA DIRECTORY and INDEX DIRECTORY need the FILE privilege"
    return None


def scrubbed(text: str, *, number: int, name: str, private: Mapping[str, str], sql: str) -> str:
    """An error text without the names of database and user, hosts and paths; what the agent wrote itself may stay.

    Nor does it quote a value that the agent did not write where that may be a part of what only the server knows.

    Args:
        private: names of host and folder of the server, and what stands for them.
    """
    text = _ACCOUNT.sub("'agent'", text.replace(name, NEUTRAL_NAME))
    if number == _XPATH or (number not in _ABOUT_NAMES and _asks_server(sql)):
        text = _QUOTED.sub(lambda match: match[0] if (match[1] or match[2] or "") in sql else "'...'", text)
    for known, neutral in private.items():
        if known not in sql:
            text = re.sub(rf"(?<!\w){re.escape(known)}(?!\w)", neutral, text)
    return _PATH.sub(lambda match: match[0] if match[0] in sql else "...", text)


def with_real_name(sql: str, name: str) -> str:
    """The statement with the neutral database name turned into the real one, but for its texts and comments.

    Where it asks the catalogue, a text that is the name is turned as well.
    """
    if NEUTRAL_NAME not in sql:
        return sql
    in_catalogue = "information_schema" in sql.lower()
    parts = []
    for part, is_code in lexemes(sql):
        if is_code or part == f"`{NEUTRAL_NAME}`":
            part = _NEUTRAL.sub(name, part)
        elif in_catalogue and part[1:-1] == NEUTRAL_NAME:
            part = part.replace(NEUTRAL_NAME, name)
        parts.append(part)
    return "".join(parts)


def shown(cell: Any, *, name: str, lists_clients: bool) -> Any:
    """A cell of a result with the neutral name for the real one, without the address that the agent's user came from.

    Args:
        lists_clients: of a statement that asks for the list of processes, where addresses stand alone.
    """
    if isinstance(cell, bytes):
        return shown(cell.decode("latin-1"), name=name, lists_clients=lists_clients).encode("latin-1")
    if not isinstance(cell, str):
        return cell
    if lists_clients and _CLIENT.fullmatch(cell):
        return "localhost"
    return _AT_HOST.sub("localhost", cell.replace(name, NEUTRAL_NAME)) if name in cell else cell


def _asks_server(sql: str) -> bool:
    """Whether a statement names the catalogue or a variable: the server's, or one that may hold what that told."""
    if "information_schema" in sql.lower():
        return True
    return "@" in sql and any("@" in part for part, is_code in lexemes(sql) if is_code or part.startswith("/*"))

"""What an agent may not send although its rights would let it, and what its error messages may not say.

Rights stop nearly everything (see `mysql_pool`). They do not stop: a prepared XA transaction, which outlives its
session and keeps locks for ever; SET PASSWORD for oneself; DATA DIRECTORY, which makes files elsewhere; and dynamic
SQL or compound statements, in which the others would hide. Where a session's sql_mode or character set makes the
server read quotes differently, words may hide here: the pool checks users after every episode, the private server
ignores DATA DIRECTORY, and everything else here is decided by the first words, which no quote precedes.
"""

from __future__ import annotations

import re

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
    if first in ("create", "alter") and "directory" in rest and {"data", "index"} & set(rest):
        return "1044 (42000): Access denied; DATA DIRECTORY and INDEX DIRECTORY need the FILE privilege"
    return None


def scrubbed(text: str, *, name: str, host: str, sql: str) -> str:
    """An error text without the names of database and user, hosts and paths; what the agent wrote itself may stay."""
    text = _ACCOUNT.sub("'agent'", text.replace(name, NEUTRAL_NAME))
    if host not in sql:
        text = text.replace(host, "localhost")
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

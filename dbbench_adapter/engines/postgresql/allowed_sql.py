"""Decides which of an agent's statements the server gets: one query that calls only functions that only compute.

READ ONLY transactions and the account's rights stop what changes tables. They do not stop functions that read files,
sleep, take locks, end or watch other sessions, change settings, or run a text as SQL. So a function may be called only
if all its variants are PostgreSQL's own and not volatile, with the exceptions below. The names are read from `pg_proc`
itself, so what another version, an extension or the owner adds is refused unless it is known.

Not looked into is what the owner's views, policies, domains, casts and non-volatile operators call.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from dbbench_adapter.engines.postgresql import PostgresToken, tokens
from dbbench_adapter.engines.server import MAX_SQL_CHARS, REFUSAL

_QUERIES = ("select", "with", "values", "table")
_STATEMENTS = frozenset(("into", "insert", "update", "delete", "merge"))
_LOCKS = frozenset((("for", "share"), ("for", "key"), ("for", "no")))
_NORMALIZED = frozenset((word, "normalized") for word in ("is", "not", "nfc", "nfd", "nfkc", "nfkd"))
_CATALOGUE = frozenset({
    "pg_attribute", "pg_catalog", "pg_class", "pg_constraint", "pg_description", "pg_enum", "pg_get_constraintdef",
    "pg_get_expr", "pg_get_indexdef", "pg_get_viewdef", "pg_index", "pg_indexes", "pg_matviews", "pg_namespace",
    "pg_table_is_visible", "pg_tables", "pg_type", "pg_typeof", "pg_views",
})  # fmt: skip
_VOLATILE = ("random", "clock_timestamp", "timeofday", "gen_random_uuid")
# Not volatile, and yet they run a text as SQL, read whole schemas, tell of other sessions or of the server, make a
# gigabyte of a short text, or cannot be ended by the server: XPath, and normal forms, which take quadratic time.
_EXCEPTIONS = "^(pg_.*|.*_to_xml.*|inet_.*|txid_.*|current_setting|xpath.*|repeat|array_fill|format|.*normalized?)$"
# Views that show the account's own password for another server, and where that is.
_SECRETS = frozenset((
    "user_mapping_options", "foreign_server_options", "foreign_table_options", "_pg_user_mappings",
    "_pg_foreign_servers", "_pg_foreign_tables",
))  # fmt: skip
_XML_PATHS = frozenset(("xmltable", "xmlexists"))
# `lpad` and `rpad` may make texts of this length.
_MAX_PADDED_CHARS = 10_000
_ALIEN = "pronamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)"
FORBIDDEN = f"""
SELECT 'call', proname FROM pg_catalog.pg_proc GROUP BY proname
HAVING (proname ~ '{_EXCEPTIONS}' AND proname <> ALL ('{{{",".join(sorted(_CATALOGUE))}}}'))
    OR bool_and(pronamespace <> 'pg_catalog'::regnamespace)
    OR bool_or(prosecdef OR provolatile = 'v'
        AND ({_ALIEN} OR proname <> ALL ('{{{",".join(_VOLATILE)}}}')))
UNION ALL
-- what `row.name` calls with the row as its one argument
SELECT 'field', proname FROM pg_catalog.pg_proc JOIN pg_catalog.pg_type t ON t.oid = proargtypes[0]
WHERE {_ALIEN} AND pronargs - pronargdefaults <= 1 AND typtype IN ('c', 'd', 'p')
UNION ALL
SELECT 'operator', oprname FROM pg_catalog.pg_operator JOIN pg_catalog.pg_proc ON pg_proc.oid = oprcode
WHERE {_ALIEN} AND (prosecdef OR provolatile = 'v')
"""
"""A query for the names that the server has and an agent may not use, each with its kind."""
Forbidden = frozenset[tuple[str, str]]


def why_refused(sql: str, forbidden: Forbidden) -> str | None:
    """
    Args:
        forbidden: the result of `FORBIDDEN`.
    """
    if len(sql) > MAX_SQL_CHARS:
        return f"the statement is longer than {MAX_SQL_CHARS} characters"
    parts = [part for part in tokens(sql) if part.kind != "blank"]
    while parts and parts[-1].text == ";":
        parts.pop()
    words = [part.name if part.kind == "word" else part.text for part in parts]
    if next((word for word in words if word != "("), "") not in _QUERIES or ";" in words:
        return REFUSAL
    if _STATEMENTS & {*words} or (_LOCKS | _NORMALIZED) & {*pairwise(words)}:
        return REFUSAL
    if any(part.text[:2].lower() == "u&" and part.kind == "quoted" for part in parts):
        return 'not allowed: a name by U&"..."'
    # behind E'...' the server reads the next text by the same rules, if a line break stands between them
    if any(part.kind == "escaped" and after.kind == "text" for part, after in pairwise(parts)):
        return "not allowed: a text that is continued behind E'...'; write it as one"
    return _forbidden_name(parts, forbidden)


def without_end(sql: str) -> str:
    # What is not refused has semicolons at its end alone.
    return "".join(part.text for part in tokens(sql) if part.text != ";")


def _forbidden_name(parts: Sequence[PostgresToken], forbidden: Forbidden) -> str | None:
    operators = [name for kind, name in forbidden if kind == "operator"]
    for place, part in enumerate(parts):
        name, around = part.name, [each.text for each in (*parts[max(place - 1, 0) : place], *parts[place + 1 :][:1])]
        called, owned = around[-1:] == ["("], place > 0 and around[:1] == ["."]
        if called and (("call", name) in forbidden or name in _XML_PATHS):
            return f"not allowed: the function {name}"
        if called and name in ("lpad", "rpad") and not _is_short(parts[place + 2 :]):
            return f"not allowed: {name} with another length than a number of at most {_MAX_PADDED_CHARS}"
        if (name.startswith("pg_") and name not in _CATALOGUE) or (owned and ("field", name) in forbidden):
            return f"not allowed: {name}"
        if part.kind == "operator" and (found := [each for each in operators if each in part.text]):
            return f"not allowed: the operator {found[0]}"
    return None


def _is_short(arguments: Sequence[PostgresToken]) -> bool:
    # of lpad and rpad: the second is the length
    depth = 0
    for part, length, after in zip(arguments, arguments[1:], arguments[2:], strict=False):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(part.text, 0)
        if depth == 0 and part.text == ",":
            return length.text.isdecimal() and int(length.text) <= _MAX_PADDED_CHARS and after.text in (",", ")")
    return False

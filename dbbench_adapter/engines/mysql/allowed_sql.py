"""Decides which of an agent's statements the server gets: the kinds, settings, variables and functions listed here.

The user's privileges stop nearly every statement that would act outside its episode (see `pool`). They do not stop a
prepared XA transaction, which outlives its session; SET PASSWORD for oneself; SHOW GRANTS, which shows the password's
hash; dynamic SQL, compound statements and event handlers, which can hide the others or swallow a KILL; GET_LOCK, whose
names all sessions share. So a statement runs only if its first words make it one of the kinds below. It is split into
tokens as the server's lexer splits it: executable comments and hints are refused, and nothing that changes how the
lexer reads quotes (sql_mode, character sets, NUL) can be set or sent. Names are left to `names`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise

from dbbench_adapter.dialect.lexer import MySqlToken, leading_words, tokens


def _names(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


# Statements with these first words cannot harm others, whatever follows.
_ALONE = _names(
    "select with values insert replace update delete truncate do explain describe desc analyze check checksum "
    "optimize repair commit rollback savepoint use"
)
_QUERIES = frozenset(["select", "with", "values"])
_LOOKS = _QUERIES | _names("show describe desc explain set use do begin start commit rollback savepoint release")
_OBJECTS = _names("table tables view index database schema sequence")
# These words may precede the object that is made, altered, dropped or shown; DEFINER and INVOKER follow SECURITY.
_MODIFIERS = _names(
    "or replace temporary unique fulltext spatial online offline ignore algorithm = merge temptable undefined sql "
    "security full extended"
)
# The server also knows these words after CREATE, ALTER, DROP, RENAME and SHOW; all others are syntax errors.
_ADMINISTRATIVE = _names(
    "aggregate authors binary binlog client contributors definer engine event events explain function global grants "
    "index_statistics locales logfile logs master open package plugins privileges procedure profile profiles "
    "relaylog role server session slave slaves slow stage status tablespace trigger triggers user user_statistics "
    "variables"
)
_SECOND = {
    "create": _OBJECTS,
    "alter": _OBJECTS,
    "drop": _OBJECTS,
    "rename": frozenset(["table", "tables"]),
    "show": _names(
        "tables columns fields index indexes keys create databases schemas table warnings errors "
        "count character charset collation engines storage processlist"
    ),
    "start": frozenset(["transaction"]),
    "release": frozenset(["savepoint"]),
    "begin": frozenset(["work"]),
}
# The server knows these first words, but an agent may not use them; any other first word is a syntax error.
_REFUSED = _names(
    "backup binlog cache call case change deallocate declare execute flush for get grant handler help if install "
    "kill load lock loop prepare purge repeat reset resignal restart revoke shutdown signal stop uninstall unlock "
    "while xa"
)
# Settings that change what an agent's own statements mean, but not how they are read or how long they may run. With
# both unique_checks and foreign_key_checks off an INSERT fills files that nobody measures, so the first stays on.
_SETTABLE = _names(
    "auto_increment_increment auto_increment_offset autocommit completion_type cte_max_recursion_depth "
    "default_week_format div_precision_increment foreign_key_checks group_concat_max_len identity insert_id "
    "last_insert_id lc_time_names max_recursive_iterations sql_big_selects sql_mode sql_notes sql_safe_updates "
    "sql_select_limit sql_warnings time_zone timestamp transaction_isolation transaction_read_only tx_isolation "
    "tx_read_only"
)
_READABLE = _SETTABLE | _names(
    "character_set_client character_set_connection character_set_database character_set_results "
    "character_set_server collation_connection collation_database collation_server default_storage_engine "
    "unique_checks error_count lower_case_table_names max_allowed_packet max_execution_time max_statement_time version "
    "version_comment warning_count"
)
_MODES = _names(
    "ALLOW_INVALID_DATES ERROR_FOR_DIVISION_BY_ZERO NO_AUTO_CREATE_USER NO_AUTO_VALUE_ON_ZERO "
    "NO_ENGINE_SUBSTITUTION NO_UNSIGNED_SUBTRACTION NO_ZERO_DATE NO_ZERO_IN_DATE ONLY_FULL_GROUP_BY "
    "STRICT_ALL_TABLES STRICT_TRANS_TABLES TRADITIONAL"
) | {""}
_CHARACTER_SETS = frozenset(["utf8", "utf8mb3", "utf8mb4"])
# These functions of the server reach other sessions, users or files.
_FUNCTIONS = _names(
    "binlog_gtid_pos get_lock is_free_lock is_used_lock load_file master_gtid_wait master_pos_wait "
    "release_all_locks release_lock roles_graphml source_pos_wait wait_for_executed_gtid_set "
    "wait_until_sql_thread_after_gtids"
)
# These functions crash the server by recursion (a path of thousands of signs or brackets), use gigabytes, or ignore
# KILL: in a text of a megabyte REGEXP_REPLACE searches for hours and inserts without a limit.
_UNBOUNDED = _names("extractvalue updatexml json_objectagg regexp_replace")
# A statement may call at most this many functions; each may use some megabytes until the statement ends.
_MAX_CALLS = 200
# A parenthesis after these words does not make a function call.
_NO_CALLS = _names(
    "all and any as between bigint binary bit by char check decimal div distinct else except exists float from having "
    "in index int integer intersect join key like not numeric on or over references regexp returning rlike row select "
    "set smallint some table text then tinyint union using value values varbinary varchar when where with xor"
)
# These clauses make or remove files, or print names of columns in other databases; MySQL 8 has some of them.
_PAIRS = {
    ("data", "directory"): "DATA DIRECTORY",
    ("index", "directory"): "INDEX DIRECTORY",
    ("discard", "tablespace"): "DISCARD TABLESPACE",
    ("import", "tablespace"): "IMPORT TABLESPACE",
    ("discard", "partition"): "DISCARD PARTITION",
    ("import", "partition"): "IMPORT PARTITION",
    ("procedure", "analyse"): "PROCEDURE ANALYSE",
}
_LOOKED_AT = (
    "/*",
    "@@",
    "partition",
    "performance_schema",
    *_FUNCTIONS,
    *_UNBOUNDED,
    *(second for _, second in _PAIRS),
)
# This many tokens at the start of a statement show its kind.
_LEADING = 100


def refusal(sql: str) -> str | None:
    if "\0" in sql:
        return _syntax_error(sql, sql.index("\0"))
    parts = _parts(sql)
    if any(token.kind == "executable" for token in parts):
        return "1235 (42000): This version of MySQL doesn't yet support 'executable comments and optimizer hints'"
    while parts and parts[-1].text == ";":
        parts.pop()
    if not parts:
        return None
    return _refuse_kind(sql, parts) or _refuse_parts(parts) or _refuse_calls(sql)


def _refuse_calls(sql: str) -> str | None:
    if sql.count("(") <= _MAX_CALLS:
        return None
    code = pairwise(tokens(sql, blanks=False))
    calls = sum(
        after.text == "(" and bool(name.identifier) and name.identifier not in _NO_CALLS for name, after in code
    )
    if calls <= _MAX_CALLS:
        return None
    return f"1105 (HY000): the statement calls {calls} functions; at most {_MAX_CALLS} are allowed"


def _parts(sql: str) -> list[MySqlToken]:
    # Values and the commas between them are left out; they are most of a long statement.
    code = tokens(sql, blanks=False)
    parts = list(islice(code, _LEADING))
    lowered = sql.lower()
    if parts and (parts[0].text.lower() == "set" or any(word in lowered for word in _LOOKED_AT)):
        for token in code:
            is_value = token.kind == "text" or token.text.isdecimal() or token.text == parts[-1].text == ","
            if not is_value or parts[0].text.lower() == "set":
                parts.append(token)
    return parts


def may_write(sql: str) -> bool:
    first = next((word for word in leading_words(sql, _LEADING) if word != "("), "")
    return first not in _LOOKS


def _refuse_kind(sql: str, parts: Sequence[MySqlToken]) -> str | None:
    first, *rest = _words(parts)
    if rest and rest[0] == ":":  # a label begins a compound statement
        return _syntax_error(sql, parts[1].start)
    if first == "(":
        place = next((i for i, word in enumerate(rest) if word != "("), len(rest) - 1)
        return None if rest and rest[place] in _QUERIES else _syntax_error(sql, parts[0].start)
    if first in _ALONE or (first == "begin" and not rest):
        return None
    if first == "set":
        return _refuse_set(parts[1:])
    if first not in _SECOND:
        return _denied(first) if first in _REFUSED else _syntax_error(sql, parts[0].start)
    place = _place_of_object(rest)
    if place == len(rest):
        return _syntax_error(sql, len(sql))
    second = rest[place]
    if second in _ADMINISTRATIVE or (first == "begin" and second == "not"):
        return _denied(f"{first} {second}")
    if second not in _SECOND[first]:
        return _syntax_error(sql, parts[1 + place].start)
    return _refuse_show(rest[place:]) if first == "show" else None


def _place_of_object(rest: Sequence[str]) -> int:
    for place, word in enumerate(rest):
        after_security = place > 0 and rest[place - 1] == "security" and word in ("definer", "invoker")
        if word not in _MODIFIERS and not after_security:
            return place
    return len(rest)


def _refuse_show(what: Sequence[str]) -> str | None:
    if what[0] == "create" and len(what) > 1 and what[1] not in _OBJECTS:
        return _denied(f"show create {what[1]}")
    if what[0] == "table" and "where" in what:  # comments show real names that a broken view refers to
        return _denied("show table status where")
    return None


def _refuse_set(parts: Sequence[MySqlToken]) -> str | None:
    for target, value in _assignments(parts):
        if target[:1] == ["@"] and target[1:2] != ["@"]:
            continue
        name = target[-1] if target else ""
        if target[:1] == ["names"]:
            allowed = len(target) > 1 and target[1].strip("'\"") in _CHARACTER_SETS
        elif "transaction" in target[:2]:
            allowed = target[0] in ("transaction", "session", "local")
        else:
            scope = [word for word in target[:-1] if word not in ("@", ".")]
            allowed = name in _SETTABLE and scope in ([], ["session"], ["local"])
        if name == "sql_mode":
            allowed = allowed and len(value) == 1 and value[0].kind == "text" and _modes(value[0].text) <= _MODES
        if not allowed:
            return f"1227 (42000): Access denied; SET {name.upper()[:30]} needs a privilege that you do not have"
    return None


def _assignments(parts: Sequence[MySqlToken]) -> Iterator[tuple[list[str], list[MySqlToken]]]:
    """The words of the target (all words without a `=`), and the value's tokens, for each assignment of a SET."""
    depth, target, value, in_value = 0, [], [], False
    for token in parts:
        depth += (token.text == "(") - (token.text == ")")
        if token.text == "," and depth <= 0:
            yield target, value
            target, value, in_value = [], [], False
        elif not in_value and token.text in ("=", ":"):
            in_value = True
        elif in_value:
            value += [] if token.text == "=" and not value else [token]
        else:
            target.append(token.identifier or token.text.lower())
    yield target, value


def _modes(literal: str) -> set[str]:
    return set(literal[1:-1].upper().split(","))


def _refuse_parts(parts: Sequence[MySqlToken]) -> str | None:
    words = _words(parts)
    for pair in pairwise(words):
        if pair in _PAIRS and (pair[0] in ("procedure", "discard", "import") or words[0] in ("create", "alter")):
            return _denied(_PAIRS[pair])
    if words[0] in ("create", "alter") and _is_partitioned(words):
        return "1235 (42000): This version of MySQL doesn't yet support 'PARTITION BY'"
    for place, (token, after) in enumerate(pairwise([*parts, parts[-1]])):
        if token.text == after.text == "@" and after is not token and not _readable(parts[place + 2 : place + 7]):
            return f"1193 (HY000): Unknown system variable '{''.join(words[place + 2 : place + 5])[:64]}'"
        if after.text == "(" and token.identifier in _FUNCTIONS | _UNBOUNDED:
            return f"1305 (42000): FUNCTION dbbench.{token.text.strip('`')} does not exist"
        if token.identifier == "performance_schema":
            return _denied("select")
    return None


def _is_partitioned(words: Sequence[str]) -> bool:
    # A partitioned table has thousands of files. A window has its PARTITION BY in parentheses.
    depth = 0
    for word, after in pairwise(words):
        depth += (word == "(") - (word == ")")
        if depth == 0 and (word, after) == ("partition", "by"):
            return True
    return False


def _readable(parts: Sequence[MySqlToken]) -> bool:
    names: list[str | None] = []
    for name, dot in zip(parts[::2], [*parts[1::2], None], strict=False):
        names.append(name.identifier)
        if dot is None or dot.text != ".":
            break
    if len(names) > 1 and names[0] in ("session", "local", "global"):
        names = names[1:]
    return len(names) == 1 and names[0] in _READABLE


def _words(parts: Sequence[MySqlToken]) -> list[str]:
    # Quoted tokens keep their quotes, so they are no keywords.
    return [token.text.lower() for token in parts]


def _denied(command: str) -> str:
    return f"1142 (42000): {command.upper()} command denied to user"


def _syntax_error(sql: str, place: int) -> str:
    begins = len(sql) - len(sql.lstrip())  # the server does not count the lines before the statement
    near, line = sql[place:].strip()[:80], sql.count("\n", begins, place) + 1
    return (
        "1064 (42000): You have an error in your SQL syntax; check the manual that corresponds to your MariaDB server "
        f"version for the right syntax to use near '{near}' at line {line}"
    )

"""Finds what makes the result of a reference depend on the time or on chance.

Such a result cannot be kept: the next one differs, and a right answer would be judged wrong. Views, triggers and
defaults of columns are not looked into.
"""

from __future__ import annotations

from sqlglot import exp

from dbbench_adapter.engines.engine import Engine
from sql_agent.text_to_sql.load import parsed

_CLOCKS = (
    *(exp.CurrentDate, exp.CurrentTime, exp.CurrentTimestamp, exp.Localtime, exp.Localtimestamp),
    *(exp.UtcDate, exp.UtcTime, exp.UtcTimestamp),
)
# Functions for which sqlglot has no class.
_NAMES = frozenset([
    "now", "sysdate", "uuid_short", "uuid_v4", "uuid_v7", "sys_guid", "random_bytes", "randomblob", "clock_timestamp",
    "statement_timestamp", "transaction_timestamp", "timeofday",
])  # fmt: skip
# Functions that take the time that it is in place of an argument, and how many they have then.
_SHORTENED = {"unix_timestamp": 0, "age": 1}
# Texts that PostgreSQL casts to the time that it is.
_DAYS = frozenset(("now", "today", "tomorrow", "yesterday"))
# Keywords of MySQL that sqlglot takes for columns where no parentheses follow.
_KEYWORDS = frozenset(("utc_date", "utc_time", "utc_timestamp"))
# SQLite's functions for which sqlglot has no class, and the place of the time among their arguments.
_OF_TIME = {"date": 0, "time": 0, "datetime": 0, "julianday": 0, "unixepoch": 0, "strftime": 1}
# Texts that SQLite reads as the time that it is.
_NOW = frozenset(("now", "subsec", "subsecond"))


def nondeterministic_part(query: str, engine: Engine) -> str | None:
    """The first such part; None too where the query does not parse."""
    for statement in engine.statements(query):
        tree = parsed(statement, engine)
        for node in tree.walk() if tree is not None else ():
            if _differs(node) or _OWN.get(engine.dialect, _is_keyword)(node):
                return node.sql(dialect=engine.dialect)
    return None


def _differs(node: exp.Expr) -> bool:
    if isinstance(node, exp.Anonymous):
        name = node.name.lower()
        return name in _NAMES or _SHORTENED.get(name) == len(node.expressions)
    return isinstance(node, (*_CLOCKS, exp.Uuid)) or (isinstance(node, exp.Rand) and node.this is None)  # else a seed


def _is_keyword(node: exp.Expr) -> bool:
    return isinstance(node, exp.Column) and not node.this.quoted and node.sql().lower() in _KEYWORDS


def _is_now(node: exp.Expr) -> bool:
    # A function without its time takes the time that it is.
    if isinstance(node, exp.Anonymous) and node.name.lower() == "timediff":
        times = node.expressions
    elif isinstance(node, exp.Anonymous) and (place := _OF_TIME.get(node.name.lower())) is not None:
        times = node.expressions[place : place + 1]
    elif isinstance(node, exp.Date | exp.TimeToStr):
        times = [node.this] if node.this is not None else []
    else:
        return False
    return not times or any(_names_now(part) for time in times for part in time.walk())


def _names_now(part: exp.Expr) -> bool:
    # In quotes it is a text too, unless there is such a column.
    quoted = isinstance(part, exp.Column) and part.this.quoted and not part.table
    return (quoted or (isinstance(part, exp.Literal) and part.is_string)) and part.name.lower() in _NOW


def _is_cast_of_now(node: exp.Expr) -> bool:
    return isinstance(node, exp.Cast) and node.this.is_string and node.this.name.strip().lower() in _DAYS


# What only one engine reads so.
_OWN = {"sqlite": _is_now, "postgres": _is_cast_of_now}

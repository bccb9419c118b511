"""What kind the result of every function of the translation has in MySQL, and what it takes its arguments for.

`SIGNATURES` is the only place for this: a function without a row is refused. `NODES` gives sqlglot's own nodes the name
of their row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sqlglot import exp

from dbbench_adapter.dialect.sql_types import (
    DATE,
    DATETIME,
    DOUBLE,
    INT,
    TEXT,
    SqlType,
    as_number,
    common_type,
    quotient,
)


class Finder(Protocol):
    def kind(self, node: exp.Expr | None) -> SqlType | None: ...


Values = Sequence[exp.Expr]
Rule = Callable[[Finder, Values], SqlType | None]


@dataclass(frozen=True)
class Signature:
    result: SqlType | Rule
    takes: str = "."
    """For each argument, the last one standing for all others too: `t` as a text with the digits of a decimal,
    `s` as a text whatever it is, `n` as a number, `d` as a date, `.` as it is."""

    def taken(self, place: int) -> str:
        return self.takes[min(place, len(self.takes) - 1)]

    def kind(self, finder: Finder, values: Values) -> SqlType | None:
        return self.result if isinstance(self.result, SqlType) else self.result(finder, values)


_MORE = 99

# Rules ----------------------------------------------------------------------------------------------------------------


def _decimal(_: Finder, values: Values) -> SqlType | None:
    return SqlType("decimal", int(values[1].name))


def _first(finder: Finder, values: Values) -> SqlType | None:
    return finder.kind(values[0]) if values else None


def _number(finder: Finder, values: Values) -> SqlType | None:
    return as_number(_first(finder, values))


def _of_no_date(finder: Finder, values: Values) -> SqlType | None:
    inner = _first(finder, values)
    return None if inner is not None and inner.is_temporal else as_number(inner)


def _whole(finder: Finder, values: Values) -> SqlType | None:
    """CEIL and FLOOR: a BIGINT of an exact number, a double of a text."""
    inner = _of_no_date(finder, values)
    return inner and (INT if inner.is_exact else DOUBLE)


def _rounded(finder: Finder, values: Values) -> SqlType | None:
    inner, digits = _of_no_date(finder, values), values[1] if len(values) > 1 else exp.Literal.number(0)
    if inner is None or inner == INT:
        return inner
    if inner.name != "decimal":
        return SqlType("double", int(digits.name) if isinstance(digits, exp.Literal) and digits.is_int else 0)
    if isinstance(digits, exp.Neg):
        return SqlType("decimal", 0)
    scale = int(digits.name) if isinstance(digits, exp.Literal) and digits.is_int else _MORE
    return SqlType("decimal", scale) if scale <= inner.scale else None  # MySQL 8 adds no digits, MariaDB does


def _exact_or_full(finder: Finder, values: Values) -> SqlType | None:
    inner = _number(finder, values)
    return None if inner is not None and inner.name == "double" and inner.scale else inner  # MariaDB rounds its sums


def _sum(finder: Finder, values: Values) -> SqlType | None:
    inner = _exact_or_full(finder, values)
    return inner and (SqlType("decimal", inner.scale) if inner.is_exact else DOUBLE)


def _average(finder: Finder, values: Values) -> SqlType | None:
    inner = _exact_or_full(finder, values)
    return inner and quotient(inner, INT)


def _modulo(finder: Finder, values: Values) -> SqlType | None:
    left, right = (as_number(finder.kind(value)) for value in values[:2])
    if left is None or right is None:
        return None
    if not (left.is_exact and right.is_exact):
        return DOUBLE
    return INT if left == right == INT else SqlType("decimal", max(left.scale, right.scale))


def _common(finder: Finder, values: Values) -> SqlType | None:
    return common_type([finder.kind(value) for value in values])


def _of_text(finder: Finder, values: Values) -> SqlType | None:
    return TEXT if _first(finder, values) == TEXT else None


def _compared(finder: Finder, values: Values) -> SqlType | None:
    """FIELD, of texts alone or numbers alone."""
    kinds = [finder.kind(value) for value in values]
    alike = all(kind == TEXT for kind in kinds) or all(kind is not None and kind.is_number for kind in kinds)
    return INT if alike else None


def _extreme(finder: Finder, values: Values) -> SqlType | None:
    """GREATEST and LEAST, of one kind: of several the servers choose in different ways."""
    kinds = {finder.kind(value) for value in values}
    alike = len(kinds) == 1 and kinds <= {INT, DOUBLE, TEXT}
    return next(iter(kinds)) if alike else None


def _shifted(finder: Finder, values: Values) -> SqlType | None:
    """DATE_ADD: a date stays one unless hours or less are added; with hours, the servers write a text differently."""
    inner = _first(finder, values)
    days = (values[2].name.upper() if len(values) > 2 else "DAY") in ("DAY", "WEEK", "MONTH", "QUARTER", "YEAR")
    if inner == DATE:
        return DATE if days else DATETIME
    return inner if inner == DATETIME or (inner == TEXT and days) else None


_DAY_SPECIFIERS, _TIME_SPECIFIERS = frozenset("cdebMmYy"), frozenset("HhIiklprSsT")


def _read_date(_: Finder, values: Values) -> SqlType | None:
    """STR_TO_DATE: a constant format with a whole date in it decides."""
    form = values[1] if len(values) > 1 else None
    specifiers = set(re.findall(r"%(.)", form.name)) if isinstance(form, exp.Literal) else set[str]()
    whole = all(specifiers & set(part) for part in ("de", "cmbM", "Yy"))
    if not whole or specifiers - _DAY_SPECIFIERS - _TIME_SPECIFIERS:
        return None
    return DATETIME if specifiers & _TIME_SPECIFIERS else DATE


def _listed(names: str, result: SqlType | Rule, takes: str = ".") -> dict[str, Signature]:
    return dict.fromkeys(names.split(), Signature(result, takes))


# Functions without a row are refused: rare ones, and those that MySQL and MariaDB answer differently.
SIGNATURES: dict[str, Signature] = {
    # texts
    **_listed("concat concat_ws upper lower ucase lcase reverse replace", TEXT, "t"),
    **_listed("trim trim_piece ltrim ltrim_piece rtrim rtrim_piece", TEXT, "t"),
    **_listed("mid substr substring left_of right_of repeat", TEXT, "tn"),
    **_listed("substring_index", TEXT, "ttn"),
    **_listed("lpad rpad", TEXT, "tnt"),
    **_listed("stuff", TEXT, "tnnt"),
    **_listed("elt", TEXT, "ns"),
    **_listed("space format", TEXT, "n"),
    **_listed("md5 sha sha1 quote", TEXT, "s"),
    **_listed("hex", _of_text),
    **_listed("version database schema user", TEXT),
    **_listed("group_concat mysql_group_concat", TEXT, "t"),
    # whole numbers
    **_listed("length octet_length char_length character_length ascii", INT, "t"),
    **_listed("instr strcmp find_in_set like regexp", INT, "t"),
    **_listed("locate", INT, "ttn"),
    **_listed("sign int_div cast_signed cast_unsigned", INT, "n"),
    **_listed("count distinct_key", INT),
    **_listed("field", _compared),
    **_listed("year month day dayofmonth dayofweek dayofyear weekday quarter date_part hour minute second", INT, "d"),
    **_listed("week", INT, "dn"),
    **_listed("datediff timestamp_diff", INT, "d"),
    **_listed("row_number rank dense_rank ntile", INT),
    # other numbers
    **_listed("sqrt pow power exp ln log log2 log10", DOUBLE, "n"),
    **_listed("rand", DOUBLE),
    **_listed("cast_decimal", _decimal, "n"),
    **_listed("abs neg", _number, "n"),
    **_listed("ceil ceiling floor", _whole, "n"),
    **_listed("round round_double mysql_round truncate", _rounded, "n"),
    **_listed("mod", _modulo, "n"),
    **_listed("sum", _sum, "n"),
    **_listed("avg", _average, "n"),
    # dates and times
    **_listed("date date_of curdate current_date last_day", DATE, "d"),
    **_listed("now sysdate current_timestamp datetime_of", DATETIME, "d"),
    **_listed("date_format", TEXT, "dt"),
    **_listed("dayname monthname", TEXT, "d"),
    **_listed("date_shift", _shifted, "dn."),
    **_listed("str_to_date", _read_date, "t"),
    # our own
    **_listed("temporal_number", INT),
    **_listed("moment_of", DATETIME),
    **_listed("date_alone", TEXT),
    **_listed("as_text decimal_text", TEXT),
    **_listed("stored_as", lambda finder, values: finder.kind(values[2])),
    **_listed("only_row in_bigint in_double", _first),
    # one of their arguments
    **_listed("min max first_value last_value lag lead nullif", _first),
    **_listed("coalesce ifnull", _common),
    **_listed("greatest least", _extreme),
}

_Row = tuple[str, tuple[str, ...]]


def _named(parts: str, *nodes: type[exp.Func], **named: type[exp.Expr]) -> dict[type[exp.Expr], _Row]:
    """Rows of nodes, whose name is sqlglot's own unless it is given, and the nodes' parts that are arguments."""
    rows = {node.sql_name().lower(): node for node in nodes} | named
    return {node: (name, tuple(parts.split())) for name, node in rows.items()}


_THIS, _BOTH = "this", "this expression"
NODES: dict[type[exp.Expr], _Row] = {
    **_named(_THIS, exp.Abs, exp.Avg, exp.Ceil, exp.Exp, exp.FirstValue, exp.Floor, exp.Hex, exp.Lag, exp.LastValue),
    **_named(_THIS, exp.Lead, exp.Max, exp.Min, exp.Sum, neg=exp.Neg),
    **_named(_BOTH, exp.Nullif, exp.Trim, mod=exp.Mod, left_of=exp.Left, right_of=exp.Right, int_div=exp.IntDiv),
    **_named(_BOTH, like=exp.Like, regexp=exp.RegexpLike, timestamp_diff=exp.TimestampDiff),
    **_named("", exp.Count, exp.DenseRank, exp.GroupConcat, exp.Ntile, exp.Rank, exp.RowNumber),
    **_named("", curdate=exp.CurrentDate, now=exp.CurrentTimestamp, user=exp.CurrentUser),
    **_named("expression", date_part=exp.Extract),
    **dict.fromkeys((exp.DateAdd, exp.DateSub, exp.TimestampAdd), ("date_shift", ("this", "expression", "unit"))),
    **_named("this decimals", exp.Round),
    **_named("substr this position", locate=exp.StrPosition),
    **_named("this start length expression", exp.Stuff),
    **_named("this start length", mid=exp.Substring),
}


def called(node: exp.Expr) -> tuple[Signature, list[exp.Expr]] | None:
    if isinstance(node, exp.Anonymous):
        found = SIGNATURES.get(node.name.lower())
        return (found, node.expressions) if found else None
    if type(node) not in NODES:
        return None
    name, parts = NODES[type(node)]
    return SIGNATURES[name], [value for part in parts if isinstance(value := node.args.get(part), exp.Expr)]

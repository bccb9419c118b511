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

from dbbench_adapter.dialect.kinds import (
    DATE,
    DATETIME,
    DOUBLE,
    INT,
    TEXT,
    TIME,
    Kind,
    as_number,
    common_kind,
    quotient,
)


class Finder(Protocol):
    def kind(self, node: exp.Expr | None) -> Kind | None: ...


Values = Sequence[exp.Expr]
Rule = Callable[[Finder, Values], Kind | None]


@dataclass(frozen=True)
class Signature:
    result: Kind | Rule
    takes: str = "."
    """For each argument, the last one standing for all others too: `t` as a text with the digits of a decimal,
    `s` as a text whatever it is, `n` as a number, `.` as it is."""

    def taken(self, place: int) -> str:
        return self.takes[min(place, len(self.takes) - 1)]

    def kind(self, finder: Finder, values: Values) -> Kind | None:
        return self.result if isinstance(self.result, Kind) else self.result(finder, values)


# Rules ----------------------------------------------------------------------------------------------------------------


def _decimal(_: Finder, values: Values) -> Kind | None:
    return Kind("decimal", int(values[1].name))


def _first(finder: Finder, values: Values) -> Kind | None:
    return finder.kind(values[0]) if values else None


def _number(finder: Finder, values: Values) -> Kind | None:
    return as_number(_first(finder, values))


def _whole(finder: Finder, values: Values) -> Kind | None:
    """CEIL and FLOOR: a BIGINT of an exact number, a double of anything else."""
    inner = _number(finder, values)
    return inner and (INT if inner.is_exact else DOUBLE)


def _rounded(finder: Finder, values: Values) -> Kind | None:
    inner, digits = _number(finder, values), values[1] if len(values) > 1 else exp.Literal.number(0)
    if inner is None or inner == INT:
        return inner
    if inner.name != "decimal":
        return Kind("double", int(digits.name) if isinstance(digits, exp.Literal) and digits.is_int else 0)
    if isinstance(digits, exp.Neg):
        return Kind("decimal", 0)
    return Kind("decimal", min(int(digits.name), inner.scale)) if digits.is_int and int(digits.name) >= 0 else None


def _sum(finder: Finder, values: Values) -> Kind | None:
    inner = _number(finder, values)
    return inner and (Kind("decimal", inner.scale) if inner.is_exact else DOUBLE)


def _average(finder: Finder, values: Values) -> Kind | None:
    inner = _number(finder, values)
    return inner and quotient(inner, INT)


def _modulo(finder: Finder, values: Values) -> Kind | None:
    left, right = (as_number(finder.kind(value)) for value in values[:2])
    if left is None or right is None:
        return None
    if not (left.is_exact and right.is_exact):
        return DOUBLE
    return INT if left == right == INT else Kind("decimal", max(left.scale, right.scale))


def _common(finder: Finder, values: Values) -> Kind | None:
    return common_kind([finder.kind(value) for value in values])


def _extreme(finder: Finder, values: Values) -> Kind | None:
    """GREATEST and LEAST: a double if texts and numbers are compared."""
    kinds = [finder.kind(value) for value in values]
    mixed = TEXT in kinds and any(kind is not None and kind.is_number for kind in kinds)
    return DOUBLE if mixed else common_kind(kinds)


def _shifted(finder: Finder, values: Values) -> Kind | None:
    """DATE_ADD: a date stays one unless hours or less are added; the result for a text is a text."""
    inner = _first(finder, values)
    if inner == DATE:
        unit = values[2].name.upper() if len(values) > 2 else "DAY"
        return DATE if unit in ("DAY", "WEEK", "MONTH", "QUARTER", "YEAR", "YEAR_MONTH") else DATETIME
    return inner if inner in (DATETIME, TIME, TEXT, None) else DATETIME


_DAY_SPECIFIERS, _TIME_SPECIFIERS = frozenset("abcDdejMmUuVvWwXxYy"), frozenset("fHhIiklprSsT")


def _read_date(_: Finder, values: Values) -> Kind | None:
    """STR_TO_DATE: the format, if it is a constant, decides."""
    form = values[1] if len(values) > 1 else None
    if not isinstance(form, exp.Literal):
        return DATETIME
    specifiers = set(re.findall(r"%(.)", form.name))
    if specifiers & _TIME_SPECIFIERS:
        return DATETIME if specifiers & _DAY_SPECIFIERS else TIME
    return DATE


def _listed(names: str, result: Kind | Rule, takes: str = ".") -> dict[str, Signature]:
    return dict.fromkeys(names.split(), Signature(result, takes))


SIGNATURES: dict[str, Signature] = {
    # texts
    **_listed(
        "concat concat_ws upper lower ucase lcase reverse replace quote md5 sha sha1 soundex to_base64", TEXT, "t"
    ),
    **_listed("trim trim_piece ltrim ltrim_piece rtrim rtrim_piece regexp_substr regexp_replace", TEXT, "t"),
    **_listed("mid substr substring left_of right_of repeat", TEXT, "tn"),
    **_listed("substring_index", TEXT, "ttn"),
    **_listed("lpad rpad", TEXT, "tnt"),
    **_listed("stuff", TEXT, "tnnt"),
    **_listed("sha2", TEXT, "tn"),
    **_listed("elt", TEXT, "ns"),
    **_listed("space format bin oct", TEXT, "n"),
    **_listed("conv", TEXT, "tn"),
    **_listed("hex typeof version database schema user", TEXT),
    **_listed("group_concat mysql_group_concat", TEXT, "t"),
    # whole numbers
    **_listed("length octet_length bit_length char_length character_length ascii ord crc32", INT, "t"),
    **_listed("instr strcmp find_in_set like like_bin regexp regexp_like regexp_bin", INT, "t"),
    **_listed("locate regexp_instr", INT, "ttn"),
    **_listed("sign int_div cast_signed cast_unsigned", INT, "n"),
    **_listed("bits_and bits_or bitwise_xor bit_count bit_not bit_left bit_right", INT, "n"),
    **_listed("field count distinct_key", INT),
    **_listed("year month day dayofmonth dayofweek dayofyear weekday quarter week weekofyear yearweek", INT),
    **_listed("hour minute second microsecond datediff timestamp_diff date_part to_days to_seconds time_to_sec", INT),
    **_listed("period_add period_diff", INT, "n"),
    **_listed("row_number rank dense_rank ntile", INT),
    # other numbers
    **_listed("sqrt pow power exp ln log log2 log10 degrees radians", DOUBLE, "n"),
    **_listed("sin cos tan asin acos atan atan2 cot", DOUBLE, "n"),
    **_listed("std stddev_pop stddev_samp var_pop var_samp", DOUBLE, "n"),
    **_listed("pi rand percent_rank cume_dist", DOUBLE),
    **_listed("cast_decimal", _decimal, "n"),
    **_listed("abs neg", _number, "n"),
    **_listed("ceil ceiling floor", _whole, "n"),
    **_listed("round round_double mysql_round truncate", _rounded, "n"),
    **_listed("mod", _modulo, "n"),
    **_listed("sum sum_whole sum_digits", _sum, "n"),
    **_listed("avg", _average, "n"),
    # dates and times
    **_listed("date date_of curdate current_date last_day makedate from_days", DATE),
    **_listed("now sysdate current_timestamp datetime_of timestamp", DATETIME),
    **_listed("curtime current_time time time_of sec_to_time maketime timediff", TIME),
    **_listed("date_format time_format dayname monthname", TEXT, ".t"),
    **_listed("date_shift", _shifted),
    **_listed("str_to_date", _read_date, "t"),
    # our own
    **_listed("temporal_number seconds_of compare_values compare_by same_or_null in_list between_by first_same", INT),
    **_listed("any_is all_are", INT),
    **_listed("greatest_number least_number", DOUBLE),
    **_listed("moment_of", DATETIME),
    **_listed("as_text decimal_text", TEXT),
    **_listed("stored_as stored_ignoring", lambda finder, values: finder.kind(values[2])),
    **_listed("only_row in_bigint in_unsigned in_double in_either", _first),
    **_listed("null_if", lambda finder, values: finder.kind(values[1])),
    # one of their arguments
    **_listed("min max any_value first_value last_value nth_value lag lead nullif", _first),
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
    **_named(_THIS, exp.Abs, exp.Acos, exp.AnyValue, exp.Asin, exp.Atan, exp.Avg, exp.Ceil, exp.Cos, exp.Cot),
    **_named(_THIS, exp.Degrees, exp.Exp, exp.FirstValue, exp.Floor, exp.Hex, exp.Lag, exp.LastValue, exp.Lead),
    **_named(_THIS, exp.Max, exp.Min, exp.NthValue, exp.Radians, exp.Sin, exp.Soundex, exp.StddevPop, exp.StddevSamp),
    **_named(_THIS, exp.Sum, exp.Tan, exp.Time, exp.Timestamp, exp.ToBase64, neg=exp.Neg, stddev_pop=exp.Stddev),
    **_named(_THIS, var_samp=exp.Variance, var_pop=exp.VariancePop, weekofyear=exp.WeekOfYear),
    **_named(_THIS, bit_count=exp.BitwiseCount, bit_not=exp.BitwiseNot),
    **_named(_BOTH, exp.Atan2, exp.Nullif, exp.Trim, mod=exp.Mod, left_of=exp.Left, right_of=exp.Right),
    **_named(_BOTH, bits_and=exp.BitwiseAnd, bits_or=exp.BitwiseOr, bitwise_xor=exp.BitwiseXor),
    **_named(_BOTH, like=exp.Like, regexp=exp.RegexpLike),
    **_named(_BOTH, bit_left=exp.BitwiseLeftShift, bit_right=exp.BitwiseRightShift, int_div=exp.IntDiv),
    **_named("", exp.Count, exp.CumeDist, exp.DenseRank, exp.GroupConcat, exp.Ntile, exp.PercentRank, exp.Rank),
    **_named("", exp.RowNumber, curdate=exp.CurrentDate, curtime=exp.CurrentTime, now=exp.CurrentTimestamp),
    **_named("", user=exp.CurrentUser, date_part=exp.Extract, timestamp_diff=exp.TimestampDiff),
    **dict.fromkeys((exp.DateAdd, exp.DateSub, exp.TimestampAdd), ("date_shift", ("this", "expression", "unit"))),
    **_named("this decimals", exp.Round),
    **_named("this length", exp.SHA2),
    **_named("substr this position", locate=exp.StrPosition),
    **_named("this start length expression", exp.Stuff),
    **_named("this start length", mid=exp.Substring),
    **_named("hour min sec", maketime=exp.TimeFromParts),
}


def called(node: exp.Expr) -> tuple[Signature, list[exp.Expr]] | None:
    if isinstance(node, exp.Anonymous):
        found = SIGNATURES.get(node.name.lower())
        return (found, node.expressions) if found else None
    if type(node) not in NODES:
        return None
    name, parts = NODES[type(node)]
    return SIGNATURES[name], [value for part in parts if isinstance(value := node.args.get(part), exp.Expr)]

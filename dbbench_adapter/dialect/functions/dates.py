"""Computes MySQL's date functions over ISO texts; they return NULL if a text is no date."""

from __future__ import annotations

import calendar
import datetime
import re
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from dateutil.relativedelta import relativedelta

from dbbench_adapter.datatypes import SqlValue
from dbbench_adapter.dialect.functions.numeric import half_up
from dbbench_adapter.dialect.functions.values import Function, to_number, to_text, whole
from dbbench_adapter.statement_clock import Refused, left_out

# A longer format of a date is refused.
MAX_FORMAT_CHARS = 255
# A longer text is no date or time; STR_TO_DATE reads no further than this.
MAX_DATE_CHARS = 255
_DATE = re.compile(
    r"(?P<year>\d{4})(?P<sep>[-/.])(?P<month>\d{1,2})(?P=sep)(?P<day>\d{1,2})"
    r"(?:[T ](?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}))?)?"
)
_COMPACT = re.compile(r"(\d{4})(\d\d)(\d\d)(?:(\d\d)(\d\d)(\d\d))?")
_PART_NAMES = ("year", "month", "day", "hour", "minute", "second")
_DATE_CHARS = 10
_TIME = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
# Python's strftime and strptime have these names for MySQL's specifiers.
_DIRECTIVES = {
    **{code: f"%{code}" for code in "YymdbaHIpjw%"},
    **{"c": "%m", "e": "%d", "M": "%B", "W": "%A", "k": "%H", "h": "%I", "l": "%I", "i": "%M", "s": "%S", "S": "%S"},
    **{"D": "%d", "T": "%H:%M:%S", "r": "%I:%M:%S %p"},
}
_UNPADDED = frozenset("cekl")
_TIME_SPECIFIERS = frozenset("HkhIlisSTrp")


def moment(value: SqlValue) -> datetime.datetime | None:
    """The date and time in a text; None for a text that begins with no digit, and for a day that no month has.

    Raises:
        Refused: MySQL reads a part of the text, or has a date that Python has not, such as 2020-00-00.
    """
    text = to_text(value).strip()
    if match := _matched(_DATE, text):
        found = match.group(*_PART_NAMES)
    elif match := _matched(_COMPACT, text):
        found = match.groups()
    elif text[:1].isdigit():
        raise Refused(left_out("dates in other forms than 2024-01-31 10:00:00"))
    else:
        return None
    parts = [int(part or 0) for part in found]
    if 0 in parts[:3]:
        raise Refused(left_out("dates of zeros"))
    try:
        return datetime.datetime(*parts)  # pyright: ignore[reportArgumentType]
    except ValueError:
        return None


def _date_alone(value: SqlValue) -> SqlValue:
    """Raises Refused: a text with a time, to which MariaDB adds six digits."""
    if len(to_text(value).strip()) > _DATE_CHARS and moment(value) is not None:
        raise Refused(left_out("DATE_ADD of a text with a time"))
    return value


def _required(value: SqlValue) -> datetime.datetime:
    """Raises Refused: the value is no date, where MySQL 8 ends the statement and MariaDB does not."""
    if (found := moment(value)) is None:
        raise Refused(left_out("a comparison of a date with a text that is none"))
    return found


def _temporal_number(value: SqlValue) -> int | None:
    # A date as MySQL counts with it: 20210301 or 20210301100509.
    return int(re.sub(r"\D", "", to_text(value)))


def _matched(pattern: re.Pattern[str], value: SqlValue) -> re.Match[str] | None:
    text = to_text(value)
    return pattern.fullmatch(text) if len(text) <= MAX_DATE_CHARS else None


def _format_of(form: SqlValue) -> str:
    """Raises Refused: the format is too long, or has a specifier that is not known."""
    text = to_text(form)
    if len(text) > MAX_FORMAT_CHARS or set(re.findall(r"%(.)", text)) - set(_DIRECTIVES):
        raise Refused(left_out("this format of a date"))
    return text


def _clock_part(place: int) -> Callable[[SqlValue], int | None]:
    def part(value: SqlValue) -> int | None:
        match = _matched(_TIME, to_text(value).strip())
        if match:
            return int(match[place + 1] or 0)
        found = moment(value)
        if found is not None and len(to_text(value).strip()) <= _DATE_CHARS:
            raise Refused(left_out("the hour of a date"))
        return None if found is None else (found.hour, found.minute, found.second)[place]

    return part


def _of_dates(function: Callable[..., SqlValue], count: int = 1) -> Callable[..., SqlValue]:
    """NULL if one of the first `count` arguments, which the function takes as dates, is none."""

    def guarded(*values: SqlValue) -> SqlValue:
        dates = [moment(value) for value in values[:count]]
        return None if None in dates else function(*dates, *values[count:])

    return guarded


def _week(day: datetime.datetime, mode: int) -> int:
    """The week in the modes 0 and 1 of WEEK, which count from the first Sunday, and from the first week of four days.

    Raises:
        Refused: another mode.
    """
    if mode not in (0, 1):
        raise Refused(left_out("modes of WEEK other than 0 and 1"))
    if mode == 0:
        return int(day.strftime("%U"))
    first = datetime.date(day.year, 1, 1).weekday()
    return (day.timetuple().tm_yday - 1 + first) // 7 + (first < 4)


def _week_of(value: SqlValue, mode: SqlValue = 0) -> SqlValue:
    return _of_dates(lambda day: _week(day, whole(mode)))(value)


_CLOCK_PARTS = _PART_NAMES[3:]
_PARTS: dict[str, Callable[[datetime.datetime], Any]] = {
    **{name: attrgetter(name) for name in _PART_NAMES[:3]},
    "quarter": lambda day: (day.month + 2) // 3,
    "week": lambda day: _week(day, 0),
}


def _date_part(part: SqlValue, value: SqlValue) -> SqlValue:
    """Raises Refused: the part is one of several words, or microseconds."""
    name = to_text(part).lower()
    if name in _CLOCK_PARTS:
        return STRICT[name][1](value)
    if name not in _PARTS:
        raise Refused(left_out(f"EXTRACT({name.upper()})"))
    return _of_dates(_PARTS[name])(value)


def _ordinal(day: int) -> str:
    suffix = "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{suffix}"


def _formatted(found: datetime.datetime, form: SqlValue) -> str:
    def written(match: re.Match[str]) -> str:
        specifier = match[1]
        if specifier == "D":
            return _ordinal(found.day)
        text = found.strftime(_DIRECTIVES[specifier])
        return text.removeprefix("0") if specifier in _UNPADDED else text

    return re.sub(r"%(.)", written, _format_of(form))


def _str_to_date(text: SqlValue, form: SqlValue) -> str | None:
    """ISO text of the date or the date and time, as the format has them; None if the text does not fit it.

    Raises:
        Refused: a part of the text fits, or the text has blanks or zeros of its own.
    """
    form, text = _format_of(form), to_text(text)[:MAX_DATE_CHARS]
    specifiers = set(re.findall(r"%(.)", form))
    try:
        found = datetime.datetime.strptime(text, re.sub(r"%(.)", lambda m: _DIRECTIVES[m[1]], form))
    except (ValueError, re.error):
        if not text[:1].isalnum() or "%D" in form:
            raise Refused(left_out("STR_TO_DATE of such a text")) from None
        if text[:1].isdigit() == (form[1:2] in "bMa"):
            return None
        raise Refused(left_out("STR_TO_DATE of a text that does not fit the format")) from None
    timed = bool(specifiers & _TIME_SPECIFIERS)
    return found.isoformat(sep=" ") if timed else found.date().isoformat()


_UNITS = {
    **{"second": relativedelta(seconds=1), "minute": relativedelta(minutes=1), "hour": relativedelta(hours=1)},
    **{"day": relativedelta(days=1), "week": relativedelta(weeks=1), "month": relativedelta(months=1)},
    **{"quarter": relativedelta(months=3), "year": relativedelta(years=1)},
}


def _date_shift(value: SqlValue, sign: SqlValue, count: SqlValue, unit: SqlValue) -> str | None:
    """
    Args:
        sign: '+' for DATE_ADD, '-' for DATE_SUB.
        unit: one of `_UNITS`.
    """
    name, amount = to_text(unit).lower(), half_up(to_number(count)) * (-1 if sign == "-" else 1)
    if _matched(_TIME, to_text(value).strip()):
        raise Refused(left_out("DATE_ADD of a time"))
    found = moment(value)
    if found is None:
        return None
    try:
        shifted = found + _UNITS[name] * amount
    except (OverflowError, ValueError):
        return None
    dated = len(to_text(value).strip()) <= _DATE_CHARS and name not in _CLOCK_PARTS
    return shifted.date().isoformat() if dated else shifted.isoformat(sep=" ")


def _last_day(day: datetime.datetime) -> str:
    return day.replace(day=calendar.monthrange(day.year, day.month)[1]).date().isoformat()


def _timestamp_diff(unit: SqlValue, start: SqlValue, end: SqlValue) -> int | None:
    first, second, unit = moment(start), moment(end), to_text(unit).lower()
    if first is None or second is None:
        return None
    seconds = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
    if unit in seconds:
        return int((second - first).total_seconds() / seconds[unit])
    sign = 1 if first <= second else -1
    early, late = min(first, second), max(first, second)
    months = (late.year - early.year) * 12 + late.month - early.month
    months -= (late.day, late.time()) < (early.day, early.time())
    divisor = {"month": 1, "quarter": 3, "year": 12}.get(unit)
    if divisor is None:
        raise Refused(left_out(f"TIMESTAMPDIFF in {unit.upper()}"))
    return sign * (months // divisor)


NULLS_MATTER: dict[str, Function] = {
    **dict.fromkeys(("now", "sysdate"), (0, lambda: datetime.datetime.now().isoformat(sep=" ", timespec="seconds"))),
    "curdate": (0, lambda: datetime.date.today().isoformat()),
}

STRICT: dict[str, Function] = {
    "date_format": (2, _of_dates(_formatted)),
    "str_to_date": (2, _str_to_date),
    "datediff": (2, _of_dates(lambda left, right: (left.date() - right.date()).days, 2)),
    "date_shift": (4, _date_shift),
    "date_part": (2, _date_part),
    **dict.fromkeys(("date", "date_of"), (1, _of_dates(lambda d: d.date().isoformat()))),
    "datetime_of": (1, _of_dates(lambda d: d.isoformat(sep=" "))),
    "dayofmonth": (1, _of_dates(lambda d: d.day)),
    "dayname": (1, _of_dates(lambda d: d.strftime("%A"))),
    "monthname": (1, _of_dates(lambda d: d.strftime("%B"))),
    "dayofweek": (1, _of_dates(lambda d: (d.weekday() + 1) % 7 + 1)),
    "dayofyear": (1, _of_dates(lambda d: d.timetuple().tm_yday)),
    "weekday": (1, _of_dates(lambda d: d.weekday())),
    "last_day": (1, _of_dates(_last_day)),
    "date_alone": (1, _date_alone),
    "moment_of": (1, lambda value: _required(value).isoformat(sep=" ")),
    "temporal_number": (1, _temporal_number),
    "timestamp_diff": (3, _timestamp_diff),
    **{name: (1, _of_dates(_PARTS[name])) for name in ("year", "month", "day", "quarter")},
    **{name: (1, _clock_part(place)) for place, name in enumerate(_CLOCK_PARTS)},
    "week": (-1, _week_of),
}

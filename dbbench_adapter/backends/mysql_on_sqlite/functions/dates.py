"""Computes MySQL's date functions over ISO texts; they return NULL if a text is no date."""

from __future__ import annotations

import calendar
import datetime
import re
from collections.abc import Callable
from typing import Any

from dateutil.relativedelta import relativedelta

from dbbench_adapter.backends.mysql_on_sqlite.functions.numeric import half_up
from dbbench_adapter.backends.mysql_on_sqlite.functions.values import Function, number, text_of

MAX_FORMAT_CHARS = 255
"""A longer format of a date is refused."""
MAX_DATE_CHARS = 255
"""A longer text is no date or time; STR_TO_DATE reads no further than this."""
_DATE = re.compile(r"\s*(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?:[T ]+(\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d*)?)?)?\s*$")
_TIME = re.compile(r"\s*(\d{1,3}):([0-5]?\d)(?::([0-5]?\d)(?:\.\d*)?)?\s*$")
_DIRECTIVES = {
    **{code: f"%{code}" for code in "YymdbaHIpfjw%"},
    **{"c": "%m", "e": "%d", "M": "%B", "W": "%A", "k": "%H", "h": "%I", "l": "%I", "i": "%M", "s": "%S", "S": "%S"},
    **{"D": "%d", "T": "%H:%M:%S", "r": "%I:%M:%S %p"},
}
"""Python's strftime and strptime have these names for MySQL's specifiers."""
_UNPADDED = frozenset("cekl")
_DAY_SPECIFIERS, _TIME_SPECIFIERS = frozenset("deDj"), frozenset("HkhIlisSTrpf")


def _moment(value: Any) -> datetime.datetime | None:
    match = _matched(_DATE, value)
    if not match:
        return None
    try:
        return datetime.datetime(*(int(part or 0) for part in match.groups()))  # pyright: ignore[reportArgumentType]
    except ValueError:
        return None


def _matched(pattern: re.Pattern[str], value: Any) -> re.Match[str] | None:
    text = text_of(value)
    return pattern.match(text) if len(text) <= MAX_DATE_CHARS else None


def _format_of(form: Any) -> str:
    """Return the format as text.
    Raises:
        ValueError: the format is too long.
    """
    text = text_of(form)
    if len(text) > MAX_FORMAT_CHARS:
        raise ValueError("the format is too long")
    return text


def _from_time(place: int, from_date: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return HOUR, MINUTE or SECOND of a date with a time, or of a time alone."""

    def guarded(value: Any) -> Any:
        match = _matched(_TIME, value)
        return int(match[place] or 0) if match else from_date(value)

    return guarded


def _from_date(read: Callable[[datetime.datetime], Any]) -> Callable[[Any], Any]:
    def guarded(value: Any) -> Any:
        moment = _moment(value)
        return None if moment is None else read(moment)

    return guarded


_PARTS: dict[str, Callable[[datetime.datetime], Any]] = {
    "year": lambda d: d.year,
    "month": lambda d: d.month,
    "day": lambda d: d.day,
    "hour": lambda d: d.hour,
    "minute": lambda d: d.minute,
    "second": lambda d: d.second,
    "quarter": lambda d: (d.month + 2) // 3,
    "week": lambda d: int(d.strftime("%U")),
}


_CLOCK_PARTS = ("hour", "minute", "second")


def _date_part(part: Any, value: Any) -> Any:
    read = _PARTS.get(text_of(part).lower())
    return _from_date(read)(value) if read else None


def _ordinal(day: int) -> str:
    suffix = "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{suffix}"


def _date_format(value: Any, form: Any) -> str | None:
    moment = _moment(value)
    if moment is None:
        return None

    def written(match: re.Match[str]) -> str:
        specifier = match[1]
        if specifier == "D":
            return _ordinal(moment.day)
        text = moment.strftime(_DIRECTIVES.get(specifier, specifier))
        return text.removeprefix("0") if specifier in _UNPADDED else text

    return re.sub(r"%(.)", written, _format_of(form))


def _str_to_date(text: Any, form: Any) -> str | None:
    """Return the date, the time or both as ISO text, as the format has them; return None if the text does not fit it.

    MySQL ignores the text after the part that fits, and in its default sql_mode a date without a day is no date.
    """
    form, text = _format_of(form), text_of(text)[:MAX_DATE_CHARS].strip()
    specifiers = set(re.findall(r"%(.)", form))
    if "D" in specifiers:
        text = re.sub(r"(\d)(?:st|nd|rd|th)", r"\1", text)
    try:
        moment = datetime.datetime.strptime(text, re.sub(r"%(.)", lambda m: _DIRECTIVES.get(m[1], m[1]), form))
    except (ValueError, re.error) as error:
        _, unread, rest = str(error).partition("unconverted data remains: ")
        return _str_to_date(text.removesuffix(rest), form) if unread else None
    timed = bool(specifiers & _TIME_SPECIFIERS)
    if not specifiers & _DAY_SPECIFIERS:
        return moment.time().isoformat() if timed else None
    return moment.isoformat(sep=" ") if timed else moment.date().isoformat()


def _datediff(left: Any, right: Any) -> int | None:
    first, second = _moment(left), _moment(right)
    return None if first is None or second is None else (first.date() - second.date()).days


_UNITS = {
    **{"second": relativedelta(seconds=1), "minute": relativedelta(minutes=1), "hour": relativedelta(hours=1)},
    **{"day": relativedelta(days=1), "week": relativedelta(weeks=1), "month": relativedelta(months=1)},
    **{"quarter": relativedelta(months=3), "year": relativedelta(years=1)},
}


def _date_shift(value: Any, sign: Any, count: Any, unit: Any) -> str | None:
    moment, amount = _moment(value), half_up(number(count)) * (-1 if sign == "-" else 1)
    step = _UNITS.get(text_of(unit).lower())
    if moment is None or step is None:
        return None
    try:
        shifted = moment + step * amount
    except (OverflowError, ValueError):
        return None
    dated = len(text_of(value).strip()) <= 10 and shifted.time() == datetime.time()
    return shifted.date().isoformat() if dated else shifted.isoformat(sep=" ")


def _last_day(moment: datetime.datetime) -> str:
    return moment.replace(day=calendar.monthrange(moment.year, moment.month)[1]).date().isoformat()


def _timestamp_diff(unit: Any, start: Any, end: Any) -> int | None:
    first, second = _moment(start), _moment(end)
    if first is None or second is None:
        return None
    unit = text_of(unit).lower()
    seconds = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
    if unit in seconds:
        return int((second - first).total_seconds() / seconds[unit])
    sign = 1 if first <= second else -1
    early, late = min(first, second), max(first, second)
    months = (late.year - early.year) * 12 + late.month - early.month
    months -= (late.day, late.time()) < (early.day, early.time())
    divisor = {"month": 1, "quarter": 3, "year": 12}.get(unit)
    return sign * (months // divisor) if divisor else None


def _now() -> str:
    return datetime.datetime.now().isoformat(sep=" ", timespec="seconds")


NULLS_MATTER: dict[str, Function] = {
    "now": (0, _now),
    "sysdate": (0, _now),
    "curdate": (0, lambda: datetime.date.today().isoformat()),
    "curtime": (0, lambda: datetime.datetime.now().strftime("%H:%M:%S")),
}

STRICT: dict[str, Function] = {
    "date_format": (2, _date_format),
    "str_to_date": (2, _str_to_date),
    "datediff": (2, _datediff),
    "date_shift": (4, _date_shift),
    "date_part": (2, _date_part),
    "date_of": (1, _from_date(lambda d: d.date().isoformat())),
    "datetime_of": (1, _from_date(lambda d: d.isoformat(sep=" "))),
    "date": (1, _from_date(lambda d: d.date().isoformat())),
    "dayofmonth": (1, _from_date(lambda d: d.day)),
    "dayname": (1, _from_date(lambda d: d.strftime("%A"))),
    "monthname": (1, _from_date(lambda d: d.strftime("%B"))),
    "dayofweek": (1, _from_date(lambda d: (d.weekday() + 1) % 7 + 1)),
    "dayofyear": (1, _from_date(lambda d: d.timetuple().tm_yday)),
    "weekday": (1, _from_date(lambda d: d.weekday())),
    "last_day": (1, _from_date(_last_day)),
    "timestamp_diff": (3, _timestamp_diff),
    **{name: (1, _from_date(read)) for name, read in _PARTS.items()},
    **{name: (1, _from_time(place, _from_date(_PARTS[name]))) for place, name in enumerate(_CLOCK_PARTS, 1)},
}

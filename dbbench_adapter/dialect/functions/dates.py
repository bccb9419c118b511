"""Computes MySQL's date functions over ISO texts; they return NULL if a text is no date."""

from __future__ import annotations

import calendar
import datetime
import re
from collections.abc import Callable
from functools import reduce
from operator import attrgetter
from typing import Any

from dateutil.relativedelta import relativedelta

from dbbench_adapter.dialect.functions.numeric import half_up
from dbbench_adapter.dialect.functions.values import Function, number, text_of, whole

# A longer format of a date is refused.
MAX_FORMAT_CHARS = 255
# A longer text is no date or time; STR_TO_DATE reads no further than this.
MAX_DATE_CHARS = 255
_DATE = re.compile(
    r"\s*(\d{4}|\d{2})[^\w\s](\d{1,2})[^\w\s](\d{1,2})(?:(?:T|\s+)(\d{1,2})(?:[^\w\s](\d{1,2})(?:[^\w\s](\d{1,2})(?:\.\d*)?)?)?)?\s*$"
)
_COMPACT = re.compile(r"\s*(\d{4}|\d{2})(\d\d)(\d\d)(?:(\d\d)(\d\d)(\d\d))?(?:\.\d*)?\s*$")
_TIME = re.compile(r"\s*(-?)(\d{1,3}):([0-5]?\d)(?::([0-5]?\d)(?:\.\d*)?)?\s*$")
# The longest TIME of MySQL.
_MAX_SECONDS = 838 * 3600 + 59 * 60 + 59
# Python's strftime and strptime have these names for MySQL's specifiers.
_DIRECTIVES = {
    **{code: f"%{code}" for code in "YymdbaHIpfjw%"},
    **{"c": "%m", "e": "%d", "M": "%B", "W": "%A", "k": "%H", "h": "%I", "l": "%I", "i": "%M", "s": "%S", "S": "%S"},
    **{"D": "%d", "T": "%H:%M:%S", "r": "%I:%M:%S %p"},
}
_UNPADDED = frozenset("cekl")
_DAY_SPECIFIERS, _TIME_SPECIFIERS = frozenset("deDj"), frozenset("HkhIlisSTrpf")


def moment(value: Any) -> datetime.datetime | None:
    """The date and time that MySQL reads in a text or number; None if it is no date."""
    match = _matched(_COMPACT, value) or _matched(_DATE, value)
    if not match:
        return None
    year, *rest = (int(part or 0) for part in match.groups())
    if len(match[1]) == 2:
        year += 2000 if year < 70 else 1900
    try:
        return datetime.datetime(year, *rest)  # pyright: ignore[reportArgumentType]
    except ValueError:
        return None


def seconds_of(value: Any) -> int | None:
    """Seconds of a time, or of a date's time; None if it is neither."""
    match = _matched(_TIME, value)
    if match:
        seconds = int(match[2]) * 3600 + int(match[3]) * 60 + int(match[4] or 0)
        return -seconds if match[1] else seconds
    found = moment(value) if _matched(_DATE, value) else None
    return None if found is None else found.hour * 3600 + found.minute * 60 + found.second


def time_within(text: str) -> int | None:
    """The seconds that a TIME column takes of `5:6`, `50607` or a date with a time; None if it takes none."""
    if (match := re.fullmatch(r"\s*(-?)(\d{1,7})\s*", text)) is not None:
        number = int(match[2])
        minutes, seconds = number // 100 % 100, number % 100
        found = number // 10_000 * 3600 + minutes * 60 + seconds if max(minutes, seconds) < 60 else None
        found = -found if found is not None and match[1] else found
    elif _matched(_COMPACT, text) and (read := moment(text)) is not None:
        found = read.hour * 3600 + read.minute * 60 + read.second
    else:
        found = seconds_of(text) if ":" in text else None
    return found if found is not None and abs(found) <= _MAX_SECONDS else None


def time_text(seconds: int) -> str:
    # A time beyond MySQL's range becomes its end.
    size = min(abs(seconds), _MAX_SECONDS)
    return f"{'-' if seconds < 0 else ''}{size // 3600:02}:{size // 60 % 60:02}:{size % 60:02}"


def _required(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Raises ValueError: the value is no date or time, where MySQL ends the statement."""

    def required(value: Any) -> Any:
        if (found := read(value)) is None:
            raise ValueError("no date or time")
        return found

    return required


def _temporal_number(value: Any) -> int | None:
    # A date or time as MySQL counts with it: 20210301, 20210301100509 or 100509.
    text = text_of(value)
    digits = re.sub(r"\D", "", text)
    return (-int(digits) if text.startswith("-") else int(digits)) if digits else None


def _matched(pattern: re.Pattern[str], value: Any) -> re.Match[str] | None:
    text = text_of(value)
    return pattern.match(text) if len(text) <= MAX_DATE_CHARS else None


def _format_of(form: Any) -> str:
    """Raises ValueError: the format is too long."""
    text = text_of(form)
    if len(text) > MAX_FORMAT_CHARS:
        raise ValueError("the format is too long")
    return text


def _from_time(place: int, from_date: Callable[[Any], Any]) -> Callable[[Any], Any]:

    def guarded(value: Any) -> Any:
        match = _matched(_TIME, value)
        return int(match[place + 1] or 0) if match else from_date(value)

    return guarded


def _of_dates(function: Callable[..., Any], count: int = 1) -> Callable[..., Any]:
    """NULL if one of the first `count` arguments, which the function takes as dates, is none."""

    def guarded(*values: Any) -> Any:
        dates = [moment(value) for value in values[:count]]
        return None if None in dates else function(*dates, *values[count:])

    return guarded


def _week(day: datetime.datetime, mode: int) -> tuple[int, int]:
    """The year and the week of a day in one of the eight modes of WEEK.

    Source:
        MySQL `calc_week`, mysys/my_time.cc: Monday first (1), weeks of the year before or after count there (2), the
        first week begins with the first such weekday rather than with four days in the year (4, turned for Sunday).
    """
    from_monday, own_year = bool(mode & 1), bool(mode & 2)
    whole_weeks = bool(mode & 4) == from_monday
    year, days = day.year, day.toordinal()
    first = datetime.date(year, 1, 1)
    start, weekday = first.toordinal(), first.weekday() if from_monday else (first.weekday() + 1) % 7
    late = weekday != 0 if whole_weeks else weekday >= 4
    if day.month == 1 and day.day <= 7 - weekday:
        if late and not own_year:
            return year, 0
        if late:
            year -= 1
            length = 365 + calendar.isleap(year)
            start, weekday = start - length, (weekday + 53 * 7 - length) % 7
            late = weekday != 0 if whole_weeks else weekday >= 4
    passed = days - (start + 7 - weekday if late else start - weekday)
    if own_year and passed >= 52 * 7:
        weekday = (weekday + 365 + calendar.isleap(year)) % 7
        if weekday == 0 if whole_weeks else weekday < 4:
            return year + 1, 1
    return year, passed // 7 + 1


def _week_of(value: Any, mode: Any = 0) -> int | None:
    return _of_dates(lambda day: _week(day, whole(mode) & 7)[1])(value)


def _year_and_week(value: Any, mode: Any = 0) -> int | None:
    found = _of_dates(lambda day: _week(day, whole(mode) & 7 | 2))(value)
    return found and found[0] * 100 + found[1]


def _joined(first: str, last: str) -> Callable[[datetime.datetime], int]:
    """The parts from one to another as one number, two digits each."""
    names = _PART_NAMES[_PART_NAMES.index(first) : _PART_NAMES.index(last) + 1]
    return lambda day: reduce(lambda number, name: number * 100 + getattr(day, name), names, 0)


_PART_NAMES = ("year", "month", "day", "hour", "minute", "second")
_JOINED = "year_month day_hour day_minute day_second hour_minute hour_second minute_second"
_PARTS: dict[str, Callable[[datetime.datetime], Any]] = {
    **{name: attrgetter(name) for name in _PART_NAMES},
    **{pair: _joined(*pair.split("_")) for pair in _JOINED.split()},
    "quarter": lambda day: (day.month + 2) // 3,
    "week": lambda day: _week(day, 0)[1],
}
_CLOCK_PARTS = ("hour", "minute", "second")


def _date_part(part: Any, value: Any) -> Any:
    """Raises ValueError: the part is unknown here, such as microseconds."""
    name = text_of(part).lower()
    if name not in _PARTS:
        raise ValueError("an unknown part of a date")
    if name in _CLOCK_PARTS:
        return STRICT[name][1](value)
    return _of_dates(_PARTS[name])(value)


def _ordinal(day: int) -> str:
    suffix = "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{suffix}"


# The mode of WEEK for a specifier, and whether it prints the year (0) or the week (1).
_WEEKS = {"U": (0, 1), "u": (1, 1), "V": (2, 1), "v": (3, 1), "X": (2, 0), "x": (3, 0)}


def _formatted(found: datetime.datetime, form: Any) -> str:
    def written(match: re.Match[str]) -> str:
        specifier = match[1]
        if specifier == "D":
            return _ordinal(found.day)
        if specifier in _WEEKS:
            mode, place = _WEEKS[specifier]
            return f"{_week(found, mode)[place]:0{(4, 2)[place]}}"
        text = found.strftime(_DIRECTIVES.get(specifier, specifier))
        return text.removeprefix("0") if specifier in _UNPADDED else text

    return re.sub(r"%(.)", written, _format_of(form))


def _time_format(value: Any, form: Any) -> str | None:
    """Raises ValueError: a time that no day has."""
    seconds = seconds_of(value)
    if seconds is None:
        return None
    if not 0 <= seconds < 86_400:
        raise ValueError("a time outside a day")
    return _formatted(datetime.datetime(1, 1, 1) + datetime.timedelta(seconds=seconds), form)


def _str_to_date(text: Any, form: Any) -> str | None:
    # ISO text of the date, the time or both, as the format has them; None if the text does not fit it. MySQL ignores
    # the text after the part that fits, and in its default sql_mode a date without a day is no date.
    form, text = _format_of(form), text_of(text)[:MAX_DATE_CHARS].strip()
    specifiers = set(re.findall(r"%(.)", form))
    if "D" in specifiers:
        text = re.sub(r"(\d)(?:st|nd|rd|th)", r"\1", text)
    try:
        found = datetime.datetime.strptime(text, re.sub(r"%(.)", lambda m: _DIRECTIVES.get(m[1], m[1]), form))
    except (ValueError, re.error) as error:
        _, unread, rest = str(error).partition("unconverted data remains: ")
        return _str_to_date(text.removesuffix(rest), form) if unread else None
    timed = bool(specifiers & _TIME_SPECIFIERS)
    if not specifiers & _DAY_SPECIFIERS:
        return found.time().isoformat() if timed else None
    return found.isoformat(sep=" ") if timed else found.date().isoformat()


_UNITS = {
    **{"second": relativedelta(seconds=1), "minute": relativedelta(minutes=1), "hour": relativedelta(hours=1)},
    **{"day": relativedelta(days=1), "week": relativedelta(weeks=1), "month": relativedelta(months=1)},
    **{"quarter": relativedelta(months=3), "year": relativedelta(years=1)},
}


def _date_shift(value: Any, sign: Any, count: Any, unit: Any) -> str | None:
    """
    Args:
        sign: '+' for DATE_ADD, '-' for DATE_SUB.
    Raises:
        ValueError: the unit is not one of `_UNITS`, or the value is a time of its own.
    """
    name, amount = text_of(unit).lower(), half_up(number(count)) * (-1 if sign == "-" else 1)
    if name not in _UNITS or _matched(_TIME, value):
        raise ValueError("an unknown unit, or a time")
    found = moment(value)
    if found is None:
        return None
    try:
        shifted = found + _UNITS[name] * amount
    except (OverflowError, ValueError):
        return None
    dated = len(text_of(value).strip()) <= 10 and name not in _CLOCK_PARTS
    return shifted.date().isoformat() if dated else shifted.isoformat(sep=" ")


def _last_day(day: datetime.datetime) -> str:
    return day.replace(day=calendar.monthrange(day.year, day.month)[1]).date().isoformat()


def _time_of(value: Any) -> str | None:
    seconds = seconds_of(value)
    return None if seconds is None else time_text(seconds)


def _make_time(hour: Any, minute: Any, second: Any) -> str | None:
    hours, minutes, seconds = whole(hour), whole(minute), whole(second)
    if not (0 <= minutes < 60 and 0 <= seconds < 60):
        return None
    size = abs(hours) * 3600 + minutes * 60 + seconds
    return time_text(-size if hours < 0 else size)


def _make_date(year: Any, day: Any) -> str | None:
    first, place = whole(year), whole(day)
    if place < 1 or not 0 <= first <= 9999:
        return None
    if first < 100:
        first += 2000 if first < 70 else 1900
    return _date_of_day(datetime.date(first, 1, 1).toordinal() + place - 1 + _DAYS_BEFORE)


# MySQL counts the days of a year 0, Python does not.
_DAYS_BEFORE = 365


def _date_of_day(days: Any) -> str | None:
    place = whole(days) - _DAYS_BEFORE
    return datetime.date.fromordinal(place).isoformat() if 1 <= place <= datetime.date.max.toordinal() else None


def _time_difference(left: Any, right: Any) -> str | None:
    # Between a time and a date with a time the difference is NULL.
    times = [_matched(_TIME, value) is not None for value in (left, right)]
    if all(times):
        return time_text((seconds_of(left) or 0) - (seconds_of(right) or 0))
    first, second = moment(left), moment(right)
    if any(times) or first is None or second is None:
        return None
    return time_text(int((first - second).total_seconds()))


def _months(period: Any) -> int:
    """Months of a period such as 202103.

    Raises:
        ValueError: it is no period.
    """
    year, month = divmod(whole(period), 100)
    if not 1 <= month <= 12 or year < 0:
        raise ValueError("no period")
    return (year if year >= 100 else year + (2000 if year < 70 else 1900)) * 12 + month - 1


def _period_add(period: Any, count: Any) -> int:
    months = _months(period) + whole(count)
    return months // 12 * 100 + months % 12 + 1


def _timestamp_diff(unit: Any, start: Any, end: Any) -> int | None:
    first, second, unit = moment(start), moment(end), text_of(unit).lower()
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
        raise ValueError("an unknown unit")
    return sign * (months // divisor)


NULLS_MATTER: dict[str, Function] = {
    **dict.fromkeys(("now", "sysdate"), (0, lambda: datetime.datetime.now().isoformat(sep=" ", timespec="seconds"))),
    "curdate": (0, lambda: datetime.date.today().isoformat()),
    "curtime": (0, lambda: datetime.datetime.now().strftime("%H:%M:%S")),
}

STRICT: dict[str, Function] = {
    "date_format": (2, _of_dates(_formatted)),
    "str_to_date": (2, _str_to_date),
    "datediff": (2, _of_dates(lambda left, right: (left.date() - right.date()).days, 2)),
    "date_shift": (4, _date_shift),
    "date_part": (2, _date_part),
    **dict.fromkeys(("date", "date_of"), (1, _of_dates(lambda d: d.date().isoformat()))),
    **dict.fromkeys(("timestamp", "datetime_of"), (1, _of_dates(lambda d: d.isoformat(sep=" ")))),
    "dayofmonth": (1, _of_dates(lambda d: d.day)),
    "dayname": (1, _of_dates(lambda d: d.strftime("%A"))),
    "monthname": (1, _of_dates(lambda d: d.strftime("%B"))),
    "dayofweek": (1, _of_dates(lambda d: (d.weekday() + 1) % 7 + 1)),
    "dayofyear": (1, _of_dates(lambda d: d.timetuple().tm_yday)),
    "weekday": (1, _of_dates(lambda d: d.weekday())),
    "last_day": (1, _of_dates(_last_day)),
    "moment_of": (1, lambda value: _required(moment)(value).isoformat(sep=" ")),
    "seconds_of": (1, _required(seconds_of)),
    "temporal_number": (1, _temporal_number),
    **dict.fromkeys(("time", "time_of"), (1, _time_of)),
    "time_format": (2, _time_format),
    "time_to_sec": (1, seconds_of),
    "sec_to_time": (1, lambda seconds: time_text(whole(seconds))),
    "maketime": (3, _make_time),
    "timediff": (2, _time_difference),
    "makedate": (2, _make_date),
    "to_days": (1, _of_dates(lambda d: d.toordinal() + _DAYS_BEFORE)),
    "from_days": (1, _date_of_day),
    "to_seconds": (
        1,
        _of_dates(lambda d: (d.toordinal() + _DAYS_BEFORE) * 86_400 + d.hour * 3600 + d.minute * 60 + d.second),
    ),
    "period_add": (2, _period_add),
    "period_diff": (2, lambda left, right: _months(left) - _months(right)),
    "weekofyear": (1, _of_dates(lambda d: _week(d, 3)[1])),
    "yearweek": (-1, _year_and_week),
    "timestamp_diff": (3, _timestamp_diff),
    **{name: (1, _of_dates(_PARTS[name])) for name in ("year", "month", "day", "quarter")},
    **{name: (1, _from_time(place, _of_dates(_PARTS[name]))) for place, name in enumerate(_CLOCK_PARTS, 1)},
    "week": (-1, _week_of),
}

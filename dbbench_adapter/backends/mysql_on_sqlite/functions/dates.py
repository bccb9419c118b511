"""Date functions over ISO texts; NULL where a text is no date."""

from __future__ import annotations

import calendar
import datetime
import re
from collections.abc import Callable
from typing import Any

from dbbench_adapter.backends.mysql_on_sqlite.functions.numeric import half_up
from dbbench_adapter.backends.mysql_on_sqlite.functions.values import Function, number, text_of

MAX_FORMAT_CHARS = 255
"""A longer format of a date is refused."""
MAX_DATE_CHARS = 255
"""A longer text is no date or time; STR_TO_DATE reads no further than this."""
_DATE = re.compile(r"\s*(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?:[T ]+(\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d*)?)?)?\s*$")
_TIME = re.compile(r"\s*(\d{1,3}):([0-5]?\d)(?::([0-5]?\d)(?:\.\d*)?)?\s*$")
_MONTHS = list(calendar.month_name)[1:]
_DAYS = list(calendar.day_name)


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
    """Raises: ValueError."""
    text = text_of(form)
    if len(text) > MAX_FORMAT_CHARS:
        raise ValueError("the format is too long")
    return text


def _of_time(place: int, of_date: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """HOUR, MINUTE or SECOND of a moment, or of a time alone."""

    def guarded(value: Any) -> Any:
        match = _matched(_TIME, value)
        return int(match[place] or 0) if match else of_date(value)

    return guarded


def _of_date(read: Callable[[datetime.datetime], Any]) -> Callable[[Any], Any]:
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


def _date_part(part: Any, value: Any) -> Any:
    read = _PARTS.get(text_of(part).lower())
    return _of_date(read)(value) if read else None


def _ordinal(day: int) -> str:
    suffix = "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{suffix}"


_FORMATS: dict[str, Callable[[datetime.datetime], str]] = {
    "Y": lambda d: f"{d.year:04}",
    "y": lambda d: f"{d.year % 100:02}",
    "m": lambda d: f"{d.month:02}",
    "c": lambda d: str(d.month),
    "M": lambda d: _MONTHS[d.month - 1],
    "b": lambda d: _MONTHS[d.month - 1][:3],
    "d": lambda d: f"{d.day:02}",
    "e": lambda d: str(d.day),
    "D": lambda d: _ordinal(d.day),
    "W": lambda d: _DAYS[d.weekday()],
    "a": lambda d: _DAYS[d.weekday()][:3],
    "w": lambda d: str((d.weekday() + 1) % 7),
    "j": lambda d: f"{d.timetuple().tm_yday:03}",
    "H": lambda d: f"{d.hour:02}",
    "k": lambda d: str(d.hour),
    "h": lambda d: f"{(d.hour + 11) % 12 + 1:02}",
    "I": lambda d: f"{(d.hour + 11) % 12 + 1:02}",
    "l": lambda d: str((d.hour + 11) % 12 + 1),
    "i": lambda d: f"{d.minute:02}",
    "s": lambda d: f"{d.second:02}",
    "S": lambda d: f"{d.second:02}",
    "f": lambda d: f"{d.microsecond:06}",
    "p": lambda d: "AM" if d.hour < 12 else "PM",
    "T": lambda d: f"{d.hour:02}:{d.minute:02}:{d.second:02}",
}


def _date_format(value: Any, form: Any) -> str | None:
    moment = _moment(value)
    if moment is None:
        return None
    return re.sub(r"%(.)", lambda m: _FORMATS.get(m[1], lambda _: m[1])(moment), _format_of(form))


_READS = {
    "Y": r"(?P<year>\d{4})",
    "y": r"(?P<year2>\d{1,2})",
    "m": r"(?P<month>\d{1,2})",
    "c": r"(?P<month>\d{1,2})",
    "M": r"(?P<name>[A-Za-z]+)",
    "b": r"(?P<name>[A-Za-z]{3})",
    "d": r"(?P<day>\d{1,2})",
    "e": r"(?P<day>\d{1,2})",
    "D": r"(?P<day>\d{1,2})(?:st|nd|rd|th)",
    "H": r"(?P<hour>\d{1,2})",
    "k": r"(?P<hour>\d{1,2})",
    "i": r"(?P<minute>\d{1,2})",
    "s": r"(?P<second>\d{1,2})",
    "S": r"(?P<second>\d{1,2})",
    "T": r"(?P<hour>\d{1,2}):(?P<minute>\d{1,2}):(?P<second>\d{1,2})",
    "W": r"[A-Za-z]++",
    "a": r"[A-Za-z]{3}",
}


def _str_to_date(text: Any, form: Any) -> str | None:
    """ISO text of the date, with the time when the format has one; None where the text does not fit the format."""
    try:
        pattern = "".join(
            _READS.get(part[1:]) or re.escape(part.removeprefix("%"))
            for part in re.findall(r"%.|[^%]+", _format_of(form))
        )
        match = re.match(rf"\s*{pattern}", text_of(text)[:MAX_DATE_CHARS], re.IGNORECASE)
    except re.error:  # a part named twice
        return None
    return _assembled(match.groupdict()) if match else None


def _assembled(parts: dict[str, str | None]) -> str | None:
    months = {month[:3].lower(): index for index, month in enumerate(_MONTHS, 1)}
    short, name = parts.get("year2"), parts.get("name")
    year = (2000 if int(short) < 70 else 1900) + int(short) if short else int(parts.get("year") or 0)
    month = months.get(name[:3].lower(), 0) if name else int(parts.get("month") or 0)
    day = int(parts.get("day") or 0)
    time = [int(parts.get(key) or 0) for key in ("hour", "minute", "second")]
    if month > 12 or day > 31:
        return None
    date = f"{year:04}-{month:02}-{day:02}"
    return f"{date} {time[0]:02}:{time[1]:02}:{time[2]:02}" if "hour" in parts else date


def _datediff(left: Any, right: Any) -> int | None:
    first, second = _moment(left), _moment(right)
    return None if first is None or second is None else (first.date() - second.date()).days


def _date_shift(value: Any, sign: Any, count: Any, unit: Any) -> str | None:
    moment, amount = _moment(value), half_up(number(count)) * (-1 if sign == "-" else 1)
    if moment is None:
        return None
    try:
        shifted = _shifted(moment, amount, text_of(unit).lower().rstrip("s"))
    except (OverflowError, ValueError):
        return None
    if shifted is None:
        return None
    dated = len(text_of(value).strip()) <= 10 and shifted.time() == datetime.time()
    return shifted.date().isoformat() if dated else shifted.isoformat(sep=" ")


def _shifted(moment: datetime.datetime, amount: int, unit: str) -> datetime.datetime | None:
    if unit in ("day", "week", "hour", "minute", "second"):
        return moment + datetime.timedelta(**{f"{unit}s": amount})
    months = amount * {"month": 1, "quarter": 3, "year": 12}.get(unit, 0)
    if not months and amount:
        return None
    years, month = divmod(moment.year * 12 + moment.month - 1 + months, 12)
    following = datetime.date(years + month // 11, (month + 1) % 12 + 1, 1)
    last_day = (following - datetime.timedelta(days=1)).day
    return moment.replace(year=years, month=month + 1, day=min(moment.day, last_day))


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
    "date_of": (1, _of_date(lambda d: d.date().isoformat())),
    "datetime_of": (1, _of_date(lambda d: d.isoformat(sep=" "))),
    "date": (1, _of_date(lambda d: d.date().isoformat())),
    "dayofmonth": (1, _of_date(lambda d: d.day)),
    "dayname": (1, _of_date(lambda d: _DAYS[d.weekday()])),
    "monthname": (1, _of_date(lambda d: _MONTHS[d.month - 1])),
    "dayofweek": (1, _of_date(lambda d: (d.weekday() + 1) % 7 + 1)),
    "dayofyear": (1, _of_date(lambda d: d.timetuple().tm_yday)),
    "weekday": (1, _of_date(lambda d: d.weekday())),
    "last_day": (1, _of_date(_last_day)),
    "timestamp_diff": (3, _timestamp_diff),
    **{name: (1, _of_date(read)) for name, read in _PARTS.items()},
    **{
        name: (1, _of_time(place, _of_date(_PARTS[name]))) for place, name in enumerate(("hour", "minute", "second"), 1)
    },
}

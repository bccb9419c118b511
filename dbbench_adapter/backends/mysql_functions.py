"""The MySQL functions that agents use and SQLite lacks, as plain functions over str, int, float and None.

`FUNCTIONS` maps a lower-case name to (number of arguments or -1, function); `AGGREGATES` likewise to a class. Without a
word to the contrary None in gives None out. Leaves out JSON, spatial, encryption and user-lock functions.
"""

from __future__ import annotations

import calendar
import datetime
import hashlib
import math
import random
import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

GROUP_CONCAT_MAX_LEN = 1024
_MAX_TEXT = 1_000_000
_NUMBER = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")


@lru_cache(maxsize=65536)
def fold(text: str) -> str:
    """The form under which utf8mb4_0900_ai_ci compares text: case and accents do not count, trailing blanks do."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(char for char in decomposed if not unicodedata.combining(char))


def compare(left: str, right: str) -> int:
    """The collation: negative, 0 or positive."""
    first, second = fold(left), fold(right)
    return (first > second) - (first < second)


def number(value: Any) -> float:
    """A value in a numeric context: text counts as the number it begins with, else 0."""
    if isinstance(value, int | float):
        return value
    match = _NUMBER.match(text_of(value))
    return float(match.group(1)) if match else 0.0


def text_of(value: Any) -> str:
    """A value in a text context; a double without fraction has no point, as in MySQL."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _strict(function: Callable[..., Any]) -> Callable[..., Any]:
    """None in, None out."""

    @wraps(function)
    def with_nulls(*values: Any) -> Any:
        return None if any(value is None for value in values) else function(*values)

    return with_nulls


# Text -----------------------------------------------------------------------------------------------------------------


def _concat_ws(separator: Any, *values: Any) -> str | None:
    if separator is None:
        return None
    return text_of(separator).join(text_of(value) for value in values if value is not None)


def _substring_index(text: Any, delimiter: Any, count: Any) -> str:
    text, delimiter, count = text_of(text), text_of(delimiter), round(number(count))
    if not delimiter or not count:
        return ""
    parts = text.split(delimiter)
    return delimiter.join(parts[:count] if count > 0 else parts[count:])


def _pad(text: Any, length: Any, filler: Any, *, left: bool) -> str | None:
    text, length, filler = text_of(text), round(number(length)), text_of(filler)
    if length < 0 or length > _MAX_TEXT:
        return None
    missing = length - len(text)
    if missing <= 0:
        return text[:length]
    if not filler:
        return None
    padding = (filler * (missing // len(filler) + 1))[:missing]
    return padding + text if left else text + padding


def _locate(needle: Any, text: Any, start: Any = 1) -> int:
    begin = round(number(start))
    return fold(text_of(text)).find(fold(text_of(needle)), begin - 1) + 1 if begin >= 1 else 0


def _repeat(text: Any, count: Any) -> str | None:
    text, count = text_of(text), max(round(number(count)), 0)
    return text * count if len(text) * count <= _MAX_TEXT else None


def _field(value: Any, *items: Any) -> int:
    matches = (index for index, item in enumerate(items, 1) if item is not None and _equal(value, item))
    return 0 if value is None else next(matches, 0)


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        return fold(left) == fold(right)
    return number(left) == number(right)


def _elt(index: Any, *items: Any) -> Any:
    place = round(number(index)) if index is not None else 0
    return items[place - 1] if 1 <= place <= len(items) else None


def _find_in_set(needle: Any, items: Any) -> int:
    wanted = fold(text_of(needle))
    return next((i for i, item in enumerate(text_of(items).split(","), 1) if fold(item) == wanted), 0)


def _format(value: Any, digits: Any) -> str:
    return f"{number(value):,.{max(round(number(digits)), 0)}f}"


def _left(text: Any, length: Any) -> str:
    return text_of(text)[: max(round(number(length)), 0)]


def _right(text: Any, length: Any) -> str:
    count = max(round(number(length)), 0)
    return text_of(text)[-count:] if count else ""


def _distinct_key(*values: Any) -> str | None:
    return None if None in values else "\x1f".join(fold(text_of(value)) for value in values)


# Patterns -------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _like_pattern(pattern: str, escape: str) -> re.Pattern[str]:
    out, index = [], 0
    while index < len(pattern):
        char = pattern[index]
        if char == escape and index + 1 < len(pattern):
            index += 1
            out.append(re.escape(pattern[index]))
        else:
            out.append({"%": ".*", "_": "."}.get(char) or re.escape(char))
        index += 1
    return re.compile("".join(out), re.DOTALL)


def like(pattern: Any, text: Any, escape: Any = "\\") -> int:
    """SQLite calls like(pattern, text) for `text LIKE pattern`."""
    return int(_like_pattern(fold(text_of(pattern)), text_of(escape)).fullmatch(fold(text_of(text))) is not None)


@lru_cache(maxsize=1024)
def _regex(pattern: str) -> re.Pattern[str]:
    names = {"alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "space": r"\s", "upper": "A-Z", "lower": "a-z"}
    for name, chars in names.items():
        pattern = pattern.replace(f"[:{name}:]", chars)
    return re.compile(pattern, re.IGNORECASE)


def _regexp(pattern: Any, text: Any) -> int:
    return int(_regex(text_of(pattern)).search(text_of(text)) is not None)


def _regexp_like(text: Any, pattern: Any, *_flags: Any) -> int:
    return _regexp(pattern, text)


def _regexp_replace(text: Any, pattern: Any, replacement: Any) -> str:
    return _regex(text_of(pattern)).sub(re.sub(r"\$(\d)", r"\\\1", text_of(replacement)), text_of(text))


def _regexp_substr(text: Any, pattern: Any) -> str | None:
    match = _regex(text_of(pattern)).search(text_of(text))
    return match.group(0) if match else None


# Numbers --------------------------------------------------------------------------------------------------------------


def _half_up(value: float) -> int:
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


def _cast_signed(value: Any) -> int:
    return _half_up(value) if isinstance(value, float) else int(number(value))


def _cast_decimal(value: Any, scale: Any) -> int | float:
    digits = max(round(number(scale)), 0)
    rounded = _half_up(number(value) * 10**digits)
    return rounded / 10**digits if digits else rounded


def _int_div(left: Any, right: Any) -> int | None:
    divisor = number(right)
    return math.trunc(number(left) / divisor) if divisor else None


def _truncate(value: Any, digits: Any) -> float:
    factor = 10.0 ** round(number(digits))
    return math.trunc(number(value) * factor) / factor


def _math(function: Callable[..., float]) -> Callable[..., float | None]:
    def guarded(*values: Any) -> float | None:
        try:
            return function(*(number(value) for value in values))
        except (ValueError, OverflowError, ZeroDivisionError):
            return None  # MySQL gives NULL outside a function's domain

    return guarded


def _log(base_or_value: float, *value: float) -> float:
    return math.log(value[0], base_or_value) if value else math.log(base_or_value)


# Dates ----------------------------------------------------------------------------------------------------------------

_DATE = re.compile(r"\s*(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?:[T ]+(\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d*)?)?)?\s*$")
_MONTHS = list(calendar.month_name)[1:]
_DAYS = list(calendar.day_name)


def _moment(value: Any) -> datetime.datetime | None:
    match = _DATE.match(text_of(value))
    if not match:
        return None
    try:
        return datetime.datetime(*(int(part or 0) for part in match.groups()))  # pyright: ignore[reportArgumentType]
    except ValueError:
        return None


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
    return re.sub(r"%(.)", lambda m: _FORMATS.get(m[1], lambda _: m[1])(moment), text_of(form))


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
    "W": r"[A-Za-z]+",
    "a": r"[A-Za-z]{3}",
}


def _str_to_date(text: Any, form: Any) -> str | None:
    """ISO text of the date, with the time when the format has one; None where the text does not fit the format."""
    try:
        pattern = "".join(
            _READS.get(part[1:]) or re.escape(part.removeprefix("%")) for part in re.findall(r"%.|[^%]+", text_of(form))
        )
        match = re.match(rf"\s*{pattern}", text_of(text), re.IGNORECASE)
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
    moment, amount = _moment(value), _half_up(number(count)) * (-1 if sign == "-" else 1)
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


def _now() -> str:
    return datetime.datetime.now().isoformat(sep=" ", timespec="seconds")


# Aggregates -----------------------------------------------------------------------------------------------------------


class _Variance:
    """Welford's running variance; a subclass says what to divide by and whether to take the root."""

    sample = False
    root = False

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def step(self, value: Any) -> None:
        if value is None:
            return
        self.count += 1
        delta = number(value) - self.mean
        self.mean += delta / self.count
        self.squares += delta * (number(value) - self.mean)

    def finalize(self) -> float | None:
        divisor = self.count - 1 if self.sample else self.count
        if divisor <= 0:
            return None
        return math.sqrt(self.squares / divisor) if self.root else self.squares / divisor


class _VarSamp(_Variance):
    sample = True


class _StddevPop(_Variance):
    root = True


class _StddevSamp(_Variance):
    sample = True
    root = True


class _GroupConcat:
    """mysql_group_concat(distinct, separator, directions, value, sort keys...)."""

    def __init__(self) -> None:
        self.items: list[tuple[str, tuple[Any, ...]]] = []
        self.distinct, self.separator, self.directions = 0, ",", ""

    def step(self, distinct: int, separator: str, directions: str, value: Any, *keys: Any) -> None:
        self.distinct, self.separator, self.directions = distinct, separator, directions
        if value is not None:
            self.items.append((text_of(value), keys))

    def finalize(self) -> str | None:
        if not self.items:
            return None
        items = (
            list({fold(item[0]): item for item in reversed(self.items)}.values())[::-1] if self.distinct else self.items
        )
        for place, direction in reversed(list(enumerate(self.directions))):
            items.sort(key=lambda item: _sort_key(item[1][place]), reverse=direction == "-")
        joined = self.separator.join(text for text, _ in items)
        return joined.encode()[:GROUP_CONCAT_MAX_LEN].decode("utf-8", "ignore")


def _sort_key(value: Any) -> tuple[int, Any]:
    if value is None:
        return (0, 0)
    return (1, value) if isinstance(value, int | float) else (2, fold(text_of(value)))


def _md5(value: Any) -> str:
    return hashlib.md5(text_of(value).encode(), usedforsecurity=False).hexdigest()


def _sha1(value: Any) -> str:
    return hashlib.sha1(text_of(value).encode(), usedforsecurity=False).hexdigest()


def _compare_texts(left: Any, right: Any) -> int:
    return compare(text_of(left), text_of(right))


AGGREGATES: dict[str, tuple[int, type]] = {
    "stddev_pop": (1, _StddevPop),
    "stddev_samp": (1, _StddevSamp),
    "var_pop": (1, _Variance),
    "var_samp": (1, _VarSamp),
    "mysql_group_concat": (-1, _GroupConcat),
}

_NULLS_MATTER: dict[str, tuple[int, Callable[..., Any]]] = {
    "concat_ws": (-1, _concat_ws),
    "field": (-1, _field),
    "elt": (-1, _elt),
    "distinct_key": (-1, _distinct_key),
    "isnull": (1, lambda value: int(value is None)),
    "now": (0, _now),
    "sysdate": (0, _now),
    "curdate": (0, lambda: datetime.date.today().isoformat()),
    "curtime": (0, lambda: datetime.datetime.now().strftime("%H:%M:%S")),
    "rand": (-1, lambda *_: random.random()),
    "pi": (0, lambda: math.pi),
    "version": (0, lambda: "8.0.46"),
    "database": (0, lambda: "dbbench"),
}

_STRICT: dict[str, tuple[int, Callable[..., Any]]] = {
    "as_text": (1, text_of),
    "concat": (-1, lambda *values: "".join(text_of(value) for value in values)),
    "substring_index": (3, _substring_index),
    "left": (2, _left),
    "right": (2, _right),
    "lpad": (3, lambda text, length, filler: _pad(text, length, filler, left=True)),
    "rpad": (3, lambda text, length, filler: _pad(text, length, filler, left=False)),
    "locate": (-1, _locate),
    "instr": (2, lambda text, needle: _locate(needle, text)),
    "repeat": (2, _repeat),
    "space": (1, lambda count: _repeat(" ", count)),
    "reverse": (1, lambda text: text_of(text)[::-1]),
    "upper": (1, lambda text: text_of(text).upper()),
    "lower": (1, lambda text: text_of(text).lower()),
    "ucase": (1, lambda text: text_of(text).upper()),
    "lcase": (1, lambda text: text_of(text).lower()),
    "length": (1, lambda text: len(text_of(text).encode())),
    "octet_length": (1, lambda text: len(text_of(text).encode())),
    "char_length": (1, lambda text: len(text_of(text))),
    "character_length": (1, lambda text: len(text_of(text))),
    "ascii": (1, lambda text: (text_of(text).encode() or b"\0")[0]),
    "strcmp": (2, _compare_texts),
    "find_in_set": (2, _find_in_set),
    "format": (2, _format),
    "md5": (1, _md5),
    "sha1": (1, _sha1),
    "sha": (1, _sha1),
    "like": (-1, like),
    "regexp": (2, _regexp),
    "regexp_like": (-1, _regexp_like),
    "regexp_replace": (3, _regexp_replace),
    "regexp_substr": (2, _regexp_substr),
    "cast_signed": (1, _cast_signed),
    "cast_decimal": (2, _cast_decimal),
    "int_div": (2, _int_div),
    "truncate": (2, _truncate),
    "ceil": (1, lambda value: math.ceil(number(value))),
    "ceiling": (1, lambda value: math.ceil(number(value))),
    "floor": (1, lambda value: math.floor(number(value))),
    "sign": (1, lambda value: (number(value) > 0) - (number(value) < 0)),
    "sqrt": (1, _math(math.sqrt)),
    "pow": (2, _math(math.pow)),
    "power": (2, _math(math.pow)),
    "exp": (1, _math(math.exp)),
    "ln": (1, _math(math.log)),
    "log": (-1, _math(_log)),
    "log2": (1, _math(math.log2)),
    "log10": (1, _math(math.log10)),
    "mod": (2, _math(math.fmod)),
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
    **{name: (1, _of_date(read)) for name, read in _PARTS.items()},
}

FUNCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    **_NULLS_MATTER,
    **{name: (count, _strict(function)) for name, (count, function) in _STRICT.items()},
}

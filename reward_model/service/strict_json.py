"""Reads JSON strictly: NaN, Infinity and duplicate keys, which Python's reader accepts, are refused by field.

The number of objects and keys is limited, because reading them keeps other requests waiting.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

import jiter

MAX_DEPTH = 64
# The most keys of one object; every unknown key is an error, which takes time to make.
MAX_KEYS = 1000
# The most objects of one body, and the most lists; a full list of long conversations with tools has fewer.
MAX_OBJECTS = 10_000
_NAME = re.compile(r"[A-Za-z0-9_.]{1,64}")
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
# Digits and exponents look alike to `_may_overflow`.
_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")


class UnreadableError(ValueError):
    """A body, or what it holds, cannot be read; `field` says where, and "" stands for the whole text."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def read_json(text: bytes | str) -> Any:
    """Raises UnreadableError: the text is not UTF-8 or not JSON, is nested too deeply, has too many objects, lists or
    keys, has a key twice, or has a number that is not finite.

    A loop over the values of 100 kB holds Python's lock for milliseconds, so there is one only where something was
    found that has to be named.
    """
    value = _read_faultless(text) if isinstance(text, bytes) else _Unread
    return _read_or_name_the_fault(text) if value is _Unread else value


class _Unread:
    """It stands for a body that may have a fault."""


def _read_faultless(body: bytes) -> Any:
    # jiter takes a quarter of the time of Python's reader with our hook, but its messages name no field, it takes 1e999
    # as infinite and knows none of our limits.
    if max(body.count(b"{"), body.count(b"[")) > MAX_OBJECTS or _may_overflow(body):
        return _Unread
    try:
        value = jiter.from_json(body, allow_inf_nan=False, catch_duplicate_keys=True, cache_mode="none")
    except ValueError:
        return _Unread
    brackets, keys = body.count(b"{") + body.count(b"["), body.count(b":")
    return _Unread if (brackets > MAX_DEPTH or keys > MAX_KEYS) and _is_deep_or_wide(value) else value


def _read_or_name_the_fault(text: bytes | str) -> Any:
    odd: list[str] = []

    def not_finite(digits: str) -> Any:
        odd.append(digits)
        return _NotFinite

    def finite(digits: str) -> Any:
        value = float(digits)
        return value if math.isfinite(value) else not_finite(digits)

    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        _refuse_many(text, "{", "objects")
        value = json.loads(text, parse_constant=not_finite, parse_float=finite, object_pairs_hook=_without_duplicates)
    except UnicodeDecodeError as error:
        raise UnreadableError("", f"byte {error.start} is not UTF-8") from None
    except RecursionError:
        raise UnreadableError("", f"nested deeper than {MAX_DEPTH}") from None
    except json.JSONDecodeError as error:
        raise UnreadableError("", f"not JSON at character {error.pos}: {error.msg}") from None
    except UnreadableError:
        raise
    except ValueError:  # int() raises it
        raise UnreadableError("", "a number has more digits than are read") from None
    _refuse_many(text, "[", "lists")
    surrogates = "\\ud" in text or "\\uD" in text
    deep = text.count("{") + text.count("[") > MAX_DEPTH and _is_deep_or_wide(value)
    if odd or deep or (surrogates and not _is_text(json.dumps(value, ensure_ascii=False))):
        _name_the_fault(value, surrogates=surrogates)
    return value


class _NotFinite:
    """It stands for NaN or Infinity until the field is known."""


def _may_overflow(body: bytes) -> bool:
    """Whether a number may be too large for a double: without 100 digits in a row and an exponent of three digits none
    is above 1e298."""
    digits = body.translate(_ALIKE)
    return b"e000" in digits or b"e+000" in digits or b"0" * 100 in digits


def _refuse_many(text: str, bracket: str, what: str) -> None:
    if text.count(bracket) > MAX_OBJECTS and _without_strings(text).count(bracket) > MAX_OBJECTS:
        raise UnreadableError("", f"more than {MAX_OBJECTS} {what}; send fewer conversations at a time")


def _without_strings(text: str) -> str:
    return _STRING.sub("", text) if "\\" in text else "".join(text.split('"')[::2])


def _is_deep_or_wide(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        if any(len(each) > MAX_KEYS for each in level if isinstance(each, dict)):
            return True
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [below for values in inner for below in values if isinstance(below, dict | list)]
    return bool(level)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = set[str]()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise UnreadableError(field_name([twice]), "this key is there twice; send it once")
    if len(found) > MAX_KEYS:
        raise UnreadableError("", f"an object of {len(found)} keys; expected {MAX_KEYS} at most")
    return found


def _name_the_fault(value: Any, *, surrogates: bool) -> None:
    # A loop instead of recursion, because a body may be nested deeply.
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while waiting:
        path, value = waiting.pop()
        if value is _NotFinite:
            raise UnreadableError(field_name(path), "NaN and Infinity are not JSON; expected a finite value")
        if len(path) > MAX_DEPTH:
            raise UnreadableError(field_name(path[:8]), f"nested deeper than {MAX_DEPTH}")
        if surrogates and isinstance(value, str) and not _is_text(value):
            raise UnreadableError(field_name(path), "half a surrogate pair is not a text; expected both halves")
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        waiting += [
            ((*path, name), below)
            for name, below in inner
            if surrogates or below is _NotFinite or isinstance(below, dict | list)
        ]


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def field_name(path: Sequence[str | int]) -> str:
    """The dotted name of a field for an error; `?` replaces a name that is not plain and may be private."""
    return ".".join(str(part) if _NAME.fullmatch(str(part)) else "?" for part in path)

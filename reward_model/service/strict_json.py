"""Reads JSON strictly: NaN, Infinity and duplicate keys, which Python's reader accepts, are refused by field.

The number of objects and keys is limited, because reading them keeps other requests waiting.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Sequence
from typing import Any

MAX_DEPTH = 64
# The most keys of one object; every unknown key is an error, which takes time to make.
MAX_KEYS = 1000
# The most objects of one body; a full list of long conversations with tools has fewer.
MAX_OBJECTS = 10_000
_NAME = re.compile(r"[A-Za-z0-9_.]{1,64}")


class StrictJsonError(ValueError):
    """`field` says where; "" stands for the whole text."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def read_json(text: bytes | str) -> Any:
    """Raises StrictJsonError: the text is not UTF-8 or not JSON, is nested too deeply, has too many objects or keys,
    has a key twice, or has a number that is not finite.
    """
    objects = itertools.count(1)

    def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if next(objects) > MAX_OBJECTS:
            raise StrictJsonError("", f"more than {MAX_OBJECTS} objects; send fewer conversations at a time")
        return _without_duplicates(pairs)

    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        value = json.loads(
            text, parse_constant=lambda _: _NotFinite, parse_float=_finite, object_pairs_hook=make_object
        )
    except UnicodeDecodeError as error:
        raise StrictJsonError("", f"byte {error.start} is not UTF-8") from None
    except RecursionError:
        raise StrictJsonError("", f"nested deeper than {MAX_DEPTH}") from None
    except json.JSONDecodeError as error:
        raise StrictJsonError("", f"not JSON at character {error.pos}: {error.msg}") from None
    except StrictJsonError:
        raise
    except ValueError:  # int() raises it
        raise StrictJsonError("", "a number has more digits than are read") from None
    _check(value, surrogates="\\ud" in text or "\\uD" in text)
    return value


class _NotFinite:
    """It stands for NaN or Infinity until the field is known."""


def _finite(digits: str) -> Any:
    value = float(digits)
    return value if math.isfinite(value) else _NotFinite


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise StrictJsonError(field_name([key]), "this key is there twice; send it once")
        found[key] = value
    if len(found) > MAX_KEYS:
        raise StrictJsonError("", f"an object of {len(found)} keys; expected {MAX_KEYS} at most")
    return found


def _check(value: Any, *, surrogates: bool) -> None:
    # A loop instead of recursion, because a body may be nested deeply.
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while waiting:
        path, value = waiting.pop()
        if value is _NotFinite:
            raise StrictJsonError(field_name(path), "NaN and Infinity are not JSON; expected a finite value")
        if len(path) > MAX_DEPTH:
            raise StrictJsonError(field_name(path[:8]), f"nested deeper than {MAX_DEPTH}")
        if surrogates and isinstance(value, str) and not _is_text(value):
            raise StrictJsonError(field_name(path), "half a surrogate pair is not a text; expected both halves")
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

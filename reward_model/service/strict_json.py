"""JSON as the standard has it: what Python's reader lets pass (NaN, Infinity, keys said twice) is refused by name."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Sequence
from typing import Any

MAX_DEPTH = 64
MAX_KEYS = 1000
"""Of one object: each unknown one is an error that takes time to make."""
MAX_OBJECTS = 10_000
"""Of one body: reading them costs others their turn. A full list of long conversations with tools has fewer."""
_NAME = re.compile(r"[A-Za-z0-9_.]{1,64}")


class StrictJsonError(ValueError):
    """The message says what is wrong, `field` where; "" where it is the whole."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def read_json(text: bytes | str) -> Any:
    """The value of a JSON text.

    Raises:
        StrictJsonError: no UTF-8, no JSON, nested too deeply, too many objects or keys, a key twice, no finite number.
    """
    objects = itertools.count(1)

    def checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if next(objects) > MAX_OBJECTS:
            raise StrictJsonError("", f"more than {MAX_OBJECTS} objects; send fewer conversations at a time")
        return _no_key_twice(pairs)

    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        value = json.loads(
            text,
            parse_constant=lambda _: _NotFinite,
            parse_float=_finite,
            object_pairs_hook=checked,
        )
    except UnicodeDecodeError as error:
        raise StrictJsonError("", f"byte {error.start} is no UTF-8") from None
    except RecursionError:
        raise StrictJsonError("", f"nested deeper than {MAX_DEPTH}") from None
    except json.JSONDecodeError as error:
        raise StrictJsonError("", f"no JSON at character {error.pos}: {error.msg}") from None
    except StrictJsonError:
        raise
    except ValueError:  # of int()
        raise StrictJsonError("", "a number of more digits than are read") from None
    _check(value, surrogates="\\ud" in text or "\\uD" in text)
    return value


class _NotFinite:
    """Stands for NaN or Infinity until it is known in which field."""


def _finite(digits: str) -> Any:
    value = float(digits)
    return value if math.isfinite(value) else _NotFinite


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise StrictJsonError(shown([key]), "this key is there twice")
        found[key] = value
    if len(found) > MAX_KEYS:
        raise StrictJsonError("", f"an object of {len(found)} keys; expected {MAX_KEYS} at most")
    return found


def _check(value: Any, *, surrogates: bool) -> None:
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while waiting:
        path, value = waiting.pop()
        if value is _NotFinite:
            raise StrictJsonError(shown(path), "NaN and Infinity are no JSON; expected a finite value")
        if len(path) > MAX_DEPTH:
            raise StrictJsonError(shown(path[:8]), f"nested deeper than {MAX_DEPTH}")
        if surrogates and isinstance(value, str) and not _is_text(value):
            raise StrictJsonError(shown(path), "half a surrogate pair is no text; expected both halves")
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


def shown(path: Sequence[str | int]) -> str:
    """A field's name as an error says it; `?` for what is no plain name, which may hold what nobody is to read."""
    return ".".join(str(part) if _NAME.fullmatch(str(part)) else "?" for part in path)

"""Reads JSON strictly: NaN, Infinity and duplicate keys, which Python's reader accepts, are refused by field."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import jiter
from pydantic import ConfigDict, JsonValue, TypeAdapter, ValidationError

# The most keys of one object; every unknown key is an error, which takes time to make.
MAX_KEYS = 1000
_NAME = re.compile(r"[A-Za-z0-9_.]{1,64}")
_TWICE = re.compile(r'Detected duplicate key "(.*)" at line', re.DOTALL)
# Names the place of what Python's reader accepts. A limit of length makes pydantic look for half a surrogate pair.
_FINITE = TypeAdapter[Any](JsonValue, config=ConfigDict(allow_inf_nan=False, str_max_length=1 << 30))


class UnreadableError(ValueError):
    """A body, or what it holds, cannot be read; `field` says where, and "" stands for the whole text."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def read_strict_json(text: bytes | str) -> object:
    """A number that is too large for a double becomes infinite.

    Raises:
        UnreadableError: the text is not UTF-8 or not JSON, is nested more than 200 deep, has a key twice, or an object
            of too many keys.
    """
    body = text.encode() if isinstance(text, str) else text
    try:
        value = jiter.from_json(body, allow_inf_nan=False, catch_duplicate_keys=True, cache_mode="none")
    except ValueError as error:
        raise _unreadable(body, str(error)) from None
    if body.count(b":") > MAX_KEYS and _has_many_keys(value):
        raise UnreadableError("", f"an object of more than {MAX_KEYS} keys")
    return value


def _unreadable(body: bytes, said: str) -> UnreadableError:
    if twice := _TWICE.match(said):
        return UnreadableError(field_name([twice[1]]), "this key is there twice; send it once")
    try:
        _FINITE.validate_python(json.loads(body))
    except ValidationError as error:
        if error.error_count() <= MAX_KEYS:
            fault = error.errors(include_input=False)[0]
            return UnreadableError(field_name(fault["loc"][1::2]), fault["msg"])  # between names are kinds
    except (ValueError, RecursionError):
        pass
    return UnreadableError("", f"not JSON: {said}")


def _has_many_keys(value: object) -> bool:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if len(each) > MAX_KEYS:
                return True
            each = each.values()
        elif not isinstance(each, list):
            continue
        waiting += (below for below in each if isinstance(below, dict | list))
    return False


def field_name(path: Sequence[str | int]) -> str:
    """The dotted name of a field for an error; `?` replaces a name that is not plain and may be private."""
    return ".".join(str(part) if _NAME.fullmatch(str(part)) else "?" for part in path)

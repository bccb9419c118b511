"""Computes MySQL's text functions. A result over `MAX_VALUE_BYTES` is NULL, like MySQL's over max_allowed_packet."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial

from dbbench_adapter.datatypes import SqlValue
from dbbench_adapter.dialect.functions.values import (
    MAX_VALUE_BYTES,
    Function,
    compare_texts,
    fold,
    to_number,
    to_text,
    whole,
)
from dbbench_adapter.statement_clock import Refused, check_deadline, left_out


def _concat_ws(separator: SqlValue, *values: SqlValue) -> str | None:
    if separator is None:
        return None
    return to_text(separator).join(to_text(value) for value in values if value is not None)


def _substring_index(text: SqlValue, delimiter: SqlValue, count: SqlValue) -> str:
    text, delimiter, count = to_text(text), to_text(delimiter), whole(count)
    if not delimiter or not count:
        return ""
    parts = text.split(delimiter)
    return delimiter.join(parts[:count] if count > 0 else parts[count:])


def _pad(text: SqlValue, length: SqlValue, filler: SqlValue, *, left: bool) -> str | None:
    text, length, filler = to_text(text), whole(length), to_text(filler)
    if length < 0 or length > MAX_VALUE_BYTES:
        return None
    missing = length - len(text)
    if missing <= 0:
        return text[:length]
    if not filler:
        return None
    padding = (filler * (missing // len(filler) + 1))[:missing]
    return padding + text if left else text + padding


def _locate(needle: SqlValue, text: SqlValue, start: SqlValue = 1) -> int:
    begin = whole(start)
    text, folded = to_text(text), fold(to_text(text))
    if len(folded) != len(text):
        raise Refused(left_out("the place in a text with letters like ß"))
    return folded.find(fold(to_text(needle)), begin - 1) + 1 if begin >= 1 else 0


def _repeat(text: SqlValue, count: SqlValue) -> str | None:
    text, count = to_text(text), max(whole(count), 0)
    return text * count if len(text) * count <= MAX_VALUE_BYTES else None


def _replace(text: SqlValue, old: SqlValue, new: SqlValue) -> str | None:
    text, old, new = to_text(text), to_text(old), to_text(new)
    if not old:
        return text
    grown = len(text) + text.count(old) * (len(new) - len(old))
    return text.replace(old, new) if grown <= MAX_VALUE_BYTES else None


def _insert(text: SqlValue, start: SqlValue, length: SqlValue, new: SqlValue) -> str:
    text, begin, count = to_text(text), whole(start), whole(length)
    if not 1 <= begin <= len(text):
        return text
    end = begin - 1 + count if count >= 0 else len(text)
    return text[: begin - 1] + to_text(new) + text[end:]


def _hex(value: SqlValue) -> str:
    if isinstance(value, int | float):
        return f"{round(value) & 0xFFFFFFFFFFFFFFFF:X}"
    return (value if isinstance(value, bytes) else to_text(value).encode()).hex().upper()


def _quote(value: SqlValue) -> str:
    escapes = {"\\": "\\\\", "'": "\\'", "\0": "\\0", "\x1a": "\\Z"}
    return "NULL" if value is None else "'" + "".join(escapes.get(char, char) for char in to_text(value)) + "'"


def _substring(text: SqlValue, start: SqlValue, length: SqlValue = None) -> str:
    text, begin = to_text(text), whole(start)
    begin = begin - 1 if begin > 0 else len(text) + begin
    if begin < 0 or whole(start) == 0:
        return ""
    return text[begin:] if length is None else text[begin : begin + max(whole(length), 0)]


def _field(value: SqlValue, *items: SqlValue) -> int:
    wanted = fold(value) if isinstance(value, str) else None
    for index, item in enumerate(items, 1):
        if value is None or item is None:
            continue
        if wanted is not None and isinstance(item, str):
            same = fold(item) == wanted
        else:
            same = to_number(item) == to_number(value)
        if same:
            return index
    return 0


def _elt(index: SqlValue, *items: SqlValue) -> SqlValue:
    place = whole(index) if index is not None else 0
    return items[place - 1] if 1 <= place <= len(items) else None


def _find_in_set(needle: SqlValue, items: SqlValue) -> int:
    wanted = fold(to_text(needle))
    for index, item in enumerate(to_text(items).split(","), 1):
        check_deadline()
        if fold(item) == wanted:
            return index
    return 0


def _trim(text: SqlValue, piece: SqlValue, *, ends: str) -> str:
    # SQLite's TRIM reads a piece as a set of characters.
    text, piece = to_text(text), to_text(piece)
    begin, end = 0, len(text)
    while piece and "l" in ends and text.startswith(piece, begin, end):
        check_deadline()
        begin += len(piece)
    while piece and "r" in ends and text.endswith(piece, begin, end):
        check_deadline()
        end -= len(piece)
    return text[begin:end]


def _right(text: SqlValue, length: SqlValue) -> str:
    count = max(whole(length), 0)
    return to_text(text)[-count:] if count else ""


def _distinct_key(*values: SqlValue) -> str | None:
    return None if None in values else "\x1f".join(fold(to_text(value)) for value in values)


def _digest(name: str, value: SqlValue) -> str:
    return hashlib.new(name, to_text(value).encode(), usedforsecurity=False).hexdigest()


def _cased(of_text: Callable[[str], str]) -> Callable[[SqlValue], str]:
    def cased(value: SqlValue) -> str:
        text = to_text(value)
        made = of_text(text)
        if len(made) != len(text):  # ß has no capital for MySQL
            raise Refused(left_out("UPPER and LOWER of letters that become several"))
        return made

    return cased


NULLS_MATTER: dict[str, Function] = {
    "concat_ws": (-1, _concat_ws),
    "field": (-1, _field),
    "elt": (-1, _elt),
    "distinct_key": (-1, _distinct_key),
    "quote": (1, _quote),
    **dict.fromkeys(("database", "schema"), (0, lambda: "dbbench")),
    "user": (0, lambda: "dbbench@localhost"),
}

STRICT: dict[str, Function] = {
    "concat": (-1, lambda *values: "".join(to_text(value) for value in values)),
    "substring_index": (3, _substring_index),
    "left_of": (2, lambda text, length: to_text(text)[: max(whole(length), 0)]),
    "right_of": (2, _right),
    "lpad": (3, partial(_pad, left=True)),
    "rpad": (3, partial(_pad, left=False)),
    "locate": (-1, _locate),
    "instr": (2, lambda text, needle: _locate(needle, text)),
    "stuff": (4, _insert),
    "mid": (-1, _substring),
    "hex": (1, _hex),
    "repeat": (2, _repeat),
    "replace": (3, _replace),
    "space": (1, lambda count: _repeat(" ", count)),
    "trim_piece": (2, partial(_trim, ends="lr")),
    "ltrim_piece": (2, partial(_trim, ends="l")),
    "rtrim_piece": (2, partial(_trim, ends="r")),
    "reverse": (1, lambda text: to_text(text)[::-1]),
    **dict.fromkeys(("upper", "ucase"), (1, _cased(str.upper))),
    **dict.fromkeys(("lower", "lcase"), (1, _cased(str.lower))),
    **dict.fromkeys(("length", "octet_length"), (1, lambda text: len(to_text(text).encode()))),
    **dict.fromkeys(("char_length", "character_length"), (1, lambda text: len(to_text(text)))),
    "ascii": (1, lambda text: (to_text(text).encode() or b"\0")[0]),
    "strcmp": (2, lambda left, right: compare_texts(to_text(left), to_text(right))),
    "find_in_set": (2, _find_in_set),
    "md5": (1, partial(_digest, "md5")),
    **dict.fromkeys(("sha", "sha1"), (1, partial(_digest, "sha1"))),
}

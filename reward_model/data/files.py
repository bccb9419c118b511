"""Reads the rows of a user's file: JSON Lines line by line, JSON as a whole, parquet in batches.

The content decides which of them it is, not the name. A row that cannot be read is returned as its `RowError`, and the
reading continues; pandas and pyarrow would stop at the first bad byte, so the JSON is parsed here. Leaves out what a
row means (`shapes`), and compressed files, which are refused.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from core.conversations import RowError, short_repr
from core.nearest import did_you_mean
from reward_model.data.preferences import PreferenceFileError
from reward_model.data.shapes import FORMS, form_of

Numbered = tuple[int, Any]
"""The number of a row, from 1 (its line in JSON Lines), with its JSON value or its `RowError`."""


class NotReadOn(RowError):
    """Says that the end of a row in a JSON file cannot be found, so that nothing after it was read."""

    def __init__(self, problem: RowError) -> None:
        super().__init__(problem.field, f"{problem.reason}; nothing after it was read")


_UNREADABLE = {
    b"\x1f\x8b": "compressed with gzip; unpack it with gunzip",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it with unzstd",
    b"PK": "a zip archive; unpack it",
    b"\xff\xfe": "UTF-16 text; turn it into UTF-8 with iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "UTF-16 text; turn it into UTF-8 with iconv -f UTF-16 -t UTF-8",
}
_BOM = b"\xef\xbb\xbf"
_BLANK = " \t\r\n"


def raw_rows(path: Path, changes: Counter[str]) -> Iterator[Numbered]:
    """Yield every row of a file, in order, without blank lines.

    Args:
        changes: counts what was ignored to read the file, such as NaN, extra commas, a byte-order mark.
    Raises:
        PreferenceFileError: the file is missing, or it is none of the three kinds.
    """
    if not path.is_file():
        raise PreferenceFileError(
            f"{path} does not exist or is not a file; give a .jsonl, .json or .parquet file{did_you_mean(path)}"
        )
    with path.open("rb") as file:
        start = file.read(4)
    for magic, what in _UNREADABLE.items():
        if start.startswith(magic):
            raise PreferenceFileError(f"{path} is {what}")
    if start == b"PAR1":
        return _parquet_rows(path, changes)
    if start.startswith(_BOM):
        changes["byte-order mark at the start of the file left out"] += 1
    return _json_rows(path, changes) if _is_one_value(path) else _line_rows(path, changes)


def _is_one_value(path: Path) -> bool:
    """Return whether the file is one JSON value instead of one per line: a list, an object over several lines, or a
    line with an object around a list of rows."""
    with path.open("rb") as lines:
        full = (line.removeprefix(_BOM) for line in lines if line.removeprefix(_BOM).strip())
        first, second = next(full, b""), next(full, b"")
    if first.lstrip().startswith(b"["):
        return True
    one = _loaded(first)
    if one is None:
        return first.lstrip().startswith(b"{") and first.rstrip().endswith((b"{", b"[", b",", b":"))
    return not second and isinstance(one, dict) and not _has_form(one) and _list_in(one) is not None


def _loaded(line: bytes) -> Any:
    try:
        return json.loads(line.strip().removesuffix(b","))
    except (ValueError, RecursionError):
        return None


def _has_form(row: Any) -> bool:
    try:
        return form_of(row) in FORMS
    except RowError:
        return False


def _list_in(value: dict[str, Any]) -> str | None:
    """Return the name of the only field that holds a list of objects; return None if there is not exactly one."""
    names = [name for name, held in value.items() if isinstance(held, list) and held and isinstance(held[0], dict)]
    return names[0] if len(names) == 1 else None


# JSON -----------------------------------------------------------------------------------------------------------------


class _Decoder:
    """Reads JSON of users' files: NaN and Infinity become null, and a field that an object has twice is a fault."""

    def __init__(self, changes: Counter[str]) -> None:
        self._changes = changes
        self._json = json.JSONDecoder(object_pairs_hook=self._object, parse_constant=self._constant)

    def value_at(self, text: str, start: int) -> tuple[Any, int]:
        """Return the value that begins at `start`, and where it ends.

        Raises:
            RowError: the text has no valid value there.
        """
        try:
            return self._json.raw_decode(text, start)
        except json.JSONDecodeError as error:
            raise RowError("row", f"not JSON: {error.msg} at character {error.pos - start + 1}") from None
        except (ValueError, RecursionError) as error:  # a number is too long, or the nesting too deep
            raise error if isinstance(error, RowError) else RowError("row", f"not JSON: {error}") from None

    def end_of(self, text: str, start: int) -> int | None:
        """Return the end of a value that is valid JSON but cannot be read; return None if it is not JSON."""
        try:
            return json.JSONDecoder(parse_int=str).raw_decode(text, start)[1]
        except (ValueError, RecursionError):
            return None

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        held = dict(pairs)
        if len(held) < len(pairs):
            twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
            raise RowError(twice, "an object has this field twice; keep one")
        return held

    def _constant(self, _name: str) -> None:
        self._changes["NaN or Infinity read as null"] += 1


def _line_rows(path: Path, changes: Counter[str]) -> Iterator[Numbered]:
    decoder = _Decoder(changes)
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                text = line.removeprefix(_BOM if number == 1 else b"").decode().strip(_BLANK)
                if not text:
                    continue
                value, end = decoder.value_at(text, 0)
                rest = text[end:].strip(_BLANK)
                if rest == ",":
                    changes["comma after a row ignored"] += 1
                elif rest:
                    raise RowError("row", f"a line with more than one value, from {short_repr(rest)}; split the line")
                yield number, value
            except UnicodeDecodeError as error:
                yield number, RowError("row", f"not UTF-8: {error.reason} at byte {error.start + 1}; convert by iconv")
            except RowError as problem:
                yield number, problem


def _json_rows(path: Path, changes: Counter[str]) -> Iterator[Numbered]:
    """Yield the items of a list, or of the list in an object, or objects that follow each other."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PreferenceFileError(
            f"{path} is not UTF-8: {error.reason} at byte {error.start + 1}; convert it to UTF-8 with iconv"
        ) from None
    decoder = _Decoder(changes)
    at = _skip(text, 0, _BLANK)
    if text[at] == "{":
        yield from _object_rows(path, decoder, text, at, changes)
        return
    start = _skip(text, at + 1, _BLANK)
    number, at = 0, start
    for number, (value, at) in enumerate(_values(decoder, text, start, changes, closing="]"), 1):  # noqa: B007 (used below)
        yield number, value
        if isinstance(value, NotReadOn):
            return
    if at >= len(text):
        changes["end of the list missing: the file may be torn"] += 1
    elif rest := text[at + 1 :].strip(_BLANK):
        yield number + 1, NotReadOn(RowError("row", f"text after the end of the list: {short_repr(rest)}"))


def _object_rows(path: Path, decoder: _Decoder, text: str, at: int, changes: Counter[str]) -> Iterator[Numbered]:
    values = _values(decoder, text, at, changes)
    first, at = next(values)
    if isinstance(first, NotReadOn):
        raise PreferenceFileError(f"{path} is neither JSON nor JSON Lines: {first}")
    alone = at >= len(text) and isinstance(first, dict)
    name = _list_in(first) if alone and not _has_form(first) else None
    yield from enumerate(first[name] if name is not None else [first], 1)
    yield from enumerate((value for value, _ in values), 2)


def _values(
    decoder: _Decoder, text: str, at: int, changes: Counter[str], *, closing: str = ""
) -> Iterator[tuple[Any, int]]:
    """Yield values separated by blanks or commas, up to a closing bracket or the end, each with the next start."""
    while at < len(text) and text[at] != closing:
        try:
            value, after = decoder.value_at(text, at)
        except RowError as problem:
            value, after = problem, decoder.end_of(text, at)
            if after is None:
                yield NotReadOn(problem), len(text)
                return
        at = _skip(text, after, _BLANK + ",")
        if "," in text[after:at] and (not closing or text[at : at + 1] == closing):
            changes["comma after a row ignored"] += 1
        yield value, at


def _skip(text: str, at: int, blanks: str) -> int:
    while at < len(text) and text[at] in blanks:
        at += 1
    return at


# Parquet --------------------------------------------------------------------------------------------------------------

_BATCH_ROWS = 256


def _parquet_rows(path: Path, changes: Counter[str]) -> Iterator[Numbered]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        for batch in pq.ParquetFile(path).iter_batches(_BATCH_ROWS):
            for row in batch.to_pylist(maps_as_pydicts="strict"):
                number += 1
                yield number, {name: _plain(value, changes) for name, value in row.items()}
    except (pa.ArrowException, OSError, KeyError) as error:  # a map with a repeated key raises KeyError
        raise PreferenceFileError(
            f"{path}: the parquet file cannot be read after row {number} ({error}); fetch or write it again"
        ) from None


def _plain(value: Any, changes: Counter[str]) -> Any:
    """Turn NaN into null, and remove null fields inside a row, because parquet gives every object the fields of all."""
    if isinstance(value, dict):
        return {name: _plain(held, changes) for name, held in value.items() if held is not None}
    if isinstance(value, list):
        return [_plain(held, changes) for held in value]
    if isinstance(value, float) and not math.isfinite(value):
        changes["NaN or Infinity read as null"] += 1
        return None
    return value

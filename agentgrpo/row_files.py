"""The rows of a user's file: JSON Lines line by line, JSON as a whole, parquet in batches.

Every command reads its tasks, questions, demonstrations and pairs here, so that a file means the same to all of them.
The content decides which kind it is, not the name. A byte-order mark is ignored wherever it stands between rows. A row
that cannot be read is returned as its `RowError`, and the reading continues; pandas and pyarrow would stop at the first
bad byte, so the JSON is parsed here. Compressed files are refused.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgrpo.chat.conversations import RowError, short_repr
from agentgrpo.file_kinds import RowFileError, check_kind, has_mark, is_parquet


@dataclass(frozen=True)
class Row:
    number: int
    """From 1; in JSON Lines that of the line."""
    place: str
    """`line 3` of JSON Lines, which may have blank lines, or `row 3`."""
    value: Any
    """The JSON value, or a `RowError`."""

    def fault(self) -> str | None:
        """None if the row can be read."""
        if not isinstance(self.value, RowError):
            return None
        return f"{self.place}: {self.value.reason if self.value.field == 'row' else self.value}"


class NotReadOn(RowError):
    # Where the row ends in a JSON file cannot be found, so nothing after it is read.

    def __init__(self, problem: RowError) -> None:
        super().__init__(problem.field, f"{problem.reason}; nothing after it was read")


# Between rows, programs leave marks, no-break spaces and the end mark of DOS.
_BLANK = " \t\r\n\u00a0\ufeff\x1a"
_ROWS_NAMES = ("data", "rows", "examples", "records")


def read_rows(
    path: Path, repairs: Counter[str] | None = None, *, is_row: Callable[[dict[str, Any]], bool] | None = None
) -> Iterator[Row]:
    """In order, without blank lines.

    Args:
        repairs: counts what was ignored to read the file, such as commas after the last row, or NaN, which becomes
            null. None: such a comma is an error of its row, and NaN is a number.
        is_row: returns whether an object that is alone in its file is a row, although one of its fields holds a list of
            objects. None: it is one, unless the field has a name such as `data`.
    Raises:
        RowFileError: the file is missing, or it is none of the three kinds; the message says what it is.
    """
    check_kind(path)
    if is_parquet(path):
        return _parquet_rows(path)
    if repairs is not None and has_mark(path):
        repairs["byte-order mark at the start of the file left out"] += 1
    reader = _Reader(path, repairs, is_row or (lambda row: _list_in(row) not in _ROWS_NAMES))
    return reader.json_rows() if reader.is_one_value() else reader.line_rows()


def _loaded(line: str) -> Any:
    try:
        return json.loads(line.removesuffix(","))
    except (ValueError, RecursionError):
        return None


def _list_in(value: dict[str, Any]) -> str | None:
    names = [name for name, held in value.items() if isinstance(held, list) and held and isinstance(held[0], dict)]
    return names[0] if len(names) == 1 else None


# JSON -----------------------------------------------------------------------------------------------------------------


class _Decoder:
    # A field that an object has twice is a fault: Python's own decoder keeps the last one and says nothing.

    def __init__(self, repairs: Counter[str] | None) -> None:
        self._repairs = repairs
        constant = None if repairs is None else self._null
        self._json = json.JSONDecoder(object_pairs_hook=self._object, parse_constant=constant)

    def value_at(self, text: str, start: int, *, whole: bool = False) -> tuple[Any, int]:
        """The value that begins at `start`, and where it ends.

        Args:
            whole: the text is a whole file, and not one line, so that a message names the line.
        Raises:
            RowError: the text has no valid value there.
        """
        try:
            return self._json.raw_decode(text, start)
        except json.JSONDecodeError as error:
            raise RowError("row", f"not JSON: {_fault(text, start, error, whole=whole)}") from None
        except (ValueError, RecursionError) as error:  # a number is too long, or the nesting too deep
            raise error if isinstance(error, RowError) else RowError("row", f"not JSON: {error}") from None

    def end_of(self, text: str, start: int) -> int | None:
        """End of a value that is valid JSON but cannot be read; None if it is not JSON."""
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

    def _null(self, _name: str) -> None:
        assert self._repairs is not None
        self._repairs["NaN or Infinity read as null"] += 1


def _fault(text: str, start: int, error: json.JSONDecodeError, *, whole: bool) -> str:
    at, what, remedy = error.pos, error.msg, ""
    before = text[:at].rstrip()
    if before.endswith(",") and text[at : at + 1] in ("}", "]"):
        at, what, remedy = len(before) - 1, "a comma with nothing behind it", "; delete it"
    return f"{what} at {_line_of(text, at) if whole else f'character {at - start + 1}'}{remedy}"


def _line_of(text: str, at: int) -> str:
    return f"line {text.count(chr(10), 0, at) + 1}, character {at - text.rfind(chr(10), 0, at)}"


class _Reader:
    def __init__(self, path: Path, repairs: Counter[str] | None, is_row: Callable[[dict[str, Any]], bool]) -> None:
        self._path, self._repairs, self._is_row = path, repairs, is_row
        self._decoder = _Decoder(repairs)

    def is_one_value(self) -> bool:
        """A file may be a list, an object over several lines, or a line with an object around a list of rows."""
        with self._path.open("rb") as lines:
            full = (text for line in lines if (text := line.decode(errors="replace").strip(_BLANK)))
            first, second = next(full, ""), next(full, "")
        if first.startswith("["):
            return True
        one = _loaded(first)
        if one is None:
            return first.startswith("{") and first.endswith(("{", "[", ",", ":"))
        return not second and isinstance(one, dict) and self._rows_name(one) is not None

    def line_rows(self) -> Iterator[Row]:
        with self._path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    text = line.decode().strip(_BLANK)
                    if text:
                        yield Row(number, f"line {number}", self._value_of(text))
                except UnicodeDecodeError as error:
                    fault = RowError("row", f"not UTF-8: {error.reason} at byte {error.start + 1}; convert by iconv")
                    yield Row(number, f"line {number}", fault)
                except RowError as problem:
                    yield Row(number, f"line {number}", problem)

    def _value_of(self, line: str) -> Any:
        value, end = self._decoder.value_at(line, 0)
        rest = line[end:].strip(_BLANK)
        if rest == ",":
            self._ignore("comma after a row ignored", "a comma behind the row; delete it")
        elif rest:
            raise RowError("row", f"a line with more than one value, from {short_repr(rest)}; split the line")
        return value

    def json_rows(self) -> Iterator[Row]:
        """The items of a list, or of the list in an object, or objects that follow each other."""
        text = self._text()
        at = _skip(text, 0, _BLANK)
        alone = text[at] == "{"
        values = self._object_rows(text, at) if alone else self._list_rows(text, _skip(text, at + 1, _BLANK))
        yield from (Row(number, f"row {number}", value) for number, value in enumerate(values, 1))

    def _text(self) -> str:
        content = self._path.read_bytes()
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise RowFileError(
                f"{self._path} is not UTF-8: {error.reason} at byte {error.start + 1}, line "
                f"{content.count(10, 0, error.start) + 1}; convert it to UTF-8 with iconv"
            ) from None

    def _list_rows(self, text: str, start: int) -> Iterator[Any]:
        at = start
        for value, at in self._values(text, start, closing="]"):  # noqa: B007 (used below)
            yield value
            if isinstance(value, NotReadOn):
                return
        try:
            if at >= len(text):
                torn = "end of the list missing: the file may be torn"
                self._ignore(torn, f"{torn}; fetch or write it again")
            elif rest := text[at + 1 :].strip(_BLANK):
                raise RowError("row", f"text after the end of the list: {short_repr(rest)}")
        except RowError as problem:
            yield NotReadOn(problem)

    def _object_rows(self, text: str, at: int) -> Iterator[Any]:
        values = self._values(text, at)
        first, at = next(values)
        if isinstance(first, NotReadOn):
            raise RowFileError(f"{self._path} is neither JSON nor JSON Lines: {first.reason}")
        alone = at >= len(text) and isinstance(first, dict)
        name = self._rows_name(first) if alone else None
        yield from first[name] if name is not None else [first]
        yield from (value for value, _ in values)

    def _rows_name(self, value: dict[str, Any]) -> str | None:
        return None if self._is_row(value) else _list_in(value)

    def _values(self, text: str, at: int, *, closing: str = "") -> Iterator[tuple[Any, int]]:
        """Values separated by blanks or commas, up to a closing bracket or the end, each with the next start."""
        while at < len(text) and text[at] != closing:
            try:
                value, after = self._decoder.value_at(text, at, whole=True)
            except RowError as problem:
                value, after = problem, self._decoder.end_of(text, at)
                if after is None:
                    yield NotReadOn(problem), len(text)
                    return
            at = _skip(text, after, _BLANK + ",")
            comma = text.find(",", after, at)
            if comma >= 0 and (not closing or text[at : at + 1] == closing):
                where = _line_of(text, comma)
                try:
                    self._ignore("comma after a row ignored", f"a comma with nothing behind it at {where}; delete it")
                except RowError as problem:
                    value = problem
            yield value, at

    def _ignore(self, repair: str, otherwise: str) -> None:
        if self._repairs is None:
            raise RowError("row", otherwise)
        self._repairs[repair] += 1


def _skip(text: str, at: int, blanks: str) -> int:
    while at < len(text) and text[at] in blanks:
        at += 1
    return at


# Parquet --------------------------------------------------------------------------------------------------------------

_BATCH_ROWS = 256


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        for batch in pq.ParquetFile(path).iter_batches(_BATCH_ROWS):
            for row in batch.to_pylist(maps_as_pydicts="strict"):
                number += 1
                yield Row(number, f"row {number}", row)
    except (pa.ArrowException, OSError, KeyError) as error:  # a map with a repeated key raises KeyError
        raise RowFileError(
            f"{path}: the parquet file cannot be read after row {number} ({error}); fetch or write it again"
        ) from None

"""The rows of a user's file: JSON Lines line by line, JSON as a whole, parquet in batches.

Every command reads its tasks, questions, demonstrations and pairs here, so that a file means the same to all of them.
The content decides which kind it is, not the name. A byte-order mark is ignored wherever it stands between rows. A row
that cannot be read is returned as its `RowError`, and the reading continues; pandas and pyarrow would stop at the first
bad byte, so the JSON is parsed here. Compressed files are refused.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgrpo.chat.conversations import RowError, short_repr
from agentgrpo.json_text import JsonObject
from agentgrpo.spelling import did_you_mean


@dataclass(frozen=True)
class FileRow:
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
# A field of an object that is alone in its file, whose list of objects are the rows.
_ROWS_NAMES = ("data", "rows", "examples", "records")


def iter_rows(path: Path, repairs: Counter[str] | None = None) -> Iterator[FileRow]:
    """In order, without blank lines.

    Args:
        repairs: counts what was ignored to read the file, such as commas after the last row, or NaN, which becomes
            null. None: such a comma is an error of its row, and NaN is a number.
    Raises:
        RowFileError: the file is missing, or it is none of the three kinds; the message says what it is.
    """
    check_kind(path)
    if is_parquet(path):
        return _parquet_rows(path)
    if repairs is not None and has_mark(path):
        repairs["byte-order mark at the start of the file left out"] += 1
    reader = _Reader(path, repairs)
    return reader.json_rows() if reader.is_one_value() else reader.line_rows()


def _loaded(line: str) -> object:
    try:
        return json.loads(line.removesuffix(","))
    except (ValueError, RecursionError):
        return None


def _rows_name(value: JsonObject) -> str | None:
    names = [name for name, held in value.items() if isinstance(held, list) and held and isinstance(held[0], dict)]
    return names[0] if len(names) == 1 and names[0] in _ROWS_NAMES else None


# JSON -----------------------------------------------------------------------------------------------------------------


class _Decoder:
    # A field that an object has twice is a fault: Python's own decoder keeps the last one and says nothing.

    def __init__(self, repairs: Counter[str] | None) -> None:
        self._repairs = repairs
        constant = None if repairs is None else self._null
        self._json = json.JSONDecoder(object_pairs_hook=self._object, parse_constant=constant)

    def value_at(self, text: str, start: int, *, whole: bool = False) -> tuple[object, int]:
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

    def _object(self, pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
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
    def __init__(self, path: Path, repairs: Counter[str] | None) -> None:
        self._path, self._repairs = path, repairs
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
        return not second and isinstance(one, dict) and _rows_name(one) is not None

    def line_rows(self) -> Iterator[FileRow]:
        with self._path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    text = line.decode().strip(_BLANK)
                    if text:
                        yield FileRow(number, f"line {number}", self._value_of(text))
                except UnicodeDecodeError as error:
                    fault = RowError("row", f"not UTF-8: {error.reason} at byte {error.start + 1}; convert by iconv")
                    yield FileRow(number, f"line {number}", fault)
                except RowError as problem:
                    yield FileRow(number, f"line {number}", problem)

    def _value_of(self, line: str) -> object:
        value, end = self._decoder.value_at(line, 0)
        rest = line[end:].strip(_BLANK)
        if rest == ",":
            self._ignore("comma after a row ignored", "a comma behind the row; delete it")
        elif rest:
            raise RowError("row", f"a line with more than one value, from {short_repr(rest)}; split the line")
        return value

    def json_rows(self) -> Iterator[FileRow]:
        """The items of a list, or of the list in an object, or objects that follow each other."""
        text = self._text()
        at = _skip(text, 0, _BLANK)
        alone = text[at] == "{"
        values = self._object_rows(text, at) if alone else self._list_rows(text, _skip(text, at + 1, _BLANK))
        yield from (FileRow(number, f"row {number}", value) for number, value in enumerate(values, 1))

    def _text(self) -> str:
        content = self._path.read_bytes()
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise RowFileError(
                f"{self._path} is not UTF-8: {error.reason} at byte {error.start + 1}, line "
                f"{content.count(10, 0, error.start) + 1}; convert it to UTF-8 with iconv"
            ) from None

    def _list_rows(self, text: str, start: int) -> Iterator[object]:
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

    def _object_rows(self, text: str, at: int) -> Iterator[object]:
        values = self._values(text, at)
        first, at = next(values)
        if isinstance(first, NotReadOn):
            raise RowFileError(f"{self._path} is neither JSON nor JSON Lines: {first.reason}")
        alone = at >= len(text) and isinstance(first, dict)
        name = _rows_name(first) if alone else None
        yield from first[name] if name is not None else [first]
        yield from (value for value, _ in values)

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


def _parquet_rows(path: Path) -> Iterator[FileRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        for batch in pq.ParquetFile(path).iter_batches(_BATCH_ROWS):
            for row in batch.to_pylist(maps_as_pydicts="strict"):
                number += 1
                yield FileRow(number, f"row {number}", row)
    except (pa.ArrowException, OSError, KeyError) as error:  # a map with a repeated key raises KeyError
        raise RowFileError(
            f"{path}: the parquet file cannot be read after row {number} ({error}); fetch or write it again"
        ) from None


# Kinds of files -------------------------------------------------------------------------------------------------------


class RowFileError(ValueError):
    """A file cannot be read at all, and what to do about it."""


_UTF_8 = "turn it into UTF-8 with `iconv -f UTF-{} -t UTF-8`"
# How a file of another kind begins, and what it is.
_UNREADABLE = {
    b"\x1f\x8b": "compressed with gzip; unpack it with gunzip",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it with unzstd",
    b"BZh": "compressed with bzip2; unpack it with bunzip2",
    b"\xfd7zXZ\0": "compressed with xz; unpack it with unxz",
    b"\x04\x22\x4d\x18": "compressed with lz4; unpack it with unlz4",
    b"PK\3\4": "a zip archive or a spreadsheet; unpack it, or save the sheet as JSON",
    b"7z\xbc\xaf": "a 7z archive; unpack it",
    b"Rar!": "a rar archive; unpack it",
    b"ARROW1": "an Arrow file; write it as parquet, e.g. with pyarrow or `datasets.Dataset.to_parquet`",
    b"FEA1": "a Feather file; write it as parquet, e.g. with pyarrow",
    b"\xff\xff\xff\xff": "an Arrow stream; write it as parquet, e.g. with `datasets.Dataset.to_parquet`",
    b"ORC": "an ORC file; write it as parquet, e.g. with pyarrow",
    b"Obj\x01": "an Avro file; write it as JSON Lines or parquet",
    b"\x89HDF": "an HDF5 file; write it as JSON Lines or parquet",
    b"\x93NUMPY": "a NumPy array; write its rows as JSON Lines",
    b"\x80\x04": "a pickle, which may run a program; write its rows as JSON Lines",
    b"\x80\x05": "a pickle, which may run a program; write its rows as JSON Lines",
    b"SQLite format 3\0": "a SQLite database; give it as --database, or write its rows as JSON Lines",
    b"version https://git-lfs": "a pointer of git-lfs and not the file itself; fetch that with `git lfs pull`",
    b"\xff\xfe\0\0": "UTF-32 text; " + _UTF_8.format(32),
    b"\0\0\xfe\xff": "UTF-32 text; " + _UTF_8.format(32),
    b"\xff\xfe": "UTF-16 text; " + _UTF_8.format(16),
    b"\xfe\xff": "UTF-16 text; " + _UTF_8.format(16),
    b"<": "a web page or XML, expected rows of JSON; the download may have given a page instead of the file",
}
_TAR_AT = 257
_TABLES = (".csv", ".tsv")
_PARQUET = b"PAR1"
_BOM = b"\xef\xbb\xbf"


def check_kind(path: Path) -> None:
    """Raises RowFileError: the file is missing, or neither JSON nor parquet."""
    if not path.is_file():
        raise RowFileError(
            f"{path} does not exist or is not a file; give a .jsonl, .json or .parquet file{did_you_mean(path)}"
        )
    start = _start(path)
    for magic, what in _UNREADABLE.items():
        if start.removeprefix(_BOM).lstrip().startswith(magic) or start.startswith(magic):
            raise RowFileError(f"{path} is {what}")
    if start[_TAR_AT : _TAR_AT + 5] == b"ustar":
        raise RowFileError(f"{path} is a tar archive; unpack it")
    if b"\0" in start[:4]:
        raise RowFileError(f"{path} is UTF-16 text; {_UTF_8.format(16)}, or -f UTF-16LE")
    if path.suffix.lower() in _TABLES:
        raise RowFileError(
            f"{path} is a table of values between commas or tabs; write it as JSON Lines, e.g. with "
            "`pandas.read_csv(FILE).to_json(OUTPUT, orient='records', lines=True)`"
        )


def is_parquet(path: Path) -> bool:
    return _start(path).startswith(_PARQUET)


def has_mark(path: Path) -> bool:
    return _start(path).startswith(_BOM)


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(512)

"""What a file of rows is by how it begins: JSON, parquet, or of a kind that is not read."""

from __future__ import annotations

from pathlib import Path

from agentgrpo.nearest import did_you_mean


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

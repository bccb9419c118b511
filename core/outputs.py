"""Paths that flags name, and outputs: they appear whole or not at all, and are known to be possible before any work is
done for them."""

from __future__ import annotations

import argparse
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from core.commands import interruptible


class OutputError(ValueError):
    """An output that cannot be written; the message names the path, the reason and what to do."""


def named_path(text: str) -> Path:
    """The type of a flag that takes a path; an empty one would be the folder that the command is in."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the path is empty; name a file or folder")
    return Path(text)


def check_output(path: Path, flag: str, *, overwrite: bool | None = None) -> None:
    """Refuse a file that is there already, and one that could not be written; makes no folder and no file.

    Args:
        flag: what the user named the output with, e.g. `--output_path`.
        overwrite: whether an existing file may be replaced; None where the command cannot.
    Raises:
        OutputError: says which of them it is.
    """
    try:
        if path.is_dir():
            raise OutputError(f"{path} is a folder, expected a file to write; name another {flag}")
        if path.exists() and not overwrite:
            offer = "name another" if overwrite is None else "give --overwrite or another"
            raise OutputError(f"{path} is there already; {offer} {flag}")
        # tried out, since rights do not tell: root may write to any folder, and still not to /proc
        with tempfile.TemporaryFile(dir=next(folder for folder in path.absolute().parents if folder.exists())):
            pass
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written ({error.strerror}); name another {flag}, below a folder you may write to"
        ) from None


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """Yield a name beside `path` for a file or a folder that takes its place once it is whole.

    Whatever ends the writing before, nothing of it stays, and what was at `path` does.

    Raises:
        OutputError: it could not be written; says why and what to do.
    """
    part = path.with_name(f"{path.name}.part")
    with interruptible(), failures_of_the_disk(path):
        try:
            remove(part)
            path.parent.mkdir(parents=True, exist_ok=True)
            yield part
            if part.is_dir():
                remove(path)
            if part.exists():
                os.replace(part, path)
        except BaseException as error:
            words = disk_fault(error, path)  # asked while the part still fills the disk
            remove(part)
            if words and isinstance(error, Exception):
                raise OutputError(words) from error
            raise


def sync(path: Path) -> None:
    """What was written to a file or folder is on the disk when this returns."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def append_line(path: Path, text: str) -> None:
    """Add a line to a file, or leave it as it was.

    Raises:
        OutputError: as `written`.
    """
    with failures_of_the_disk(path), path.open("ab", buffering=0) as out:
        length, line = out.tell(), text.encode() + b"\n"
        try:
            while line:
                line = line[out.write(line) :]
        except BaseException:
            out.truncate(length)
            raise


@contextmanager
def failures_of_the_disk(path: Path, then: str = "") -> Iterator[None]:
    """
    Args:
        then: what else to say to the user.
    Raises:
        OutputError: what was raised within comes from a disk that is full, read-only or broken.
    """
    try:
        yield
    except OutputError:
        raise
    except Exception as error:
        if words := disk_fault(error, path):
            raise OutputError(words + (f"; {then}" if then else "")) from error
        raise


_OF_LIBRARIES = re.compile(
    r"\(os error (\d+)\)|\[Errno (\d+)\]|PytorchStreamWriter|inline_container|disk is full|readonly database"
)
"""How writers that are no Python's tell of the disk: safetensors and tokenizers, pyarrow, torch, SQLite."""


def disk_fault(error: BaseException, path: Path) -> str | None:
    """What went wrong with the disk, in words, where `error` came of that; None where it did not.

    Args:
        path: what was to be written.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ValueError):  # which is in words already
        if isinstance(cause, OSError) and cause.errno is not None:
            return _in_words(Path(cause.filename) if isinstance(cause.filename, str) else path, cause.errno)
        if found := _OF_LIBRARIES.search(str(cause)):
            number = next(filter(None, found.groups()), None)
            return _in_words(path, int(number) if number else _errno_of(path))
        cause = cause.__cause__ or cause.__context__
    return None


def in_words(error: BaseException) -> str:
    """An error in a line; one of the operating system with the file's name and what to do."""
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    if error.filename is None or isinstance(error.filename, int):
        return (
            f"{error.strerror}; make room on the disk, then start the same command again"
            if (error.errno in FULL)
            else str(error)
        )
    return _in_words(Path(os.fsdecode(error.filename)), error.errno)


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _in_words(path: Path, number: int) -> str:
    if number in FULL:
        return (
            f"{path} could not be written: {os.strerror(number)}; make room on its disk, then start the same command "
            "again"
        )
    if number in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST):
        return f"{path}: {os.strerror(number)}; look at the path and name another"
    return f"{path}: {os.strerror(number)}; name a path that you may read and write"


def _errno_of(path: Path) -> int:
    """The number of the error where a writer gave none: the disk is full, or has another fault."""
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    return errno.ENOSPC if shutil.disk_usage(folder).free < 2**20 else errno.EIO


def remove(path: Path) -> None:
    """A file or a folder, if it is there and can be."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()

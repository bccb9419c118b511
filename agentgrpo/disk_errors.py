"""Errors of the disk and of paths in one line that says what to do. Only the standard library is imported."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Messages about the disk from writers outside Python: safetensors and tokenizers, pyarrow, torch, SQLite.
_FROM_LIBRARIES = re.compile(
    r"\(os error (\d+)\)|\[Errno (\d+)\]|PytorchStreamWriter|inline_container|disk is full|readonly database"
)


class OutputError(ValueError):
    """The message names the path, the reason and what to do."""


@contextmanager
def failures_of_the_disk(path: Path) -> Iterator[None]:
    """Raise an `OutputError` where a disk is full, read-only or broken; other errors pass unchanged."""
    try:
        yield
    except OutputError:
        raise
    except Exception as error:  # libraries wrap the disk's OSError in errors of their own
        if words := disk_fault(error, path):
            raise OutputError(words) from error
        raise


def disk_fault(error: BaseException, path: Path) -> str | None:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ValueError):  # our own ValueErrors already have their message
        if isinstance(cause, OSError) and cause.errno is not None:
            return _describe(Path(cause.filename) if isinstance(cause.filename, str) else path, cause.errno)
        if found := _FROM_LIBRARIES.search(str(cause)):
            number = next(filter(None, found.groups()), None)
            return _describe(path, int(number) if number else _likely_errno(path))
        cause = cause.__cause__ or cause.__context__
    return None


def format_disk_error(error: BaseException) -> str:
    """One line; for an error of the operating system, with the file's name and what to do."""
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    if error.filename is None or isinstance(error.filename, int):
        full = f"{error.strerror}; make room on the disk, then start the same command again"
        return full if error.errno in FULL else str(error)
    return _describe(Path(os.fsdecode(error.filename)), error.errno)


def _describe(path: Path, number: int) -> str:
    reason = os.strerror(number)
    if number in FULL:
        return f"{path} could not be written: {reason}; make room on its disk, then start the same command again"
    if number in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST):
        return f"{path}: {reason}; look at the path and name another"
    return f"{path}: {reason}; name a path that you may read and write"


def _likely_errno(path: Path) -> int:
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    disk = os.statvfs(folder)
    return errno.ENOSPC if disk.f_bavail * disk.f_frsize < 2**20 else errno.EIO

"""Paths that flags name, outputs, which appear whole or not at all, and the room for them on the disk."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from agentgrpo.checks import Finding, Problem, UsageError
from agentgrpo.commands import interruptible
from agentgrpo.disk_errors import OutputError, disk_fault, failures_of_the_disk
from agentgrpo.spelling import did_you_mean


def named_path(text: str) -> Path:
    # An empty path would mean the current folder.
    if not text.strip():
        raise argparse.ArgumentTypeError("the path is empty; name a file or folder")
    return Path(text)


def check_output(path: Path, flag: str, *, overwrite: bool | None = None) -> None:
    """Refuse a path that exists already, or that could not be written. No folder and no file is created.

    Args:
        flag: the flag that names the output, e.g. `--output`.
        overwrite: whether an existing file may be replaced; None for a command that has no --overwrite.
    Raises:
        OutputError: the message says which.
    """
    try:
        if path.is_dir():
            raise OutputError(f"{path} is a folder, expected a file to write; name another {flag}")
        if path.exists() and not overwrite:
            offer = "name another" if overwrite is None else "give --overwrite or another"
            raise OutputError(f"{path} is there already; {offer} {flag}")
        # Permissions alone do not tell: root may write to any folder, but not to /proc.
        with tempfile.TemporaryFile(dir=next(folder for folder in path.absolute().parents if folder.exists())):
            pass
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written ({error.strerror}); name another {flag}, below a folder you may write to"
        ) from None


def check_files(files: Iterable[Path | None]) -> None:
    """Raises UsageError: one of them is not there."""
    for path in filter(None, files):
        if not path.exists():
            raise UsageError(f"{path} does not exist; name a file that is there{did_you_mean(path)}")


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """Write under a temporary name, which replaces `path` once the block has ended without an error.

    Raises:
        OutputError: the file could not be written; the message says why and what to do.
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
        except BaseException as error:  # Ctrl-C too leaves no part of a file behind
            words = disk_fault(error, path)  # checked while the part still fills the disk
            remove(part)
            if words and isinstance(error, Exception):
                raise OutputError(words) from error
            raise


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def append_line(path: Path, text: str) -> None:
    """Append a line to a file; if that fails, the file stays as it was.

    Raises:
        OutputError: see `written`.
    """
    with failures_of_the_disk(path), path.open("ab", buffering=0) as out:
        length, line = out.tell(), text.encode() + b"\n"
        try:
            while line:
                line = line[out.write(line) :]
        except BaseException:  # Ctrl-C too leaves no half of a line behind
            out.truncate(length)
            raise


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


# Room on the disk -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DiskNeed:
    checkpoint: int
    """One checkpoint, about."""
    at_once: int
    """Checkpoints that are there at once: those that are kept, and one more while it is written."""
    rest: int
    there: int = 0
    """Checkpoints of the run that are on the disk already; the next ones take their place."""

    @property
    def total(self) -> int:
        return max(0, self.at_once * self.checkpoint + self.rest - self.there)


def describe_disk(folder: Path, need: DiskNeed) -> str:
    return (
        f"disk: {need.at_once} checkpoints of about {_size(need.checkpoint)} at once, {_size(need.rest)} for the rest"
        f"{f', less {_size(need.there)} that are there' if need.there else ''}; {_size(free_bytes(folder))} are free"
    )


def check_disk(folder: Path, need: DiskNeed, remedy: str) -> Finding:
    """
    Args:
        folder: it need not exist yet.
        remedy: what to change so that less is written.
    Raises:
        OutputError: not even half a checkpoint fits; sizes are known better than that.
    """
    free = free_bytes(folder)
    if need.at_once and free < need.checkpoint / 2:
        raise OutputError(
            f"the disk of {folder} has {_size(free)} left, and one checkpoint takes about {_size(need.checkpoint)}: "
            f"make room, name a folder on another disk, or {remedy}"
        )
    if free >= need.total:
        return Finding(f"{_size(free)} are free")
    what = (
        f"the disk of {folder} may become full: {_size(free)} are left, and the run writes up to "
        f"{_size(need.total)} ({need.at_once} checkpoints of about {_size(need.checkpoint)} at once)"
    )
    return Finding(f"{_size(free)} are free", (Problem(what, f"make room, or {remedy}", blocks=False),))


def free_bytes(folder: Path) -> int:
    """Space for this user, where the folder is or will be."""
    return shutil.disk_usage(next(path for path in (folder, *folder.absolute().parents) if path.exists())).free


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _size(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**29 else f"{size / 2**20:.0f} MiB"

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from agentgrpo.checks import Finding, Problem
from agentgrpo.disk_errors import OutputError


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

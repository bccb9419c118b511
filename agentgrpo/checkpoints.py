"""Finds, checks and removes a run's checkpoints: folders named by their train step, each with a signed record.

A checkpoint is valid once its record is written, and is loaded only if its files still match the record and this user
wrote them (`agentgrpo.signed_checkpoints`).
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from agentgrpo import signed_checkpoints

MANIFEST = "manifest.json"
CHECKPOINTS = "checkpoints"
"""The folder of a run that has them."""
NAME = re.compile(r"(?:global_step_|step_|checkpoint-)(\d+)")
"""How verl, local training and transformers name a checkpoint."""

SAVE_S = 300.0
"""Seconds of training between checkpoints where no number of steps is given; a checkpoint takes seconds itself."""

Say = Callable[[str], None]


class SaveClock:
    """Tells after which steps a checkpoint is due.

    Args:
        every: steps between checkpoints; None: `SAVE_S` seconds of training, however long a step takes.
    """

    def __init__(self, every: int | None) -> None:
        self._every, self._last = every, time.monotonic()

    def is_due(self, step: int) -> bool:
        if self._every is not None:
            return step % self._every == 0
        now = time.monotonic()
        if now - self._last < SAVE_S:
            return False
        self._last = now
        return True


class CheckpointError(ValueError):
    """A checkpoint cannot be written, or none can be loaded."""


def step_of(checkpoint: Path) -> int:
    found = NAME.fullmatch(checkpoint.name)
    if not found:
        raise ValueError(f"{checkpoint} is not named as a checkpoint, such as step_000100")
    return int(found[1])


def checkpoints(folder: Path) -> list[Path]:
    """Newest first; [] if there is no such folder."""
    found = [path for path in folder.glob("*") if NAME.fullmatch(path.name)]
    return sorted(found, key=step_of, reverse=True)


def how_to_go_on(folder: Path, again: str, *, record: str = MANIFEST) -> str:
    """What a run that was stopped has to go on with.

    Args:
        folder: of the checkpoints.
        again: the start that goes on, such as "the same command with --resume".
        record: see `newest_whole`.
    """
    newest = newest_finished(folder, record)
    return f"{again} resumes from {newest}" if newest else f"there is no checkpoint yet, so {again} starts again"


def newest_finished(folder: Path, record: str = MANIFEST) -> Path | None:
    return next((path for path in checkpoints(folder) if (path / record).is_file()), None)


def check_checkpoint(checkpoint: Path, *, hashes: bool = True) -> str | None:
    """What is wrong with a checkpoint's files; None if they are unchanged.

    Args:
        hashes: False compares sizes only, which reads no file.
    """
    manifest = signed_checkpoints.read_record(checkpoint, MANIFEST)
    return (
        manifest
        if isinstance(manifest, str)
        else signed_checkpoints.check_record_files(checkpoint, manifest, hashes=hashes)
    )


def newest_whole(
    folder: Path, say: Say, *, run_dir: Path, record: str = MANIFEST, remedy: str | None = None
) -> Path | None:
    """The newest whole checkpoint; None if the run starts anew.

    Args:
        say: called for each newer checkpoint that is skipped, with its fault.
        record: the name of the checkpoints' record.
        remedy: what to do where finished checkpoints are there and none is whole; None: the run starts anew.
    Raises:
        CheckpointError: there is a remedy to name.
        NotOursError: another user wrote the checkpoint.
    """
    faults, found = [], checkpoints(folder)
    for checkpoint in found:
        fault = signed_checkpoints.why_not_loadable(checkpoint, record, run_dir=run_dir)
        if fault is None:
            return checkpoint
        say(f"checkpoint {checkpoint} is skipped: {fault}")
        faults.append(f"{checkpoint.name}: {fault}")
    if remedy and any((checkpoint / record).exists() for checkpoint in found):
        raise CheckpointError(f"no checkpoint in {folder} is whole ({'; '.join(faults)}); {remedy}")
    return None


def prune(sealed: Path, keep: int) -> list[Path]:
    """Remove all checkpoints except `keep` whole ones: the one that was just sealed and the newest before it.

    Checkpoints of a higher step failed the check when the run started, so they are removed too. Of older ones only the
    sizes are checked, since hashing would read all files again.

    Returns:
        The removed folders.
    """
    others = [checkpoint for checkpoint in checkpoints(sealed.parent) if checkpoint != sealed]
    older = [
        path for path in others if step_of(path) < step_of(sealed) and check_checkpoint(path, hashes=False) is None
    ]
    removed = [checkpoint for checkpoint in others if checkpoint not in older[: keep - 1]]
    for checkpoint in removed:
        (checkpoint / MANIFEST).unlink(missing_ok=True)  # a half removed checkpoint must not be valid
        shutil.rmtree(checkpoint, ignore_errors=True)
    return removed

"""Passes on how many micro-batches a training worker has computed: a small file in the run's folder.

verl's driver waits for its workers until an update ends, and a Ray call would wait for them too. So the first worker
writes a file before each micro-batch, which takes 0.1 ms, and the command reads it when it shows progress.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from agentgrpo.processes import RUN_ID, run_folder


class MicroBatches(NamedTuple):
    forward_only: bool
    """True for log-probs, False for an update."""
    updates: int
    """Updates of this worker that have begun, since its start."""
    done: int
    of: int
    """Micro-batches that are computed, and all of them."""


def write_progress(progress: MicroBatches) -> None:
    """Write the progress; without a run, or on a disk that fails, nothing is written: training goes on."""
    if (run_id := os.environ.get(RUN_ID)) is None:
        return
    file = _file(run_id)
    part = file.with_suffix(".part")
    with suppress(OSError):
        part.write_text(" ".join(map(str, map(int, progress))))
        os.replace(part, file)


def read_progress(run_id: str) -> MicroBatches | None:
    """What a run's worker wrote last; None before its first micro-batch."""
    with suppress(OSError, ValueError):
        forward_only, *numbers = map(int, _file(run_id).read_text().split())
        return MicroBatches(bool(forward_only), *numbers)
    return None


def _file(run_id: str) -> Path:
    return run_folder(run_id) / "micro_batches"

"""Defines what every folder of a training run has: a lock, run.json (how it was started), config.yaml (its settings)
and metrics.jsonl (a row for each train step, and for each validation).

A run holds the lock for as long as it lives. Leaves out checkpoints, whose contents differ (`agentgrpo.signed` seals
them).
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from agentgrpo.checks import UsageError
from agentgrpo.json_text import parse_json
from agentgrpo.machine import git_commit
from agentgrpo.outputs import failures_of_the_disk, written
from agentgrpo.passwords import masked

LOCK, START, SETTINGS, METRICS = ".lock", "run.json", "config.yaml", "metrics.jsonl"

# The lock -------------------------------------------------------------------------------------------------------------

_held: set[int] = set()
"""Locks of this process. A forked runner that outlives a killed command would keep them, so a fork closes them."""


def _let_go() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


@contextmanager
def claim(run_dir: Path) -> Iterator[None]:
    """Lock the folder, so that one run at a time writes to it or decides which of its checkpoints are whole.

    Processes that a killed command has left behind end by themselves; this waits for them. A folder that was made for
    the lock and holds nothing else at the end is removed, since the start was refused.

    Raises:
        OutputError: the folder cannot be written.
        UsageError: another run has the lock.
    """
    from agentgrpo.processes import LINGER_S, wait_until_gone

    is_new = not run_dir.exists()
    with failures_of_the_disk(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = os.open(run_dir / LOCK, os.O_WRONLY | os.O_CREAT)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another run is writing to {run_dir}; wait for its end or give another --run-dir"
            ) from None
        _held.add(lock)
        if run_id := last_run_id(run_dir):
            wait_until_gone(run_id, LINGER_S + 5.0, forks=True)
        yield
    finally:
        if is_new and is_empty(run_dir):
            (run_dir / LOCK).unlink()
            run_dir.rmdir()
        _held.discard(lock)
        os.close(lock)


def is_empty(run_dir: Path) -> bool:
    """Return whether a folder holds nothing; the lock of a start that was refused does not count."""
    return set(os.listdir(run_dir)) <= {LOCK}


def is_running(run_dir: Path) -> bool:
    """Return whether a training command holds the folder's lock."""
    try:
        lock = os.open(run_dir / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(lock)


# The start ------------------------------------------------------------------------------------------------------------


def last_run_id(run_dir: Path) -> str | None:
    """Return the id of the run that wrote there last; None if it had none or its run.json is incomplete."""
    try:
        return parse_json((run_dir / START).read_text())["run_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def start_of(kind: str, **facts: Any) -> dict[str, Any]:
    """Return what run.json says about a start that is made now.

    Args:
        kind: the command, as `agentgrpo --help` names it.
        facts: what only this kind of run has, such as its device, or `steps`, the train step at which it is finished.
    """
    now = {"commit": git_commit() or "unknown", "argv": sys.argv, "started_at": time.time()}
    return {"kind": kind, **now, **facts}


def begin(run_dir: Path, settings: Mapping[str, Any], start: Mapping[str, Any], *, resumed: bool) -> None:
    """Write config.yaml and run.json, each whole or not at all.

    Args:
        settings: as JSON values.
        start: see `start_of`.
    Raises:
        OutputError: see `written`.
    """
    with written(run_dir / SETTINGS) as part:
        part.write_text(yaml.safe_dump(dict(settings), sort_keys=False))
    write_start(run_dir, start, resumed=resumed)


def write_start(run_dir: Path, start: Mapping[str, Any], *, resumed: bool) -> None:
    """Write run.json: how the run was started, and under `earlier_starts` how it was started before it was resumed."""
    earlier: list[Any] = []
    if resumed:
        with suppress(OSError, ValueError, AttributeError):  # a killed run may leave it incomplete
            last = parse_json((run_dir / START).read_text())
            earlier = [*last.pop("earlier_starts", []), last]
    starts = [dict(start), *earlier]
    for each in starts:  # earlier versions wrote passwords to the file
        each |= {"argv": [masked(str(word), whole=True) for word in each["argv"]]} if "argv" in each else {}
    with written(run_dir / START) as part:
        part.write_text(json.dumps(starts[0] | {"earlier_starts": earlier}, indent=2))

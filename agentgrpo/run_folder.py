"""What every folder of a training run has: a lock, run.json (how it was started), config.yaml (its settings) and
metrics.jsonl (a row for each train step, and for each validation).

A run holds the lock for as long as it lives. wandb, SwanLab and TensorBoard, which may have the metrics too, write
there as well. Leaves out checkpoints, whose contents differ (`agentgrpo.signed_checkpoints` seals them).
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from agentgrpo.checks import UsageError
from agentgrpo.hub_address import hub_addresses
from agentgrpo.json_text import parse_json
from agentgrpo.machine import git_commit
from agentgrpo.outputs import check_output, failures_of_the_disk, written
from agentgrpo.passwords import masked
from agentgrpo.printed_commands import agentgrpo_command, remedy_of
from agentgrpo.signed_checkpoints import user_key

logger = logging.getLogger(__name__)

LOCK, START, SETTINGS, METRICS = ".lock", "run.json", "config.yaml", "metrics.jsonl"
HUB_ROWS = "hub_rows"
"""What run.json calls the addresses of rows on the hub."""

# The lock -------------------------------------------------------------------------------------------------------------

# Locks of this process. A forked runner that outlives a killed command would keep them, so a fork closes them.
_held: set[int] = set()


def _let_go() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


@contextmanager
def claim(run_dir: Path) -> Iterator[None]:
    """Lock the folder, so that one run at a time writes to it or decides which of its checkpoints are whole.

    Processes that a killed command has left behind end by themselves; this waits for them. A folder that was made for
    the lock and holds nothing else at the end is removed, since the start was refused; so are folders above it.

    Raises:
        OutputError: the folder cannot be written.
        UsageError: another run has the lock.
    """
    from agentgrpo.processes import LINGER_S, wait_until_gone

    made = [folder for folder in (run_dir, *run_dir.parents) if not folder.exists()]
    with failures_of_the_disk(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = os.open(run_dir / LOCK, os.O_WRONLY | os.O_CREAT)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _taken(run_dir) from None
        _held.add(lock)
        if run_id := last_run_id(run_dir):
            wait_until_gone(run_id, LINGER_S + 5.0, forks=True)
        yield
    finally:
        if made and is_empty(run_dir):
            (run_dir / LOCK).unlink()
            with suppress(OSError):  # another run has made its folder beside this one
                for folder in made:
                    folder.rmdir()
        _held.discard(lock)
        os.close(lock)


def _taken(run_dir: Path) -> UsageError:
    return UsageError(f"another run is writing to {run_dir}; wait for its end or give another --run-dir")


def check_run_dir(run_dir: Path) -> None:
    """Raises ValueError: it is a file, nothing can be written there, or another run is writing there."""
    if run_dir.exists() and not run_dir.is_dir():
        raise UsageError(f"--run-dir {run_dir} is a file, expected a folder; name another --run-dir")
    check_output(run_dir / START, "--run-dir", overwrite=True)
    if is_running(run_dir):
        raise _taken(run_dir)


def is_empty(run_dir: Path) -> bool:
    """The lock of a start that was refused does not count."""
    return set(os.listdir(run_dir)) <= {LOCK}


def check_begun(run_dir: Path, *, kind: str, resume: bool, begun: bool) -> None:
    """Check that a new run writes over nothing, and that a run that is to go on has begun, by the same command.

    Args:
        kind: the command, as `agentgrpo --help` names it.
    Raises:
        ValueError: it is not so, or this user has no key to sign checkpoints with.
    """
    user_key()  # is made, or raises, before anything starts
    if resume and not begun:
        raise UsageError(
            f"{run_dir} holds no run to go on with; start it without --resume, in another folder if an earlier version "
            "began one here"
        )
    if resume and (other := read_start(run_dir).get("kind", kind)) != kind:
        raise UsageError(f"{run_dir} holds a run of `{agentgrpo_command(other)}`; go on with it there, by that command")
    if not resume and run_dir.is_dir() and not is_empty(run_dir):
        raise UsageError(f"{run_dir} is not empty; go on with its run by --resume, or name another --run-dir")


def is_running(run_dir: Path) -> bool:
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
    """None if no run wrote there, or its run.json is incomplete."""
    return read_start(run_dir).get("run_id")


def read_start(run_dir: Path) -> dict[str, Any]:
    try:
        start = parse_json((run_dir / START).read_text())
    except (OSError, ValueError):
        return {}
    return start if isinstance(start, dict) else {}


def start_of(kind: str, **facts: Any) -> dict[str, Any]:
    """What run.json says about a start that is made now.

    Args:
        kind: the command, as `agentgrpo --help` names it.
        facts: what only this kind of run has, such as its device, or `steps`, the train step at which it is finished.
    """
    now = {"commit": git_commit() or "unknown", "argv": sys.argv, "started_at": time.time()}
    return {"kind": kind, **now, "versions": _versions(), **facts}


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in ("torch", "transformers", "peft", "trl", "vllm", "verl", "agentlightning"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


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
    fetched = hub_addresses(flat(settings).values())
    write_start(run_dir, {**start, **({HUB_ROWS: fetched} if fetched else {})}, resumed=resumed)


def begun_with(run_dir: Path) -> list[str]:
    """The rows on the hub that the run in the folder reads, as addresses with their commits."""
    return read_start(run_dir).get(HUB_ROWS, [])


def flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Settings by dotted name, as `optim.learning_rate`."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= flat(value, f"{before}{name}.") if isinstance(value, dict) and value else {before + name: value}
    return found


def write_start(run_dir: Path, start: Mapping[str, Any], *, resumed: bool) -> None:
    """Write run.json: how the run was started, and under `earlier_starts` how it was started before it was resumed."""
    last = read_start(run_dir) if resumed else {}
    earlier = [*last.pop("earlier_starts", []), last] if last else []
    starts = [dict(start), *earlier]
    for each in starts:  # earlier versions wrote passwords to the file
        each |= {"argv": [masked(str(word), whole=True) for word in each["argv"]]} if "argv" in each else {}
    with written(run_dir / START) as part:
        part.write_text(json.dumps(starts[0] | {"earlier_starts": earlier}, indent=2))


def note_steps(run_dir: Path, steps: int) -> None:
    """Note in run.json at which train step the run will be finished."""
    with written(run_dir / START) as part:
        part.write_text(json.dumps(read_start(run_dir) | {"steps": steps}, indent=2))


# The rows -------------------------------------------------------------------------------------------------------------


def earlier_steps(path: Path) -> list[dict[str, float]]:
    """In order; for a step repeated after a resume, the later metrics."""
    if not path.is_file():
        return []
    *lines, _torn = path.read_text(encoding="utf-8", errors="replace").split("\n")
    rows: dict[int, dict[str, float]] = {}
    for line in lines:
        try:
            row = parse_json(line)
            rows[int(row["train_step"])] = {name: value for name, value in row.items() if value is not None}
        except (ValueError, TypeError, KeyError, AttributeError):
            logger.warning("%s: a line is no row of metrics and is skipped", path)
    return [rows[step] for step in sorted(rows)]


def drop_torn_line(path: Path) -> None:
    """Remove an incomplete last line, which a killed run may leave; the next step would be appended to it."""
    written = path.read_bytes() if path.is_file() else b""
    whole = written.rfind(b"\n") + 1
    if whole < len(written):
        logger.warning("%s: the last line was cut short and is dropped (%d bytes)", path, len(written) - whole)
        os.truncate(path, whole)


def cut_back(file: Path, step: int) -> None:
    """Remove the rows of later steps, which a resumed run takes again, and what is no whole row; the rest stays."""
    lines = file.read_bytes().splitlines(keepends=True) if file.is_file() else []
    kept = [line for line in lines if line.endswith(b"\n") and (at := _train_step(line)) is not None and at <= step]
    if kept != lines:
        with written(file) as part:  # a run killed at any moment leaves a complete file
            part.write_bytes(b"".join(kept))


def _train_step(line: bytes) -> int | None:
    try:
        return int(parse_json(line)["train_step"])
    except (ValueError, TypeError, KeyError):
        return None


# Trackers -------------------------------------------------------------------------------------------------------------


def usable_trackers(wanted: Sequence[str], folder: Path) -> list[str]:
    """Those that are installed, and have them write into a run's folder.

    Without an API key wandb and SwanLab write there and nowhere else. What the environment already says stays: it may
    name another folder, or switch uploading on for somebody who has logged in.
    """
    usable = [name for name in wanted if importlib.util.find_spec(name) is not None]
    for name in wanted:
        if name not in usable:
            logger.warning("%s is not installed; continuing without it. To add it: %s", name, remedy_of(name))
    if not usable:
        return []
    defaults = {
        "TENSORBOARD_DIR": str(folder / "tensorboard"),  # verl reads this name, transformers the next
        "TENSORBOARD_LOGGING_DIR": str(folder / "tensorboard"),
        "WANDB_DIR": str(folder),  # wandb adds wandb/
        "SWANLAB_LOG_DIR": str(folder / "swanlab"),
        "TRACKIO_DIR": str(folder / "trackio"),
    }
    if not os.environ.get("WANDB_API_KEY"):
        defaults["WANDB_MODE"] = "offline"
    if not os.environ.get("SWANLAB_API_KEY"):
        defaults["SWANLAB_MODE"] = "offline"  # `local` needs a dashboard of its own, swanboard
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    return usable

"""Find what killed training runs left behind, and remove it: `agentgrpo clean`.

A run cleans up after itself, and its guard does so after a killed command (`agentgrpo.processes`). Something is left
only if the guard was killed too, for example with a stopped container. This command finds processes and folders that
carry the id of a run whose command is gone. It touches no run in progress, nothing of another user, nothing without the
id, and no run directory, because these are results.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentgrpo.flags import Parser
from agentgrpo.processes import (
    FOLDER,
    IS_RUN_ID,
    LOCK,
    PLACES,
    end_run,
    folders_of,
    marked,
    processes_of,
    remove_folders,
)

State = Literal["going on", "over", "unknown"]


@dataclass(frozen=True)
class Leftovers:
    run_id: str
    state: State
    """The state is `unknown` if the folder with the lock of the run's command is missing."""
    processes: list[int]
    folders: list[Path]


def find_leftovers() -> list[Leftovers]:
    """Find everything that carries a run's id, also of runs in progress."""
    ids = {run_id for _, run_id in marked(forks=True) if IS_RUN_ID.fullmatch(run_id)}
    names = (FOLDER.fullmatch(path.name) for place in PLACES for path in place.glob("*agentgrpo-*"))
    ids |= {match[1] for match in names if match and folders_of(match[1])}
    return [Leftovers(i, state_of(i), processes_of(i, forks=True), folders_of(i)) for i in sorted(ids)]


def state_of(run_id: str) -> State:
    """Tell whether the command of a run lives: it holds a lock until it ends, even if its pid is used again."""
    try:
        lock = os.open(PLACES[0] / f"agentgrpo-{run_id}" / LOCK, os.O_WRONLY | os.O_NOFOLLOW)
    except OSError:
        return "unknown"
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return "over"
    except OSError:
        return "going on"
    finally:
        os.close(lock)


def remove_leftovers(left: Leftovers) -> bool:
    """End and remove what is left; return whether all of it is gone."""
    end_run(left.run_id, patience_s=5.0, forks=True)
    remove_folders(left.run_id)
    return not processes_of(left.run_id, forks=True) and not folders_of(left.run_id)


def describe_leftovers(left: Leftovers) -> str:
    lines = [f"run {left.run_id}, {_STATES[left.state]}"]
    for pid in left.processes:
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            lines.append(f"  process {pid}: {command.strip()[:100]}")
    lines += [f"  folder {folder}, {_size_mib(folder):.1f} MiB" for folder in left.folders]
    return "\n".join(lines)


_STATES = {
    "going on": "still running: left alone",
    "over": "its command is gone",
    "unknown": "whose command is unknown: name it with --run-id if you know that the run is over",
}


def _size_mib(folder: Path) -> float:
    total = 0
    for place, _, files in os.walk(folder):  # unlike rglob, os.walk continues if a folder vanishes
        for file in files:
            with suppress(OSError):
                total += os.lstat(os.path.join(place, file)).st_size
    return total / 2**20


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(
        prog="agentgrpo clean",
        description="List what killed training runs left behind: processes, databases, sockets, temporary files.",
        epilog="Without an option nothing is removed. A run in progress is never touched.",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--run-id", metavar="ID", help="remove what is left of this run")
    which.add_argument("--all", action="store_true", help="remove what is left of every run whose command is gone")
    args = parser.parse_args(argv)
    if args.run_id is not None and not IS_RUN_ID.fullmatch(args.run_id):
        print(f"error: {args.run_id!r} is no run id: 12 digits and letters a to f, in run.json", file=sys.stderr)
        return 2
    found = [left for left in find_leftovers() if args.run_id in (None, left.run_id)]
    for left in found:
        print(describe_leftovers(left))
    if args.run_id and any(left.state == "going on" for left in found):
        print(f"error: run {args.run_id} is still running; stop it first (SIGTERM to its command)", file=sys.stderr)
        return 2
    mine = [left for left in found if left.state == "over" or (args.run_id and left.state == "unknown")]
    if args.all or args.run_id:
        gone = {left.run_id: remove_leftovers(left) for left in mine}
        for run_id, removed in gone.items():
            print(f"run {run_id}: {'removed' if removed else 'not all of it could be removed; list it again'}")
        if not all(gone.values()):
            return 1
    elif mine:
        print("nothing removed; --all removes what is left of runs that are over, --run-id ID of one")
    if not found:
        print("no run has left anything here")
    return 0

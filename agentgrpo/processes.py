"""How the processes of a run end, and its temporary files go, however the run ends. Linux only.

Every process of a run carries the run's id, in its environment or, if it was forked, as its name; every temporary file
is in a folder with the id in its name. At the end all processes with the id get SIGTERM, later SIGKILL, and the folders
are removed. The command itself does this, or a guard process if the command was killed, or `agentgrpo clean` if both
were killed. Nothing without the id is touched.

`python -m agentgrpo.processes RUN_ID PID [detached]` starts the guard of the run whose command has this PID; `detached`
makes it nobody's child.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agentgrpo.commands import interruptible

RUN_ID = "AGENTGRPO_RUN_ID"
IS_RUN_ID = re.compile("[0-9a-f]{12}")
# Runs give such names to their folders, and to memory that they share, in `PLACES`; the group is the run's id.
FOLDER = re.compile(rf"\.?agentgrpo-(?:mariadb-\d+-)?({IS_RUN_ID.pattern})(?:-\w+)?")
# The command keeps this file in the run's folder locked while it lives.
LOCK = "lock"
# Runs have their folders here: paths of Unix sockets are limited to 107 characters, and databases are in memory.
PLACES = (Path("/tmp"), Path("/dev/shm"))
# The guard waits this long for the processes of a killed command to end by themselves.
LINGER_S = 10.0
# It is loaded here, because nothing is loaded safely between a fork and its exec.
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
# This prefix precedes the run's id in a forked process's name; the kernel keeps 15 characters.
_NAME = "ag-"


class Events:
    """JSON lines on the original standard output; all other output of this process goes to standard error."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def emit(self, event: dict[str, Any]) -> None:
        self._out.write(json.dumps(event) + "\n")


def tell(process: subprocess.Popen[str], message: Any) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()


def run_folder(run_id: str) -> Path:
    return PLACES[0] / f"agentgrpo-{run_id}"


def hold_folder(run_id: str) -> int:
    """Make the run's folder for temporary files on this machine and return a lock that this very process holds."""
    newborn = PLACES[0] / f".agentgrpo-{run_id}"
    newborn.mkdir(mode=0o700)
    # unlike flock, such a lock is not inherited: it is released when this very process ends
    lock = os.open(newborn / LOCK, os.O_WRONLY | os.O_CREAT, 0o600)
    fcntl.lockf(lock, fcntl.LOCK_EX)
    newborn.rename(run_folder(run_id))  # the folder is locked before it gets its final name
    return lock


@contextmanager
def own_run() -> Iterator[tuple[str, Path]]:
    """Begin a run: yield its id, which all its processes inherit, and a folder for temporary files. At the end, end all
    of its processes and remove the folder."""
    run_id = uuid.uuid4().hex[:12]
    folder, lock = run_folder(run_id), hold_folder(run_id)
    command = [sys.executable, "-m", "agentgrpo.processes", run_id, str(os.getpid())]
    root = Path(__file__).resolve().parents[1]
    nothing = subprocess.DEVNULL  # a reader of the command's output need not wait for the guard
    guard = subprocess.Popen(command, cwd=root, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
    # torch and Triton cache compiled code there, for all runs of a user
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}")
    try:
        with _environment({RUN_ID: run_id, "TMPDIR": str(folder)}):
            yield run_id, folder
    finally:
        end_run(run_id)
        remove_folders(run_id)
        os.close(lock)
        guard.terminate()
        guard.wait()


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    tempfile.tempdir = None  # tempfile reads TMPDIR again
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        tempfile.tempdir = None


@contextmanager
def ends_in_order() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt inside the block as Ctrl-C does, and SIGHUP too unless it is ignored (nohup).

    A shell starts background commands of a script (`command &`) with SIGINT ignored. It stays ignored, because Ctrl-C
    is meant for the script. Python then has no handler of SIGINT, so that raising the signal would do nothing.
    """

    def end(*_: Any) -> None:
        for sign in before:  # a second signal would interrupt the clean-up
            signal.signal(sign, signal.SIG_IGN)
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)  # asyncio's handler cancels its first task

    signs = (signal.SIGTERM, signal.SIGHUP)
    before = {sign: signal.getsignal(sign) for sign in signs if signal.getsignal(sign) != signal.SIG_IGN}
    for sign in before:
        signal.signal(sign, end)
    try:
        with interruptible():
            yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


def end_with_parent(sign: int = signal.SIGTERM, parent: int | None = None) -> None:
    """Ask the kernel to send `sign` to this process when its parent ends for any reason (prctl PR_SET_PDEATHSIG).

    Args:
        parent: the parent's pid, if the parent may have ended before this call.
    """
    parent = parent or os.getppid()
    _LIBC.prctl(_PR_SET_PDEATHSIG, sign)
    if os.getppid() != parent:  # the parent ended in between
        os.kill(os.getpid(), sign)


def set_process_name() -> None:
    """Name this process after its run, because a fork shows the environment that its parent was started with."""
    if run_id := os.environ.get(RUN_ID):
        _LIBC.prctl(_PR_SET_NAME, f"{_NAME}{run_id}".encode())


def processes_of(run_id: str, *, forks: bool = False) -> list[int]:
    """Pids of living processes without this one.

    Args:
        forks: whether to include those that carry the id as their name; they end by themselves when the command ends.
    """
    return [pid for pid, its in marked(forks=forks) if its == run_id]


def marked(*, forks: bool) -> list[tuple[int, str]]:
    """(pid, run id) of every living process of this user that carries a run's id, without this one."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with suppress(OSError):  # the process has ended, or belongs to another user
            run_id = _mark(folder, forks=forks) if folder.stat().st_uid == os.geteuid() else None
            if run_id and _alive(folder):
                found.append((int(folder.name), run_id))
    return found


def _mark(folder: Path, *, forks: bool) -> str | None:
    name = (folder / "comm").read_text().strip()
    if forks and name.startswith(_NAME):
        return name.removeprefix(_NAME)
    variables = (folder / "environ").read_bytes().split(b"\0")
    prefix = f"{RUN_ID}=".encode()
    found = (v.removeprefix(prefix).decode(errors="replace") for v in variables if v.startswith(prefix))
    return next(found, None) or _mark_of_ray(folder)


def _mark_of_ray(folder: Path) -> str | None:
    # Ray's agents overwrite their environment, but have logs open in the run's folder.
    if not (folder / "cmdline").read_bytes().startswith(b"ray::"):
        return None
    for file in (folder / "fd").iterdir():
        with suppress(OSError):  # the file was closed
            for part in Path(os.readlink(file)).parts:
                if name := FOLDER.fullmatch(part):
                    return name[1]
    return None


def folders_of(run_id: str) -> list[Path]:
    found = [(path, FOLDER.fullmatch(path.name)) for place in PLACES for path in sorted(place.glob("*agentgrpo-*"))]
    return [path for path, name in found if name and name[1] == run_id and _is_ours(path)]


def _is_ours(path: Path) -> bool:
    try:
        return path.stat(follow_symlinks=False).st_uid == os.geteuid()
    except FileNotFoundError:  # its run has just ended
        return False


def remove_folders(run_id: str) -> None:
    for folder in folders_of(run_id):
        if folder.is_file():  # shared memory
            folder.unlink(missing_ok=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def end_run(run_id: str, *, patience_s: float = 10.0, forks: bool = False) -> list[int]:
    """SIGTERM first, after `patience_s` seconds SIGKILL.

    Returns:
        The pids that existed at the call.
    """
    left = processes_of(run_id, forks=forks)
    for sign, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 5.0)):
        for pid in processes_of(run_id, forks=forks):
            with suppress(ProcessLookupError):
                os.kill(pid, sign)
        wait_until_gone(run_id, wait_s, forks=forks)
    return left


def wait_until_gone(run_id: str, wait_s: float, *, forks: bool) -> None:
    deadline = time.monotonic() + wait_s
    while processes_of(run_id, forks=forks) and time.monotonic() < deadline:
        time.sleep(0.05)


def _alive(folder: Path) -> bool:
    return (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def guard(run_id: str, command: int) -> None:
    """Wait for SIGTERM, which the command sends after its clean-up, or for the command's end; then end and remove what
    is left."""
    told, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)  # the pipe becomes readable
    with suppress(ProcessLookupError):  # it has ended already
        select.select([told, os.pidfd_open(command)], [], [])
    wait_until_gone(run_id, LINGER_S, forks=True)
    end_run(run_id, forks=True)
    remove_folders(run_id)


if __name__ == "__main__":
    if sys.argv[3:] == ["detached"] and os.fork():
        os._exit(0)
    guard(sys.argv[1], int(sys.argv[2]))

"""Runs one command in a world of its own and tells what it left there: processes, ports, sockets, files, and attempts
to reach a network.

    unshare --fork --pid --mount --net --mount-proc python -m sql_agent.tests.cage < PLAN

Its first process, this one, inherits the orphans; `/tmp` and `/dev/shm` are empty at the start; there is no network but
loopback, and the kernel counts what finds no route. Everything ends with this process.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RUN_DIR = Path("/tmp/run")
"""Of the command; results are no leftovers."""
OUT = Path("/tmp/run.out")
_SIOCSIFFLAGS, _UP, _LISTENING = 0x8914, 0x1, "0A"
_PLACES = ("/tmp", "/dev/shm")
_CACHES = ("/tmp/torchinductor_",)
"""What outlives a run on purpose: torch's own cache of compiled code, empty where nothing is compiled."""
_NAMESPACES = ["--fork", "--pid", "--mount", "--net", "--mount-proc"]


@dataclass(frozen=True)
class Plan:
    command: list[str]
    sign: int | None = None
    """Signal that the command gets; None lets it end by itself."""
    line: str = ""
    """Regular expression; once a line of the command's output matches, the signal is sent `delay_s` later ..."""
    file: str = ""
    """... or once this file, of the run directory, is there."""
    delay_s: float = 0.0
    start_s: float = 600.0
    """Longest wait for either, or for the command's end."""
    end_s: float = 90.0
    """Longest wait, after the command's end or signal, for everything else to end."""
    keep: str = ""
    """Folder outside the cage that is the run directory in it, so that the run's files outlast both."""


@dataclass
class Left:
    """What there is when the command, and what it started, had time to end."""

    code: int | None
    """How the command ended; None if it did not."""
    output: str
    run_id: str | None
    seconds: float
    """From the signal, or the command's end, until no process was there."""
    processes: list[str] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    sockets: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    no_route: int = 0
    """Attempts to send to an address that is not loopback."""
    logs: str = ""


@functools.cache
def unshare() -> list[str] | None:
    """The command that makes such a world; None where this machine does not let us."""
    for user in ([], ["--map-root-user"]):
        command = ["unshare", *user, *_NAMESPACES]
        with contextlib.suppress(OSError):
            if (
                subprocess.run([*command, "mount", "-t", "tmpfs", "none", "/dev/shm"], capture_output=True).returncode
                == 0
            ):
                return command
    return None


def run(plan: Plan) -> Left:
    """Run a plan in a cage of its own."""
    command = [*(unshare() or []), sys.executable, "-m", "sql_agent.tests.cage"]
    environment = {name: value for name, value in os.environ.items() if name not in ("AGL_MANAGED_STORE", "TMPDIR")}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, input=json.dumps(asdict(plan)), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Left(**json.loads(done.stdout.splitlines()[-1]))


def check_nothing_was_sent(left: Left) -> None:
    assert left.no_route == 0, "which process it was says `strace -f -e trace=connect,sendto,sendmsg`"


def check_nothing_is_left(left: Left) -> None:
    where = f"run {left.run_id}\n{left.output}\n{left.logs}"
    assert left.processes == [], where
    assert (left.ports, left.sockets) == ([], []), where
    assert [file for file in left.files if not file.startswith(_CACHES)] == [], where


def main() -> None:
    plan = Plan(**json.loads(sys.stdin.read()))
    _furnish(plan.keep)
    with OUT.open("wb") as out:
        process = subprocess.Popen(plan.command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    deadline = time.monotonic() + plan.start_s
    while process.poll() is None and not _is_time(plan) and time.monotonic() < deadline:
        time.sleep(0.05)
    if plan.sign is not None and process.poll() is None:
        time.sleep(plan.delay_s)
        process.send_signal(plan.sign)
    since = time.monotonic()
    while (others := _others()) and time.monotonic() < since + plan.end_s:
        process.poll()
        _reap(process.pid)
        time.sleep(0.02)
    seconds = time.monotonic() - since
    print(json.dumps(asdict(_look(process, others, seconds))))


def _furnish(keep: str) -> None:
    outside = {ROOT: os.open(ROOT, os.O_RDONLY)}  # it may stand in a folder that is about to be covered
    if keep:
        outside[RUN_DIR] = os.open(keep, os.O_RDONLY)
    for place in _PLACES:
        subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
    for place, folder in outside.items():
        if not place.is_dir():
            place.mkdir(parents=True)
            source = f"/proc/{os.getpid()}/fd/{folder}"
            subprocess.run(["mount", "--no-canonicalize", "--bind", source, str(place)], check=True)
        os.close(folder)
    resolver = Path("/tmp/resolv.conf")
    resolver.write_text("nameserver 192.0.2.1\n")  # whoever looks up a name has to send for it
    subprocess.run(["mount", "--bind", str(resolver), "/etc/resolv.conf"], check=True)
    resolver.unlink()
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", _UP))


def _is_time(plan: Plan) -> bool:
    if plan.file:
        return (RUN_DIR / plan.file).exists()
    return bool(plan.line) and re.search(plan.line, OUT.read_text(errors="replace")) is not None


def _others() -> list[Path]:
    return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and entry.name != "1"]


def _reap(command: int) -> None:
    """Orphans that have ended; the command is its own object's to reap."""
    for entry in _others():
        if entry.name != str(command):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(int(entry.name), os.WNOHANG)


def _look(process: subprocess.Popen[Any], others: list[Path], seconds: float) -> Left:
    facts = RUN_DIR / "run.json"
    return Left(
        code=process.poll(),
        output=OUT.read_text(errors="replace"),
        run_id=json.loads(facts.read_text())["run_id"] if facts.exists() else None,
        seconds=seconds,
        processes=[f"{entry.name} {_command(entry)}" for entry in others],
        ports=[int(line.split()[1].rsplit(":", 1)[1], 16) for line in _tcp() if line.split()[3] == _LISTENING],
        sockets=[line.split()[7] for line in _table("unix") if len(line.split()) > 7],
        files=[str(path) for place in ("/tmp", "/dev/shm") for path in _left_in(place)],
        no_route=_no_route(),
        logs="\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in RUN_DIR.glob("logs/*")),
    )


def _left_in(place: str) -> Iterator[Path]:
    """What is there, but for the run directory, its console and the checkout, where that one stands there."""
    for folder, folders, files in os.walk(place):
        folders[:] = sorted(name for name in folders if Path(folder, name) not in (RUN_DIR, ROOT))
        found = (Path(folder, name) for name in (*folders, *sorted(files)))
        yield from (path for path in found if path != OUT and path not in ROOT.parents)


def _command(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    except OSError:
        return "(ended)"


def _table(name: str) -> list[str]:
    return Path("/proc/net", name).read_text().splitlines()[1:]


def _tcp() -> list[str]:
    return _table("tcp") + _table("tcp6")


def _no_route() -> int:
    """What the kernel could not send: connections, datagrams and look-ups of names alike."""
    names, values = (line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line.startswith("Ip:"))
    counters6 = dict(line.split() for line in Path("/proc/net/snmp6").read_text().splitlines())
    return int(values[names.index("OutNoRoutes")]) + int(counters6.get("Ip6OutNoRoutes", 0))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    main()

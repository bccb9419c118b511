"""Runs statements on DuckDB files in a few processes (`child`), each for one statement at a time.

A statement whose time is up is ended with its process, and the next one starts another. It does not guard against a
fault in DuckDB that lets a statement run code: the process may do what this one may do.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentgrpo.processes import RUN_ID
from dbbench_adapter.engines.base import BackendUnavailable, Result
from dbbench_adapter.engines.engine import TOO_LONG

REFUSAL = "not allowed: only SELECT over the tables of this database"
MAX_PROCESSES = 4
# A statement waits at most this long for a process, and for its start or for the file to be opened as long again.
WAIT_S = 60.0
MAX_SQL_CHARS = 20_000
_PROGRAM = Path(__file__).with_name("child.py")
_MAX_ANSWER_BYTES = 64 * 1024**2
_KILL_S = 10.0
_OUT_OF_TIME = "the statement takes too long; ask for less"
_OUT_OF_MEMORY = "the statement takes too much memory; ask for less"
_FAULTS = {"refused": REFUSAL, "memory": _OUT_OF_MEMORY, "long": TOO_LONG}
# These end any process of a run, or of a machine without memory; other signals are the statement's own doing.
_OF_OTHERS = (-signal.SIGTERM, -signal.SIGKILL)
_SETTLE = 'import duckdb, sys; duckdb.connect(sys.argv[1]).execute("CHECKPOINT")'


class _Process:
    # Raises BackendUnavailable if it does not start.

    def __init__(self) -> None:
        self.file: Path | None = None
        self._socket, theirs = socket.socketpair()
        kept = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", RUN_ID)  # and no passwords
        environment = {name: value for name in kept if (value := os.environ.get(name)) is not None}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_PROGRAM), str(os.getpid())],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=environment | {"TZ": "UTC"},  # times with a zone are the same text everywhere
                start_new_session=True,  # Ctrl-C must not reach it
            )
        try:
            self._read_line(WAIT_S)
        except (OSError, EOFError):
            self.kill()
            raise BackendUnavailable(
                f"DuckDB's process did not start; see what `{sys.executable} -c 'import duckdb'` says"
            ) from None

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """
        Raises:
            TimeoutError: the answer takes too long.
            OSError, EOFError: the process has ended.
        """
        self._socket.settimeout(timeout_s)
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        return json.loads(self._read_line(timeout_s))

    def _read_line(self, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        line = bytearray()
        while not line.endswith(b"\n"):
            self._socket.settimeout(max(deadline - time.monotonic(), 1e-3))
            piece = self._socket.recv(1 << 20)
            line += piece
            if not piece:
                raise EOFError
            if len(line) > _MAX_ANSWER_BYTES:
                return b'{"fault": "long", "broken": true}'
        return bytes(line)

    def open(self, file: Path) -> None:
        """Raises BackendUnavailable: the file cannot be read; the message says what to do."""
        if self.file == file:
            return
        log = Path(f"{file}.wal")
        try:
            fault = self.ask({"file": str(file)}, WAIT_S).get("error")
        except (OSError, EOFError):
            fault = f"DuckDB did not open it within {WAIT_S:.0f} s"
        if fault is None and log.exists() and log.stat().st_size:
            fault = f"its newest changes are in {log.name}"
        if fault is not None:
            raise BackendUnavailable(f"{file} cannot be read: {fault.splitlines()[0]}; {_remedy(fault, file)}")
        self.file = file

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def exit_code(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_KILL_S)

    def kill(self) -> None:
        self._process.kill()
        self._socket.close()
        self.exit_code()


class Processes:
    """Any thread may call; processes are started when they are needed."""

    def __init__(self) -> None:
        self._own()

    def _own(self) -> None:
        self._idle, self._places = list[_Process](), threading.BoundedSemaphore(MAX_PROCESSES)
        self._owner = os.getpid()

    def run(self, file: Path, sql: str, *, timeout_s: float, max_rows: int, max_chars: int) -> Result:
        """Run one statement of an agent; its error is in `Result.error`.

        Args:
            timeout_s: wall-clock budget of the statement, in seconds.
            max_rows, max_chars: the longest result, in rows and in characters of its texts (any other cell counts as
                one); a result with more characters is an error, as a judge would take the rest for the whole.
        Raises:
            BackendUnavailable: the file cannot be read, no process starts, or somebody has ended it.
        """
        if len(sql) > MAX_SQL_CHARS:
            return Result(error=f"the statement is longer than {MAX_SQL_CHARS} characters")
        if sql != sql.encode(errors="replace").decode():
            return Result(error="the statement is no valid text")
        request = {"sql": sql, "max_rows": max_rows, "max_chars": max_chars}
        with self._lent(file) as process:
            try:
                said = process.ask(request, timeout_s)
            except TimeoutError:
                process.kill()
                return Result(error=_OUT_OF_TIME)
            except (OSError, EOFError):
                return Result(error=_why_ended(process.exit_code(), file))
            if said.get("broken"):
                process.kill()
        if "rows" in said:
            return Result(tuple(tuple(map(_cell, row)) for row in said["rows"]), tuple(said["columns"]))
        return Result(error=_FAULTS.get(said.get("fault", "")) or said["error"])

    @contextmanager
    def _lent(self, file: Path) -> Iterator[_Process]:
        if self._owner != os.getpid():  # the parent of this process goes on with its own
            self._own()
        idle, places = self._idle, self._places
        if not places.acquire(timeout=WAIT_S):
            raise BackendUnavailable(f"{file}: all {MAX_PROCESSES} processes of DuckDB were busy for {WAIT_S:.0f} s")
        try:
            process = _usable(idle)
            try:
                process.open(file)
                yield process
            except BaseException:  # also Ctrl-C: its answer would be taken for the next statement's
                process.kill()
                raise
            if not process.has_ended:
                idle.append(process)
        finally:
            places.release()

    def close(self) -> None:
        with contextlib.suppress(IndexError):
            while self._owner == os.getpid():
                self._idle.pop().kill()


def _usable(idle: list[_Process]) -> _Process:
    with contextlib.suppress(IndexError):
        while (process := idle.pop()).has_ended:
            process.kill()
        return process
    return _Process()


def _cell(cell: Any) -> Any:
    return bytes.fromhex(cell["hex"]) if isinstance(cell, dict) else cell


def _why_ended(code: int | None, file: Path) -> str:
    if code is None or code in _OF_OTHERS:
        raise BackendUnavailable(f"{file}: DuckDB's process was ended during a statement ({code}), for want of memory?")
    # out of memory where DuckDB does not expect it
    return _OUT_OF_MEMORY if code == -signal.SIGABRT else f"the statement ended DuckDB's process ({code})"


def _remedy(fault: str, file: Path) -> str:
    if "set lock" in fault:
        return "close the program that has it open for writing"
    if fault.endswith(".wal"):
        command = shlex.join([sys.executable, "-c", _SETTLE, str(file)])
        return f"close the programs that write to it, and write what is left into the file: {command}"
    if "encrypt" in fault.lower():
        return "give a copy without encryption"
    if "version" in fault:
        return "it may be of a newer DuckDB: install that version of the package duckdb"
    return "give an intact DuckDB file that this user may read"

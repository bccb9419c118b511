"""Runs a private MariaDB server: it is started on a free port in a temporary folder, and removed at the end.

Its data are in memory if there is room, nothing is flushed to disk, and it listens on loopback only, for one user with
a random password. If it crashes or is killed, it starts again at the same address; episodes that used it are lost. It
ends with the process that started it, however that process ends, and the next start removes a folder that is left over.
Servers that others run (`mysql://...`) are left to `backend`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from agentgrpo.machine import free_port
from agentgrpo.processes import end_with_parent
from dbbench_adapter.engines.base import BackendUnavailable

START_TIMEOUT_S = 30.0
_MEMORY = Path("/dev/shm")
_MEMORY_NEEDED_BYTES = 512 * 1024**2
_PREFIX = "agentgrpo-mariadb-"
_USER = "agentgrpo"
# This environment variable names a training run; the folders of its servers carry the name too.
_RUN_ID = "AGENTGRPO_RUN_ID"
_SHORT_LIFE_S = 5.0
# After this many short lives in a row the server is not started again.
_MOST_SHORT_LIVES = 5
_RESTART_PAUSE_S = 0.5
# The space for the temporary tables of all sessions; space once used stays used until the server ends.
_TEMPORARY_TABLES_MIB = 256
# A session may use and set at most these bytes. They are MariaDB's defaults; the first two have no default.
_SESSION_LIMITS = {
    "max-session-mem-used": 256 * 1024**2,
    "tmp-disk-table-size": 128 * 1024**2,
    "tmp-table-size": 16 * 1024**2,
    "max-heap-table-size": 32 * 1024**2,
    "sort-buffer-size": 2 * 1024**2,
    "join-buffer-size": 1024**2,
    "read-rnd-buffer-size": 1024**2,
    "bulk-insert-buffer-size": 8 * 1024**2,
    "group-concat-max-len": 1024**2,
}


class PrivateServer:
    """Starts and ends a server: `with PrivateServer() as server: server.url`.

    Raises:
        BackendUnavailable: on entering, if MariaDB is not installed, or does not start within `START_TIMEOUT_S`.
    """

    url: str

    def __enter__(self) -> PrivateServer:
        install, server = find_programs()
        _remove_orphans()
        owner = "-".join(filter(None, [str(os.getpid()), os.environ.get(_RUN_ID)]))
        self._folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{owner}-", dir=_parent_folder()))
        self._data, self._temporary = self._folder / "data", self._folder / "tmp"
        self._closing = self._was_up = False
        try:
            self._temporary.mkdir()
            self._install(install)
            self._start(server)
        except BaseException:  # Ctrl-C too leaves no server behind
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closing = True
        if process := getattr(self, "_process", None):
            process.kill()  # nobody needs the data, so an orderly shutdown would only take longer
            self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _install(self, install: str) -> None:
        command = [install, *_as_user(), "--no-defaults", f"--datadir={self._data}", f"--tmpdir={self._temporary}"]
        command += ["--auth-root-authentication-method=normal", "--skip-test-db"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode:
            said = (done.stderr or done.stdout)[-500:]
            raise BackendUnavailable(f"mariadb-install-db failed; correct what it says last, or use sqlite:\n{said}")

    def _start(self, server: str) -> None:
        password, port = secrets.token_hex(16), free_port()
        init = self._folder / "init.sql"
        init.touch(mode=0o600)
        init.write_text(
            f"CREATE OR REPLACE USER '{_USER}'@'127.0.0.1' IDENTIFIED BY '{password}';\n"
            f"GRANT ALL ON *.* TO '{_USER}'@'127.0.0.1' WITH GRANT OPTION;\n"
            "DELETE FROM mysql.global_priv WHERE User IN ('root', '');\n"
            "FLUSH PRIVILEGES;\n"
        )
        command = [server, "--no-defaults", *_as_user(), f"--datadir={self._data}", f"--init-file={init}"]
        # a starting server removes the temporary tables in its folder, so no two servers may share one
        command += [f"--tmpdir={self._temporary}"]
        command += [f"--socket={self._folder / 'socket'}", f"--port={port}", "--bind-address=127.0.0.1"]
        command += ["--skip-name-resolve", "--skip-log-bin", "--innodb-flush-log-at-trx-commit=0"]
        command += ["--innodb-log-file-size=16M", "--innodb-buffer-pool-size=64M", "--max-connections=1024"]
        # an episode's tables live too short for statistics that are kept: without them an episode takes a sixth less
        command += ["--innodb-stats-persistent=0"]
        command += ["--skip-symbolic-links", "--local-infile=0", "--max-allowed-packet=1M"]
        command += ["--enforce-storage-engine=InnoDB"]  # the sizes of InnoDB's tables are measured
        # if it is ON, CREATE TABLE ... SELECT fills temporary files that nobody measures; old servers do not know it
        command += ["--loose-innodb-alter-copy-bulk=OFF"]
        command += [f"--innodb-temp-data-file-path=ibtmp1:12M:autoextend:max:{_TEMPORARY_TABLES_MIB}M"]
        for name, limit in _SESSION_LIMITS.items():
            command += [f"--{name}={limit}", f"--maximum-{name}={limit}"]
        started = threading.Event()
        # the kernel sends the death signal when the forking thread ends, so this thread lives as long as the server
        self._thread = threading.Thread(target=self._serve, args=(command, started), name="mariadbd", daemon=True)
        self._thread.start()
        started.wait()
        self._wait_until_up(port)
        self._was_up = True
        self.url = f"mysql://{_USER}:{password}@127.0.0.1:{port}"

    def _serve(self, command: Sequence[str], started: threading.Event) -> None:
        short_lives = 0
        while short_lives < _MOST_SHORT_LIVES:
            born = time.monotonic()
            try:
                with (self._folder / "server.log").open("ab") as log:
                    self._process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,  # Ctrl-C must not reach the server; we end it ourselves
                        preexec_fn=lambda: end_with_parent(signal.SIGKILL),
                    )
            finally:
                started.set()
            if self._closing:  # the server was closed while it was starting again
                self._process.kill()
            told_to_end = self._process.wait() == 0 or self._closing
            if told_to_end or not self._was_up:
                return
            short_lives = short_lives + 1 if time.monotonic() - born < _SHORT_LIFE_S else 0
            time.sleep(_RESTART_PAUSE_S)

    def _wait_until_up(self, port: int) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while self._thread.is_alive() and time.monotonic() < deadline:
            # It listens before init.sql has run, and MariaDB 10.11 hangs if it is told to end then. Its greeting
            # shows that it is up.
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                if connection.recv(1):
                    return
            time.sleep(0.02)
        log = (self._folder / "server.log").read_text("utf-8", "replace")
        raise BackendUnavailable(
            f"mariadbd did not start within {START_TIMEOUT_S:.0f} s; correct what its log ends with, or use "
            f"sqlite:\n{log[-1000:]}"
        )


def find_programs() -> tuple[str, str]:
    """Raises BackendUnavailable: MariaDB is not installed."""
    return _binary("mariadb-install-db"), _binary("mariadbd")


def _binary(name: str) -> str:
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/libexec"]))
    if path is None:
        raise BackendUnavailable(
            f"{name} not found; install MariaDB (Debian: apt-get install mariadb-server), name a running server "
            "(mysql://user:password@host:port), or use sqlite"
        )
    return path


def _as_user() -> list[str]:
    return ["--user=root"] if os.geteuid() == 0 else []


def _parent_folder() -> Path:
    with contextlib.suppress(OSError):
        if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _MEMORY_NEEDED_BYTES:
            return _MEMORY
    return Path(tempfile.gettempdir())


def _remove_orphans() -> None:
    for folder in _parent_folder().glob(f"{_PREFIX}*"):
        process_id = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if process_id.isdigit() and not Path("/proc", process_id).exists():
            shutil.rmtree(folder, ignore_errors=True)

"""A private PostgreSQL server for the tests, on loopback, in a temporary folder; it ends with its process."""

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from agentgrpo.machine import free_port
from agentgrpo.processes import end_with_parent

ADMIN = "admin"


def find_program(name):
    """Debian keeps the programs of each version in a folder of its own, the newest last."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name))
    found = shutil.which(name, path=os.pathsep.join([*map(str, reversed(folders)), os.environ.get("PATH", "")]))
    return found or pytest.skip(f"no PostgreSQL here: {name} not found; Debian: apt-get install postgresql")


def _as_other():
    # PostgreSQL refuses to run as root
    return {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}


@contextmanager
def private_server():
    """The address of the server, for its administrator: it ends with a slash."""
    initdb, postgres = find_program("initdb"), find_program("postgres")
    folder = Path(tempfile.mkdtemp(prefix="agentgrpo-postgresql-"))
    password, port = secrets.token_hex(16), free_port()
    (folder / "password").write_text(password)
    as_other = _as_other()
    for path in (folder, folder / "password") if as_other else ():
        shutil.chown(path, as_other["user"])
    command = [initdb, "-D", folder / "data", "-U", ADMIN, f"--pwfile={folder / 'password'}", "--no-sync"]
    command += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8"]
    # its user may not be able to enter the working folder
    subprocess.run(command, check=True, capture_output=True, timeout=120, cwd=folder, **as_other)
    settings = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [postgres, "-D", folder / "data", "-p", str(port), *settings],
            stdout=log, stderr=log, cwd=folder, start_new_session=True,
            preexec_fn=lambda: end_with_parent(signal.SIGQUIT), **as_other,
        )  # fmt: skip
    try:
        url = f"postgresql://{ADMIN}:{password}@127.0.0.1:{port}/"
        _wait_until_up(server, url, folder / "log")
        yield url
    finally:
        server.send_signal(signal.SIGQUIT)  # nobody needs the data, so an orderly shutdown would only take longer
        server.wait(timeout=30)
        shutil.rmtree(folder)


def _wait_until_up(server, url, log):
    deadline = time.monotonic() + 30
    while server.poll() is None and time.monotonic() < deadline:
        try:
            psycopg.connect(f"{url}postgres").close()
            return
        except psycopg.OperationalError:
            time.sleep(0.05)
    raise RuntimeError(f"postgres did not start; its log ends with\n{log.read_text()[-1000:]}")

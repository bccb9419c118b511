"""Opens a SQLite file for reading only (`mode=ro`, `query_only`); what an agent may run on it: `user_database`."""

from __future__ import annotations

import shlex
import sqlite3
import sys
from pathlib import Path

from dbbench_adapter.engines.base import BackendUnavailable
from dbbench_adapter.engines.sqlite.foreign_schema import Unparsed, denying, load_schema

# SQLite may use at most this much memory in this process, over all connections: its planner checks no clock and may
# expand a short statement to gigabytes.
MAX_HEAP_BYTES = 512 * 1024**2
# A file with this version in its header has its changes first written to a file beside it.
_WAL = 2


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Open a read-only connection for our own statements; an agent's statements go through `UserDatabase`.

    Raises:
        BackendUnavailable: another program keeps the file from being read, or has left it unfinished.
        sqlite3.DatabaseError: the file is no database that can be read.
    """
    return opened(path)[0]


def opened(path: Path) -> tuple[sqlite3.Connection, tuple[Unparsed, ...]]:
    """What `connect_read_only` returns, and what of the schema cannot be parsed, which the connection never reads."""
    uri = f"{path.resolve().as_uri()}?mode=ro"
    with path.open("rb") as file:
        header = file.read(20)
    if header[18:19] == bytes([_WAL]):
        log = Path(f"{path.resolve()}-wal")  # beside what a link points to
        if log.exists() and log.stat().st_size:
            raise BackendUnavailable(
                f"{path} is in WAL mode and its newest changes are in {log.name}; close the programs that write to it, "
                f"and write what is left into the file: {_settle_command(path)}"
            )
        uri += "&immutable=1"  # otherwise a reader would make files beside it
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=1.0)
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA trusted_schema = OFF")  # a view calls none of the functions that are added
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA hard_heap_limit = {MAX_HEAP_BYTES}")
    try:
        unparsed = load_schema(connection)
    except sqlite3.Error as error:
        connection.close()
        if (why := why_unavailable(error, path)) is not None:
            raise BackendUnavailable(why) from None
        raise
    if unparsed:
        connection.set_authorizer(denying(unparsed))
    return connection, unparsed


def why_unavailable(error: sqlite3.Error, path: Path) -> str | None:
    """Why a healthy file cannot be read now, with what to do; None if the error is another one."""
    code = getattr(error, "sqlite_errorcode", 0)
    if code & 0xFF == sqlite3.SQLITE_BUSY:
        return f"{path} is locked by a program that is changing it; wait until it has finished, or close it"
    if code == sqlite3.SQLITE_READONLY_ROLLBACK:
        return (
            f"a program was stopped while it changed {path}, and left {path.name}-journal to undo it; undo it: "
            f"{_settle_command(path)}"
        )
    return None


def _settle_command(path: Path) -> str:
    # Python is there, the `sqlite3` shell may not be. The PRAGMA writes a log into the file, and as every reading of a
    # schema that may write, it undoes half a change first.
    code = 'import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute("PRAGMA wal_checkpoint(TRUNCATE)"))'
    return shlex.join([sys.executable, "-c", code, str(path.resolve())])

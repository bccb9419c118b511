"""Opens a SQLite file for reading only (`mode=ro`, `query_only`); what an agent may run on it: `user_database`."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from dbbench_adapter.engines.base import BackendUnavailable
from dbbench_adapter.engines.sqlite.foreign_schema import Unparsed, denying, load_schema

# SQLite may use at most this much memory in this process, over all connections: its planner checks no clock and may
# expand a short statement to gigabytes.
MAX_HEAP_BYTES = 512 * 1024**2
# A file with this version in its header has its changes first written to a file beside it.
_WAL = 2


def connect(path: Path) -> sqlite3.Connection:
    """Open a read-only connection for our own statements; an agent's statements go through `UserDatabase`.

    Raises:
        BackendUnavailable: the newest changes are in a file beside it.
        sqlite3.DatabaseError: the file is no database that can be read.
    """
    return opened(path)[0]


def opened(path: Path) -> tuple[sqlite3.Connection, tuple[Unparsed, ...]]:
    """What `connect` returns, and what of the schema cannot be parsed, which the connection never reads."""
    uri = f"{path.resolve().as_uri()}?mode=ro"
    with path.open("rb") as file:
        header = file.read(20)
    if header[18:19] == bytes([_WAL]):
        log = path.with_name(path.name + "-wal")
        if log.exists() and log.stat().st_size:
            raise BackendUnavailable(
                f"{path} is in WAL mode and its newest changes are in {log.name}; close the programs that write to it, "
                f"or write them into the file: sqlite3 {path.name} 'PRAGMA wal_checkpoint(TRUNCATE)'"
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
    except sqlite3.Error:
        connection.close()
        raise
    if unparsed:
        connection.set_authorizer(denying(unparsed))
    return connection, unparsed

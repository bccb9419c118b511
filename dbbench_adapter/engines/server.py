"""Shares what users' databases on servers have in common: few connections for a process, and the database over them."""

from __future__ import annotations

import os
import queue
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Generic, Protocol, TypeVar

from dbbench_adapter.datatypes import DatabaseError
from dbbench_adapter.engines.address import Address
from dbbench_adapter.engines.base import BackendUnavailable, Result
from dbbench_adapter.engines.engine import (
    MAX_RESULT_CHARS,
    MAX_RESULT_ROWS,
    Databases,
    TableInfo,
    format_unreadable,
)

# A process has at most this many connections.
MAX_CONNECTIONS = 8
# A statement waits at most this long for a connection.
WAIT_S = 60.0
MAX_SQL_CHARS = 20_000
REFUSAL = "not allowed: only SELECT over the tables of this database"
OUT_OF_TIME = "the statement takes too long; ask for less"

C = TypeVar("C")


class AccountError(DatabaseError):
    """The account may do more than read its database; the message says what, and how to make another one."""


class ConnectionPool(Generic[C]):
    """Lends connections to any thread, each to one at a time; a forked process makes its own.

    Args:
        shown: the server's address, for messages.
        connect: makes one; what it raises is raised.
        revive: whether one that was idle can be used, and is as it was after connecting.
        reset: makes it ready for the next, or says that it is lost.
    """

    def __init__(
        self,
        shown: str,
        *,
        connect: Callable[[], C],
        revive: Callable[[C], bool],
        reset: Callable[[C], bool],
        hang_up: Callable[[C], None],
    ) -> None:
        self._shown, self._connect, self._revive, self._reset, self._hang_up = shown, connect, revive, reset, hang_up
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._idle: queue.LifoQueue[C] = queue.LifoQueue()
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)

    @contextmanager
    def lent(self) -> Iterator[C]:
        """Raises BackendUnavailable: all of them were busy for `WAIT_S`."""
        if self._process != os.getpid():  # the parent of this process goes on with the connections
            self._start()
        idle, places = self._idle, self._places
        if not places.acquire(timeout=WAIT_S):
            raise BackendUnavailable(
                f"{self._shown}: all {MAX_CONNECTIONS} connections of this process were busy for {WAIT_S:.0f} s"
            )
        try:
            connection = self._usable(idle)
            try:
                yield connection
            finally:
                if self._reset(connection):
                    idle.put(connection)
                else:
                    self._hang_up(connection)
        finally:
            places.release()

    def _usable(self, idle: queue.LifoQueue[C]) -> C:
        with suppress(queue.Empty):
            while not self._revive(connection := idle.get_nowait()):  # the server may have ended it
                self._hang_up(connection)
            return connection
        return self._connect()

    def close(self) -> None:
        with suppress(queue.Empty):
            while self._process == os.getpid():
                self._hang_up(self._idle.get_nowait())


class ReadOnlyServer(Protocol):
    address: Address

    def run(self, sql: str, *, timeout_s: float, max_rows: int, max_chars: int) -> Result:
        """Run one statement of an agent; its error is in `Result.error`.

        Args:
            timeout_s: wall-clock budget of the statement, in seconds.
            max_rows, max_chars: the longest result, in rows and in characters of its texts (any other cell counts as
                one); a result that is longer is an error, as a judge would take the rest for the whole.
        Raises:
            AccountError: the account may do more than read.
            BackendUnavailable: the server is gone, or all connections are in use.
        """
        ...

    def version(self) -> str:
        """Raises AccountError, BackendUnavailable: see `run`."""
        ...

    def close(self) -> None: ...


class ServerSession:
    # It holds no connection between statements.

    def __init__(self, server: ReadOnlyServer, statement_timeout_s: float) -> None:
        self._server, self.statement_timeout_s, self.used_s = server, statement_timeout_s, 0.0

    def run(self, sql: str) -> Result:
        began = time.monotonic()
        try:
            # one more row shows that there are too many
            return self._server.run(
                sql, timeout_s=self.statement_timeout_s, max_rows=MAX_RESULT_ROWS + 1, max_chars=MAX_RESULT_CHARS
            )
        finally:
            self.used_s += time.monotonic() - began

    def close(self) -> None:
        pass


class ServerDatabase(Databases):
    """The one database at an address; a subclass says how its tables are found."""

    def __init__(self, server: ReadOnlyServer) -> None:
        self._server = server
        self._read: tuple[tuple[TableInfo, ...], Mapping[str, str]] | None = None

    @property
    def ids(self) -> Sequence[str]:
        return [self._server.address.database]

    @abstractmethod
    def read_schema(self) -> tuple[Sequence[TableInfo], Mapping[str, str]]:
        """Read the tables and views of the database, by name.

        Returns:
            Those that can be read, and why the others cannot.
        Raises:
            AccountError: the account may do more than read.
            BackendUnavailable: the server does not answer.
        """

    def schema(self, db_id: str) -> tuple[TableInfo, ...]:
        return self._schema()[0]

    def unreadable(self, db_id: str) -> Mapping[str, str]:
        return self._schema()[1]

    def _schema(self) -> tuple[tuple[TableInfo, ...], Mapping[str, str]]:
        if self._read is None:
            tables, unreadable = self.read_schema()
            if not tables:
                more = f": {format_unreadable(unreadable)}" if unreadable else ""
                raise DatabaseError(f"{self._server.address.shown} holds no table that the account may read{more}")
            self._read = tuple(tables), unreadable
        return self._read

    def open(self, db_id: str, *, statement_timeout_s: float) -> ServerSession:
        return ServerSession(self._server, statement_timeout_s)

    def summary(self) -> str:
        tables, unreadable = self._schema()
        left_out = f"; left out: {format_unreadable(unreadable)}" if unreadable else ""
        return f"{self._server.version()}, {len(tables)} tables and views, an account that may only read{left_out}"

    def close(self) -> None:
        self._server.close()

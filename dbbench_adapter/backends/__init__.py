"""SQL backends of the episodes: SQLite in memory (the default), a private MariaDB, or a MySQL server by URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dbbench_adapter.backends.base import (
    Backend,
    BackendUnavailable,
    Database,
    Result,
    Snapshot,
    TableError,
    TableState,
)

__all__ = [
    "Backend",
    "BackendUnavailable",
    "Database",
    "Result",
    "Snapshot",
    "TableError",
    "TableState",
    "open_backend",
]


@contextmanager
def open_backend(spec: str) -> Iterator[Backend]:
    """The backend that a config or a command line names, closed at the end.

    Args:
        spec: `sqlite`; `mariadb`, which starts a private server; or `mysql://user:password@host:port`.
    Raises:
        ValueError: unknown spec.
        BackendUnavailable: the server is not installed, does not start or does not answer.
    """
    if spec == "sqlite":
        from dbbench_adapter.backends.sqlite import SqliteBackend

        with SqliteBackend() as backend:
            yield backend
    elif spec == "mariadb":
        from dbbench_adapter.backends.mysql import MysqlBackend
        from dbbench_adapter.backends.server import PrivateServer

        with PrivateServer() as server, MysqlBackend(server.url) as backend:
            yield backend
    elif spec.startswith("mysql://"):
        from dbbench_adapter.backends.mysql import MysqlBackend

        with MysqlBackend(spec) as backend:
            yield backend
    else:
        raise ValueError(f"unknown backend {spec!r}; known: sqlite, mariadb, mysql://user:password@host:port")

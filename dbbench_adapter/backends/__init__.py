"""SQL backends of the episodes: SQLite in memory (the default), a private MariaDB, or a MySQL server by URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from core.commands import interruptible
from core.passwords import hidden, revealed
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
    "check_backend",
    "check_spec",
    "open_backend",
]


def check_spec(spec: str) -> None:
    """
    Raises:
        ValueError: it names no backend, or its password is hidden and not known here; tells nothing of a password.
    """
    if spec not in ("sqlite", "mariadb"):
        _address(spec)


def check_backend(spec: str) -> None:
    """Find out whether episodes can be opened there: with `mysql://` one is, empty, and nothing is left of it.

    Raises:
        ValueError: unknown spec.
        BackendUnavailable: see `open_backend`; a server of our own is looked for and not started.
    """
    if spec == "mariadb":
        from dbbench_adapter.backends.mysql.server import find_programs

        find_programs()
        return
    with open_backend(spec) as backend:
        backend.open((), typed=True).close()


@contextmanager
def open_backend(spec: str) -> Iterator[Backend]:
    """The backend that a config or a command line names, closed at the end.

    Args:
        spec: `sqlite`; `mariadb`, which starts a private server; or `mysql://user:password@host:port`, hidden or not.
    Raises:
        ValueError: unknown spec, or a password that is hidden and not known here.
        BackendUnavailable: the server is not installed, does not start or does not answer.
    """
    check_spec(spec)
    if spec == "sqlite":
        from dbbench_adapter.backends.sqlite.backend import SqliteBackend

        with SqliteBackend() as backend:
            yield backend
    elif spec == "mariadb":
        from dbbench_adapter.backends.mysql.backend import MysqlBackend
        from dbbench_adapter.backends.mysql.server import PrivateServer

        with interruptible(), PrivateServer() as server, MysqlBackend(server.url) as backend:
            yield backend
    else:
        from dbbench_adapter.backends.mysql.backend import MysqlBackend

        with interruptible(), MysqlBackend(_address(spec)) as backend:
            yield backend


def _address(spec: str) -> str:
    """
    Raises:
        ValueError: it is none; the parser's own words hold what it takes for the port, which may be a password.
    """
    if not spec.startswith("mysql://"):
        raise ValueError(f"unknown backend {hidden(spec)!r}; known: sqlite, mariadb, mysql://user:password@host:port")
    url = revealed(spec)
    try:
        parts = urlsplit(url)
        readable = bool(parts.hostname) and parts.port != 0 and "@" not in parts.path + parts.query + parts.fragment
    except ValueError:  # of the port, or of an IPv6 address
        readable = False
    if not readable:
        raise ValueError(
            f"{hidden(url)!r} is no address, expected mysql://user:password@host:port; in user and password write "
            "%40 for @, %2F for /, %3A for :, %23 for #, %3F for ?, %25 for %"
        )
    return url

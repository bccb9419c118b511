"""Opens a SQL backend for the episodes: SQLite in memory (the default), a private MariaDB, or a MySQL server by URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

from agentgrpo.commands import interruptible
from agentgrpo.passwords import hidden, revealed
from dbbench_adapter.engines.base import (
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
    """Check that the text names a backend; no message shows a password.

    Raises:
        ValueError: the text names no backend, or its password is hidden and not known here.
    """
    if spec not in ("sqlite", "mariadb"):
        _address(spec)


def check_backend(spec: str) -> None:
    """Check that episodes can be opened; with `mysql://` an empty one is opened and removed again.

    Raises:
        ValueError: the spec is unknown.
        BackendUnavailable: see `open_backend`. For `mariadb` only its programs are searched for.
    """
    if spec == "mariadb":
        from dbbench_adapter.engines.mysql.server import find_programs

        find_programs()
        return
    with open_backend(spec) as backend:
        backend.open((), typed=True).close()


@contextmanager
def open_backend(spec: str) -> Iterator[Backend]:
    """Open the backend that a config or a command line names, and close it at the end.

    Args:
        spec: `sqlite`; `mariadb`, which starts a private server; or `mysql://user:password@host:port`, hidden or not.
    Raises:
        ValueError: the spec is unknown, or its password is hidden and not known here.
        BackendUnavailable: the server is not installed, does not start or does not answer.
    """
    check_spec(spec)
    if spec == "sqlite":
        from dbbench_adapter.engines.sqlite.backend import SqliteBackend

        with SqliteBackend() as backend:
            yield backend
        return
    from dbbench_adapter.engines.mysql.backend import MysqlBackend
    from dbbench_adapter.engines.mysql.server import PrivateServer

    with interruptible(), ExitStack() as stack:
        url = stack.enter_context(PrivateServer()).url if spec == "mariadb" else _address(spec)
        yield stack.enter_context(MysqlBackend(url))


def _address(spec: str) -> str:
    """Return the address with its password.

    Raises:
        ValueError: the text is no address. The parser's own message is hidden, since it may quote a password.
    """
    if not spec.startswith("mysql://"):
        raise ValueError(f"unknown backend {hidden(spec)!r}; known: sqlite, mariadb, mysql://user:password@host:port")
    url = revealed(spec)
    try:
        parts = urlsplit(url)
        readable = bool(parts.hostname) and parts.port != 0 and "@" not in parts.path + parts.query + parts.fragment
    except ValueError:  # the port or an IPv6 address is wrong
        readable = False
    if not readable:
        raise ValueError(
            f"{hidden(url)!r} is no address, expected mysql://user:password@host:port; in user and password write "
            "%40 for @, %2F for /, %3A for :, %23 for #, %3F for ?, %25 for %"
        )
    return url

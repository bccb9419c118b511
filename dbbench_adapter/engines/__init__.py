"""The engine of a database: of a user's own by its path or address, of DB-Bench's by the name of its backend."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from agentgrpo.outputs import named_path
from agentgrpo.passwords import SCHEME, hidden
from dbbench_adapter.datatypes import DatabaseError
from dbbench_adapter.engines.base import (
    Backend,
    BackendUnavailable,
    Database,
    Result,
    Snapshot,
    TableError,
    TableState,
)
from dbbench_adapter.engines.duckdb import DUCKDB
from dbbench_adapter.engines.engine import Databases, Engine
from dbbench_adapter.engines.mysql import MYSQL
from dbbench_adapter.engines.postgresql import POSTGRESQL
from dbbench_adapter.engines.sqlite import SQLITE

__all__ = [
    "Backend",
    "BackendUnavailable",
    "Database",
    "Result",
    "Snapshot",
    "TableError",
    "TableState",
]

ENGINES: tuple[Engine, ...] = (SQLITE, DUCKDB, MYSQL, POSTGRESQL)


# users' databases


def open_databases(place: Path | str) -> Databases:
    """
    Args:
        place: a path, or an address, whose password may be hidden.
    Raises:
        DatabaseError: there is no database.
    """
    return _engine_at(place).open_databases(place)


def check_place(place: Path | str | None) -> None:
    """Raises DatabaseError: see `open_databases`."""
    if place is not None:
        open_databases(place).close()


def known_places() -> str:
    return _one_of(engine.places for engine in ENGINES)


def _one_of(forms: Iterable[str]) -> str:
    *others, last = forms
    return f"{', '.join(others)}, or {last}"


def named_database(text: str) -> Path | str:
    """Parse a flag that names a file or folder, or a database on a server, whose password is hidden."""
    try:
        place = _path_or_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return named_path(text) if isinstance(place, Path) else place


def _path_or_address(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if not SCHEME.match(value):
        return Path(value)
    _engine_at(value)
    return hidden(value)


# A setting that names a database of the user's.
DatabaseSpec = Annotated[Path | str, BeforeValidator(_path_or_address)]


def _engine_at(place: Path | str) -> Engine:
    if isinstance(place, Path):
        return next((engine for engine in ENGINES if engine.has_path(place)), SQLITE)
    for engine in ENGINES:
        if engine.scheme and place.startswith(engine.scheme):
            return engine
    names = " or ".join(f"{engine.name}'s" for engine in ENGINES if engine.scheme)
    # a path would be shown with the password
    raise DatabaseError(f"an address of an unknown kind, expected a path or {names} form (doc/guides/database.md)")


# backends of DB-Bench


def known_backends() -> str:
    return _one_of(form for engine in ENGINES for form in engine.backends)


def check_spec(spec: str) -> None:
    """Check that the text names a backend; no message shows a password.

    Raises:
        ValueError: the text names no backend, or its password is hidden and not known here.
    """
    _engine_of(spec).check_spec(spec)


def check_backend(spec: str) -> None:
    """Check that episodes can be opened (`Engine.check_backend`).

    Raises:
        ValueError: see `check_spec`.
        BackendUnavailable: see `open_backend`.
    """
    _engine_of(spec).check_backend(spec)


@contextmanager
def open_backend(spec: str) -> Iterator[Backend]:
    """Open the backend that a config or a command line names, and close it at the end.

    Args:
        spec: `sqlite`; `mariadb`, which starts a private server; or `mysql://user:password@host:port`, hidden or not.
    Raises:
        ValueError: see `check_spec`.
        BackendUnavailable: the server is not installed, does not start or does not answer.
    """
    with _engine_of(spec).open_backend(spec) as backend:
        yield backend


def _engine_of(spec: str) -> Engine:
    forms = {form: engine for engine in ENGINES for form in engine.backends}
    for form, engine in forms.items():
        if spec == form or ("://" in form and spec.startswith(engine.scheme)):
            return engine
    raise ValueError(f"unknown backend {hidden(spec)!r}; known: {', '.join(forms)}")

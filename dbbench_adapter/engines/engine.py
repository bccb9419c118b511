"""Declares what a database engine offers: users' own databases, which an agent asks, and the databases of DB-Bench.

An engine is a folder with a subclass of `Engine`, and a row of `ENGINES` (`dbbench_adapter.engines`). Its methods
import what they need, so that settings know all engines in an instant. The records of a schema are here too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from dbbench_adapter.datatypes import DatabaseError, Rows
from dbbench_adapter.engines.base import Backend, Result

# Example values come from this many first rows, so that a large table is not read whole.
SAMPLED_ROWS = 1_000
SAMPLES = 2
SAMPLE_CHARS = 24
# A column with at most this many values, each of which occurs several times on average, holds codes.
CODES = 5
CODE_REPEATS = 3


@dataclass(frozen=True)
class ColumnInfo:
    name: str
    type: str
    """The declared type; empty if none is declared."""
    samples: tuple[str, ...] = ()
    """Values as SQL literals."""
    is_code: bool = False
    """Whether `samples` are all values of the first rows, few and often repeated; else they are the first two."""


@dataclass(frozen=True)
class TableInfo:
    name: str
    columns: tuple[ColumnInfo, ...]
    primary_key: tuple[str, ...] = ()
    foreign_keys: tuple[tuple[str, str, str], ...] = ()
    """Column, other table, its column."""
    is_view: bool = False
    quote: str = '"'
    """What a name stands in; backquotes stand around every name, since MySQL's versions differ in their keywords."""
    plain: frozenset[str] | None = None
    """The database's names that need no quotes; None: those that SQLite takes without."""


def format_unreadable(unreadable: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({why})" for name, why in unreadable.items())


def described_columns(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[object]]) -> tuple[ColumnInfo, ...]:
    """
    Args:
        columns: names and declared types.
        rows: the first of the table, of which examples are taken.
    """
    found: list[Counter[str]] = [Counter() for _ in columns]
    for row in rows:
        for values, cell in zip(found, row, strict=False):
            if len(values) <= CODES and cell is not None and not isinstance(cell, bytes):
                values[_literal(cell)] += 1
    infos = []
    for (name, kind), values in zip(columns, found, strict=True):
        is_code = len(values) <= CODES and values.total() >= CODE_REPEATS * len(values) > 0
        infos.append(ColumnInfo(name, kind, tuple(values)[: None if is_code else SAMPLES], is_code))
    return tuple(infos)


def _literal(cell: object) -> str:
    if not isinstance(cell, str):
        return repr(cell)
    text = " ".join(cell.split())  # one line
    text = text if len(text) <= SAMPLE_CHARS else text[:SAMPLE_CHARS] + "..."
    return "'" + text.replace("'", "''") + "'"


# A session returns one row more at most, which shows that there are too many.
MAX_RESULT_ROWS = 10_000
# The texts of a session's result may hold this many characters, and any other cell counts as one.
MAX_RESULT_CHARS = 1_000_000
# A result beyond `MAX_RESULT_CHARS` is this error, since a judge would take a part of the rows for all of them.
TOO_LONG = "the result is too long; ask for less"


@dataclass(frozen=True)
class Change:
    """How the rows of one table differ from the database's own; a row that was updated is in both."""

    removed: Rows
    added: Rows


# The tables whose rows differ from the database's own.
Changes = Mapping[str, Change]


class TokenLike(Protocol):
    @property
    def kind(self) -> str:
        """`blank` for blanks and comments; the other kinds are the engine's own."""
        ...

    @property
    def text(self) -> str: ...


class Session(Protocol):
    statement_timeout_s: float
    used_s: float
    """As a `Database`'s."""

    def run(self, sql: str) -> Result:
        """Run one statement; it reads the database's tables and changes nothing, or its error is in `Result.error`.

        Raises:
            BackendUnavailable: the database is gone.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class ChangingSession(Session, Protocol):
    def changes(self) -> Changes: ...


class Databases(ABC):
    # None of them is written to.

    engine: ClassVar[Engine]
    changeable: ClassVar[bool] = False
    """Whether there is `open_view`, so that tasks may change data."""

    @property
    @abstractmethod
    def ids(self) -> Sequence[str]: ...

    def db_id(self, name: str | None) -> str:
        """The id of the database that a row of questions means.

        Args:
            name: what the row calls it; None if it names none. A single database is meant whatever rows call it.
        Raises:
            DatabaseError: there is no such database, or it cannot be read.
        """
        return self.ids[0]

    @abstractmethod
    def schema(self, db_id: str) -> tuple[TableInfo, ...]:
        """The tables and views that can be read.

        Raises:
            DatabaseError: there is no table, or the database may not be used.
            BackendUnavailable: the server does not answer.
        """

    def unreadable(self, db_id: str) -> Mapping[str, str]:
        return {}

    def check(self) -> None:
        """Check that there is a database that can be read; see `schema` for errors."""
        self.schema(self.ids[0])

    @abstractmethod
    def open(self, db_id: str, *, statement_timeout_s: float) -> Session:
        """Open the database for one episode, or for a judge.

        Args:
            statement_timeout_s: limit of one statement (`base.Backend.open`).
        Raises:
            BackendUnavailable: it cannot be opened.
        """

    def open_view(self, db_id: str, *, statement_timeout_s: float) -> ChangingSession:
        """Open a view of the database that may be changed; otherwise as `open`."""
        raise DatabaseError(f"{db_id} can only be read, and a task changes data")

    def explained(self, error: str, db_id: str, query: str) -> str:
        """An error of a reference with what the engine's own words leave out."""
        return error

    def is_to_blame(self, fault: str) -> bool:
        """Whether the database, and not the reference, has to be corrected.

        Args:
            fault: the error, `explained`.
        """
        return False

    @abstractmethod
    def summary(self) -> str:
        """Describe the databases in a line, with what of them is not read; see `schema` for errors."""

    def close(self) -> None:  # noqa: B027 (most engines keep nothing open)
        ...


class Engine(ABC):
    """A kind of database; `ENGINES` has an instance of each."""

    name: ClassVar[str]
    """As prompts and messages call it."""
    dialect: ClassVar[str]
    """sqlglot's name of its SQL."""
    places: ClassVar[str]
    """What names a user's database, for messages: a path, or the form of an address."""
    scheme: ClassVar[str | tuple[str, ...]] = ""
    """The beginning of such an address, with `://`, in one or several spellings; empty for the one engine of paths."""
    backends: ClassVar[tuple[str, ...]] = ()
    """What names a backend of DB-Bench: words, and a form of an address that begins with `scheme`."""
    average_decimals: ClassVar[int | None] = None
    """The decimals of an average, if the engine rounds it."""

    @abstractmethod
    def tokens(self, sql: str) -> Iterator[TokenLike]: ...

    def statements(self, sql: str) -> list[str]:
        """An engine that only reads runs one statement, and refuses several."""
        return [sql]

    @abstractmethod
    def open_databases(self, place: Path | str) -> Databases:
        """Raises DatabaseError: there is none."""

    def check_spec(self, spec: str) -> None:  # noqa: B027 (a word needs no check)
        """Nothing is opened.

        Raises:
            ValueError: it is an address that cannot be read, or whose password is not known here.
        """

    def check_backend(self, spec: str) -> None:
        """Check that episodes can be opened: an empty one is opened and removed again.

        Raises:
            BackendUnavailable: see `open_backend`.
        """
        with self.open_backend(spec) as backend:
            backend.open((), typed=True).close()

    def open_backend(self, spec: str) -> AbstractContextManager[Backend]:
        """Open one of `backends`, and close it at the end.

        Raises:
            ValueError: see `check_spec`.
            BackendUnavailable: the server is not installed, does not start or does not answer.
        """
        raise NotImplementedError(f"{self.name} has no backend of DB-Bench")

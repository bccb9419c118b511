"""Declares what every database backend offers an episode, the records it returns, and the table hash of DB-Bench; and
keeps what a backend made of a task's tables, so that it is made once for all episodes of the task.

A `Backend` makes databases, and a `Database` belongs to one episode. All calls block and may come from any thread, one
at a time per `Database`. `protocols` decides how an agent talks, and `judges` what is right.
"""

from __future__ import annotations

import hashlib
import marshal
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from dbbench_adapter.datatypes import Row, Rows, Table

# A result holds at most this many rows; the rest is dropped. An agent sees 800 characters of them.
MAX_ROWS = 10_000
# Once the texts of a result exceed this length, its other rows are dropped.
KEPT_CHARS = 4_000_000
STATEMENT_TIMEOUT_S = 5.0
STALLED = "a statement stood still: it used no CPU until the wall clock behind its limit passed; does the disk answer?"
# The longest name of a table or column in MySQL.
MAX_NAME_CHARS = 64
# The longest value of a TEXT column in MySQL.
MAX_TEXT_BYTES = 65_535
_TEXTS = (str, bytes)


class BackendUnavailable(RuntimeError):
    """The database server is gone or cannot be reached. It is not the policy's fault, and the episode is not judged."""


class TableError(ValueError):
    """Repeated or empty column names, or rows that do not fit the columns."""


@dataclass(frozen=True)
class Result:
    rows: tuple[tuple[Any, ...], ...] | None = None
    """At most `MAX_ROWS` rows with the driver's own values (`Decimal` and dates included); None for a statement
    that returns no rows, and after an error."""
    columns: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class TableState:
    """The full content of a table; `rows` is a multiset, whose order means nothing."""

    columns: tuple[str, ...]
    rows: Rows
    declared: tuple[str, ...] = field(default=(), compare=False)
    """The engine's declaration: its kind (a table, a view), then each column. `==` leaves this out because engines word
    it differently; within one engine a difference here is another state."""


# The state of a table that a judge cannot read within its limits; every other table has columns.
UNREADABLE = TableState((), ())
# Every table and view of a database by name, including those made during the episode.
Snapshot = Mapping[str, TableState]


class Database(AbstractContextManager["Database"], Protocol):
    statement_timeout_s: float
    used_s: float
    """What the agent's statements have used so far, in the seconds that limit one (`Backend.open`)."""

    def run(self, sql: str) -> Result:
        """Run one statement as the agent; a bad statement gives `Result.error`.

        Raises:
            BackendUnavailable: the server is gone.
        """
        ...

    def new_session(self) -> None:
        """Commit, and continue as on a fresh connection, without temporary tables, variables and settings.

        Raises:
            BackendUnavailable: the server is gone.
        """
        ...

    def table_hash(self, tables: Sequence[Table]) -> str | None:
        """DB-Bench's hash of these tables' original columns (FACTS 7.1; several are sorted and joined by `_`).

        Returns:
            32 hex digits per table, "None" for an empty one; None if a table or a column no longer exists or cannot be
            read within the limits.
        """
        ...

    def snapshot(self) -> Snapshot:
        """`UNREADABLE` stands for a table that cannot be read; an open transaction is included."""
        ...

    def close(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self.close()


class Backend(AbstractContextManager["Backend"], Protocol):
    def open(
        self, tables: Sequence[Table], *, typed: bool, statement_timeout_s: float = STATEMENT_TIMEOUT_S
    ) -> Database:
        """Make a fresh database that holds these tables.

        Args:
            typed: make the columns with their declared types; False makes every column TEXT, as AgentBench does.
            statement_timeout_s: limit of one statement: CPU seconds of its thread where the engine is in this process,
                on a server wall clock.
        Raises:
            TableError: a table cannot be made.
            BackendUnavailable: the server is gone.
        """
        ...

    def live_databases(self) -> int:
        """0 once every episode is closed."""
        ...

    def close(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self.close()


def row_chars(row: Iterable[object], *, other: int = 1) -> int:
    """The characters of a row's texts and bytes; any other cell counts as `other`."""
    return sum([len(cell) if isinstance(cell, _TEXTS) else other for cell in row])


def first_rows(rows: Iterable[Row], max_rows: int, max_chars: int, *, other: int = 1) -> tuple[Row, ...]:
    """The rows up to the one that reaches a limit (`row_chars`)."""
    found: list[Row] = []
    chars = 0
    for row in rows:
        found.append(row)
        chars += row_chars(row, other=other)
        if len(found) >= max_rows or chars > max_chars:
            break
    return tuple(found)


def json_cell(cell: object) -> object:
    if isinstance(cell, float) and not math.isfinite(cell):
        return None  # JSON has no infinity
    return cell.hex() if isinstance(cell, bytes) else cell


def backquoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def check_tables(tables: Sequence[Table]) -> None:
    """Refuse the tables that MySQL refuses, on every backend.

    Raises:
        TableError: the message names the table and what is wrong with it.
    """
    names = [table.name.casefold() for table in tables]
    for table in tables:
        columns = [column.name.casefold() for column in table.columns]
        if not table.name or names.count(table.name.casefold()) > 1:
            raise TableError(f"table {table.name!r}: expected a name of its own")
        if not columns or "" in columns:
            raise TableError(f"table {table.name!r}: expected named columns, got {[c.name for c in table.columns]}")
        if len(set(columns)) < len(columns):
            raise TableError(
                f"table {table.name!r}: a column name occurs twice in {[c.name for c in table.columns]}; rename one"
            )
        for name in (table.name, *(column.name for column in table.columns)):
            if len(name) > MAX_NAME_CHARS or name.endswith(" ") or "\0" in name:
                raise TableError(
                    f"table {table.name!r}: MySQL takes no name {name!r}; expected at most {MAX_NAME_CHARS} "
                    "characters, no blank at the end and no NUL"
                )
        for index, row in enumerate(table.rows):
            if len(row) != len(columns):
                raise TableError(
                    f"table {table.name!r}, row {index}: {len(row)} cells, expected {len(columns)}; "
                    "correct the task file"
                )
            for cell in row:
                if isinstance(cell, str) and len(cell) > MAX_TEXT_BYTES // 4 and _num_bytes(cell) > MAX_TEXT_BYTES:
                    raise TableError(
                        f"table {table.name!r}, row {index}: a cell of {_num_bytes(cell)} bytes, a TEXT column holds "
                        f"{MAX_TEXT_BYTES}; correct the task file"
                    )


def _num_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def hash_rows(lines: Iterable[str | bytes]) -> str:
    """Compute DB-Bench's hash of one table from its rows, each joined as by CONCAT_WS(',', ...).

    Returns:
        32 hex digits, or "None" (the driver's text of NULL) when there are no rows.
    Source:
        FACTS 7.1: five hex digits per row, sorted, GROUP_CONCAT cut at MySQL's default of 1,024 bytes.
    """
    digests = sorted(_md5(line)[:5] for line in lines)
    return _md5(",".join(digests)[:1024]) if digests else "None"


def join_hashes(hashes: Iterable[str]) -> str:
    return "_".join(sorted(hashes))


def _md5(text: str | bytes) -> str:
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


# What was made of a task's tables -------------------------------------------------------------------------------------


# Of all tasks together; a table of 30 rows takes 12 KiB.
KEPT_BYTES = 4 * 1024**2

T = TypeVar("T")


class KeptTables(Generic[T]):
    """What was used last, by the whole content of the tables. Any thread may call.

    Args:
        size_bytes: a function that measures what is kept.
    """

    def __init__(self, size_bytes: Callable[[T], int], *, max_bytes: int = KEPT_BYTES) -> None:
        self._size_of, self._max_bytes, self.size_bytes = size_bytes, max_bytes, 0
        self._kept: OrderedDict[bytes, T] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, tables: Sequence[Table], make: Callable[[], T], *, typed: bool) -> T:
        """What is kept of these tables, or else what `make` returns; what that raises is raised."""
        key = _key(tables, typed=typed)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = make()
        size_bytes = len(key) + self._size_of(made)
        with self._lock:
            # what is too large by itself would push out everything else; another thread may have made it too
            if size_bytes <= self._max_bytes and key not in self._kept:
                self._kept[key] = made
                self.size_bytes += size_bytes
            while self.size_bytes > self._max_bytes:
                old_key, old = self._kept.popitem(last=False)
                self.size_bytes -= len(old_key) + self._size_of(old)
        return made


def _key(tables: Sequence[Table], *, typed: bool) -> bytes:
    # Unlike `==` this tells 1 from 1.0 and from True. Version 2 writes equal values alike, later ones do not.
    described = [(table.name, [(column.name, column.type) for column in table.columns], table.rows) for table in tables]
    return marshal.dumps((typed, described), 2)

"""Lets an agent change its own view of a user's SQLite file, and compares what two agents left behind.

Besides a SELECT, a statement may be an INSERT, UPDATE or DELETE over the file's tables, with the triggers that the file
has for it. Foreign keys are not enforced, as in a `sqlite3` shell. A statement that changes more than an episode may
(`copy_on_write`) is undone.
"""

from __future__ import annotations

import math
import sqlite3

from dbbench_adapter.datatypes import Row, Rows
from dbbench_adapter.engines import Result
from dbbench_adapter.engines.sqlite.copy_on_write import (
    MAX_CHANGED_ROWS,
    MAX_WRITTEN_BYTES,
    Change,
    Changes,
    CopyOnWrite,
)
from dbbench_adapter.engines.sqlite.foreign_schema import Unparsed
from dbbench_adapter.engines.sqlite.sandbox import Guard, virtual_tables
from dbbench_adapter.judges.strict import same_content
from sql_agent.comparison import only_in
from sql_agent.text_to_sql.sandbox import TOO_LONG, UserDatabase

CHANGE_REFUSAL = (
    "not allowed: only SELECT, INSERT, UPDATE and DELETE over the tables of this database, with SQLite's functions"
)
TOO_LARGE = (
    f"the change is too large: all statements together may change {MAX_CHANGED_ROWS:,} rows and write "
    f"{MAX_WRITTEN_BYTES // 1024**2} MiB"
)
_CHANGING = (sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE)
_UNCHANGED = Change((), ())


class ChangeableDatabase(UserDatabase):
    """Opens a view of the file for one episode, or for a reference.

    Raises:
        BackendUnavailable: the file cannot be opened; `run` and `changes` raise it when somebody else has changed it.
    """

    refusal = CHANGE_REFUSAL

    def _opened(self) -> tuple[sqlite3.Connection, tuple[Unparsed, ...]]:
        self._view = CopyOnWrite(self._path)
        return self._view.connection, self._view.unparsed

    def run(self, sql: str) -> Result:
        """Run one statement; one that changes rows gives their number, triggers included, or what RETURNING gives.

        Returned rows that are too long are left out, because the change stands.
        """
        self._view.begin()
        changed_before = self._connection.total_changes
        result = super().run(sql)
        changed = self._connection.total_changes - changed_before
        if result.columns or (result.error is not None and not (result.error == TOO_LONG and changed)):
            return result
        return Result(((changed,),), ("rows changed",))

    def changes(self) -> Changes:
        """Return what the statements have changed so far."""
        self._guard = Guard(max_growth_bytes=math.inf)
        return self._view.changes()

    def close(self) -> None:
        self._view.close()

    def _allows(self, action: int, first: str, second: str) -> bool:
        if action in _CHANGING:
            self._why_denied = self._view.unchangeable.get(first, self._why_denied)
            return first in self._view.writable and first.lower() not in virtual_tables()
        return super()._allows(action, first, second)

    def _has_to_stop(self) -> bool:
        return super()._has_to_stop() or self._view.full()

    def _error_text(self, error: BaseException) -> str:
        if self._view.full() or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
            return TOO_LARGE
        return super()._error_text(error)


def left_by_one(expected: Changes, given: Changes) -> tuple[list[Row], list[Row]]:
    """Return the rows that only `expected` leaves behind, and those that only `given` does, each after its table."""
    theirs, ours = dict[str, Rows](), dict[str, Rows]()
    for table in sorted(expected.keys() | given.keys()):
        wanted, done = expected.get(table, _UNCHANGED), given.get(table, _UNCHANGED)
        theirs[table], ours[table] = wanted.added + done.removed, done.added + wanted.removed
    return only_in(theirs, ours), only_in(ours, theirs)


def same_state(given: Changes, expected: Changes) -> bool:
    """Return whether two databases that began alike hold the same rows, in any order.

    What one side added and the other removed is laid side by side, so a number that differs in its last digits alone is
    equal, as for `strict`, whether it was changed or not.
    """
    return all(
        same_content(ours.added + theirs.removed, theirs.added + ours.removed)
        for table in given.keys() | expected.keys()
        for ours, theirs in [(given.get(table, _UNCHANGED), expected.get(table, _UNCHANGED))]
    )

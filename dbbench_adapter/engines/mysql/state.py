"""Reads an episode's database on MariaDB or MySQL for the judges, as the agent's user and within limits.

Only stored columns of tables are read; views and virtual columns that an agent left behind are never evaluated. A table
that cannot be read within `READ_S`, `MAX_ROWS` and `MAX_BYTES` has a state of its own, since the agent caused it. A
server that is gone is an error.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Sequence
from typing import Any

import pymysql
from pymysql.cursors import SSCursor

from dbbench_adapter.datatypes import Table
from dbbench_adapter.dialect.sql_types import to_cell
from dbbench_adapter.engines.base import TableState, backquoted, hash_rows, join_hashes, row_chars
from dbbench_adapter.engines.mysql.names import NEUTRAL_NAME
from dbbench_adapter.engines.mysql.pool import GIVE_UP_AFTER_S, Connection, Pool, Slot

# The time to read all tables of one episode, in seconds.
READ_S = 10.0
MAX_ROWS = 200_000
# The most bytes of all cells together; no reference needs as many.
MAX_BYTES = 32 * 1024**2
_TABLES = frozenset(["BASE TABLE", "SYSTEM VERSIONED"])
# A cell counts as its text and this many bytes.
_CELL_BYTES = 16
# A line of a column in SHOW CREATE TABLE; keys, constraints and counters are not compared.
_COLUMN = re.compile(r"^  (`.*?),?$", re.MULTILINE)
_CHARSET = re.compile(r"^\).*?(DEFAULT CHARSET=\w+(?: COLLATE=\w+)?)", re.MULTILINE)
# After these words in a definition `*` may return a computed column or leave out a stored one.
_NOT_IN_STAR = ("GENERATED", "VIRTUAL", "INVISIBLE", "VERSIONING")


class _TooMuch(Exception):
    """A limit of reading is reached."""


class StateReader:
    """Reads one database once, after the agent's session was reset; nothing else may use that session meanwhile.

    Raises:
        pymysql.Error, OSError: raised by every method when the server is gone.
    """

    def __init__(self, pool: Pool, slot: Slot) -> None:
        self._pool, self._slot = pool, slot
        self._deadline = time.monotonic() + READ_S
        self._rows_left, self._bytes_left = MAX_ROWS, MAX_BYTES

    def snapshot(self) -> dict[str, TableState]:
        return {self._neutral(name): self._state(name, kind) for name, kind in self._kinds().items()}

    def table_hash(self, tables: Sequence[Table]) -> str | None:
        kinds = self._kinds()
        hashes: list[str] = []
        for table in tables:
            session = self._pool.reset_session(self._slot)
            try:
                if kinds.get(table.name) not in _TABLES or not self._stores(session, table):
                    return None
                columns = ", ".join(backquoted(column.name) for column in table.columns)
                _, rows = self._read(session, f"CONCAT_WS(',', {columns})", table.name)
                hashes.append(hash_rows(text for (text,) in rows if text is not None))
            except (pymysql.Error, OSError, ValueError, _TooMuch):
                self._check_server()
                return None
        return join_hashes(hashes)

    def _kinds(self) -> dict[str, str]:
        # They are read in the administrator's session.
        with self._slot.admin.cursor() as cursor:
            # unlike SHOW FULL TABLES, this tells tables with versions, and is no error without the database
            cursor.execute(
                "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = %s",
                (self._slot.name,),
            )
            return {str(name): str(kind) for name, kind in cursor.fetchall()}

    def _state(self, name: str, kind: str) -> TableState:
        session = self._pool.reset_session(self._slot)
        try:
            definition = self._definition(session, name)
            if kind not in _TABLES:
                return TableState((), (), (kind, definition))
            stored = self._stored(session, name, definition)
            columns, rows = self._read(session, "*" if stored is None else ", ".join(map(backquoted, stored)), name)
            values = tuple(tuple(to_cell(cell) for cell in row) for row in rows)
            return TableState(
                tuple(map(self._neutral, columns)),
                values,
                (kind, *_COLUMN.findall(definition), *_CHARSET.findall(definition)),
            )
        except (pymysql.Error, OSError, ValueError, _TooMuch):
            self._check_server()
            return TableState((), (), (kind, f"not to be read {secrets.token_hex(8)}"))  # it equals no state

    def _definition(self, session: Connection, name: str) -> str:
        _, rows = self._asked(session, f"SHOW CREATE TABLE {self._full(name)}")
        return self._neutral(str(rows[0][1]))

    def _stored(self, session: Connection, name: str, definition: str) -> list[str] | None:
        """The stored columns; None if the definition shows that `*` returns exactly these."""
        if not any(word in definition.upper() for word in _NOT_IN_STAR):
            return None
        _, columns = self._asked(session, f"SHOW FULL COLUMNS FROM {self._full(name)}")
        return [str(column) for column, _, _, _, _, _, extra, *_ in columns if "VIRTUAL" not in str(extra).upper()]

    def _stores(self, session: Connection, table: Table) -> bool:
        stored = self._stored(session, table.name, self._definition(session, table.name))
        return stored is None or {c.name.casefold() for c in table.columns} <= {name.casefold() for name in stored}

    def _read(self, session: Connection, columns: str, name: str) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        left_s = self._left_s()
        if self._pool.is_mariadb:
            select = f"SET STATEMENT max_statement_time = {left_s:.3f} FOR SELECT"
        else:
            select = f"SELECT /*+ MAX_EXECUTION_TIME({round(1000 * left_s)}) */"
        return self._asked(session, f"{select} {columns} FROM {self._full(name)}")

    def _asked(self, session: Connection, sql: str) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        # If reading stops early, the session ends.
        setattr(session, "_read_timeout", self._left_s() + GIVE_UP_AFTER_S)  # noqa: B010
        cursor: Any = SSCursor(session)
        rows: list[tuple[Any, ...]] = []
        try:
            cursor.execute(sql)
            columns = tuple(column[0] for column in cursor.description)
            while (row := cursor.fetchone()) is not None:
                rows.append(row)
                self._rows_left -= 1
                self._bytes_left -= _CELL_BYTES * len(row) + row_chars(row, other=0)
                self._left_s()
            return columns, rows
        finally:
            self._pool.stop_reading(self._slot, cursor)

    def _left_s(self) -> float:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0 or self._rows_left < 0 or self._bytes_left < 0:
            raise _TooMuch
        return left_s

    def _check_server(self) -> None:
        self._slot.admin.ping(reconnect=False)

    def _neutral(self, text: str) -> str:
        return text.replace(self._slot.name, NEUTRAL_NAME)

    def _full(self, name: str) -> str:
        return f"{backquoted(self._slot.name)}.{backquoted(name)}"

"""Makes the tables of a task on MariaDB or MySQL, and tells errors of the task file from errors of the server.

`base.check_tables` refuses beforehand what every backend refuses.
"""

from __future__ import annotations

import re

import pymysql
from pymysql.cursors import Cursor

from dbbench_adapter.datatypes import Table
from dbbench_adapter.dialect.kinds import mysql_type, sqlite_type
from dbbench_adapter.engines.base import TableError, quoted
from dbbench_adapter.engines.mysql.names import NEUTRAL_NAME

_FAULT_KINDS = (
    pymysql.DataError,
    pymysql.IntegrityError,
    pymysql.ProgrammingError,
    pymysql.NotSupportedError,
)
# Numbers of errors about names, types and cells for which pymysql has no class of its own.
_FAULTS = frozenset(
    [1059, 1074, 1075, 1103, 1117, 1118, 1166, 1264, 1265, 1292, 1300, 1366, 1406, 1416, 1425, 1426, 1427, 1439, 4025]
)
# The size of an escaped and encoded text is estimated with this factor; half of it would be enough.
_MAX_BYTES_PER_CHAR = 8
_DECLARED_TYPE = re.compile(r"[A-Z]+( ?\( ?\d+( ?, ?\d+)? ?\))?( UNSIGNED)?", re.IGNORECASE)


def make_table(cursor: Cursor, database: str, table: Table, *, typed: bool, max_bytes: int) -> None:
    """Make a table and insert its rows.

    Args:
        typed: use the declared types; False makes every column TEXT.
        max_bytes: the longest statement that is sent; the server ends the session over a longer one.
    Raises:
        TableError: the server does not take a name, a type or a cell.
        pymysql.Error: any other error of the server.
    """
    try:
        _make_and_fill(cursor, database, table, typed=typed, max_bytes=max_bytes)
    except ValueError as error:  # `_check_size` raised it, or a text is no Unicode
        raise _fault(table, str(error)) from error
    except pymysql.Error as error:
        number, *text = error.args
        if not isinstance(error, _FAULT_KINDS) and number not in _FAULTS:
            raise
        raise _fault(table, ": ".join(map(str, (number, *text))).replace(database, NEUTRAL_NAME)) from error


def _make_and_fill(cursor: Cursor, database: str, table: Table, *, typed: bool, max_bytes: int) -> None:
    columns = ", ".join(f"{quoted(c.name)} {_column_type(c.type) if typed else 'TEXT'}" for c in table.columns)
    create = f"CREATE TABLE {database}.{quoted(table.name)} ({columns})"
    _check_size(create, max_bytes)
    cursor.execute(create)
    marks = ", ".join("%s" for _ in table.columns)
    insert = f"INSERT INTO {database}.{quoted(table.name).replace('%', '%%')} VALUES ({marks})"
    rows = [[cell if cell is None or typed else str(cell) for cell in row] for row in table.rows]
    for row in rows:
        if sum(len(cell) for cell in row if isinstance(cell, str)) > max_bytes // _MAX_BYTES_PER_CHAR:
            _check_size(cursor.mogrify(insert, row), max_bytes)
    if rows:
        cursor.executemany(insert, rows)


def _check_size(sql: str, max_bytes: int) -> None:
    if (size := len(sql.encode())) > max_bytes:
        raise ValueError(f"a statement of {size} bytes, the server takes {max_bytes}")


def _fault(table: Table, reason: str) -> TableError:
    return TableError(f"table {table.name!r} cannot be made: {reason}; correct the task file")


def _column_type(declared: str) -> str:
    """A type as it is, or without what stands behind it, such as NOT NULL; return TEXT for an unknown one."""
    if _DECLARED_TYPE.fullmatch(declared):
        return declared
    known = sqlite_type(declared)
    return mysql_type(known) if known else "TEXT"

"""Answers one SELECT after the other on DuckDB files: the program of a process that `processes` starts and kills.

DuckDB's own memory limit does not bind what functions make (8 GB for `range(1000000000)`), and some functions do not
hear an interrupt. So the kernel limits this process, and a statement that takes too long ends with it. Requests and
answers are JSON lines on the socket that is its standard input. It imports nothing of this project, to start in 0.2 s.
"""

from __future__ import annotations

import json
import os
import resource
import select
import socket
import sys
import threading
from decimal import Decimal
from typing import Any

import duckdb

# Statements may use this much beside what the open file takes; DuckDB's sorts and joins get half of it.
MEMORY_BYTES = 512 * 1024**2
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,  # no file, network, extension, ATTACH or COPY
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_persistent_secrets": False,
    "python_enable_replacements": False,  # otherwise FROM reads variables of this program
    "temp_directory": "",  # otherwise a folder appears beside the file
    "memory_limit": f"{MEMORY_BYTES // 2}B",
    "threads": 1,
    "async_threads": 1,
    "lock_configuration": True,
}
_MAX_ERROR_CHARS = 4_000
# Values that Python has too. Of the others there is DuckDB's text, as Python lacks some (the date `infinity`).
_WHOLE = ("tinyint", "smallint", "integer", "bigint", "hugeint")
_PLAIN = {"boolean", *_WHOLE, *(f"u{kind}" for kind in _WHOLE), "float", "double", "decimal", "varchar", "blob"}
_NESTED = {"list", "array", "struct", "map", "union", "variant"}

Answer = dict[str, Any]


def reopened(before: duckdb.DuckDBPyConnection | None, file: str) -> tuple[duckdb.DuckDBPyConnection | None, Answer]:
    if before is not None:
        before.close()
    try:
        connection = duckdb.connect(file, read_only=True, config=_SETTINGS)
    except (duckdb.Error, MemoryError) as error:
        return None, {"error": str(error) or "it takes too much memory"}
    if before is None:
        _limit_memory()
    return connection, {}


def _limit_memory() -> None:
    with open("/proc/self/status") as status:
        own = int(next(line for line in status if line.startswith("VmData:")).split()[1]) * 1024
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    # not the address space, of which threads reserve much more than they use
    wanted = own + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard < 0 else min(wanted, hard), hard))


def answer(connection: duckdb.DuckDBPyConnection, sql: str, max_rows: int, max_chars: int) -> Answer:
    """`rows` and `columns`; `error`, DuckDB's own; or `fault`: `refused`, `memory` or `long`.

    With `broken` the file has to be opened again.
    """
    try:
        cursor = connection.cursor()  # which has no settings and temporary tables of another statement
        statements = cursor.extract_statements(sql)
        if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
            return {"fault": "refused"}
        relation = cursor.sql(statements[0])
        columns = ", ".join(_shown(f"#{place}", kind.id) for place, kind in enumerate(relation.types, 1))
        rows = relation.project(columns).limit(max_rows).fetchall()
        if sum(len(cell) if isinstance(cell, str | bytes) else 1 for row in rows for cell in row) > max_chars:
            return {"fault": "long"}
        return {"columns": relation.columns, "rows": [[_cell(cell) for cell in row] for row in rows]}
    except (duckdb.OutOfMemoryException, MemoryError):
        return {"fault": "memory"}
    except Exception as error:  # DuckDB's own, and what Python makes of types and statements that it does not know
        text, _, _ = str(error).partition("\n\nStack Trace")  # which names folders
        if "Out of Memory Error" in text:  # inside another one
            return {"fault": "memory"}
        broken = isinstance(error, duckdb.FatalException | duckdb.InternalException)
        return {"error": text[:_MAX_ERROR_CHARS], "broken": broken}


def _shown(column: str, kind: str) -> str:
    if kind in _NESTED:
        return f"CAST(to_json({column}) AS VARCHAR)"
    return column if kind in _PLAIN else f"CAST({column} AS VARCHAR)"


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, Decimal):
        return float(value) if value.as_tuple().exponent else int(value)
    return {"hex": value.hex()} if isinstance(value, bytes) else value


def _end_with(parent: int) -> None:
    # also during a statement, since DuckDB does not hold Python's lock
    select.select([os.pidfd_open(parent)], [], [])
    os._exit(0)


def main() -> None:
    threading.Thread(target=_end_with, args=(int(sys.argv[1]),), daemon=True).start()
    with socket.socket(fileno=0) as channel, channel.makefile("rw") as lines:
        lines.write("{}\n")
        lines.flush()
        connection = None
        for line in lines:
            request = json.loads(line)
            if "file" in request:
                connection, said = reopened(connection, request["file"])
            else:
                assert connection is not None
                said = answer(connection, **request)
            lines.write(json.dumps(said) + "\n")
            lines.flush()


if __name__ == "__main__":
    main()

"""Sends statements to a PostgreSQL server and reads what it answers, by libpq, with a deadline for every wait.

Values are read in the text form that the server writes: a driver's own dates end at the year 9999.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from dbbench_adapter.dialect.sql_types import to_cell

# Longer ones, which Python does not write, stay texts.
_MAX_DIGITS = 300
_INTEGERS, _FLOATS, _NUMERIC, _BOOL, _BYTES = (20, 21, 23, 26), (700, 701), 1700, 16, 17


class ServerError(Exception):
    def __init__(self, result: PGresult) -> None:
        fields = (
            pq.DiagnosticField.MESSAGE_PRIMARY,
            pq.DiagnosticField.MESSAGE_DETAIL,
            pq.DiagnosticField.MESSAGE_HINT,
        )
        said = [(result.error_field(field) or b"").decode("utf-8", "replace") for field in fields]
        super().__init__("\n".join(filter(None, said)))
        self.state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()


def rows(pgconn: PGconn, sql: str, limit_s: float) -> list[tuple[Any, ...]]:
    """For `limit_s` and errors see `results`."""
    pgconn.send_query_params(sql.encode(), [])
    (result,) = results(pgconn, limit_s)
    return list(cells(result))


def execute(pgconn: PGconn, sql: str, limit_s: float) -> None:
    """Run statements that return nothing; for `limit_s` and errors see `results`."""
    pgconn.send_query(sql.encode())
    finish(pgconn, limit_s)


def finish(pgconn: PGconn, limit_s: float) -> None:
    for _ in results(pgconn, limit_s):
        pass


def results(pgconn: PGconn, limit_s: float) -> Iterator[PGresult]:
    """What the server answers to what was sent: one row each in single-row mode.

    Raises:
        TimeoutError: the time is up, and the connection is of no use any more.
        ServerError: the server says so.
        psycopg.OperationalError: the connection is lost.
    """
    deadline, failed = time.monotonic() + limit_s, None
    while pgconn.flush():
        _wait(pgconn, select.POLLOUT, deadline)
    while True:
        while pgconn.is_busy():
            _wait(pgconn, select.POLLIN, deadline)
            pgconn.consume_input()
        if (result := pgconn.get_result()) is None:
            break
        if result.status in (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE):
            failed = failed or ServerError(result)
        else:
            yield result
        if time.monotonic() > deadline:  # rows that come one by one never exceed the wait for one of them
            raise TimeoutError(f"no end of the answer within {limit_s:g} s")
    if failed:
        raise failed


def _wait(pgconn: PGconn, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(pgconn.socket, event)
    if not poll.poll(max(deadline - time.monotonic(), 0) * 1000):
        raise TimeoutError("no answer in time")


def cells(result: PGresult) -> Iterator[tuple[Any, ...]]:
    places = range(result.nfields)
    kinds = [result.ftype(place) for place in places]
    for number in range(result.ntuples):
        yield tuple(_plain(result.get_value(number, place), kinds[place]) for place in places)


def _plain(value: bytes | None, kind: int) -> object:
    # A cell as SQLite would give it, of the text that the server writes; true and false stay such.
    if value is None:
        return None
    text = value.decode("utf-8", "replace")
    if kind in _INTEGERS:
        return int(text)
    if kind == _BOOL:
        return text == "t"
    if kind == _BYTES:
        return bytes.fromhex(text[2:])
    if kind in (*_FLOATS, _NUMERIC) and len(text) <= _MAX_DIGITS:
        number = float(text) if kind in _FLOATS else Decimal(text)
        return to_cell(number) if math.isfinite(number) else text  # NaN would not equal itself
    return text

"""Every function in every context: SQLite answers as MariaDB does, or with an error.

A twelfth of the pairs by default; `--full` plays all of them.
"""

import zlib

import pytest

from dbbench_adapter.dialect.functions import AGGREGATES as OWN_AGGREGATES
from dbbench_adapter.dialect.functions import FUNCTIONS
from dbbench_adapter.dialect.signatures import NODES, SIGNATURES
from dbbench_adapter.dialect.sql_types import to_cell
from dbbench_adapter.engines.sqlite.sandbox import _CALLABLE
from dbbench_adapter.statement_clock import LEFT_OUT
from dbbench_adapter.tests.function_calls import (
    AGGREGATES,
    CALLS,
    REFUSED,
    TYPED,
    UNTYPED,
    aggregate_contexts,
    contexts,
)

SHARE = 12


def test_every_function_has_its_kind_in_the_table():
    assert {*FUNCTIONS, *OWN_AGGREGATES, *_CALLABLE} - {"iif", "distinct_key", "typeof"} <= set(SIGNATURES)
    assert {name for name, _ in NODES.values()} <= set(SIGNATURES)


@pytest.mark.parametrize(
    "call",
    [
        *("LEFT('hello', 2.5)", "SUBSTRING('hello', 2.5)", "REPEAT('a', 5 / 2)", "LPAD('a', 2.5, 'b')", "SPACE(2.5)"),
        *("TRUNCATE(4.35, 2)", "TRUNCATE(0.29, 2)", "MOD(0.3, 0.1)"),
    ],
)
def test_lengths_and_rests_that_doubles_do_not_settle_are_refused(sqlite, call):
    """SQLite rounded the half of a length down, cut 4.35 to 4.34, and left a rest of 0.1 where 0.3 is thrice that."""
    with sqlite.open([], typed=True) as database:
        assert database.run(f"SELECT {call}").error.endswith(LEFT_OUT)


@pytest.fixture(scope="module", params=["typed", "untyped"])
def engines(request, sqlite, mariadb):
    typed = request.param == "typed"
    opened = [backend.open([TYPED if typed else UNTYPED], typed=typed) for backend in (sqlite, mariadb)]
    yield opened
    for database in opened:
        database.close()


@pytest.mark.parametrize("call", [*CALLS, *AGGREGATES])
def test_a_call_means_the_same_everywhere(engines, call, request):
    """See the module's docstring."""
    sqlite, mariadb = engines
    is_aggregate = call in AGGREGATES
    rows = mariadb.run(f"SELECT {call} FROM t" + ("" if is_aggregate else " ORDER BY id")).rows
    value = str(next((cell for (cell,) in rows if cell is not None), 1))
    if call in REFUSED:
        assert _answer(sqlite, f"SELECT {call} FROM t")[0] == "refused"
    wrong = {}
    for name, sql in (aggregate_contexts if is_aggregate else contexts)(call, value).items():
        if not request.config.getoption("--full", default=False) and zlib.crc32(f"{call} {name}".encode()) % SHARE:
            continue
        found, right = _answer(sqlite, sql), _answer(mariadb, sql)
        if found[0] != "refused" and found != right:
            wrong[sql] = found, right
    assert wrong == {}


def _answer(database, sql):
    """The rows as an agent reads them, or the table that a change leaves, which is taken back."""
    if sql.startswith("SELECT"):
        result = database.run(sql)
        rows = [tuple(map(str, row)) for row in result.rows or ()]
        return ("refused", (result.error or "").split(" ")[0]) if result.error else ("rows", rows)
    database.run("START TRANSACTION")
    error = database.run(sql).error
    left = [tuple(map(_cell, row)) for row in database.run("SELECT * FROM t ORDER BY id").rows]
    database.run("ROLLBACK")
    return ("refused", error.split(" ")[0]) if error else ("table", left)


def _cell(value):
    """A cell without the engines' own types: 7.5 and Decimal('7.50') are one number."""
    cell = to_cell(value)
    return float(cell) if isinstance(cell, int | float) else cell

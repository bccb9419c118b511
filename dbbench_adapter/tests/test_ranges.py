"""Numbers at the ends of MySQL's types and beyond, on both engines; on SQLite some are refused."""

from decimal import Decimal

import pytest

from dbbench_adapter.datatypes import Column, Table
from dbbench_adapter.tests.agent_sql import is_left_out

LARGEST = 2**63 - 1
T = Table(
    "t",
    (Column("id", "INT"), Column("n", "BIGINT"), Column("f", "DOUBLE")),
    ((1, LARGEST, 1e308), (2, 4_000_000_000, 2.5)),
)
BIGINT = "1690 (22003): BIGINT value is out of range"
DOUBLE = "1690 (22003): DOUBLE value is out of range"


@pytest.fixture
def database(backend):
    with backend.open([T], typed=True) as database:
        yield database


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("9223372036854775807 + 1", BIGINT),
        ("n + 1", BIGINT),
        ("1 - -n", BIGINT),
        ("n * n", BIGINT),
        ("n + 1 - 1", BIGINT),
        ("(n + 1) * 0", BIGINT),
        ("id * 4000000000 * 4000000000", BIGINT),
        ("SUM(n * 4)", BIGINT),
        ("1e308 * 10", DOUBLE),
        ("f * 10", DOUBLE),
        ("f + f", DOUBLE),
        ("1 / (f * 10)", DOUBLE),
        ("f * 10 - f * 10", DOUBLE),
        ("f / 1e-10", DOUBLE),
        ("EXP(1000)", DOUBLE),
        ("POW(10, 400)", DOUBLE),
        ("POW(0, -1)", DOUBLE),
        ("POW(-1, 0.5)", DOUBLE),
    ],
)
def test_what_leaves_a_type_ends_the_statement(database, expression, error):
    assert (database.run(f"SELECT {expression} FROM t").error or "").startswith(error)
    summed = expression if expression.startswith(("SUM", "MAX")) else f"MAX({expression})"
    assert (database.run(f"SELECT COUNT(*) FROM t HAVING {summed} > 1").error or "").startswith(error)


@pytest.mark.parametrize(
    ("sql", "row"),
    [
        ("SELECT SUM(n) FROM t WHERE id = 2", (Decimal(4_000_000_000),)),
        ("SELECT SUM(id) FROM t ORDER BY SUM(id)", (Decimal(3),)),
        ("SELECT SUM(n) FROM t WHERE id > 5", (None,)),
        ("SELECT SUM(n) / 2 FROM t WHERE id = 2", (Decimal("2000000000.0000"),)),
    ],
)
def test_a_sum_of_whole_numbers_is_a_decimal(database, sql, row):
    assert database.run(sql).rows == (row,)


@pytest.mark.parametrize("assigned", ["n = n + 1", "n = n * n", "f = f * 10"])
def test_a_change_out_of_range_changes_nothing(database, assigned):
    before = database.snapshot()
    assert (database.run(f"UPDATE t SET {assigned}").error or "").startswith("1690")
    assert database.snapshot() == before


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("n - 1", LARGEST - 1),
        ("-n", -LARGEST),
        ("n DIV 2", 2**62 - 1),
        ("n % 10", 7),
        ("FLOOR(n)", LARGEST),
        ("CEIL(-n)", -LARGEST),
        ("CEILING(9007199254740993)", 9007199254740993),
        ("FLOOR(1e300)", 1e300),
        ("TRUNCATE(n, -3)", 9223372036854775000),
        ("CAST('9007199254740993' AS SIGNED)", 9007199254740993),
        ("CAST(2.5e0 AS SIGNED)", 2),  # a double rounds halves to the even neighbour
        ("CAST(2.5 AS SIGNED)", 3),
        ("CAST(1.005 AS DECIMAL(10, 2))", Decimal("1.01")),
        ("CAST('1.005' AS DECIMAL(10, 2))", Decimal("1.01")),
        ("0.3 DIV 0.1", 3),
        ("EXP(-1000)", 0.0),
        ("SQRT(-1)", None),
        ("LN(0)", None),
        ("n > 9223372036854775806", 1),
    ],
)
def test_what_stays_in_its_type_is_exact(database, expression, value):
    assert database.run(f"SELECT {expression} FROM t WHERE id = 1").rows == ((value,),)


@pytest.mark.parametrize(
    "expression",
    [
        *("18446744073709551615", "9223372036854775808 + 1", "99999999999999999999 * 2", "-9223372036854775809"),
        "CAST(-1 AS UNSIGNED)", "CAST('-1' AS UNSIGNED)", "CAST('9999999999999999999' AS SIGNED)",
        "0xFFFFFFFFFFFFFFFF + 0", "CONCAT(18446744073709551615)",
        "n + 0.5", "n * 1.0", "n / 2", "AVG(n)", "SUM(n) + 1", "f > 7.4999999999999999",
        "0.1234567890123456789", "0x41", "b'101' + 1", "n < 18446744073709551615", "-9223372036854775808", "SUM(n)",
        "CAST(12345 AS DECIMAL(4, 1))",
    ],
)  # fmt: skip
def test_what_sqlite_cannot_hold_is_refused(sqlite, expression):
    with sqlite.open([T], typed=True) as database:
        assert is_left_out(database, database.run(f"SELECT {expression} FROM t WHERE id = 1 OR n > 0"), listed=True)


@pytest.mark.parametrize(
    ("limit", "ids"),
    [
        ("LIMIT 18446744073709551615", "12"),
        ("LIMIT 1, 18446744073709551615", "2"),
        ("LIMIT 18446744073709551615 OFFSET 1", "2"),
        ("LIMIT 9223372036854775808", "12"),
        ("LIMIT 18446744073709551616", None),
        ("LIMIT -1", None),
        ("LIMIT 1.5", None),
        ("LIMIT '1'", None),
        ("LIMIT 1 + 1", None),
        ("LIMIT NULL", None),
    ],
)
def test_a_limit_is_a_whole_number_of_64_bits(database, limit, ids):
    """None: a syntax error."""
    result = database.run(f"SELECT id FROM t ORDER BY id {limit}")
    if ids is None:
        assert result.error.startswith("1064")
    else:
        assert "".join(str(cell) for (cell,) in result.rows) == ids


def test_a_literal_beyond_all_doubles_is_refused(database):
    assert database.run("SELECT 1e400").error.startswith(
        "1367 (22007): Illegal double '1e400' value found during parsing"
    )


def test_a_text_is_compared_with_a_large_number_as_doubles(backend):
    with backend.open([T], typed=False) as database:
        assert database.run("SELECT id FROM t WHERE n = 9223372036854775807").rows == (("1",),)
        assert database.run("UPDATE t SET f = n - 1 WHERE id = 1").error is None
        assert database.run("SELECT f FROM t WHERE id = 1").rows == (("9.223372036854776e18",),)
        assert database.run("SELECT n DIV 2 FROM t WHERE id = 1").rows == ((2**62 - 1,),)
        assert database.run("SELECT SUM(n) FROM t").rows == ((float(LARGEST + 4_000_000_000),),)

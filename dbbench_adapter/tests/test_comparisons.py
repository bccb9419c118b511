"""Comparisons and changes that once meant something else on SQLite, on both engines; values worked out by hand."""

import datetime
from decimal import Decimal

import pytest

from dbbench_adapter.datatypes import Column, Table
from dbbench_adapter.tests.agent_sql import is_left_out

T = Table(
    "t",
    (Column("id", "INT"), Column("w", "VARCHAR(20)"), Column("d", "DATE")),
    ((1, "Plum", "2021-03-01"), (2, "plum", "2020-12-31"), (3, None, None)),
)


@pytest.fixture(params=[True, False], ids=["typed", "untyped"])
def database(request, backend):
    with backend.open([T], typed=request.param) as database:
        yield database


REFUSED = {
    *("w LIKE BINARY 'p%'", "w NOT LIKE BINARY 'p%'", "w LIKE 'p%' COLLATE utf8mb4_bin", "w REGEXP BINARY '^p'"),
    *("BINARY w REGEXP '^p'", "w >= ALL (SELECT 'A')", "w = ANY (SELECT 'PLUM')", "YEAR(d) IN (SELECT '2021')"),
    *("EXTRACT(YEAR_MONTH FROM d)", "DATE_FORMAT(d, '%U %u %V %v %X %x')", "NULLIF(w, 0)", "NULLIF('12', 12)"),
    *(
        "CONV('ff', 16, 10)",
        "MAKEDATE(2021, 60)",
        "TO_DAYS(d)",
        "TIME_TO_SEC('01:02:03')",
        "TIME('2021-03-01 10:05:09')",
    ),
}
"""What SQLite refuses and MariaDB answers as stated here."""


def asked(database, sql):
    result = database.run(sql)
    assert result.error is None
    return [tuple(map(str, row)) for row in result.rows]


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        ("YEAR(d) = '2021'", "1"),
        ("LENGTH(w) IN ('4', 'x')", "12"),
        ("MONTH(d) BETWEEN '3' AND '4'", "1"),
        ("CASE YEAR(d) WHEN '2021' THEN 1 ELSE 0 END", "1"),
        ("w LIKE BINARY 'p%'", "2"),
        ("w NOT LIKE BINARY 'p%'", "1"),
        ("w LIKE 'p%' COLLATE utf8mb4_bin", "2"),
        ("w REGEXP BINARY '^p'", "2"),
        ("BINARY w REGEXP '^p'", "2"),
        ("w LIKE 'p%'", "12"),
        ("w >= ALL (SELECT 'A')", "12"),  # NULL is not greater
        ("w = ANY (SELECT 'PLUM')", "12"),
        ("(id, YEAR(d)) IN ((1, '2021'), (2, '2021'))", "1"),
        ("YEAR(d) IN (SELECT '2021')", "1"),
        ("YEAR(d) = '02021' OR w = 'x'", "1"),
        ("id = '1.0'", None),  # a number in typed tables, a text in others
    ],
)
def test_a_condition_finds_the_same_rows_on_both_engines(database, condition, ids):
    result = database.run(f"SELECT id FROM t WHERE {condition} ORDER BY id")
    if is_left_out(database, result, listed=condition in REFUSED):
        return
    found = "".join(str(row[0]) for row in result.rows)
    assert found == ids if ids is not None else found in ("1", "")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("EXTRACT(YEAR_MONTH FROM d)", "202103"),
        ("DATE_FORMAT(d, '%U %u %V %v %X %x')", "09 09 09 09 2021 2021"),
        ("NULLIF(w, 0)", "None"),  # Plum is 0 as a number
        ("NULLIF('12', 12)", "None"),
        ("ROUND('2.5')", "2.0"),
        ("ROUND(2.5)", "3"),
        ("WEEK(d, 1)", "9"),
        ("CONV('ff', 16, 10)", "255"),
        ("MAKEDATE(2021, 60)", "2021-03-01"),
        ("TO_DAYS(d)", "738215"),
        ("TIME_TO_SEC('01:02:03')", "3723"),
        ("TIME('2021-03-01 10:05:09')", "10:05:09"),
        ("ADDDATE(d, 31)", "2021-04-01"),
        ("SUBDATE(d, INTERVAL 1 DAY)", "2021-02-28"),
        ("USER()", "dbbench@localhost"),
    ],
)
def test_an_expression_has_mysql_s_value(database, expression, value):
    result = database.run(f"SELECT {expression} FROM t WHERE w = 'plum' AND id = 1")
    if not is_left_out(database, result, listed=expression in REFUSED):
        assert [tuple(map(str, row)) for row in result.rows] == [(value,)]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("0.1 + 0.2 = 0.3", "1"),  # decimals, where doubles give 0
        ("ROUND(12.50 * 1.15, 2)", "14.38"),  # 14.375, of which a double is a little less
        ("FLOOR((0.1 + 0.7) * 10)", "8"),
        ("(SELECT AVG(id) FROM t) = 2", "1"),
    ],
)
def test_decimals_are_exact_where_they_are_compared_and_rounded(database, expression, value):
    assert asked(database, f"SELECT {expression}") == [(value,)]


def test_select_star_shows_dates_and_decimals_as_the_driver_does(backend):
    table = Table("u", (Column("p", "DECIMAL(5,2)"), Column("d", "DATE")), ((7.5, "2021-03-01"),))
    with backend.open([table], typed=True) as database:
        for source in ("u", "u AS x", "(SELECT * FROM u) x", "(SELECT u.*, 1 AS n FROM u) x"):
            assert database.run(f"SELECT * FROM {source}").rows[0][:2] == (Decimal("7.50"), datetime.date(2021, 3, 1))


def test_dates_are_subtracted_and_compared_as_dates_where_they_are_dates(backend):
    with backend.open([T], typed=True) as database:
        assert asked(database, "SELECT MAX(d) - MIN(d) FROM t") == [("9070",)]  # 20210301 - 20201231... as numbers
        assert asked(database, "SELECT id FROM t WHERE d >= '2021-3-1'") == [("1",)]


def test_on_duplicate_key_update_takes_a_number_for_a_text(backend):
    with backend.open([T], typed=False) as database:
        for statement in (
            "CREATE TABLE u (id INT PRIMARY KEY, qty TEXT)",
            "INSERT INTO u VALUES (1, '5')",
            "INSERT INTO u VALUES (1, '6') ON DUPLICATE KEY UPDATE qty = 1",
        ):
            assert database.run(statement).error is None
        assert asked(database, "SELECT * FROM u") == [("1", "1")]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT STRAIGHT_JOIN SQL_NO_CACHE id FROM t",
        "SELECT a.id FROM t a STRAIGHT_JOIN t b ON a.id = b.id",
        "UPDATE LOW_PRIORITY t SET w = 'x'",
        "DELETE LOW_PRIORITY QUICK FROM t",
        "INSERT LOW_PRIORITY INTO t (id) VALUES (9)",
        "SELECT 'LOW_PRIORITY'",
    ],
)
def test_words_about_how_to_run_a_statement_are_passed_over(database, sql):
    assert database.run(sql).error is None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT d + INTERVAL '1 2' DAY_HOUR FROM t",
        "SELECT id FROM t WHERE d = 20210301",
        "SELECT id FROM t WHERE w IN ('Plum', 0)",
        "SELECT id FROM t WHERE id + 0.1 BETWEEN 1 AND '2' OR w BETWEEN 1 AND '2'",
        "SELECT GREATEST(id, '2') FROM t",
        "SELECT STD(id) FROM t",
        "SELECT ROUND(1.5, 3)",
        "SELECT CAST('abc' AS CHAR(2))",
        "SELECT w AS id, COUNT(*) FROM t GROUP BY id",
        "SELECT YEAR('2021-00-10')",
        "DELETE FROM t WHERE w > 1",
        "SELECT 1 = 2 > 3",
        "SELECT TIME('10:00') > 5",
        "SELECT CHAR(65)",
        "SELECT ROW_COUNT()",
    ],
)
def test_what_sqlite_cannot_answer_as_mysql_is_refused(sqlite, sql):
    with sqlite.open([T], typed=True) as database:
        assert is_left_out(database, database.run(sql), listed=True)


def test_a_column_is_known_by_its_table(backend):
    """`n` is a number in one table and a text in the other."""
    other = Table("u", (Column("id", "INT"), Column("w", "INT")), ((1, 4),))
    with backend.open([T, other], typed=True) as database:
        assert asked(database, "SELECT u.id FROM u JOIN t ON t.id = u.id WHERE u.w = '4.0'") == [("1",)]
        assert asked(database, "SELECT t.id FROM u JOIN t ON t.id = u.id WHERE t.w = 'PLUM'") == [("1",)]


NUMBERS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 400000)"


def test_a_long_recursive_query_runs_unless_it_sorts(sqlite):
    with sqlite.open([T], typed=True) as database:
        assert asked(database, f"{NUMBERS} SELECT COUNT(*) FROM r") == [("400000",)]
        error = database.run(f"{NUMBERS} SELECT n FROM r ORDER BY n % 7").error
    assert error == (
        "1038 (HY001): Out of sort memory: a statement that sorts, groups or removes duplicates may take 1,500,000 "
        "steps; read fewer rows"
    )

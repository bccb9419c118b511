"""A sub-query that stands for a value has one row, on both engines."""

import pytest

from dbbench_adapter.datatypes import Column, Table

T = Table("t", (Column("id", "INT"), Column("w", "VARCHAR(9)")), ((1, "Plum"), (2, "Fig"), (3, None)))
TWO_ROWS = "1242 (21000): Subquery returns more than 1 row"


@pytest.fixture(params=[True, False], ids=["typed", "untyped"])
def database(request, backend):
    with backend.open([T], typed=request.param) as database:
        yield database


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT (SELECT id FROM t)",
        "SELECT ((SELECT id FROM t))",
        "SELECT 1 + (SELECT id FROM t)",
        "SELECT (SELECT w FROM t UNION SELECT '7')",
        "SELECT (SELECT COUNT(*) FROM t GROUP BY id)",
        "SELECT (SELECT id FROM t LIMIT 2)",
        "SELECT id FROM t WHERE id = (SELECT id FROM t)",
        "SELECT id FROM t WHERE (SELECT id FROM t) < 5",
        "SELECT id FROM t WHERE w BETWEEN (SELECT w FROM t) AND 'z'",
        "SELECT id FROM t a WHERE 1 = (SELECT b.id FROM t b WHERE b.id <= a.id)",
        "SELECT id FROM t ORDER BY (SELECT id FROM t)",
        "SELECT MAX(id) FROM t HAVING MAX(id) = (SELECT id FROM t)",
        "SELECT IF((SELECT id FROM t), 1, 2)",
        "SELECT CASE (SELECT id FROM t) WHEN 1 THEN 2 END",
        "WITH q AS (SELECT id FROM t) SELECT (SELECT id FROM q)",
        "UPDATE t SET w = (SELECT s FROM (SELECT w AS s FROM t) x)",
        "UPDATE t SET w = 'x' WHERE id = (SELECT id FROM (SELECT id FROM t) x)",
        "DELETE FROM t WHERE id = (SELECT id FROM (SELECT id FROM t) x)",
        "INSERT INTO t (id) VALUES ((SELECT id FROM (SELECT id FROM t) x))",
    ],
)
def test_a_second_row_ends_the_statement_and_changes_nothing(database, sql):
    before = database.snapshot()
    assert database.run(sql).error == TWO_ROWS
    assert database.snapshot() == before


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("(SELECT id FROM t WHERE id > 5)", "None"),  # no row is NULL
        ("(SELECT w FROM t WHERE id = 3)", "None"),
        ("(SELECT w FROM t WHERE id = 1)", "Plum"),
        ("(SELECT w FROM t WHERE id = 1) = 'PLUM'", "1"),
        ("(SELECT id FROM t WHERE id = 2) = 2", "1"),
        ("(SELECT MAX(w) FROM t)", "Plum"),
        ("(SELECT id FROM t ORDER BY id LIMIT 1 OFFSET 1)", "2"),
        ("(SELECT w FROM t b WHERE b.id = t.id)", "Plum"),
        ("(SELECT DISTINCT 1 FROM t)", "1"),
        ("EXISTS (SELECT id FROM t)", "1"),
        ("'Kiwi' IN (SELECT w FROM t WHERE id < 3)", "0"),
        ("'Fig' IN ((SELECT w FROM t))", "1"),  # two parentheses are one list all the same
    ],
)
def test_one_row_is_its_value(database, value, found):
    result = database.run(f"SELECT {value} FROM t WHERE id = 1")
    assert (result.error, [str(cell) for (cell,) in result.rows]) == (None, [found])


@pytest.mark.parametrize("sql", ["SELECT (SELECT id, w FROM t)", "SELECT (SELECT * FROM t)"])
def test_a_value_is_one_column(database, sql):
    assert database.run(sql).error == "1241 (21000): Operand should contain 1 column(s)"

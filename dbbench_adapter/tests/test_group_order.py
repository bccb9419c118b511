"""Groups come in MySQL 8's order: as the first row of each comes."""

import pytest

from dbbench_adapter.datatypes import Column, Table
from dbbench_adapter.engines.mysql.backend import unsorted_groups

SALES = Table("Sales", (Column("City"), Column("Sum", "INT")), (("Ulm", 2), ("Bonn", 5), ("Ulm", 3), ("Aachen", 5)))


@pytest.mark.parametrize(
    ("query", "cities"),
    [
        # first rows: Ulm, Bonn, Aachen; every city sums up to 5
        pytest.param("SELECT City FROM Sales GROUP BY City", ["Ulm", "Bonn", "Aachen"], id="no_order"),
        pytest.param("SELECT City FROM Sales GROUP BY City LIMIT 2", ["Ulm", "Bonn"], id="a_limit_takes_the_first"),
        pytest.param("SELECT s.City FROM Sales s GROUP BY City -- done", ["Ulm", "Bonn", "Aachen"], id="an_alias"),
        pytest.param("SELECT City FROM Sales GROUP BY City ORDER BY City", ["Aachen", "Bonn", "Ulm"], id="an_order"),
    ],
)
def test_groups_come_as_their_first_rows(backend, query, cities):
    with backend.open([SALES], typed=True) as database:
        assert [city for (city,) in database.run(query).rows or ()] == cities


def test_so_do_ties_of_an_order_and_the_groups_of_a_sub_query_on_sqlite(sqlite):
    with sqlite.open([SALES], typed=True) as database:
        rows = database.run("SELECT City, SUM(Sum) AS s FROM Sales GROUP BY City ORDER BY s").rows
        first = database.run("SELECT City FROM (SELECT City FROM Sales GROUP BY City LIMIT 1) AS first").rows
    assert [city for city, _ in rows or ()] == ["Ulm", "Bonn", "Aachen"]
    assert first == (("Ulm",),)


@pytest.mark.parametrize(
    ("sql", "sent"),
    [
        ("SELECT a FROM t GROUP BY a;", "SELECT a FROM t GROUP BY a ORDER BY NULL ;"),
        ("select a from t group  by a limit 3", "select a from t group  by a ORDER BY NULL limit 3"),
        ("SELECT a FROM t GROUP BY a -- x", "SELECT a FROM t GROUP BY a ORDER BY NULL  -- x"),
        ("SELECT a FROM t GROUP BY `order`", "SELECT a FROM t GROUP BY `order` ORDER BY NULL "),
    ],
)
def test_mariadb_is_kept_from_sorting(sql, sent):
    assert unsorted_groups(sql) == sent


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a FROM t GROUP BY a ORDER BY a",
        "SELECT a FROM t",
        "SELECT a FROM (SELECT a FROM t GROUP BY a) AS u",
        "SELECT a FROM t GROUP BY a WITH ROLLUP",
        "SELECT a FROM t GROUP BY a UNION SELECT 1",
        "INSERT INTO u SELECT a FROM t GROUP BY a",
        "SELECT 'GROUP BY a'",
        "SELECT a FROM t -- GROUP BY a",
    ],
)
def test_what_orders_itself_or_does_not_group_is_sent_as_it_is(sql):
    assert unsorted_groups(sql) == sql


def test_punctuation_sorts_before_digits_and_digits_before_letters(backend):
    texts = ["–", "b", "9", "$", "a", "10", ":", "É", "-"]
    with backend.open([Table("t", (Column("a"),), tuple((text,) for text in texts))], typed=False) as database:
        rows = database.run("SELECT a FROM t ORDER BY a").rows or ()
    assert [text for (text,) in rows if text != "–"] == ["-", ":", "$", "10", "9", "a", "b", "É"]
    assert [text for (text,) in rows].index("–") < [text for (text,) in rows].index("10")

"""What every engine promises about a user's own database; each test runs on SQLite, a private MariaDB
and a private PostgreSQL."""

import os
from contextlib import closing

import pytest

from agentgrpo.limited_fork import forked
from dbbench_adapter import engines
from dbbench_adapter.datatypes import DatabaseError
from dbbench_adapter.engines import known_backends, known_places, open_databases
from dbbench_adapter.engines.engine import MAX_RESULT_ROWS
from dbbench_adapter.tests.hostile import ESCAPE
from dbbench_adapter.tests.toy_engine import CSV

pytestmark = pytest.mark.usefixtures("few_objects")
SIXTEEN_THOUSAND = ", ".join(f"t t{n}" for n in range(7))  # 4 ** 7 rows
ENDLESS = ", ".join(f"t t{n}" for n in range(14))
LONG_TEXT = "REPLACE(REPLACE('xxxxxxxxxx', 'x', 'xxxxxxxxxx'), 'x', 'xxxxxxxxxx')"  # 1,000 characters


@pytest.fixture
def databases(engine_world):
    with closing(open_databases(engine_world.place)) as opened:
        yield opened


def run(databases, sql, timeout_s=1.0):
    with closing(databases.open("my_shop", statement_timeout_s=timeout_s)) as session:
        return session.run(sql)


# the schema -----------------------------------------------------------------------------------------------------------


def test_the_one_database_has_its_name_whatever_rows_call_it(databases):
    databases.check()
    assert [*databases.ids, *map(databases.db_id, ("my_shop", "concert_singer", None))] == ["my_shop"] * 4


def test_the_schema_has_tables_and_views_with_columns_keys_and_values(engine_world, databases):
    tables = {table.name: table for table in databases.schema("my_shop")}
    assert {
        name: ([column.name for column in table.columns], table.primary_key, table.foreign_keys, table.is_view)
        for name, table in tables.items()
    } == {
        "customer": (["id", "name", "home town", "born"], ("id",), (), False),
        "order": (["nr", "customer", "total", "note"], ("nr", "customer"), (("customer", "customer", "id"),), False),
        "spent": (["customer", "total"], (), (), True),
        "t": (["a", "b"], (), (), False),
    }
    assert [column.samples for column in tables["customer"].columns] == [
        ("1", "2"), ("'Ann O''Hara'", "'Bo'"), ("'Ulm'", "'Bonn'"), ("'1990-02-03'",),
    ]  # fmt: skip
    assert tuple(column.type.lower() for column in tables["order"].columns[2:]) == engine_world.types
    assert databases.unreadable("my_shop") == {}
    assert "4 tables and views" in databases.summary()


def test_a_database_without_tables_is_refused(engine_world):
    databases = open_databases(engine_world.empty)
    with closing(databases), pytest.raises(DatabaseError, match="holds no table"):
        databases.check()


# statements -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sql", "columns", "rows"), [
    ("SELECT name, born FROM customer WHERE id < 3 ORDER BY id", ("name", "born"),
     (("Ann O'Hara", "1990-02-03"), ("Bo", None))),
    ("SELECT SUM(total) AS s, SUM(nr) AS n, COUNT(*) AS c, COUNT(note) AS b FROM `order`", ("s", "n", "c", "b"),
     ((7.75, 6, 3, 1),)),
    ("SELECT note FROM `order` WHERE nr < 3 ORDER BY nr", ("note",), ((b"\0",), (None,))),
    ("SELECT customer, total FROM spent ORDER BY total", ("customer", "total"), ((2, 1.25), (1, 6.5))),
    ("WITH dear AS (SELECT nr FROM `order` WHERE total > 2) SELECT COUNT(*) AS c FROM dear", ("c",), ((2,),)),
    ("SELECT a, COUNT(*) AS c FROM t GROUP BY a HAVING COUNT(*) > 1", ("a", "c"), (("x", 2),)),
    ("SELECT 1 AS a UNION ALL SELECT 1;", ("a",), ((1,), (1,))),
    ("SELECT a FROM t WHERE b > 9", ("a",), ()),
])  # fmt: skip
def test_a_query_gives_plain_values(engine_world, databases, sql, columns, rows):
    result = run(databases, engine_world.written(sql))
    assert (result.columns, result.rows, result.error) == (columns, rows, None)


@pytest.mark.parametrize("sql", [
    "INSERT INTO customer VALUES (4, 'x', 'y', NULL)", "UPDATE t SET b = 0", "DELETE FROM customer",
    "DROP TABLE customer", "CREATE TABLE u (a INT)", "CREATE TEMPORARY TABLE u (a INT)", "ALTER TABLE t ADD c INT",
    "REPLACE INTO t VALUES ('x', 9)", "SELECT 1; DELETE FROM customer", "WITH x AS (SELECT 1) DELETE FROM t",
])  # fmt: skip
def test_what_is_no_query_is_refused_and_changes_nothing(engine_world, databases, sql):
    before = engine_world.contents()
    result = run(databases, sql)
    assert (result.rows, isinstance(result.error, str)) == (None, True)
    assert engine_world.contents() == before


@pytest.mark.parametrize(("sql", "error"), [
    (f"SELECT COUNT(*) FROM {ENDLESS}", "the statement takes too long; ask for less"),
    (f"SELECT {LONG_TEXT} FROM {SIXTEEN_THOUSAND}", "the result is too long; ask for less"),
    (f"SELECT 1 IN ({'1,' * 10_000}1)", "the statement is longer than 20000 characters"),
])  # fmt: skip
def test_time_and_size_are_limited_and_the_next_statement_runs(engine_world, databases, sql, error):
    with closing(databases.open("my_shop", statement_timeout_s=0.3)) as session:
        started = engine_world.clock()
        assert session.run(sql).error == error
        assert engine_world.clock() - started < engine_world.longest_s
    assert run(databases, "SELECT COUNT(*) FROM t").rows == ((4,),)


def test_one_row_too_many_shows_that_there_are_too_many(databases):
    assert len(run(databases, f"SELECT t0.a FROM {SIXTEEN_THOUSAND}", 30.0).rows) == MAX_RESULT_ROWS + 1


@pytest.mark.parametrize("sql", [
    "SELECT nam FROM customer", "SELECT * FROM nowhere", "SELECT * FROM other.secret", "SELECT (", "SELEC 1",
])  # fmt: skip
def test_an_error_is_the_engines_own_and_names_neither_place_nor_account(engine_world, databases, sql):
    error = run(databases, sql).error
    assert error and not [secret for secret in engine_world.secrets if secret in error]


@pytest.mark.slow
def test_hostile_statements_change_nothing_and_end_in_time_and_memory(engine_world):
    def late():
        found = []
        with closing(open_databases(engine_world.place)) as databases:
            for name, sql in engine_world.statements:
                started = engine_world.clock()
                run(databases, sql, 0.5)
                if (taken_s := engine_world.clock() - started) > engine_world.longest_s:
                    found.append((name, sql[:80], taken_s))
                assert run(databases, "SELECT COUNT(*) FROM t", 30.0).rows == ((4,),)  # a server may still be busy
        return found

    before = engine_world.contents()
    assert forked(late, cpu_s=60.0, memory_bytes=1024**3) == []  # one that got through took 24 GB
    assert engine_world.contents() == before
    assert not [name for name in os.listdir(os.path.dirname(ESCAPE)) if name.startswith(os.path.basename(ESCAPE))]


def test_messages_and_helps_name_the_forms_of_every_registered_engine(monkeypatch):
    assert known_backends() == "sqlite, mariadb, or mysql://user:password@host:port"
    monkeypatch.setattr(engines, "ENGINES", (*engines.ENGINES, CSV))
    assert known_places().endswith(", postgresql://user:password@host:port/database, or csv:///FOLDER")

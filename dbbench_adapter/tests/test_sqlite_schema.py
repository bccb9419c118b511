"""On SQLite: what a table's definition may hold, and how the judge reads what an episode leaves behind."""

import sys
import time

import pytest

from agentgrpo.tests.seconds import seconds_here
from dbbench_adapter.datatypes import Column, Gold, Score, Table, Task
from dbbench_adapter.engines import TableState
from dbbench_adapter.engines.base import UNREADABLE
from dbbench_adapter.engines.sqlite import backend as sqlite_module
from dbbench_adapter.engines.sqlite import sandbox as sqlite_sandbox
from dbbench_adapter.engines.sqlite.catalogue import column_names, table_names
from dbbench_adapter.protocols import open_episode
from dbbench_adapter.statement_clock import LEFT_OUT

T = Table("t", (Column("a"), Column("b", "INT")), tuple((f"n{i}", i) for i in range(30)))
MANY = "INSERT INTO t SELECT x.a, y.b FROM t x, t y, t z LIMIT 26970"  # 26,970 + 30 = 27,000


@pytest.fixture
def database(sqlite):
    with sqlite.open([T], typed=True) as database:
        yield database


def ran(database, *statements):
    for statement in statements:
        assert database.run(statement).error is None, statement
    return database


# what is known of the tables without a look at them ------------------------------------------------------------------

DECLARED = [
    *("INT", "bigint", "BOOL", "DECIMAL(5,2)", "decimal", "DOUBLE", "VARCHAR(9)", "CHAR"),
    *("TEXT", "LONGTEXT", "DATE", "DATETIME", "INT NOT NULL"),
]


@pytest.mark.parametrize("typed", [True, False])
def test_columns_are_known_as_sqlite_would_tell_them(sqlite, typed):
    columns = tuple(Column(f"Col `{place}`", declared) for place, declared in enumerate(DECLARED))
    with sqlite.open([Table("Z z", columns, ()), Table("a", (Column("É"),), ())], typed=typed) as database:
        read = database._read
        assert database._columns == sqlite_module._columns(read)
        assert database._image.stored == {name: column_names(name, read) for name in table_names(read)}
        assert database._image.schema_version == read("PRAGMA schema_version")[0][0]


def test_the_judge_looks_again_once_a_definition_has_run(database):
    before = database.snapshot()
    ran(database, "ALTER TABLE t RENAME COLUMN b TO c", "CREATE TABLE u (d INT)")
    assert database.snapshot() == {"t": TableState(("a", "c"), T.rows), "u": TableState(("d",), ())}
    ran(database, "DROP TABLE u", "ALTER TABLE t RENAME COLUMN c TO b")
    assert database.snapshot() == before == {"t": TableState(("a", "b"), T.rows)}


def test_sqlite_knows_a_function_once_a_statement_names_it(database):
    known = "SELECT name FROM pragma_function_list WHERE name IN ('concat_ws', 'repeat')"
    assert database._read(known) == []
    assert database.run("SELECT Concat_WS('-', a, 1) FROM t LIMIT 1").rows == (("n0-1",),)
    assert database._read(known) == [("concat_ws",)]


def test_sqlite_knows_everything_before_a_definition_and_limits_temporary_tables(database):
    ran(database, "CREATE TEMPORARY TABLE u (d INT)")
    known = {name for (name,) in database._read("SELECT name FROM pragma_function_list")}
    assert known >= sqlite_sandbox.FUNCTION_NAMES
    assert database._read("PRAGMA temp.max_page_count") == [(4096,)]  # of 4 KiB: 16 MiB


# definitions --------------------------------------------------------------------------------------------------------

EXPRESSIONS = [
    *("b + b", "(b)", "CASE WHEN b THEN 1 ELSE 2 END", "(SELECT 1)", "RAND()", "printf('%250000s', b)"),
    *("REPEAT('x', 250000)", "CONCAT(a, a)", "a LIKE '%x'", "b IN (SELECT b FROM t)", "CAST(a AS SIGNED)", "LENGTH(a)"),
    *("load_extension('x')", "zeroblob(250000)", "randomblob(250000)", "hex(randomblob(9))", "a REGEXP 'x'", "b DIV 2"),
]
PLACES = [
    *("CREATE TABLE u (a TEXT, b INT, c INT {})", "CREATE TEMPORARY TABLE u (c INT {}, a TEXT, b INT)"),
    *("ALTER TABLE t ADD COLUMN c INT {}", "ALTER TABLE t ADD c TEXT {}", "ALTER TABLE t CHANGE a c TEXT {}"),
    *("ALTER TABLE t MODIFY a TEXT {}", "ALTER TABLE t MODIFY COLUMN b INT {}", "CREATE TABLE u (c INT NOT NULL {})"),
]
CLAUSES = [
    *("AS ({})", "GENERATED ALWAYS AS ({})", "AS ({}) STORED", "GENERATED ALWAYS AS ({}) VIRTUAL", "DEFAULT ({})"),
    *("DEFAULT {}", "DEFAULT (({}))", "NOT NULL DEFAULT ({})", "ON UPDATE {}", "DEFAULT -({})"),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("clause", CLAUSES)
def test_no_definition_computes(database, place, clause):
    kept = schema(database)
    for expression in EXPRESSIONS:
        error = database.run(place.format(clause.format(expression))).error
        assert (error or "none")[:4] in ("1064", "1235"), expression
        assert schema(database) == kept


def schema(database):
    return database._read("SELECT sql FROM main.sqlite_master UNION ALL SELECT sql FROM temp.sqlite_master")


@pytest.mark.parametrize(
    "definition",
    [
        *("CREATE TABLE u (a TEXT, b INT, CHECK (a > 5))", "ALTER TABLE t ADD c INT CHECK (REPEAT(a, 9) = 'x')"),
        *("CREATE TABLE u (a INT REFERENCES t (b))", "CREATE TABLE u (a INT, FOREIGN KEY (a) REFERENCES t (b))"),
        *("ALTER TABLE t ADD c INT FIRST", "ALTER TABLE t ADD c INT AFTER a", "ALTER TABLE t CHANGE b c DOUBLE"),
        *("ALTER TABLE t CHANGE b c INT NOT NULL", "ALTER TABLE t ADD c INT, ADD d INT"),
        *("ALTER TABLE t ADD c INT NOT NULL", "ALTER TABLE t ADD UNIQUE (b)", "CREATE UNIQUE INDEX i ON t (a(2))"),
        "CREATE TABLE u (a VARCHAR(9), PRIMARY KEY (a(2)))",
    ],
)
def test_what_a_table_would_not_hold_as_on_mariadb_is_refused(database, definition):
    """SQLite compared in CHECK by its own rules, enforced no foreign key, put every column last and kept its type."""
    kept = schema(database)
    assert database.run(definition).error.endswith(LEFT_OUT)
    assert schema(database) == kept


@pytest.mark.parametrize(
    "columns", ["a INT PRIMARY KEY, b INT", "a INT, b INT, PRIMARY KEY (a)", "b INT, a TEXT, PRIMARY KEY (b, a)"]
)
def test_a_key_is_neither_null_nor_numbered_unasked(database, columns):
    ran(database, f"CREATE TABLE u ({columns})")
    assert database.run("INSERT INTO u (b) VALUES (7)").error == "1048 (23000): Column 'u.a' cannot be null"


@pytest.mark.parametrize(
    "key", ["(b + b)", "(UPPER(a))", "UPPER(a)", "(b)", "b) WHERE (b > 3", "(CASE WHEN b THEN 1 END)"]
)
@pytest.mark.parametrize("index", ["CREATE INDEX i ON t ({})", "CREATE UNIQUE INDEX i ON t (a, {})"])
def test_an_index_is_on_columns(database, index, key):
    assert (database.run(index.format(key)).error or "none")[:4] in ("1064", "1235")


def test_constants_and_keys_may_be_defined(database):
    ran(
        database,
        "CREATE TABLE u (id INT PRIMARY KEY AUTO_INCREMENT, a VARCHAR(9) NOT NULL DEFAULT 'x', b INT DEFAULT -3, "
        "c DOUBLE DEFAULT (1.5), d INT DEFAULT NULL, e BOOL DEFAULT TRUE, f DATE DEFAULT (CURRENT_DATE), "
        "UNIQUE (a, b))",
        "CREATE INDEX i ON u (a(3), b DESC)",
        "INSERT INTO u (d) VALUES (7)",
        "ALTER TABLE u ADD COLUMN g TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE u CHANGE g h TEXT",
        "ALTER TABLE u DROP COLUMN f",
    )
    assert database.snapshot()["u"] == TableState(("id", "a", "b", "c", "d", "e", "h"), ((1, "x", -3, 1.5, 7, 1, ""),))


def test_what_a_schema_computes_all_the_same_is_not_evaluated(database):
    """As if a definition had passed: none of our functions runs in it, and the judge reads stored columns alone."""
    tower = ", ".join(f"c{i + 1} AS (c{i} || c{i})" for i in range(14))  # 8 x 2^14 = 131,072 characters in the last
    database._trusted = True
    database._connection.execute(f"CREATE TABLE u (c0 TEXT, {tower})")
    database._connection.execute("INSERT INTO u SELECT 'abcdefgh' FROM t, t x")
    database._connection.execute("CREATE TABLE v (c INT, d TEXT DEFAULT (repeat('x', 9)))")
    database._trusted = False
    assert database.run("INSERT INTO v (c) VALUES (1)").error is not None
    started = time.process_time()
    assert database.snapshot()["u"] == UNREADABLE
    assert time.process_time() - started < seconds_here(1.0)


# what the judge reads -----------------------------------------------------------------------------------------------

BROKEN = {
    "defaults_that_are_not_stored": (MANY, f"ALTER TABLE t ADD COLUMN c TEXT DEFAULT '{'x' * 19_000}'"),  # 513 MB
    "defaults_in_place_of_a_column": (
        *(MANY, "ALTER TABLE t DROP COLUMN a", f"ALTER TABLE t ADD COLUMN a TEXT DEFAULT '{'x' * 19_000}'"),
    ),
    "rows_without_end": ("DELETE FROM t", "INSERT INTO t VALUES (NULL, NULL)", *["INSERT INTO t SELECT * FROM t"] * 20),
    "another_table": (
        *("CREATE TABLE u (b INT)", "INSERT INTO u SELECT b FROM t"),
        *["INSERT INTO u SELECT * FROM u"] * 15,  # 30 x 2^15 rows
    ),
    "no_table": ("DROP TABLE t",),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_what_the_policy_broke_is_a_wrong_state_in_time(sqlite, name):
    task = Task(id="t", question="?", kind="UPDATE", tables=(T,), gold=Gold(sql="UPDATE t SET a = 'x'"), typed=True)
    with open_episode(task, sqlite, "fc") as episode:
        ran(episode._database, *BROKEN[name])
        episode.status = "completed"
        started = time.process_time()
        assert episode.judge("strict") == Score(0.0, "wrong_state")
        assert episode.judge("fc") == Score(0.0, "wrong_state")
        assert time.process_time() - started < seconds_here(5.0)
        cells = (cell for state in episode.snapshot().values() for row in state.rows for cell in row)
        assert sum(map(sys.getsizeof, cells)) <= sqlite_module.MAX_JUDGED_BYTES


def test_a_table_that_is_too_large_is_unreadable_and_its_reference_none(sqlite, monkeypatch):
    monkeypatch.setattr(sqlite_module, "MAX_JUDGED_BYTES", 20_000)
    task = Task(id="t", question="?", kind="INSERT", tables=(T,), gold=Gold(sql=MANY), typed=True)
    with open_episode(task, sqlite, "fc") as episode:
        assert len(episode.snapshot()["t"].rows) == 30
        ran(episode._database, MANY)
        assert episode.snapshot() == {"t": UNREADABLE}
        assert episode.table_hash() is None
        episode.status = "completed"
        assert episode.judge("strict") == Score(None, "reference_failed")


def test_a_schema_that_is_broken_is_no_table_s_state(database):
    database._trusted = True
    database._connection.execute("PRAGMA writable_schema = ON")
    database._connection.execute("UPDATE sqlite_master SET sql = 'CREATE TABLE t (' WHERE name = 't'")
    database._connection.execute("PRAGMA writable_schema = RESET")
    database._trusted = False
    assert database.snapshot() == {"": UNREADABLE}
    assert database.table_hash([T]) is None


def test_what_neighbours_take_meanwhile_does_not_count_for_the_judge(database, monkeypatch):
    ran(database, MANY)
    grown = iter(range(0, 10**13, 2**28))  # 256 MiB more at each look
    monkeypatch.setattr(sqlite_sandbox, "_memory_bytes", lambda: next(grown))
    assert len(database.snapshot()["t"].rows) == 27_000


def test_a_database_that_is_closed_has_no_state(sqlite):
    database = sqlite.open([T], typed=True)
    database.close()
    with pytest.raises(sqlite_module.sqlite3.ProgrammingError):
        database.snapshot()


# names --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["sqlíte_backup", "ｓqlite_x", "sqlite-x", "sqlitex", "ſqlite_1", "Sqlíte_", "sqlitÉ_t", "catalogue", "%", "_"],
)
def test_no_table_hides_behind_a_name_that_looks_like_sqlite_s_own(database, name):
    ran(database, f"CREATE TABLE `{name}` (b INT)")
    assert set(database.snapshot()) == {"t", name}
    assert {shown for (shown,) in database.run("SHOW TABLES").rows} == {"t", name}
    ran(database, f"ALTER TABLE `{name}` RENAME TO `{name}2`", "CREATE TABLE n (id INT PRIMARY KEY AUTO_INCREMENT)")
    assert set(database.snapshot()) == {"t", "n", f"{name}2"}  # and not sqlite_sequence


@pytest.mark.parametrize("like", ["T%", "T", "t́%", "ť"])
def test_names_of_tables_are_searched_for_as_they_are_written(backend, like):
    with backend.open([T], typed=True) as database:
        assert database.run(f"SHOW TABLES LIKE '{like}'").rows == ()
        assert database.run("SHOW TABLES LIKE 't%'").rows == (("t",),)
        asked = f"SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = '{like}'"
        assert database.run(asked).rows == ()


# temporary tables ---------------------------------------------------------------------------------------------------


def test_temporary_tables_hold_as_much_as_a_database(database):
    limit = sqlite_sandbox.MAX_PAGES
    for _ in range(2):
        ran(database, "CREATE TEMPORARY TABLE y (c LONGTEXT)")
        ran(database, "INSERT INTO y SELECT REPEAT('x', 100000) FROM t")  # 3 MB
        errors = [database.run("INSERT INTO y SELECT * FROM y").error for _ in range(4)]  # 6, 12, 24, 24 MB
        assert errors == [None, None, *["1114 (HY000): The table is full"] * 2]
        assert limit / 2 < database._read("PRAGMA temp.page_count")[0][0] <= limit
        database.new_session()
        assert database._read("PRAGMA temp.page_count")[0][0] == 0
        assert database.run("SELECT * FROM y").error.startswith("1146")


def test_a_new_session_ends_every_temporary_table(database):
    ran(database, "CREATE TEMPORARY TABLE z (id INT PRIMARY KEY AUTO_INCREMENT, c INT)", "BEGIN")
    ran(database, "INSERT INTO z (c) VALUES (1)", "UPDATE t SET a = 'x'")
    database.new_session()
    assert database.run("SELECT * FROM z").error.startswith("1146")
    assert database.run("SELECT DISTINCT a FROM t").rows == (("x",),)

"""What judges see on MariaDB: everything that an agent may have made, read within bounds, and broken ones as wrong."""

import hashlib
import time

import pytest

from dbbench_adapter.datatypes import Column, Gold, Table, Task
from dbbench_adapter.engines.base import hash_rows
from dbbench_adapter.engines.mysql import state as mysql_state
from dbbench_adapter.engines.mysql.pool import MAX_DATABASE_BYTES
from dbbench_adapter.judges.strict import same_state
from dbbench_adapter.protocols import open_episode
from dbbench_adapter.tests.hostile import HOSTILE

T = Table("t", (Column("a"), Column("b", "INT")), (("x", 1), ("y", 2)))
MIB = 1024**2
MANY = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < {}) "
SLEEPS = "SELECT SLEEP(20) a, 1 b"


@pytest.fixture
def database(mariadb):
    with mariadb.open([T], typed=True) as database:
        yield database


def ran(database, *statements):
    for sql in statements:
        assert database.run(sql).error is None, sql


def as_administrator(database, sql):
    """As a statement that got past `allowed_sql` would."""
    with database._slot.admin.cursor() as cursor:
        cursor.execute(f"USE {database._slot.name}")
        cursor.execute(sql)


def in_time(function, *arguments):
    started = time.monotonic()
    found = function(*arguments)
    assert time.monotonic() - started < 5
    return found


# what is another state ------------------------------------------------------------------------------------------------

CHANGES = {
    "view": ["CREATE VIEW v AS SELECT a FROM t"],
    "temptable_view": ["CREATE ALGORITHM = TEMPTABLE SQL SECURITY INVOKER VIEW v AS SELECT 1"],
    "sequence": ["CREATE SEQUENCE s"],
    "sequence_that_counts_down": ["CREATE OR REPLACE SEQUENCE s START WITH -9 INCREMENT BY -1"],
    "empty_table": ["CREATE TABLE u (a INT)"],
    "versioned_table": ["CREATE TABLE u (a INT) WITH SYSTEM VERSIONING"],
    "now_versioned": ["ALTER TABLE t ADD SYSTEM VERSIONING"],
    "invisible_column": ["ALTER TABLE t ADD COLUMN c INT INVISIBLE"],
    "made_invisible": ["ALTER TABLE t MODIFY b INT INVISIBLE"],
    "virtual_column": ["ALTER TABLE t ADD COLUMN c INT AS (b + 1)"],
    "stored_column": ["ALTER TABLE t ADD COLUMN c INT AS (b + 1) STORED"],
    "larger_type": ["ALTER TABLE t MODIFY b BIGINT"],
    "other_type": ["ALTER TABLE t MODIFY b TEXT"],
    "shorter_text": ["ALTER TABLE t MODIFY a VARCHAR(10)"],
    "bytes": ["ALTER TABLE t MODIFY a BLOB"],
    "character_set": ["ALTER TABLE t CONVERT TO CHARACTER SET latin1"],
    "collation": ["ALTER TABLE t MODIFY a TEXT COLLATE utf8mb4_bin"],
    "not_null": ["ALTER TABLE t MODIFY b INT NOT NULL"],
    "default": ["ALTER TABLE t ALTER b SET DEFAULT 7"],
    "unsigned": ["ALTER TABLE t MODIFY b INT UNSIGNED"],
    "order_of_columns": ["ALTER TABLE t MODIFY b INT FIRST"],
    "name_in_other_case": ["ALTER TABLE t CHANGE a A TEXT"],
    "view_in_its_place": ["RENAME TABLE t TO u", "CREATE VIEW t AS SELECT * FROM u"],
    "sequence_in_its_place": ["DROP TABLE t", "CREATE SEQUENCE t"],
    "row": ["UPDATE t SET b = 9 WHERE a = 'x'"],
    "nothing_left": ["DROP DATABASE dbbench"],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_the_reference_does_not_make_is_another_state(mariadb, change):
    with mariadb.open([T], typed=True) as one, mariadb.open([T], typed=True) as other:
        assert same_state(one.snapshot(), other.snapshot())
        ran(one, *CHANGES[change])
        assert not same_state(one.snapshot(), other.snapshot())
        ran(other, *CHANGES[change])
        assert same_state(one.snapshot(), other.snapshot()) or change == "now_versioned"  # at another time


def test_views_are_the_same_where_they_say_the_same(mariadb):
    with mariadb.open([T], typed=True) as one, mariadb.open([T], typed=True) as other:
        ran(one, "CREATE VIEW v AS SELECT a FROM dbbench.t")
        ran(other, "CREATE VIEW v AS SELECT b FROM dbbench.t")
        assert not same_state(one.snapshot(), other.snapshot())
        ran(other, "CREATE OR REPLACE VIEW v AS SELECT a FROM t")
        assert same_state(one.snapshot(), other.snapshot())


@pytest.mark.parametrize("kind", ["BLOB", "LONGBLOB", "VARBINARY(20)", "VARCHAR(9)", "TEXT COLLATE utf8mb4_bin"])
def test_the_hash_is_that_of_the_bytes_whatever_the_type(database, kind):
    ran(database, f"ALTER TABLE t MODIFY a {kind}")
    assert database.table_hash([T]) == hash_rows(["x,1", "y,2"])


def test_the_hash_reads_bytes_that_are_no_text(database):
    ran(database, "ALTER TABLE t MODIFY a BLOB", "DELETE FROM t WHERE b = 2", "UPDATE t SET a = X'FF00'")
    digest = hashlib.md5(hashlib.md5(b"\xff\x00,1").hexdigest()[:5].encode()).hexdigest()
    assert database.table_hash([T]) == digest


# bounds ---------------------------------------------------------------------------------------------------------------

TRAPS = {
    "view_that_sleeps": ["RENAME TABLE t TO u", f"CREATE VIEW t AS {SLEEPS}"],
    "view_without_end": ["DROP TABLE t", "CREATE VIEW t AS SELECT 1 a, SUM(BENCHMARK(1000000000, MD5('x'))) b"],
    "views_of_views": [
        "CREATE VIEW v0 AS SELECT 1 a, 1 b FROM t",
        *(f"CREATE VIEW v{i + 1} AS SELECT p.a, q.b FROM v{i} p, v{i} q" for i in range(5)),
        *("DROP TABLE t", "CREATE VIEW t AS SELECT * FROM v5"),
    ],
    "view_of_itself": ["RENAME TABLE t TO u", "CREATE VIEW t AS SELECT * FROM u", "DROP TABLE u"],
    "virtual_columns_of_work": [
        f"INSERT INTO t {MANY.format(30_000)} SELECT 'x', n FROM r",
        "ALTER TABLE t DROP COLUMN a, ADD COLUMN a CHAR(32) AS (MD5(REPEAT(b, 100000)))",
    ],
    "virtual_columns_of_size": [
        f"INSERT INTO t {MANY.format(900)} SELECT 'x', n FROM r",
        "ALTER TABLE t DROP COLUMN a, ADD COLUMN a LONGTEXT AS (REPEAT('x', 1000000))",
    ],
    "virtual_of_virtual": ["ALTER TABLE t ADD c INT AS (1)", "ALTER TABLE t DROP a, ADD a TEXT AS (REPEAT(c, 9))"],
}  # fmt: skip


@pytest.mark.parametrize("trap", TRAPS)
def test_nothing_that_an_agent_left_is_evaluated(mariadb, database, trap):
    for sql in ("SET max_recursive_iterations = 100000", "SET cte_max_recursion_depth = 100000", *TRAPS[trap]):
        database.run(sql)
    with mariadb.open([T], typed=True) as untouched:
        assert not same_state(in_time(database.snapshot), untouched.snapshot())
    assert in_time(database.table_hash, [T]) is None


def test_a_virtual_column_is_seen_and_the_stored_ones_are_read(database):
    ran(database, "ALTER TABLE t ADD COLUMN c LONGTEXT AS (REPEAT('x', 1000000)), ADD COLUMN d INT INVISIBLE DEFAULT 3")
    state = database.snapshot()["t"]
    assert (state.columns, state.rows) == (("a", "b", "d"), (("x", 1, 3), ("y", 2, 3)))
    assert state.declared == (
        "BASE TABLE",
        "`a` text DEFAULT NULL",
        "`b` int(11) DEFAULT NULL",
        "`c` longtext GENERATED ALWAYS AS (repeat('x',1000000)) VIRTUAL",
        "`d` int(11) INVISIBLE DEFAULT 3",
        "DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_unicode_520_nopad_ci",
    )


def test_keys_and_counters_are_no_state(mariadb):
    with mariadb.open([T], typed=True) as one, mariadb.open([T], typed=True) as other:
        ran(one, "CREATE TABLE u (a INT PRIMARY KEY AUTO_INCREMENT)", "INSERT INTO u VALUES (7)", "DELETE FROM u")
        ran(other, "CREATE TABLE u (a INT PRIMARY KEY AUTO_INCREMENT)", "CREATE INDEX i ON t (b)")
        assert same_state(one.snapshot(), other.snapshot())


def discarded(database, _):
    as_administrator(database, "ALTER TABLE t DISCARD TABLESPACE")


def many_rows(database, monkeypatch):
    monkeypatch.setattr(mysql_state, "MAX_ROWS", 20)
    ran(database, "INSERT INTO t SELECT a, b FROM t UNION ALL SELECT 1, 1 FROM t, t u, t v, t w, t x")


def many_bytes(database, monkeypatch):
    monkeypatch.setattr(mysql_state, "MAX_BYTES", 10_000)
    ran(database, "UPDATE t SET a = REPEAT('x', 20000)")


def slow(_, monkeypatch):
    monkeypatch.setattr(mysql_state, "READ_S", 0.0)


@pytest.mark.parametrize("broken", [discarded, many_rows, many_bytes, slow])
def test_what_cannot_be_read_is_a_wrong_state_and_no_missing_verdict(mariadb, monkeypatch, broken):
    task = Task(id="t", question="?", kind="UPDATE", tables=(T,), gold=Gold(sql="UPDATE t SET b = 3"), typed=True)
    with open_episode(task, mariadb, "fc") as episode:
        database = episode._database
        ran(database, "UPDATE t SET b = 3")
        episode.call_tool("commit_final_answer", '{"answers": []}')
        assert episode.judge("strict").value == 1.0
        with monkeypatch.context() as patch:
            broken(database, patch)
            first, second = database.snapshot(), database.snapshot()
            assert database.table_hash([T]) is None
        assert not same_state(first, second)  # it equals nothing, itself included
        assert not same_state(first, episode.reference_snapshot())
    assert first["t"].rows == ()


def test_what_is_called_like_the_database_is_the_same_in_every_episode(mariadb):
    for _ in range(2):
        with mariadb.open([T], typed=True) as database, mariadb.open([T], typed=True):
            ran(database, "CREATE TABLE dbbench (dbbench INT)")
            assert database.snapshot()["dbbench"].columns == ("dbbench",)


def test_a_view_that_prints_as_no_text_is_another_state(database):
    ran(database, "CREATE VIEW v AS SELECT _binary X'FF00FE' a")
    found = database.snapshot()
    assert found["t"].rows == (("x", 1), ("y", 2)) and not same_state(found, database.snapshot())


def test_a_broken_table_does_not_keep_the_others_from_being_read(database):
    ran(database, "CREATE TABLE s (a INT)", "INSERT INTO s VALUES (5)")
    discarded(database, None)
    states = database.snapshot()
    assert (states["s"].columns, states["s"].rows) == (("a",), ((5,),))


def test_a_judge_reads_with_the_rights_of_the_agent(database, monkeypatch):
    asked = mysql_state.StateReader._asked
    users = set()

    def seen(reader, session, sql):
        users.add(session.user.decode())
        return asked(reader, session, sql)

    monkeypatch.setattr(mysql_state.StateReader, "_asked", seen)
    assert database.snapshot()["t"].rows == (("x", 1), ("y", 2))
    assert database.table_hash([T]) == hash_rows(["x,1", "y,2"])
    assert users == {database._slot.name}


def test_a_judge_is_not_kept_waiting(database, monkeypatch):
    with monkeypatch.context() as patch, database._pool._connect_admin() as other:
        patch.setattr(mysql_state, "READ_S", 0.3)
        other.cursor().execute(f"LOCK TABLES {database._slot.name}.t WRITE")
        assert in_time(database.snapshot)["t"].rows == ()
    assert database.snapshot()["t"].rows == (("x", 1), ("y", 2))


# size -----------------------------------------------------------------------------------------------------------------

FLOODS = {
    "fast_statements": ["INSERT INTO t " + MANY.format(100) + "SELECT REPEAT('x', 60000), n FROM r"],
    "one_slow_statement": ["INSERT INTO t " + MANY.format(100_000) + "SELECT REPEAT('x', 60000), n FROM r"],
    "doubling": ["INSERT INTO t SELECT REPEAT('x', 60000), 1 FROM t"],
    "copies": ["CREATE OR REPLACE TABLE u AS SELECT * FROM t", "INSERT INTO t SELECT REPEAT('x', 60000), b FROM u"],
    "updates": ["INSERT INTO t " + MANY.format(900) + "SELECT 'x', n FROM r", "UPDATE t SET a = REPEAT('y', 60000)"],
    "large_statements": ["INSERT INTO t VALUES " + ", ".join([f"('{'x' * 60_000}', 1)"] * 15)] * 4,
    "many_tables": [f"CREATE TABLE u{i} (a TEXT, FULLTEXT (a), b INT, INDEX (b))" for i in range(400)],
    "replaced": ["REPLACE INTO t " + MANY.format(100) + "SELECT REPEAT('x', 60000), n FROM r"],
}


@pytest.mark.slow
@pytest.mark.parametrize("flood", FLOODS)
def test_a_database_that_is_full_takes_no_more(database, flood):
    ran(database, "SET max_recursive_iterations = 1000000")
    largest = 0
    for _ in range(60):
        errors = [database.run(sql).error for sql in FLOODS[flood]]
        sizes = database._pool.sizes_bytes(database._slot.admin)
        largest = max(largest, sizes.get(database._slot.name, 0))
        if any(error and error.startswith("1114") for error in errors):
            break
    # on a busy machine a slow statement runs out of time before it has filled the database
    assert MAX_DATABASE_BYTES / 2 < largest < MAX_DATABASE_BYTES + 96 * MIB


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_no_statement_makes_a_judge_wait(mariadb, name):
    """Several in one episode, as they come: whatever they leave, it is read or found unreadable in time."""
    with mariadb.open([T], typed=True, statement_timeout_s=0.2) as database:
        for sql in HOSTILE[name]:
            database.run(sql)
            assert isinstance(in_time(database.snapshot), dict)
            in_time(database.table_hash, [T])


@pytest.mark.slow
def test_temporary_tables_of_all_are_bounded(mariadb, database):
    ran(database, "SET max_recursive_iterations = 1000000")
    for number in range(80):
        made = database.run(
            f"CREATE TEMPORARY TABLE x{number} AS " + MANY.format(100) + "SELECT REPEAT('x', 60000) a, n FROM r"
        )
        if made.error:
            break
    assert made.error.startswith("1114 (HY000)")
    with database._slot.admin.cursor() as cursor:
        cursor.execute(
            "SELECT file_size FROM information_schema.innodb_sys_tablespaces WHERE name = 'innodb_temporary'"
        )
        assert cursor.fetchone()[0] <= 256 * MIB
    database.new_session()
    with mariadb.open([T], typed=True) as neighbour:
        ran(neighbour, "CREATE TEMPORARY TABLE x AS SELECT * FROM t", "INSERT INTO x SELECT * FROM t")

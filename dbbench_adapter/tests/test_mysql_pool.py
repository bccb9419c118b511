"""Databases, users and sessions that are used again: nothing of one episode reaches the next, nothing dead stays."""

import subprocess
import sys
import time

import pymysql
import pytest

from dbbench_adapter.datatypes import Column, Table
from dbbench_adapter.engines import TableError, open_backend
from dbbench_adapter.engines.base import hash_rows
from dbbench_adapter.engines.mysql import pool as mysql_pool
from dbbench_adapter.engines.mysql.backend import MysqlBackend

FRUIT = Table("Fruit", (Column("Name"), Column("Price", "INT")), (("Plum", 5), ("Pear", 4)))
OWNER = """
import os, sys
from dbbench_adapter.engines.mysql.backend import MysqlBackend
from dbbench_adapter.datatypes import Column, Table
backend = MysqlBackend(sys.argv[1]).__enter__()
database = backend.open([Table("T", (Column("a"),), ())], typed=False)
print(database._slot.name, flush=True)
if sys.argv[2] == "die":
    os._exit(1)
sys.stdin.read()
backend.close()
"""


@pytest.fixture
def fresh(mariadb, server_url):
    """A backend of its own with one slot, so that the next episode gets what the last one had."""
    with MysqlBackend(server_url) as backend:
        yield backend


@pytest.fixture(scope="session")
def server_url(mariadb):
    pool = mariadb._pool
    return f"mysql://{pool._user}:{pool._password}@{pool.host}:{pool._port}"


def admin_rows(backend, sql):
    with backend._pool._connect_admin() as admin, admin.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


@pytest.mark.parametrize(
    ("done", "asked", "expected"),
    [
        pytest.param("SET @x = 1", "SELECT @x", ((None,),), id="user_variable"),
        pytest.param("CREATE TEMPORARY TABLE s (a INT)", "SHOW TABLES", (("Fruit",),), id="temporary_table"),
        pytest.param("CREATE VIEW v AS SELECT 1", "SHOW TABLES", (("Fruit",),), id="view"),
        pytest.param("CREATE SEQUENCE v", "SHOW TABLES", (("Fruit",),), id="sequence"),
        pytest.param("SET sql_mode = ''", "SELECT @@sql_mode LIKE '%FULL_GROUP_BY%'", ((1,),), id="sql_mode"),
        pytest.param("SET autocommit = 0", "SELECT @@autocommit", ((1,),), id="autocommit"),
        pytest.param("SET NAMES utf8", "SELECT @@character_set_client", (("utf8mb4",),), id="character_set"),
        pytest.param("SET time_zone = '+01:00'", "SELECT @@time_zone", (("SYSTEM",),), id="time_zone"),
        pytest.param("SET group_concat_max_len = 9", "SELECT @@group_concat_max_len", ((1024,),), id="group_concat"),
        pytest.param("ALTER DATABASE CHARACTER SET latin1", "SELECT @@character_set_database", (("utf8mb4",),)),
        pytest.param("DROP DATABASE dbbench", "SELECT DATABASE()", (("dbbench",),), id="dropped"),
    ],
)  # fmt: skip
def test_an_episode_finds_nothing_of_the_one_before_it(fresh, done, asked, expected):
    with fresh.open([FRUIT], typed=True) as database:
        assert database.run(done).error is None
        first = database._slot
    with fresh.open([FRUIT], typed=True) as database:
        assert database._slot is first
        assert database.run(asked).rows == expected
        assert database.snapshot().keys() == {"Fruit"}


def test_an_open_transaction_does_not_hold_up_the_next_episode(fresh):
    with fresh.open([FRUIT], typed=True) as database:
        database.run("BEGIN")
        database.run("UPDATE Fruit SET Price = 1")
    with fresh.open([FRUIT], typed=True) as database:
        assert database.run("SELECT SUM(Price) FROM Fruit").rows == ((9,),)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(["COMMIT AND CHAIN"], id="chain"),
        pytest.param(["ROLLBACK AND CHAIN"], id="rollback_and_chain"),
        pytest.param(["SET completion_type = 1", "COMMIT"], id="chain_by_default"),
        pytest.param(["SET completion_type = 2", "BEGIN"], id="release_by_default"),
        pytest.param(["SET autocommit = 0"], id="no_autocommit"),
    ],
)
@pytest.mark.parametrize("judged", ["snapshot", "hash", "new_session"])
def test_what_an_open_transaction_holds_is_judged(fresh, said, judged):
    with fresh.open([FRUIT], typed=True) as database:
        for sql in (*said, "UPDATE Fruit SET Price = 1"):
            assert database.run(sql).error is None
        if judged == "snapshot":
            assert database.snapshot()["Fruit"].rows == (("Plum", 1), ("Pear", 1))
        elif judged == "hash":
            assert database.table_hash([FRUIT]) == hash_rows(["Plum,1", "Pear,1"])
        else:
            database.new_session()
            assert database.run("SELECT SUM(Price) FROM Fruit").rows == ((2,),)


# tables that cannot be made -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "words"),
    [
        pytest.param(Table("T", (Column("x" * 65),), ()), "64|too long", id="long_name"),
        pytest.param(Table("T😀", (Column("a"),), ()), "1300: Invalid utf8mb4", id="table_emoji"),
        pytest.param(Table("T", (Column("a😀"),), ()), "1300: Invalid utf8mb4", id="column_emoji"),
        pytest.param(
            Table("T", tuple(Column(f"c{i}") for i in range(30)), (("x",) * 30, ("x" * 50_000,) * 30)),
            # 30 * 50,000, each in two quotes, with what is around them: INSERT INTO `agentgrpo_..`.`T` VALUES (...)
            r"a statement of 1500\d\d\d bytes, the server takes 1048575; correct",
            id="packet",
        ),
        pytest.param(Table("T", (Column("a"),), (("\ud800",),)), "surrogates not allowed", id="no_unicode"),
        pytest.param(Table("T", (Column("a", "INT"),), (("x",),)), "1366: .* `dbbench`.`T`.`a`", id="no_number"),
        pytest.param(Table("T", (Column("a", "INT"),), ((10**30,),)), "1264: Out of range", id="large_number"),
        pytest.param(Table("T", (Column("a", "DOUBLE"),), ((float("nan"),),)), "nan can not be used", id="nan"),
        pytest.param(Table("T", (Column("a", "DATE"),), (("x",),)), "1292: Incorrect date", id="no_date"),
        pytest.param(Table("T", (Column("a", "CHAR(1)"),), (("xx",),)), "1406: Data too long", id="too_long"),
        pytest.param(Table("T", (Column("a", "JSON"),), (("{",),)), "4025: .*`dbbench`", id="no_json"),
        pytest.param(Table("T", (Column("a", "SERIAL"),), ((1,), (1,))), "1062: Duplicate", id="serial"),
        pytest.param(
            Table("T", tuple(Column(f"c{i}", "CHAR(200)") for i in range(99)), ()), "1118: Row size", id="row"
        ),
        pytest.param(Table("T", tuple(Column(f"c{i}") for i in range(5000)), ()), "1117: Too many", id="columns"),
    ],
)
def test_a_fault_of_the_task_file_is_no_dead_server(fresh, table, words):
    with pytest.raises(TableError, match=words) as raised:
        fresh.open([table], typed=True)
    assert "agentgrpo_" not in str(raised.value)
    with fresh.open([FRUIT], typed=True) as database:
        assert len(database._pool._all) == 1  # the session lived on


def test_a_slot_whose_user_was_changed_is_not_used_again(fresh):
    with fresh.open([FRUIT], typed=True) as database:
        name = database._slot.name
        with pymysql.connect(
            host=fresh._pool.host, port=fresh._pool._port, user=name, password=database._slot.password
        ) as session:
            session.cursor().execute(
                "SET PASSWORD = PASSWORD('other')"
            )  # as a statement that got past `allowed_sql` would
    with fresh.open([FRUIT], typed=True) as database:
        assert database._slot.name != name
    deadline = time.monotonic() + 30  # it is removed in the background
    while admin_rows(fresh, f"SELECT user FROM mysql.user WHERE user = '{name}'") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert admin_rows(fresh, f"SELECT user FROM mysql.user WHERE user = '{name}'") == ()


def test_a_killed_statement_writes_no_more_however_many_rows_it_joins(fresh):
    rows = tuple((f"n{i}", i) for i in range(5_000))
    with fresh.open([Table("t", (Column("a"), Column("b", "INT")), rows)], typed=True, statement_timeout_s=0.4) as wide:
        assert wide.run("CREATE TABLE u AS SELECT REPEAT('x', 400000) a, x.b FROM t x, t y").error is not None
        for _ in range(50):
            running = admin_rows(
                fresh, "SELECT info FROM information_schema.processlist WHERE info LIKE 'CREATE TABLE%'"
            )
            if not running:
                break
            time.sleep(0.1)
        assert not running


def test_no_table_is_filled_through_files_that_are_not_measured(mariadb):
    # with both it does, see server.py and allowed_sql.py
    assert admin_rows(mariadb, "SHOW VARIABLES LIKE 'innodb_alter_copy_bulk'") in (
        (),
        (("innodb_alter_copy_bulk", "OFF"),),
    )
    with mariadb.open([FRUIT], typed=True) as database:
        assert "1227" in str(database.run("SET unique_checks = 0").error)


def test_a_database_that_is_still_in_use_keeps_no_other_from_being_removed(mariadb, server_url):
    backend = MysqlBackend(server_url).__enter__()
    used, other = (backend.open([FRUIT], typed=True)._slot.name for _ in range(2))
    with mariadb._pool._connect_admin() as user, user.cursor() as cursor:
        user.begin()
        cursor.execute(f"SELECT * FROM {used}.Fruit")
        backend.close()
        cursor.execute("SHOW DATABASES")
        left = {name for (name,) in cursor.fetchall()}
    with mariadb._pool._connect_admin() as admin:
        mysql_pool._remove(admin, used)
    assert used in left and other not in left


def test_a_removal_ends_quietly_where_the_pool_is_closed_meanwhile(fresh, monkeypatch):
    def closed_meanwhile(admin, name):
        admin.close()
        raise AttributeError("'NoneType' object has no attribute 'read'")  # of a connection that is closed while read

    slot = fresh._pool.take()
    with monkeypatch.context() as patch:
        patch.setattr(mysql_pool, "_remove", closed_meanwhile)
        mysql_pool._remove_retired(slot)
    assert not slot.admin.open


def test_a_user_may_not_make_databases_whose_name_only_looks_like_its_own(fresh):
    with fresh.open([FRUIT], typed=True) as database:
        lookalike = database._slot.name.replace("_", "x")  # an unescaped _ in a GRANT stands for any character
        assert database.run(f"CREATE DATABASE {lookalike}").error.startswith("1044")


def test_the_catalogue_shows_no_other_episode(fresh):
    with fresh.open([FRUIT], typed=True), fresh.open([FRUIT], typed=True) as database:
        assert set(database.run("SHOW DATABASES").rows) == {("dbbench",), ("information_schema",)}
        asked = (
            "SELECT DISTINCT table_schema FROM information_schema.columns WHERE table_schema <> 'information_schema'"
        )
        assert database.run(asked).rows == (("dbbench",),)
        assert database.run("SELECT table_name FROM information_schema.tables WHERE table_schema = 'dbbench'").rows == (
            ("Fruit",),
        )
        users = {row[1] for row in database.run("SHOW PROCESSLIST").rows}
        assert users == {"dbbench"}


def test_what_a_dead_owner_left_is_removed_by_the_next_start_and_a_living_one_s_is_not(mariadb, server_url):
    def start(mode):
        owner = subprocess.Popen(
            [sys.executable, "-c", OWNER, server_url, mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert owner.stdout is not None
        return owner, owner.stdout.readline().strip()

    dead, left = start("die")
    dead.wait()
    living, kept = start("live")
    try:
        databases = {name for (name,) in admin_rows(mariadb, "SHOW DATABASES")}
        assert left not in databases  # the living owner's start removed it
        with open_backend(server_url):
            databases = {name for (name,) in admin_rows(mariadb, "SHOW DATABASES")}
            assert kept in databases
        users = admin_rows(mariadb, f"SELECT user FROM mysql.user WHERE user IN ('{left}', '{kept}')")
        assert users == ((kept,),)
    finally:
        living.communicate("")
    assert kept not in {name for (name,) in admin_rows(mariadb, "SHOW DATABASES")}


# what is said ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT USER(), CURRENT_USER()", (("dbbench@localhost", "dbbench@localhost"),)),
        ("SELECT CAST(USER() AS BINARY), '127.0.0.1:5'", ((b"dbbench@localhost", "127.0.0.1:5"),)),
        ("SELECT CAST(DATABASE() AS BINARY)", ((b"dbbench",),)),
        ("SELECT user, host FROM information_schema.processlist", (("dbbench", "localhost"),)),
    ],
)
def test_results_hold_neither_the_real_name_nor_an_address(fresh, sql, rows):
    with fresh.open([FRUIT], typed=True) as database:
        assert database.run(sql).rows == rows
        assert database.run("SHOW TABLES").columns == ("Tables_in_dbbench",)

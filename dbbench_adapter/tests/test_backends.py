"""What every backend promises an episode; each test runs on SQLite and on a private MariaDB."""

import hashlib
import re
import sqlite3
import time
from decimal import Decimal

import pytest

from agentgrpo.tests.seconds import seconds_here
from dbbench_adapter.datatypes import Column, Table
from dbbench_adapter.engines import (
    BackendUnavailable,
    TableError,
    TableState,
    check_backend,
    check_spec,
    open_backend,
)
from dbbench_adapter.engines.base import MAX_ROWS, hash_rows, join_hashes

FRUIT = Table("Fruit List", (Column("Name"), Column("Price", "INT")), (("Plum", 5), ("Pear", 4), ("plum", None)))


@pytest.fixture
def database(backend):
    with backend.open([FRUIT], typed=True) as database:
        yield database


def md5(text):
    return hashlib.md5(text.encode()).hexdigest()


def names(database, where):
    return [name for (name,) in database.run(f"SELECT `Name` FROM `Fruit List` WHERE {where}").rows]


# tables -------------------------------------------------------------------------------------------------------------


def test_a_task_s_tables_are_there_and_nothing_else(database):
    assert database.run("SHOW TABLES").rows == (("Fruit List",),)
    assert database.run("SELECT * FROM `Fruit List`").rows == (("Plum", 5), ("Pear", 4), ("plum", None))


def test_untyped_tables_hold_texts(backend):
    with backend.open([FRUIT], typed=False) as database:
        assert database.run("SELECT `Price` FROM `Fruit List`").rows == (("5",), ("4",), (None,))


def test_names_may_hold_what_they_like(backend):
    odd = Table("50% `off`; -- x", (Column("a`b%s"), Column("select")), (("1", "it's"),))
    with backend.open([odd], typed=False) as database:
        assert database.run("SELECT `a``b%s`, `select` FROM `50% ``off``; -- x`").rows == (("1", "it's"),)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        pytest.param(Table("T", (Column("a"), Column("A")), ()), "occurs twice in .*; rename one", id="column_twice"),
        pytest.param(Table("T", (Column(""),), ()), "expected named columns", id="no_name"),
        pytest.param(Table("T", (Column("a"),), (("1", "2"),)), "row 0: 2 cells, expected 1", id="ragged"),
        pytest.param(Table("T", (Column("a" * 65),), ()), "takes no name", id="long_name"),
        pytest.param(Table("T", (Column("a "),), ()), "takes no name", id="blank_at_the_end"),
        pytest.param(Table("T", (Column("a\0b"),), ()), "takes no name", id="NUL"),
        pytest.param(Table("T", (Column("a"),), (("é" * 32_768,),)), "a cell of 65536 bytes", id="long_cell"),
    ],
)
def test_a_table_that_cannot_be_made_is_refused_by_name(backend, table, words):
    with pytest.raises(TableError, match=f"table 'T'.*{words}"):
        backend.open([table], typed=False)


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(Table("sqlite_x", (Column("a"),), ()), id="a_name_that_sqlite_keeps"),
        pytest.param(Table("T", tuple(Column(f"c{i}") for i in range(300)), ()), id="300_columns"),
        pytest.param(Table("T", (Column("a"),), (("\ud800",),)), id="half_a_character"),
    ],
)
def test_a_table_that_sqlite_cannot_make_is_refused_by_name(sqlite, table):
    before = sqlite.live_databases()
    with pytest.raises(TableError, match=f"table '{table.name}': .*; correct the task file"):
        sqlite.open([table], typed=False)
    assert sqlite.live_databases() == before


@pytest.mark.parametrize("cell", ["abc", "", "12abc", 2**31, 2**70, 1e20, "-2147483649"])
def test_a_cell_that_no_int_column_takes_is_refused(backend, cell):
    with pytest.raises(TableError, match="table 'T'"):
        backend.open([Table("T", (Column("a", "INT"),), ((cell,),))], typed=True)


def test_cells_of_an_int_column_are_rounded(backend):
    cells = (1.5, "3.7", -2.5, "-2.5", "-0.4", " 7 ", 2**31 - 1, None)  # halves: floats to even, texts away from 0
    with backend.open([Table("T", (Column("a", "INT"),), tuple((cell,) for cell in cells))], typed=True) as database:
        assert database.run("SELECT a FROM T").rows == tuple((n,) for n in (2, 4, -2, -3, 0, 7, 2**31 - 1, None))


def test_episodes_over_the_same_table_do_not_meet(backend):
    with backend.open([FRUIT], typed=True) as one, backend.open([FRUIT], typed=True) as other:
        one.run("DELETE FROM `Fruit List`")
        assert one.run("SELECT COUNT(*) FROM `Fruit List`").rows == ((0,),)
        assert other.run("SELECT COUNT(*) FROM `Fruit List`").rows == ((3,),)


def test_nothing_of_an_episode_is_left(backend):
    before = backend.live_databases()
    database = backend.open([FRUIT], typed=True)
    database.run("CREATE TABLE more (a INT)")
    assert backend.live_databases() == before + 1
    database.close()
    database.close()
    assert backend.live_databases() == before


# MySQL's manners ----------------------------------------------------------------------------------------------------


def test_text_is_compared_without_case_and_accents(database):
    assert names(database, "`Name` = 'PLUM'") == ["Plum", "plum"]
    assert names(database, "`Name` = 'plüm'") == ["Plum", "plum"]
    assert names(database, '`Name` = "pear"') == ["Pear"]  # double quotes hold a text, not a name


def test_a_text_next_to_a_number_counts_as_the_number_it_begins_with(backend):
    heights = Table("T", (Column("Height"),), (("9 m",), ("10 m",), ("?",)))
    with backend.open([heights], typed=False) as database:
        assert database.run("SELECT Height FROM T WHERE Height > 9").rows == (("10 m",),)
        assert database.run("UPDATE T SET Height = 'tall' WHERE Height > 9").error is None
        assert database.run("SELECT Height FROM T").rows == (("9 m",), ("tall",), ("?",))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("AVG(`Price`)", Decimal("4.5000")),  # (5 + 4) / 2, four more digits than an INT has
        ("7 / 2", Decimal("3.5000")),
        ("CONCAT('a', 1, 'b')", "a1b"),
        ("IF(1 < 2, 'yes', 'no')", "yes"),
        ("CAST('12 apples' AS SIGNED)", 12),
        ("SUBSTRING_INDEX('a-b-c', '-', 2)", "a-b"),
        ("'Plum' REGEXP '^P.*m$'", 1),
        ("DATEDIFF('2024-03-01', '2024-02-28')", 2),  # a leap year
        ("YEAR('2024-03-01')", 2024),
        ("DATE_FORMAT('2024-03-01', '%M %D, %Y')", "March 1st, 2024"),
        ("GROUP_CONCAT(`Name` ORDER BY `Price` DESC SEPARATOR '/')", "Plum/Pear/plum"),  # NULL is the smallest
        ("IFNULL(NULL, 3)", 3),
        ("LENGTH('ü')", 2),
        ("LPAD('7', 3, '0')", "007"),
        ("CONCAT('a', NULL)", None),
        ("TRIM(BOTH 'ab' FROM 'ababxbab')", "xb"),  # a whole text, not any of its characters
        ("TRIM(TRAILING 'x' FROM 'axx')", "a"),
        ("5 DIV 2", 2),
    ],
)
def test_mysql_functions(database, expression, expected):
    ((value,),) = database.run(f"SELECT {expression} FROM `Fruit List`").rows[:1]
    assert (value, type(value)) == (expected, type(expected))


def test_str_to_date_reads_a_date(database):
    ((value,),) = database.run("SELECT STR_TO_DATE('March 1, 2024', '%M %e, %Y')").rows
    assert str(value) == "2024-03-01"


@pytest.mark.parametrize(
    ("statement", "left"),
    [
        ("UPDATE `Fruit List` SET `Price` = `Price` + 1 ORDER BY `Price` DESC LIMIT 1", {("Plum", 6), ("Pear", 4)}),
        ("DELETE FROM `Fruit List` ORDER BY `Price` DESC LIMIT 1", {("Pear", 4)}),
        ("DELETE FROM `Fruit List` AS f WHERE f.`Price` = 5", {("Pear", 4)}),
        ("UPDATE `Fruit List` SET `Price` = 4.5 WHERE `Name` = 'Pear'", {("Plum", 5), ("Pear", 5)}),  # INT rounds
        ("INSERT INTO `Fruit List` VALUES ('Fig', '3')", {("Plum", 5), ("Pear", 4), ("Fig", 3)}),
        ("INSERT INTO `Fruit List` (`Price`) VALUES ('three')", {("Plum", 5), ("Pear", 4)}),  # strict mode refuses
    ],
)  # fmt: skip
def test_changes(database, statement, left):
    database.run(statement)
    rows = database.snapshot()["Fruit List"].rows
    assert {row for row in rows if row[1] is not None} == left


def test_describe_names_columns_and_types(database):
    rows = database.run("DESCRIBE `Fruit List`").rows
    assert [row[0] for row in rows] == ["Name", "Price"]
    assert [row[1].partition("(")[0] for row in rows] == ["text", "int"]


@pytest.mark.parametrize(
    ("statement", "number"),
    [
        ("SELEC 1", "1064 (42000)"),
        ("SELECT * FROM nothing", "1146 (42S02)"),
        ("SELECT nothing FROM `Fruit List`", "1054 (42S22)"),
        ("INSERT INTO `Fruit List` VALUES (1)", "1136 (21S01)"),
        ("CREATE TABLE `Fruit List` (a INT)", "1050 (42S01)"),
        ("UPDATE `Fruit List` SET `Price` = 2147483648", "1264 (22003)"),  # 2^31
        ("INSERT INTO `Fruit List` VALUES ('Fig', -2147483649)", "1264 (22003)"),
        ("UPDATE `Fruit List` SET `Price` = `Price` * 1e12", "1264 (22003)"),
        ("SELECT 1; DELETE FROM `Fruit List`", "1064 (42000)"),  # one statement per call
    ],
)
def test_a_bad_statement_gives_the_driver_s_error_and_changes_nothing(database, statement, number):
    result = database.run(statement)
    assert result.rows is None
    assert result.error.startswith(number), result.error
    assert len(database.snapshot()["Fruit List"].rows) == 3


def test_a_statement_without_rows_gives_none(database):
    result = database.run("UPDATE `Fruit List` SET `Price` = 1")
    assert (result.rows, result.error) == (None, None)


# limits -------------------------------------------------------------------------------------------------------------


def test_a_statement_that_overruns_is_ended_and_the_episode_goes_on(backend):
    endless = (
        "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 99999999) SELECT COUNT(*) FROM c"
    )
    with backend.open([FRUIT], typed=True, statement_timeout_s=0.3) as database:
        database.run("SET SESSION cte_max_recursion_depth = 1000000000")  # MySQL's own limit is 1,000
        database.run("SET SESSION max_recursive_iterations = 1000000000")
        started = time.monotonic()
        assert "interrupted" in database.run(endless).error
        assert time.monotonic() - started < seconds_here(2.0)
        assert database.run("SELECT 1").rows == ((1,),)


def test_a_long_result_is_cut(database):
    tens = " UNION ".join(f"SELECT {i}" for i in range(10))
    tables = ", ".join(f"({tens}) t{i}" for i in range(5))
    assert len(database.run(f"SELECT 1 FROM {tables}").rows) == MAX_ROWS  # of 10^5


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT LOAD_FILE('/etc/hostname') IS NOT NULL",
        "SELECT 1 INTO OUTFILE '/tmp/agentgrpo-escape'",
        "LOAD DATA INFILE '/etc/hostname' INTO TABLE `Fruit List`",
        "ATTACH DATABASE '/tmp/agentgrpo-escape' AS x",
        "PRAGMA writable_schema = 1",
        "SELECT load_extension('x')",
        "SELECT * FROM mysql.global_priv",
        "SELECT * FROM sqlite_master",
        "CREATE DATABASE agentgrpo_more",
        "CREATE USER somebody",
        "SHUTDOWN",
    ],
)
def test_nothing_outside_the_episode_can_be_reached(database, statement):
    result = database.run(statement)
    assert result.error is not None or result.rows == ((0,),)


def test_sqlite_itself_refuses_what_the_translation_would_let_pass(sqlite):
    with sqlite.open([FRUIT], typed=True) as database:
        for statement in ("ATTACH DATABASE ':memory:' AS x", "PRAGMA writable_schema = 1", "CREATE VIEW v AS SELECT 1"):
            with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                database._connection.execute(statement)


# end state ----------------------------------------------------------------------------------------------------------


def test_the_hash_follows_db_bench_step_by_step(backend):
    # md5 of "Plum,5", "Pear,4" and "plum" (NULL is skipped), five digits each, sorted, joined by commas, md5 again
    expected = md5(",".join(sorted([md5("Plum,5")[:5], md5("Pear,4")[:5], md5("plum")[:5]])))
    with backend.open([FRUIT], typed=True) as database:
        assert database.table_hash([FRUIT]) == expected
        database.run("DELETE FROM `Fruit List`")
        assert database.table_hash([FRUIT]) == "None"
        database.run("DROP TABLE `Fruit List`")
        assert database.table_hash([FRUIT]) is None


def test_the_hash_sees_1024_bytes():
    # 170 hashes of five digits with their commas are 1,019 bytes: the 171st counts with four digits, the rest not
    lines = sorted((f"row {i}" for i in range(200)), key=md5)
    assert hash_rows(lines) == hash_rows(lines[:171]) != hash_rows(lines[:170])


def test_hashes_of_several_tables_are_sorted_and_joined():
    assert join_hashes(["b" * 32, "None", "a" * 32]) == "None_" + "a" * 32 + "_" + "b" * 32


def test_the_snapshot_holds_every_table_and_what_a_transaction_holds(database):
    for statement in ("CREATE TABLE more (a INT)", "BEGIN", "INSERT INTO more VALUES (1)"):
        assert database.run(statement).error is None
    assert database.snapshot()["more"] == TableState(("a",), ((1,),))


def test_temporary_tables_are_no_state(database):
    database.run("CREATE TEMPORARY TABLE scratch (a INT)")
    assert set(database.snapshot()) == {"Fruit List"}


# MariaDB alone ------------------------------------------------------------------------------------------------------


def test_the_agent_cannot_take_its_time_limit_away(mariadb):
    with mariadb.open([FRUIT], typed=True, statement_timeout_s=0.3) as database:
        for target in ("SESSION max_statement_time", "@@max_statement_time", "@x = 1, LOCAL `max_statement_time`"):
            assert database.run(f"SET {target} = 0").error.startswith("1227 (42000): Access denied")
        started = time.monotonic()
        assert "interrupted" in database.run("SELECT SLEEP(30)").error
        assert time.monotonic() - started < seconds_here(3.0)
        assert database.run("SELECT 1").rows == ((1,),)


def test_the_agent_may_end_its_own_session(mariadb):
    with mariadb.open([FRUIT], typed=True) as database:
        assert database.run("COMMIT RELEASE").error is None
        database.run("SELECT 1")  # finds the session gone
        assert database.run("SELECT COUNT(*) FROM `Fruit List`").rows == ((3,),)


def test_the_agent_may_drop_its_own_database(mariadb):
    with mariadb.open([FRUIT], typed=True) as database:
        ((name,),) = database.run("SELECT DATABASE()").rows
        assert database.run(f"DROP DATABASE {name}").error is None
        assert database.table_hash([FRUIT]) is None
        assert database.snapshot() == {}
        assert database.run("SELECT * FROM `Fruit List`").error.startswith(
            "1046"
        )  # its doing, no reason for no verdict
    with mariadb.open([FRUIT], typed=True) as database:
        assert database.run("SELECT COUNT(*) FROM `Fruit List`").rows == ((3,),)


# open_backend -------------------------------------------------------------------------------------------------------


def test_an_unknown_backend_is_named_with_the_known_ones():
    known = "unknown backend 'postgres'; known: sqlite, mariadb, mysql://"
    with pytest.raises(ValueError, match=known), open_backend("postgres"):
        pass


NO_ADDRESS = "is no address, expected mysql://user:password@host:port; in user and password write %40 for @"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("", "unknown backend ''; known: sqlite, mariadb, mysql://"),
        ("SQLite", "unknown backend 'SQLite'"),
        ("sqlite:///tmp/x.db", "unknown backend 'sqlite:///tmp/x.db'"),
        ("postgres://me:secret@host/db", "unknown backend 'postgres://me:***@host/db'"),
        ("mysql", "unknown backend 'mysql'"),
        ("mysql:/me:secret@host", "unknown backend 'mysql:/me:***@host'"),
        ("me:secret@host:3306", "unknown backend ':***@host:3306'"),
        ("mysql://", NO_ADDRESS),
        ("mysql://me:secret@", NO_ADDRESS),
        ("mysql://me:secret@host:port", NO_ADDRESS),
        ("mysql://me:secret@host:0", NO_ADDRESS),
        ("mysql://me:secret@host:70000", NO_ADDRESS),
        ("mysql://me:secret@[::1", NO_ADDRESS),
        ("mysql://me:sec/secret@host:3306", NO_ADDRESS),
    ],
)
def test_a_spec_that_names_no_backend_is_refused_without_its_password(spec, words):
    for look in (check_spec, check_backend):
        with pytest.raises(ValueError, match=re.escape(words)) as refused:
            look(spec)
        assert "secret" not in str(refused.value)


def test_a_backend_is_looked_at_and_nothing_is_left_of_it(mariadb):
    check_backend("sqlite")
    before = mariadb.live_databases()
    pool = mariadb._pool
    check_backend(f"mysql://{pool._user}:{pool._password}@{pool.host}:{pool._port}")
    with pytest.raises(BackendUnavailable, match="Access denied"):
        check_backend(f"mysql://{pool._user}:wrong@{pool.host}:{pool._port}")
    assert mariadb.live_databases() == before


def test_without_its_programs_there_is_no_private_server(monkeypatch):
    monkeypatch.setattr("dbbench_adapter.engines.mysql.server.shutil.which", lambda *_, **__: None)
    with pytest.raises(BackendUnavailable, match="mariadb-install-db not found; install MariaDB"):
        check_backend("mariadb")


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(BackendUnavailable, match=r"127\.0\.0\.1:1"), open_backend("mysql://root@127.0.0.1:1"):
        pass


# nonsense -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE `Fruit List` SET 5 WHERE Price = 1",
        "UPDATE `Fruit List` SET `Price`",
        "UPDATE `Fruit List` SET (Price) = 1",
        "DELETE `Price` FROM WHERE `Name`",
    ],
)
def test_nonsense_is_a_syntax_error_and_changes_nothing(database, sql):
    assert database.run(sql).error.startswith("1064 (42000): You have an error in your SQL syntax")
    assert names(database, "Price = 5") == ["Plum"]

"""A person's own database on MySQL or MariaDB: which account may be used, and what is sent.

`test_engines.py` has what every engine promises, `test_servers.py` what servers do.
"""

from contextlib import closing
from urllib.parse import urlsplit

import pytest

from agentgrpo.passwords import VARIABLE
from dbbench_adapter.datatypes import DatabaseError
from dbbench_adapter.engines import open_databases
from dbbench_adapter.engines.mysql import parse_address, read_only
from dbbench_adapter.engines.mysql.read_only import MysqlReader, check_grants, why_refused
from dbbench_adapter.engines.server import REFUSAL, AccountError
from dbbench_adapter.tests.engine_worlds import PASSWORD, WRITTEN, as_admin, server_contents

pytestmark = pytest.mark.usefixtures("few_objects")


@pytest.fixture
def reader(shop_address):
    with closing(MysqlReader(shop_address)) as opened:
        yield opened


def run(reader, sql, timeout_s=1.0, max_rows=100, max_chars=10_000):
    return reader.run(sql, timeout_s=timeout_s, max_rows=max_rows, max_chars=max_chars)


# the address and the account ------------------------------------------------------------------------------------------


def test_an_address_is_read_and_its_password_is_shown_nowhere(monkeypatch):
    found = parse_address(f"mysql://me:{WRITTEN}@db.example:3307/my%20shop", of_database=True)
    assert (found.host, found.port, found.user, found.password, found.database) == (
        "db.example", 3307, "me", PASSWORD, "my shop",
    )  # fmt: skip
    assert found.shown == "mysql://me:***@db.example:3307/my%20shop"
    assert WRITTEN not in repr(found) and PASSWORD not in repr(found)
    monkeypatch.setenv(VARIABLE, "s3cret/")
    for spec in ("mysql://envy:***@host/d", "mysql://envy@host/d"):  # nobody has given its password
        assert parse_address(spec, of_database=True).password == "s3cret/"
    assert parse_address("mysql://me@host/d", of_database=True).port == 3306


ADDRESS = parse_address("mysql://reader:x@host/my_shop", of_database=True)


@pytest.mark.parametrize("grants", [
    ["GRANT USAGE ON *.* TO `reader`@`%` IDENTIFIED BY PASSWORD '*ABC'",
     "GRANT SELECT, SHOW VIEW ON `my\\_shop`.* TO `reader`@`%`"],
    ["GRANT SELECT ON `my_shop`.`shelf` TO `reader`@`%`", "GRANT SELECT (`a`, `b`) ON `my_shop`.`t` TO `reader`@`%`"],
])  # fmt: skip
def test_an_account_that_may_only_read_its_database_is_taken(grants):
    check_grants(grants, ADDRESS, ["information_schema", "my_shop"])


def test_an_underscore_of_a_grant_that_fits_another_database_is_refused():
    visible = ["information_schema", "my_shop", "my1shop"]
    with pytest.raises(AccountError, match=r"SELECT on `my_shop`[.][*], which is also my1shop"):
        check_grants(["GRANT SELECT ON `my_shop`.* TO `reader`@`%`"], ADDRESS, visible)
    check_grants(["GRANT SELECT ON `my\\_shop`.* TO `reader`@`%`"], ADDRESS, visible)
    # where a table is named, the database is no pattern
    check_grants(["GRANT SELECT ON `my_shop`.`t` TO `reader`@`%`"], ADDRESS, visible)


@pytest.mark.parametrize(("grant", "said"), [
    ("GRANT ALL PRIVILEGES ON *.* TO `reader`@`%` IDENTIFIED BY PASSWORD '*ABC' WITH GRANT OPTION",
     "ALL PRIVILEGES on *.*"),
    ("GRANT SELECT, INSERT, UPDATE ON `my_shop`.* TO `reader`@`%`", "INSERT, UPDATE on `my_shop`.*"),
    ("GRANT SELECT (a), UPDATE (`b`, `c`) ON `my_shop`.`t` TO `reader`@`%`", "UPDATE on `my_shop`.`t`"),
    ("GRANT FILE ON *.* TO `reader`@`%`", "FILE on *.*"),
    ("GRANT SUPER, PROCESS ON *.* TO `reader`@`%`", "SUPER, PROCESS on *.*"),
    ("GRANT EXECUTE ON PROCEDURE `my_shop`.`tidy` TO `reader`@`%`", "EXECUTE on `my_shop`.`tidy`"),
    ("GRANT SELECT ON *.* TO `reader`@`%`", "SELECT on *.*"),
    ("GRANT SELECT ON `mysql`.* TO `reader`@`%`", "SELECT on `mysql`.*"),
    ("GRANT SELECT ON `my_shop`.* TO `reader`@`%` WITH GRANT OPTION", "GRANT OPTION on `my_shop`.*"),
    ("GRANT `writers`@`%` TO `reader`@`%`", "`writers`@`%` (a role, or a privilege that no table has)"),
    ("GRANT PROXY ON ''@'%' TO 'reader'@'%'", "PROXY ON ''@'%' (a role, or a privilege that no table has)"),
])  # fmt: skip
def test_an_account_that_may_do_more_is_refused_with_what_to_type(grant, said):
    with pytest.raises(AccountError) as caught:
        check_grants([grant], ADDRESS)
    assert f"the account may do more than read this database: {said}. Make one" in str(caught.value)
    assert "GRANT SELECT, SHOW VIEW ON `my\\_shop`.* TO 'agent_reader'@'%';" in str(caught.value)
    assert "*ABC" not in str(caught.value)


@pytest.fixture
def quoting_otherwise(shop_server):
    # as a large host sets its servers up
    ((modes, quotes),) = as_admin(shop_server, "SELECT @@GLOBAL.sql_mode, @@GLOBAL.sql_quote_show_create")
    yield lambda setting: as_admin(shop_server, f"SET GLOBAL {setting}")
    as_admin(shop_server, f"SET GLOBAL sql_mode = '{modes}'", f"SET GLOBAL sql_quote_show_create = {quotes}")


@pytest.mark.parametrize("setting", ["sql_mode = 'ANSI'", "sql_quote_show_create = 0"])
def test_an_account_that_may_only_read_is_taken_however_its_server_quotes_names(
    shop_account, quoting_otherwise, setting
):
    quoting_otherwise(setting)
    for grant in ("SELECT, SHOW VIEW ON my_shop.*", "SELECT (id, name) ON my_shop.customer"):
        with closing(open_databases(shop_account(grant))) as databases:
            databases.check()
            session = databases.open("my_shop", statement_timeout_s=1.0)
            assert session.run('SELECT COUNT(id) FROM `customer` WHERE name <> "x"').rows == ((3,),)


def test_views_that_nobody_can_read_are_left_out_and_named(shop_server):
    # a dump that was loaded into a server without the account that made its views
    as_admin(
        shop_server,
        "CREATE DATABASE dumped",
        "CREATE TABLE dumped.boat (id INT, twice INT AS (2 * id) STORED, more INT AS (id + 1))",
        "INSERT INTO dumped.boat (id) VALUES (1)",
        "CREATE TABLE dumped.gone (a INT)",
        "CREATE VIEW dumped.dead AS SELECT a FROM dumped.gone",
        "DROP TABLE dumped.gone",
        "CREATE DEFINER = nobody@'%' VIEW dumped.orphan AS SELECT id FROM dumped.boat",
        f"CREATE USER of_dump@'%' IDENTIFIED BY '{PASSWORD}'",
        "GRANT SELECT, SHOW VIEW ON dumped.* TO of_dump@'%'",
    )
    address = f"mysql://of_dump:{WRITTEN}@127.0.0.1:{urlsplit(shop_server.url).port}/dumped"
    with closing(open_databases(address)) as databases:
        assert [(t.name, [c.samples for c in t.columns]) for t in databases.schema("dumped")] == [
            ("boat", [("1",), ("2",), ("2",)])
        ]
        left_out = databases.unreadable("dumped")
        assert {name: why.partition(":")[0] for name, why in left_out.items()} == {"dead": "1356", "orphan": "1045"}
        assert "; left out: dead (1356: View 'dumped.dead' references invalid table(s)" in databases.summary()
        assert databases.summary().endswith("; a view needs its tables and the account that made it)")
    as_admin(shop_server, "DROP DATABASE dumped", "DROP USER of_dump@'%'")


@pytest.mark.parametrize("grants", [
    ["ALL ON *.*"], ["SELECT, DELETE ON my_shop.*"], ["SELECT ON my_shop.*", "FILE ON *.*"],
    ["SELECT ON my_shop.*", "SELECT ON other.secret"], ["SELECT ON my_shop.*", "EXECUTE ON FUNCTION other.counted"],
])  # fmt: skip
def test_the_server_says_what_an_account_may_do_before_anything_runs(shop_account, grants):
    with closing(open_databases(shop_account(*grants))) as databases:
        with pytest.raises(DatabaseError, match="the account may do more than read this database"):
            databases.check()
        with pytest.raises(AccountError):
            databases.open("my_shop", statement_timeout_s=1.0).run("SELECT 1")


# statements -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sql", "rows"), [
    ("(SELECT 1) UNION ALL (SELECT 1);", ((1,), (1,))),
    ("SELECT CONCAT(name, ' into; for update') FROM customer WHERE id = 2", (("Bo into; for update",),)),
    ("SELECT TIME('11:12:13'), DATABASE(), CAST(1.5 AS DECIMAL(3,1))", (("11:12:13", "my_shop", 1.5),)),
    # as CAST(... AS CHAR) writes them
    ("SELECT TIME('9:05:00'), TIMEDIFF('10:00:00', '11:30:00'), TIME('125:00:00'), TIME('-00:00:00.25')",
     (("09:05:00", "-01:30:00", "125:00:00", "-00:00:00.250000"),)),
    ("SELECT SUM(b), AVG(b) FROM t", ((10, 2.5),)),
])  # fmt: skip
def test_values_are_those_that_sqlite_would_give(reader, sql, rows):
    found = run(reader, sql).rows
    assert found == rows
    assert [list(map(type, row)) for row in found] == [list(map(type, row)) for row in rows]  # 1.5 equals a Decimal


@pytest.mark.parametrize("sql", [
    "SET @x = 1", "START TRANSACTION", "COMMIT", "SHOW GRANTS", "SHOW TABLES", "USE other", "DO 1",
    "SELECT 1 INTO OUTFILE '/tmp/x'", "SELECT a INTO @x FROM t LIMIT 1",
    "SELECT * FROM t FOR UPDATE", "SELECT * FROM t LOCK IN SHARE MODE", "SELECT SLEEP(9)", "SELECT `sleep` (9)",
    "SELECT BENCHMARK(1, 2)", "SELECT info FROM information_schema.PROCESSLIST",
    "SELECT 1 FROM t WHERE a = (SELECT info FROM `information_schema` . `processlist` LIMIT 1)",
    "KILL 1", "", ";",
])  # fmt: skip
def test_what_is_no_query_is_not_sent(shop_server, reader, sql):
    before = server_contents(shop_server)
    assert run(reader, sql).error is not None
    if sql.strip("; "):
        assert why_refused(sql) == REFUSAL
    assert server_contents(shop_server) == before


def test_the_transaction_is_read_only_and_the_session_begins_anew(shop_server, reader, monkeypatch):
    monkeypatch.setattr(read_only, "why_refused", lambda sql: None)
    error = run(reader, "CREATE TEMPORARY TABLE x (a INT)").error
    assert error == "1792: Cannot execute statement in a READ ONLY transaction"
    assert run(reader, "SELECT @seen := 7").rows == ((7,),)
    assert run(reader, "SELECT @seen").rows == ((None,),)
    open_ones = "SELECT COUNT(*) FROM information_schema.innodb_trx"
    assert as_admin(shop_server, open_ones) == [(0,)]


def test_the_server_itself_ends_a_statement_and_the_session_stays(reader):
    session = run(reader, "SELECT CONNECTION_ID()")
    crossed = ", ".join(f"t t{n}" for n in range(14))
    assert run(reader, f"SELECT COUNT(*) FROM {crossed}", 0.3).error == "the statement takes too long; ask for less"
    assert run(reader, "SELECT CONNECTION_ID()") == session
    assert len(run(reader, f"SELECT t0.a FROM {crossed}", max_rows=7).rows) == 7


def test_an_error_names_no_account(reader):
    error = run(reader, "SELECT * FROM other.secret").error
    assert error.startswith("1142: SELECT command denied to user 'agent'") and "reader" not in error
    assert run(reader, "SELECT nam FROM customer").error.startswith("1054: Unknown column 'nam' in ")

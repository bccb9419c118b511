"""Questions about a person's own database on a server: which account may be used, what is shown, allowed and right.

The server is a MariaDB that the tests start. Its administrator plays the person who owns the database.
"""

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import urlsplit

import pymysql
import pytest

from agentgrpo.checks import examine
from agentgrpo.passwords import VARIABLE, named_database
from dbbench_adapter.backends import BackendUnavailable
from dbbench_adapter.backends.mysql import read_only
from dbbench_adapter.backends.mysql.read_only import (
    MAX_CONNECTIONS,
    REFUSAL,
    AccountError,
    ReadOnlyServer,
    check_grants,
    parse_address,
    refused,
)
from dbbench_adapter.backends.mysql.server import PrivateServer
from dbbench_adapter.tests.hostile import ESCAPE, STATEMENTS
from sql_agent.commands import doctor
from sql_agent.commands import sft as train_sft
from sql_agent.config import EnvConfig
from sql_agent.datatypes import AgentConfig, DataConfig, EnvironmentSettings
from sql_agent.environments.base import make_environment
from sql_agent.startup.readable import check_database
from sql_agent.text_to_sql.databases import open_databases
from sql_agent.text_to_sql.datatypes import DatabaseError, Question
from sql_agent.text_to_sql.environment import TextToSql
from sql_agent.text_to_sql.load import QuestionFileError, read_questions
from sql_agent.text_to_sql.schema import render

pytestmark = pytest.mark.usefixtures("few_objects")
PASSWORD = "p@ss/w:rd#1"
WRITTEN = "p%40ss%2Fw%3Ard%231"
SHOP = """
CREATE TABLE customer (id INT PRIMARY KEY, name VARCHAR(40), `home town` TEXT, born DATE);
CREATE TABLE `order` (nr INT, customer INT, total DECIMAL(8,2), note BLOB, PRIMARY KEY (nr, customer),
    FOREIGN KEY (customer) REFERENCES customer(id));
CREATE VIEW spent AS SELECT customer, SUM(total) AS total FROM `order` GROUP BY customer;
INSERT INTO customer VALUES (1, 'Ann O''Hara', 'Ulm', '1990-02-03'), (2, 'Bo', NULL, NULL), (3, 'Cy', 'Bonn', NULL);
INSERT INTO `order` VALUES (1, 1, 2.50, x'00'), (2, 1, 4, NULL), (3, 2, 1.25, NULL);
CREATE TABLE t (a TEXT, b INT);
INSERT INTO t VALUES ('x', 1), ('y', 2), ('z', 3), ('x', 4);
CREATE FUNCTION counted() RETURNS INT READS SQL DATA RETURN (SELECT COUNT(*) FROM customer)
"""


@pytest.fixture(scope="module")
def server():
    try:
        started = PrivateServer().__enter__()
    except BackendUnavailable as failure:
        pytest.skip(f"no MariaDB here: {failure}")
    yield started
    started.close()


def as_admin(server, *statements):
    parts = urlsplit(server.url)
    login = {"user": parts.username, "password": parts.password, "host": parts.hostname, "port": parts.port}
    with pymysql.connect(**login, autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


@pytest.fixture(scope="module")
def account(server):
    """Make an account with these privileges and return its address; the password is full of signs."""
    as_admin(server, "CREATE DATABASE my_shop", "USE my_shop", *SHOP.split(";\n"))
    as_admin(server, "CREATE DATABASE other", "CREATE TABLE other.secret (a INT)")
    made = []

    def make(*grants):
        name = f"reader{len(made)}"
        made.append(name)
        to = f"'{name}'@'%'"
        as_admin(server, f"CREATE USER {to} IDENTIFIED BY '{PASSWORD}'", *(f"GRANT {g} TO {to}" for g in grants))
        return f"mysql://{name}:{WRITTEN}@127.0.0.1:{urlsplit(server.url).port}/my_shop"

    return make


@pytest.fixture(scope="module")
def address(account):
    return account("SELECT, SHOW VIEW ON my_shop.*")


@pytest.fixture
def environment(address):
    with TextToSql(address) as opened:
        yield opened


@pytest.fixture
def reader(address):
    with closing(ReadOnlyServer(address)) as opened:
        yield opened


def run(reader, sql, timeout_s=1.0, max_rows=100, max_chars=10_000):
    return reader.run(sql, timeout_s=timeout_s, max_rows=max_rows, max_chars=max_chars)


def contents(server):
    """Every table of the server's databases, by its checksum, and its accounts."""
    tables = as_admin(
        server,
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type = 'BASE TABLE' "
        "AND table_schema IN ('my_shop', 'other')",
    )
    sums = [as_admin(server, f"CHECKSUM TABLE `{schema}`.`{table}`") for schema, table in sorted(tables)]
    return sums, as_admin(server, "SELECT user, host FROM mysql.user ORDER BY 1, 2"), as_admin(server, "SHOW DATABASES")


# the address and the account ------------------------------------------------------------------------------------------


def test_an_address_is_read_and_its_password_is_shown_nowhere(monkeypatch):
    found = parse_address(f"mysql://me:{WRITTEN}@db.example:3307/my%20shop")
    assert (found.host, found.port, found.user, found.password, found.database) == (
        "db.example", 3307, "me", PASSWORD, "my shop",
    )  # fmt: skip
    assert found.shown == "mysql://me:***@db.example:3307/my%20shop"
    assert WRITTEN not in repr(found) and PASSWORD not in repr(found)
    monkeypatch.setenv(VARIABLE, "s3cret/")
    assert parse_address("mysql://me:***@host/d").password == parse_address("mysql://me@host/d").password == "s3cret/"
    assert parse_address("mysql://me@host/d").port == 3306


@pytest.mark.parametrize("spec", [
    f"mysql://me:{WRITTEN}@host", f"mysql://me:{WRITTEN}@host/", f"mysql://me:{WRITTEN}@host:port/d",
    f"mysql://me:{WRITTEN}@/d", f"mysql://:{WRITTEN}@host/d", f"mysql://me:{WRITTEN}@host/d/e",
    f"mysql://me:{PASSWORD}@host/d",
])  # fmt: skip
def test_what_is_no_address_of_a_database_is_said_without_the_password(spec):
    with pytest.raises(DatabaseError, match=r"expected mysql://user:password@host:port/database; in user") as caught:
        open_databases(named_database(spec))
    assert not any(part in str(caught.value) for part in (WRITTEN, PASSWORD, "w:rd", "p@ss"))


def test_a_password_that_is_hidden_and_unknown_is_asked_for():
    with pytest.raises(DatabaseError, match=f"give the whole address again, or set {VARIABLE}"):
        open_databases("mysql://nobody:***@host/d")


def test_the_setting_keeps_paths_and_hides_passwords(tmp_path):
    config = EnvConfig(type="text2sql", database=f"mysql://me:{WRITTEN}@host/d")
    assert config.model_dump(mode="json")["database"] == "mysql://me:***@host/d"
    assert EnvConfig.model_validate(config.model_dump(mode="json")) == config
    assert EnvConfig(type="text2sql", database=str(tmp_path)).database == tmp_path


@pytest.mark.parametrize("spec", ["mariadb://me:geheim@host/d", "MYSQL://me:geheim@host/d", "mysql:/me:geheim@host/d"])
def test_an_address_of_another_form_is_refused_without_its_password(spec, capsys):
    with pytest.raises(ValueError, match="an address of an unknown kind") as caught:
        EnvConfig(type="text2sql", database=spec)
    assert "geheim" not in caught.value.errors()[0]["msg"]
    for command in (doctor.main, train_sft.main):
        with pytest.raises(SystemExit):
            command(["--model_path", "x", "--database", spec] if command is train_sft.main else ["--database", spec])
        with pytest.raises(SystemExit):
            command(["--model_path", "x", "--databse", spec])
    said = capsys.readouterr().err
    assert said.count("an address of an unknown kind") == 2
    assert "geheim" not in said


ADDRESS = parse_address("mysql://reader:x@host/my_shop")


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


@pytest.mark.parametrize("grants", [
    ["ALL ON *.*"], ["SELECT, DELETE ON my_shop.*"], ["SELECT ON my_shop.*", "FILE ON *.*"],
    ["SELECT ON my_shop.*", "SELECT ON other.secret"], ["SELECT ON my_shop.*", "EXECUTE ON FUNCTION my_shop.counted"],
])  # fmt: skip
def test_the_server_says_what_an_account_may_do_before_anything_runs(account, grants):
    with TextToSql(account(*grants)) as environment:
        with pytest.raises(DatabaseError, match="the account may do more than read this database"):
            environment.check_episodes()
        with pytest.raises(AccountError):
            environment.open(Question("q", "?", "my_shop", "SELECT 1"), AgentConfig()).database.run("SELECT 1")


# the schema -----------------------------------------------------------------------------------------------------------


def test_the_schema_shows_types_keys_and_values_in_backquotes(environment):
    tables = {table.name: table for table in environment.databases.schema("my_shop")}
    assert tables.keys() == {"customer", "order", "spent", "t"}
    text = render([tables[name] for name in ("customer", "order", "spent")]).text
    assert (
        text
        == """\
CREATE TABLE `customer` (
  `id` int(11), -- 1, 2
  `name` varchar(40), -- 'Ann O''Hara', 'Bo'
  `home town` text, -- 'Ulm', 'Bonn'
  `born` date, -- '1990-02-03'
  PRIMARY KEY (`id`)
);
CREATE TABLE `order` (
  `nr` int(11), -- 1, 2
  `customer` int(11), -- 1, 2
  `total` decimal(8,2), -- 2.5, 4.0
  `note` blob,
  PRIMARY KEY (`nr`, `customer`),
  FOREIGN KEY (`customer`) REFERENCES `customer`(`id`)
);
CREATE VIEW `spent` (
  `customer` int(11),
  `total` decimal(30,2)
);"""
    )
    prompt = environment.messages(Question("q", "How many?", "my_shop"))[0]["content"]
    assert "You answer questions about a MySQL database" in prompt and text.splitlines()[0] in prompt


def test_a_database_without_tables_is_refused(server, account):
    as_admin(server, "CREATE DATABASE nothing")
    empty = account("SELECT ON nothing.*").replace("/my_shop", "/nothing")
    with TextToSql(empty) as environment, pytest.raises(DatabaseError, match="holds no table that the account may"):
        environment.check_episodes()


# statements -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sql", "rows"), [
    ("SELECT name, born FROM customer WHERE id < 3 ORDER BY id", (("Ann O'Hara", "1990-02-03"), ("Bo", None))),
    ("SELECT SUM(total), SUM(nr), COUNT(*), MIN(note) FROM `order`", ((7.75, 6, 3, b"\0"),)),
    ("WITH dear AS (SELECT nr FROM `order` WHERE total > 2) SELECT COUNT(*) FROM dear", ((2,),)),
    ("(SELECT 1) UNION ALL (SELECT 1);", ((1,), (1,))),
    ("SELECT CONCAT(name, ' into; for update') FROM customer WHERE id = 2", (("Bo into; for update",),)),
    ("SELECT TIME('11:12:13'), DATABASE(), CAST(1.5 AS DECIMAL(3,1))", (("11:12:13", "my_shop", 1.5),)),
    # as CAST(... AS CHAR) writes them
    ("SELECT TIME('9:05:00'), TIMEDIFF('10:00:00', '11:30:00'), TIME('125:00:00'), TIME('-00:00:00.25')",
     (("09:05:00", "-01:30:00", "125:00:00", "-00:00:00.250000"),)),
])  # fmt: skip
def test_a_query_gives_plain_values(reader, sql, rows):
    assert run(reader, sql).rows == rows


@pytest.mark.parametrize("sql", [
    "INSERT INTO customer VALUES (4, 'x', 'y', NULL)", "DELETE FROM customer", "DROP TABLE customer", "SET @x = 1",
    "CREATE TABLE u (a INT)", "START TRANSACTION", "COMMIT", "SHOW GRANTS", "SHOW TABLES", "USE other", "DO 1",
    "SELECT 1; DELETE FROM customer", "SELECT 1 INTO OUTFILE '/tmp/x'", "SELECT a INTO @x FROM t LIMIT 1",
    "SELECT * FROM t FOR UPDATE", "SELECT * FROM t LOCK IN SHARE MODE", "SELECT SLEEP(9)", "SELECT `sleep` (9)",
    "SELECT BENCHMARK(1, 2)", "SELECT info FROM information_schema.PROCESSLIST",
    "SELECT 1 FROM t WHERE a = (SELECT info FROM `information_schema` . `processlist` LIMIT 1)",
    "WITH x AS (SELECT 1) DELETE FROM t", "KILL 1", "", ";",
])  # fmt: skip
def test_what_is_no_query_is_not_sent(server, reader, sql):
    before = contents(server)
    assert run(reader, sql).error is not None
    if not sql.startswith("WITH") and sql.strip("; "):
        assert refused(sql) == REFUSAL
    assert contents(server) == before


def test_the_transaction_is_read_only_and_the_session_begins_anew(server, reader, monkeypatch):
    monkeypatch.setattr(read_only, "refused", lambda sql: None)
    error = run(reader, "CREATE TEMPORARY TABLE x (a INT)").error
    assert error == "1792: Cannot execute statement in a READ ONLY transaction"
    assert run(reader, "SELECT @seen := 7").rows == ((7,),)
    assert run(reader, "SELECT @seen").rows == ((None,),)
    open_ones = "SELECT COUNT(*) FROM information_schema.innodb_trx"
    assert as_admin(server, open_ones) == [(0,)]


def test_time_and_size_of_a_result_are_limited(reader):
    crossed = ", ".join(f"t t{n}" for n in range(14))
    session = run(reader, "SELECT CONNECTION_ID()")
    started = time.monotonic()
    assert run(reader, f"SELECT COUNT(*) FROM {crossed}", 0.3).error == "the statement takes too long; ask for less"
    assert time.monotonic() - started < 2.0
    assert run(reader, "SELECT CONNECTION_ID()") == session  # the server itself ended the statement
    assert len(run(reader, f"SELECT t0.a FROM {crossed}", max_rows=7).rows) == 7
    assert run(reader, f"SELECT REPEAT('x', 200) FROM {crossed}").error == "the result is too long; ask for less"
    assert run(reader, "SELECT COUNT(*) FROM t").rows == ((4,),)
    assert run(reader, f"SELECT 1 IN ({'1,' * 10_000}1)").error == "the statement is longer than 20000 characters"


def test_an_error_names_no_account(reader):
    error = run(reader, "SELECT * FROM other.secret").error
    assert error.startswith("1142: SELECT command denied to user 'agent'") and "reader" not in error
    assert run(reader, "SELECT nam FROM customer").error.startswith("1054: Unknown column 'nam' in ")


def test_a_process_has_few_connections_and_waits_for_a_free_one(server, reader, monkeypatch):
    mine = f"SELECT COUNT(*) FROM information_schema.processlist WHERE user = '{reader.address.user}'"
    slow = f"SELECT COUNT(*) FROM {', '.join(f't t{n}' for n in range(9))}"  # 4 ** 9 rows
    most, done = 0, threading.Event()

    def watch():
        nonlocal most
        while not done.is_set():
            most = max(most, as_admin(server, mine)[0][0])

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(lambda _: run(reader, slow, 30.0).rows, range(24)))
    done.set()
    watcher.join()
    assert found == [((4**9,),)] * 24
    assert 0 < most <= MAX_CONNECTIONS
    endless = f"SELECT COUNT(*) FROM {', '.join(f't t{n}' for n in range(14))}"  # 4 ** 14 rows
    monkeypatch.setattr(read_only, "WAIT_S", 0.1)
    with ThreadPoolExecutor(MAX_CONNECTIONS) as pool:
        others = [pool.submit(run, reader, endless, 10.0) for _ in range(MAX_CONNECTIONS)]
        deadline, busy = time.monotonic() + 10.0, f"{mine} AND info LIKE 'SELECT%t13'"
        while as_admin(server, busy)[0][0] < MAX_CONNECTIONS and time.monotonic() < deadline:
            time.sleep(0.05)
        with pytest.raises(BackendUnavailable, match="all 8 connections of this process were busy for 0 s"):
            run(reader, "SELECT 1", 0.6)
    assert [other.exception() for other in others] == [None] * MAX_CONNECTIONS


def test_a_fork_makes_connections_of_its_own(reader):
    assert run(reader, "SELECT 1").rows == ((1,),)
    ours = run(reader, "SELECT CONNECTION_ID()").rows
    receive, send = os.pipe()
    if not (child := os.fork()):
        os.write(send, json.dumps(run(reader, "SELECT CONNECTION_ID()").rows).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert json.loads(os.read(receive, 99)) != [list(ours[0])]
    assert run(reader, "SELECT CONNECTION_ID()").rows == ours


def test_a_server_that_is_gone_loses_the_rollout_and_says_so(account):
    with PrivateServer() as own:
        as_admin(own, "CREATE DATABASE d", "CREATE TABLE d.t (a INT)", "CREATE USER r@'%' IDENTIFIED BY 'pw1'",
                 "GRANT SELECT ON d.* TO r@'%'")  # fmt: skip
        spec = f"mysql://r:pw1@127.0.0.1:{urlsplit(own.url).port}/d"
        environment = TextToSql(spec)
        question = Question("q", "?", "d", "SELECT a FROM t")
        episode = environment.open(question, AgentConfig())
        assert episode.call_tool("execute_sql", json.dumps({"sql": "SELECT a FROM t"})) == '["a"]'
    with pytest.raises(BackendUnavailable, match=r"mysql://r:\*\*\*@127.0.0.1:\d+/d: .*; the server has to run"):
        episode.call_tool("execute_sql", json.dumps({"sql": "SELECT a FROM t"}))
    episode.call_tool("submit_sql", json.dumps({"sql": "SELECT a FROM t"}))
    with pytest.raises(BackendUnavailable) as caught:
        environment.judge(episode)
    assert "pw1" not in str(caught.value)


def test_a_connection_that_the_server_ends_early_is_no_fault_of_the_statement(server, reader):
    crossed = f"SELECT COUNT(*) FROM {', '.join(f't t{n}' for n in range(14))}"
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(run, reader, crossed, 20.0)
        while not as_admin(server, f"SELECT 1 FROM information_schema.processlist WHERE info = '{crossed}'"):
            time.sleep(0.02)
        as_admin(server, f"KILL USER {reader.address.user}")
        with pytest.raises(BackendUnavailable, match="the connection was lost during a statement"):
            lost.result()
    assert run(reader, "SELECT 1").rows == ((1,),)


@pytest.mark.slow
def test_hostile_statements_change_nothing_on_the_server_and_end_in_time(server, reader):
    before, late = contents(server), []
    for name, sql in STATEMENTS:
        started = time.monotonic()
        run(reader, sql, 0.5)
        if time.monotonic() - started > 3.0:
            late.append((name, sql[:80], round(time.monotonic() - started, 1)))
    assert late == []
    assert run(reader, "SELECT COUNT(*) FROM t").rows == ((4,),)
    assert contents(server) == before
    assert not [name for name in os.listdir(os.path.dirname(ESCAPE)) if name.startswith(os.path.basename(ESCAPE))]


# tasks and verdicts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("query", "sql", "reason"), [
    ("SELECT name FROM customer WHERE id < 3", "SELECT name FROM customer WHERE id IN (2, 1)", "match"),
    ("SELECT name FROM customer WHERE id < 3 ORDER BY id", "SELECT name FROM customer WHERE id < 3 ORDER BY id DESC",
     "wrong_result"),
    ("SELECT SUM(total) FROM `order`", "SELECT 7.75", "match"),
    ("SELECT AVG(total) FROM `order`", "SELECT 2.58333", "wrong_result"),
    ("SELECT born FROM customer WHERE id = 1", "SELECT '1990-02-03'", "match"),
    ("SELECT note FROM `order` WHERE nr = 1", "SELECT x'00'", "match"),
    ("SELECT CONCAT(b, '\\'') FROM t # ORDER BY", "SELECT CONCAT(b, '''') FROM t ORDER BY b DESC", "match"),
    ("SELECT 1", "SELECT on_sale FROM customer", "sql_error"),
    ("SELECT 1", "DELETE FROM customer", "sql_error"),
    ("SELECT 1", "SELECT x.a FROM t x, t y, t z, t u, t v, t w, t p", "too_many_rows"),
    ("SELECT gone FROM t", "SELECT 1", "reference_failed"),
])  # fmt: skip
def test_a_submitted_query_is_judged_by_its_result(environment, query, sql, reason):
    episode = environment.open(Question("q", "?", "my_shop", query), AgentConfig())
    episode.call_tool("submit_sql", json.dumps({"sql": sql}))
    score = environment.judge(episode)
    assert (score.reason, score.value) == (
        reason,
        None if reason == "reference_failed" else float(reason == "match"),
    )


def written(tmp_path, *rows):
    (tmp_path / "q.json").write_text(json.dumps(rows))
    return tmp_path / "q.json"


def test_questions_name_the_database_or_none_and_references_are_run_first(environment, tmp_path):
    file = written(
        tmp_path,
        {"question": "a", "query": "SELECT name FROM customer ORDER BY id", "db_id": "my_shop"},
        {"question": "b", "query": "SELECT name FROM customer WHERE id > 9"},
        {"question": "c", "query": "SELECT gone FROM customer"},
    )
    split = environment.read_split(DataConfig(train_file=file, val_file=file), seed=0)
    assert ([q.id for q in split.train], split.left_out) == (["q-1"], {"reference_failed": 2, "empty_answer": 1})
    assert {q.db_id for q in split.val} == {"my_shop"}
    spider = written(tmp_path, {"question": "a", "query": "SELECT 1", "db_id": "x"})
    assert [q.db_id for q in read_questions(spider, environment.databases)] == ["my_shop"]


def test_tasks_that_change_data_are_refused_with_what_to_use(environment, tmp_path):
    file = written(tmp_path, {"question": "a", "query": "DELETE FROM customer"})
    with pytest.raises(
        QuestionFileError, match=r"row 1: the reference changes data, .*copy the database into a SQLite"
    ):
        read_questions(file, environment.databases)


@pytest.mark.parametrize("judge", ["spider", "bird"])
def test_only_the_strict_judge_compares_results_of_a_server(address, judge):
    settings = EnvironmentSettings("text2sql", judge=judge, database=named_database(address))
    with pytest.raises(ValueError, match=f"the judge {judge} compares as an evaluator that runs SQLite; .* is strict"):
        make_environment(settings)


def test_an_environment_that_reads_a_file_refuses_a_server():
    with pytest.raises(ValueError, match=r"env.type=medical reads a SQLite file; got mysql://me:\*\*\*@host/d"):
        make_environment(EnvironmentSettings("medical", database=named_database(f"mysql://me:{WRITTEN}@host/d")))


def test_the_doctor_says_what_it_sees_and_which_accounts_it_refuses(account, address, tmp_path):
    tasks = written(tmp_path, {"question": "a", "query": "SELECT 1"}, {"question": "b", "query": "SELECT gone FROM t"})
    found = check_database(named_database(address), tasks)
    assert found.found.startswith("MariaDB ") and found.found.endswith(
        ", 4 tables and views, an account that may only read; 2 questions"
    )
    assert "1 references fail" in found.problems[0].what and "MySQL's SQL, one SELECT" in found.problems[0].remedy
    [(_, refused_account)] = examine(database=named_database(account("ALL ON my_shop.*")), tasks=None, splits=False)
    assert "ALL PRIVILEGES on `my_shop`.*" in refused_account.problems[0].what
    [(_, gone)] = examine(database=named_database("mysql://a:pw1@127.0.0.1:1/d"), tasks=None, splits=False)
    assert "mysql://a:***@127.0.0.1:1/d" in gone.problems[0].what and "pw1" not in str(gone)

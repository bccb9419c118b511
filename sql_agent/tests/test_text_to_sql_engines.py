"""Questions about a person's own database on every engine: what is shown, allowed and right."""

import json
import re

import pytest

from agentgrpo.checks import UsageError, examine
from dbbench_adapter.datatypes import Score
from dbbench_adapter.engines import named_database
from dbbench_adapter.tests.engine_worlds import WRITTEN
from sql_agent.commands import doctor
from sql_agent.commands import sft as train_sft
from sql_agent.environments.base import make_environment
from sql_agent.settings.groups import AgentConfig, DataConfig, EnvConfig, EnvironmentSettings
from sql_agent.startup.input_checks import check_database
from sql_agent.text_to_sql.datatypes import Question
from sql_agent.text_to_sql.environment import TextToSql
from sql_agent.text_to_sql.linking import column_values
from sql_agent.text_to_sql.load import read_questions
from sql_agent.text_to_sql.schema import render_schema

pytestmark = pytest.mark.usefixtures("few_objects")


@pytest.fixture
def environment(engine_world):
    with TextToSql(engine_world.place) as opened:
        yield opened


@pytest.fixture
def on_mysql(shop_address):
    with TextToSql(shop_address) as opened:
        yield opened


@pytest.fixture
def on_postgresql(postgres_address):
    with TextToSql(postgres_address) as opened:
        yield opened


@pytest.fixture(params=["shop_address", "postgres_address"])
def server_address(request):
    return request.getfixturevalue(request.param)


# settings -------------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("engine_world", ["DuckDB", "MariaDB", "PostgreSQL"], indirect=True)
@pytest.mark.parametrize("judge", ["spider", "bird"])
def test_only_the_strict_judge_compares_results_of_other_engines_than_sqlite(engine_world, judge):
    settings = EnvironmentSettings("text2sql", judge=judge, database=named_database(str(engine_world.place)))
    with pytest.raises(ValueError, match=f"the judge {judge} compares as an evaluator that runs SQLite; .* is strict"):
        make_environment(settings)


# prompts --------------------------------------------------------------------------------------------------------------


SQLITE_SCHEMA = """\
CREATE TABLE customer (
  id INT, -- 1, 2
  name VARCHAR(40), -- 'Ann O''Hara', 'Bo'
  "home town" TEXT, -- 'Ulm', 'Bonn'
  born DATE, -- '1990-02-03'
  PRIMARY KEY (id)
);
CREATE TABLE "order" (
  nr INT, -- 1, 2
  customer INT, -- 1, 2
  total DECIMAL(8,2), -- 2.5, 4
  note BLOB,
  PRIMARY KEY (nr, customer),
  FOREIGN KEY (customer) REFERENCES customer(id)
);
CREATE VIEW spent (
  customer INT,
  total
);"""
DUCKDB_SCHEMA = """\
CREATE TABLE customer (
  id INTEGER, -- 1, 2
  name VARCHAR, -- 'Ann O''Hara', 'Bo'
  "home town" VARCHAR, -- 'Ulm', 'Bonn'
  born DATE, -- '1990-02-03'
  PRIMARY KEY (id)
);
CREATE TABLE "order" (
  nr INTEGER, -- 1, 2
  customer INTEGER, -- 1, 2
  total DECIMAL(8,2), -- 2.5, 4.0
  note BLOB,
  PRIMARY KEY (nr, customer),
  FOREIGN KEY (customer) REFERENCES customer(id)
);
CREATE VIEW spent (
  customer INTEGER,
  total DECIMAL(38,2)
);"""
MYSQL_SCHEMA = """\
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

POSTGRES_SCHEMA = """\
CREATE TABLE customer (
  id integer, -- 1, 2
  name character varying(40), -- 'Ann O''Hara', 'Bo'
  "home town" text, -- 'Ulm', 'Bonn'
  born date, -- '1990-02-03'
  PRIMARY KEY (id)
);
CREATE TABLE "order" (
  nr integer, -- 1, 2
  customer integer, -- 1, 2
  total numeric(8,2), -- 2.5, 4.0
  note bytea,
  PRIMARY KEY (nr, customer),
  FOREIGN KEY (customer) REFERENCES customer(id)
);
CREATE VIEW spent (
  customer integer,
  total numeric
);"""


@pytest.mark.parametrize(("engine_world", "engine", "schema"), [
    ("SQLite", "SQLite", SQLITE_SCHEMA), ("DuckDB", "DuckDB", DUCKDB_SCHEMA), ("MariaDB", "MySQL", MYSQL_SCHEMA),
    ("PostgreSQL", "PostgreSQL", POSTGRES_SCHEMA),
], indirect=["engine_world"])  # fmt: skip
def test_the_prompt_shows_types_keys_and_values_as_statements_have_to_write_them(environment, engine, schema):
    tables = {table.name: table for table in environment.databases.schema("my_shop")}
    assert render_schema([tables[name] for name in ("customer", "order", "spent")], form="ddl").text == schema
    prompt = environment.messages(Question("q", "How many?", "my_shop"))[0]["content"]
    assert f"with one {engine} query" in prompt
    quote = "`" if engine == "MySQL" else '"'
    assert f"{quote}order{quote}(" in prompt


# tasks and verdicts ---------------------------------------------------------------------------------------------------


def play(environment, query, sql):
    episode = environment.open(Question("q", "?", "my_shop", query), AgentConfig())
    episode.call_tool("submit_sql", json.dumps({"sql": sql}))
    return environment.judge(episode)


@pytest.mark.parametrize(("query", "sql", "reason"), [
    ("SELECT name FROM customer WHERE id < 3", "SELECT name FROM customer WHERE id IN (2, 1)", "match"),
    ("SELECT name FROM customer WHERE id < 3 ORDER BY id", "SELECT name FROM customer WHERE id < 3 ORDER BY id DESC",
     "wrong_result"),
    ("SELECT SUM(total) FROM `order`", "SELECT 7.75", "match"),
    ("SELECT born FROM customer WHERE id = 1", "SELECT '1990-02-03'", "match"),
    ("SELECT note FROM `order` WHERE nr = 1", "SELECT x'00'", "match"),
    ("SELECT 1", "SELECT on_sale FROM customer", "sql_error"),
    ("SELECT 1", "DELETE FROM customer", "sql_error"),
    ("SELECT 1", "SELECT x.a FROM t x, t y, t z, t u, t v, t w, t p", "too_many_rows"),
    ("SELECT gone FROM t", "SELECT 1", "reference_failed"),
])  # fmt: skip
def test_a_submitted_query_is_judged_by_its_result(engine_world, environment, query, sql, reason):
    value = None if reason == "reference_failed" else float(reason == "match")
    likeness = {"likeness": 1.0} if reason == "wrong_result" else {}  # the order alone is wrong
    assert play(environment, *map(engine_world.written, (query, sql))) == Score(value, reason, likeness)


@pytest.mark.parametrize(("query", "sql", "reason"), [
    ("SELECT AVG(total) FROM `order`", "SELECT 2.58333", "wrong_result"),
    # the server gives four decimals of an average of whole numbers
    ("SELECT AVG(customer) FROM `order`", "SELECT 1.33333333", "match"),
    ("SELECT b FROM t # ORDER BY b", "SELECT b FROM t ORDER BY b DESC", "match"),
    ("SELECT CONCAT(b, '\\'') FROM t # ORDER BY", "SELECT CONCAT(b, '''') FROM t ORDER BY b DESC", "match"),
])  # fmt: skip
def test_mysqls_own_sql_is_judged_by_its_result(on_mysql, query, sql, reason):
    assert play(on_mysql, query, sql).reason == reason


@pytest.mark.parametrize(("query", "sql", "reason"), [
    ('SELECT AVG(total) FROM "order"', "SELECT 2.58333", "wrong_result"),
    ('SELECT AVG(customer) FROM "order"', "SELECT 4::float8 / 3", "match"),
    ("SELECT b FROM t -- ORDER BY b", "SELECT b FROM t ORDER BY b DESC", "match"),
    ("SELECT $$ORDER BY$$ || b FROM t", "SELECT 'ORDER BY' || b FROM t ORDER BY b DESC", "match"),
    # tied rows may change places
    ("SELECT a, b FROM t ORDER BY a", "SELECT a, b FROM t ORDER BY a, b DESC", "match"),
    ("SELECT a, b FROM t ORDER BY a", "SELECT a, b FROM t ORDER BY b", "wrong_result"),
    ("SELECT b % 2 AS b FROM t ORDER BY -b", "SELECT b % 2 FROM t ORDER BY b DESC", "match"),
    ("SELECT DISTINCT ON (a) a, b FROM t ORDER BY a, b", "SELECT a, MIN(b) FROM t GROUP BY a ORDER BY a", "match"),
    ("SELECT true, ARRAY[1]", "SELECT 1 = 1, '{1}'", "match"),
    ("SELECT 'NaN'::numeric", "SELECT 'NaN'::float8", "match"),
    ("SELECT 1", "SELECT pg_sleep(9)", "sql_error"),
])  # fmt: skip
def test_postgresqls_own_sql_is_judged_by_its_result(on_postgresql, query, sql, reason):
    assert play(on_postgresql, query, sql).reason == reason


@pytest.mark.parametrize("engine_world", ["DuckDB"], indirect=True)
@pytest.mark.parametrize(("query", "sql", "reason"), [
    ("SELECT b FROM t /* /* */ ORDER BY b */", "SELECT b FROM t ORDER BY b DESC", "match"),
    ("FROM t SELECT a ORDER BY b % 2 DESC", "SELECT a FROM t WHERE b IN (1, 3) UNION ALL FROM t SELECT a WHERE b > 1 "
     "AND b <> 3", "match"),  # rows that are tied may stand in any order
    ("SELECT a AS b, b AS c FROM t ORDER BY b % 2", "SELECT a, b FROM t ORDER BY b % 2, b DESC", "match"),
    ("SELECT list(b ORDER BY b) FROM t", "SELECT [1, 2, 3, 4]", "match"),
    ("SELECT id FROM customer USING SAMPLE 1 ROWS", "SELECT 1", "reference_failed"),
    ("SELECT today()", "SELECT today()", "reference_failed"), ("SELECT uuidv7()", "SELECT 1", "reference_failed"),
    ("SELECT age(born) FROM customer", "SELECT 1", "reference_failed"),
    ("SELECT age(born, born) FROM customer WHERE id = 1", "SELECT '00:00:00'", "match"),
])  # fmt: skip
def test_duckdbs_own_sql_is_judged_by_its_result(environment, query, sql, reason):
    assert play(environment, query, sql).reason == reason


def written(tmp_path, *rows):
    (tmp_path / "q.json").write_text(json.dumps(rows))
    return tmp_path / "q.json"


def test_a_reference_that_depends_on_the_time_is_named_and_left_out(engine_world, environment, tmp_path, capsys):
    # its kept result was another one a second later, and the reference itself was judged wrong
    file = written(
        tmp_path,
        {"question": "a", "query": "SELECT name FROM customer"},
        {"question": "b", "query": "SELECT name, CURRENT_TIMESTAMP FROM customer"},
    )
    split = environment.read_split(DataConfig(train_file=file, val_file=file), seed=0)
    assert [q.id for q in (*split.train, *split.val)] == ["q-1", "q-1"]
    assert split.left_out == {"reference_failed": 2}
    why = r"q-2 \(b\): CURRENT_TIMESTAMP\S* makes its result depend on the time or on chance"
    assert re.search(why, capsys.readouterr().out)
    (problem,) = check_database(engine_world.place, file).problems
    assert re.search(why, problem.what)


def test_questions_name_the_database_or_none_and_references_are_run_first(environment, tmp_path, capsys):
    file = written(
        tmp_path,
        {"question": "a", "query": "SELECT name FROM customer ORDER BY id", "db_id": "my_shop"},
        {"question": "b", "query": "SELECT name FROM customer WHERE id > 9"},
        {"question": "c", "query": "SELECT gone FROM customer"},
    )
    split = environment.read_split(DataConfig(train_file=file, val_file=file), seed=0)
    assert ([q.id for q in split.train], split.left_out) == (["q-1"], {"reference_failed": 2, "empty_answer": 1})
    assert ([q.id for q in split.val], {q.db_id for q in split.val}) == (["q-1", "q-2"], {"my_shop"})
    assert "left out: q-2 (b): no row answers it\n" in (said := capsys.readouterr().out)
    assert "held out, although no row answers or nothing changes: 1; every query that finds nothing is right" in said
    spider = written(tmp_path, {"question": "a", "query": "SELECT 1", "db_id": "x"})
    assert [q.db_id for q in read_questions(spider, environment.databases)] == ["my_shop"]


@pytest.mark.parametrize("engine_world", ["DuckDB", "MariaDB", "PostgreSQL"], indirect=True)
def test_tasks_that_change_data_are_refused_with_what_to_use(environment, tmp_path):
    file = written(tmp_path, {"question": "a", "query": "DELETE FROM customer"})
    with pytest.raises(UsageError, match=r"row 1: the reference changes data, .*copy the database into a SQLite"):
        read_questions(file, environment.databases)


@pytest.mark.parametrize("engine_world", ["DuckDB"], indirect=True)
def test_the_doctor_says_which_references_of_a_duckdb_file_fail(engine_world, tmp_path):
    tasks = written(tmp_path, {"question": "a", "query": "FROM t"}, {"question": "b", "query": "FROM '/etc/x.csv'"})
    found = check_database(engine_world.place, tasks)
    assert re.fullmatch(r"1 DuckDB, 4 tables and views, \d\.\d MiB; 2 questions", found.found)
    assert "1 references fail" in found.problems[0].what and "DuckDB's SQL, one SELECT" in found.problems[0].remedy


@pytest.mark.parametrize(("address", "account", "statement", "engine", "too_much"), [
    ("shop_address", "shop_account", "ALL ON my_shop.*", "MariaDB", "ALL PRIVILEGES on `my_shop`.*"),
    ("postgres_address", "postgres_account", "GRANT INSERT ON t TO {name}", "PostgreSQL", "INSERT on t"),
])  # fmt: skip
def test_the_doctor_says_what_it_sees_and_which_accounts_it_refuses(
    request, tmp_path, address, account, statement, engine, too_much
):
    place, make = map(request.getfixturevalue, (address, account))
    tasks = written(tmp_path, {"question": "a", "query": "SELECT 1"}, {"question": "b", "query": "SELECT gone FROM t"})
    found = check_database(named_database(place), tasks)
    assert found.found.startswith(f"{engine} ") and found.found.endswith(
        ", 4 tables and views, an account that may only read; 2 questions"
    )
    name = engine.replace("MariaDB", "MySQL")
    assert "1 references fail" in found.problems[0].what and f"{name}'s SQL, one SELECT" in found.problems[0].remedy
    [(_, refused_account)] = examine(database=named_database(make(statement)), tasks=None, splits=False, columns=None)
    assert too_much in refused_account.problems[0].what
    gone_place = f"{name.lower()}://a:pw1@127.0.0.1:1/d"
    [(_, gone)] = examine(database=named_database(gone_place), tasks=None, splits=False, columns=None)
    assert f"{name.lower()}://a:***@127.0.0.1:1/d" in gone.problems[0].what and "pw1" not in str(gone)


def test_schema_linking_finds_the_columns_by_their_values_on_every_engine(environment):
    found = column_values(environment.databases.schema("my_shop"), environment.databases.open(
        "my_shop", statement_timeout_s=1.0
    ))  # fmt: skip
    assert (found["ulm"], found["bo"]) == ({("customer", "home town")}, {("customer", "name")})

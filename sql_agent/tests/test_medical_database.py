"""`sql_agent.medical.database`: what a database has to hold, and what an agent cannot do to it."""

import hashlib
import math
import sqlite3
import time
from contextlib import closing

import pytest

from agentgrpo.checks import UsageError
from dbbench_adapter.engines import BackendUnavailable, Result
from dbbench_adapter.engines.sqlite.read_only import connect
from dbbench_adapter.engines.sqlite.sandbox import Watchdog
from sql_agent.medical.database import (
    MAX_RESULT_CHARS,
    MAX_ROWS,
    TRUNCATED,
    MedicalDatabase,
    check_questions,
    format_result,
    missing,
    read_schema,
)
from sql_agent.medical.datatypes import TABLES, Question
from sql_agent.medical.words import make_database

pytestmark = pytest.mark.usefixtures("few_objects")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Invented entries, and a table of the user's own that is none of the agent's business."""
    file = tmp_path_factory.mktemp("medical") / "medi cal?#.db"
    make_database(file, n_drugs=20, n_diseases=20)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE patients (name TEXT)")
        connection.execute("INSERT INTO patients VALUES ('5ecret')")
        connection.commit()
    return file


@pytest.fixture(scope="module")
def watchdog():
    dog = Watchdog()
    dog.ensure_alive()
    yield dog
    dog.stop()


@pytest.fixture
def database(path, watchdog):
    with closing(MedicalDatabase(path, read_schema(path), watchdog, statement_timeout_s=0.5)) as opened:
        yield opened


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT count(*) FROM drugs_info", ((20,),)),
        ("SELECT count(*) FROM (SELECT DISTINCT id FROM disease)", ((20,),)),
        ("WITH d AS (SELECT id FROM disease) SELECT count(*) FROM d", ((20,),)),
        ("SELECT id FROM drugs_info WHERE med_name LIKE '%片' OR lower(med_name) LIKE '%x%' LIMIT 0", ()),
        ("SELECT max(length('药')) FROM disease; -- one character", ((1,),)),
        ("", ()),
    ],
)
def test_an_agent_may_look(database, sql, rows):
    assert database.run(sql).rows == rows


COUNT = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT"
DOUBLED = ", ".join(f"c{k} AS (SELECT 1 AS x FROM c{k - 1} p, c{k - 1} q)" for k in range(1, 40))
HOSTILE = {
    "doubling": f"WITH c0 AS (SELECT 1 AS x), {DOUBLED} SELECT count(*) FROM c39",
    "attach": "ATTACH DATABASE '{folder}/new.db' AS x",
    "pragma": "PRAGMA query_only = OFF",
    "pragma_function": "SELECT * FROM pragma_table_info('patients')",
    "load_extension": "SELECT load_extension('/lib/x.so')",
    "insert": "INSERT INTO disease (disease_name) VALUES ('x')",
    "update": "UPDATE drugs_info SET dosage = 'all of it'",
    "delete": "DELETE FROM drugs_info",
    "drop": "DROP TABLE disease",
    "create_temp": "CREATE TEMP TABLE t (x)",
    "vacuum_into": "VACUUM INTO '{folder}/copy.db'",
    "transaction": "BEGIN EXCLUSIVE",
    "several_statements": "SELECT 1; DELETE FROM disease",
    "explain": "EXPLAIN SELECT id FROM disease",
    "explain_after_comments": " ;-- EXPLAIN\n/* a */ /* b */ eXplain QUERY PLAN SELECT id FROM disease",
    "another_table": "SELECT * FROM patients",
    "another_table_counted": "SELECT count(*) FROM main.PATIENTS",
    "another_table_under_a_name_of_ours": "WITH disease AS (SELECT name FROM patients) SELECT * FROM disease",
    "schema": "SELECT sql FROM sqlite_master",
    "schema_counted": "SELECT count(*) FROM SQLITE_Schema",
    "virtual_table": "SELECT * FROM json_each('[1]')",
    "dbstat": "SELECT count(*) FROM dbstat",
    "recursion": f"{COUNT} count(*) FROM r",
    "recursion_sorted": f"{COUNT} n FROM r ORDER BY n DESC",
    "recursion_of_texts": "WITH RECURSIVE r(n) AS (SELECT 'x' UNION ALL SELECT n || n FROM r) SELECT max(n) FROM r",
    "cross_join": "SELECT count(*) FROM disease a, disease b, disease c, disease d, disease e, disease f, disease g",
    "blob": "SELECT zeroblob(1000000000)",
    "wide": f"SELECT {', '.join(['1'] * 101)}",
    "deep": f"SELECT {'(' * 120}1{')' * 120}",
    "long": f"SELECT '{'x' * 20_000}'",
    "printf": "SELECT printf('%.*c', 1000000000, 'x')",
    "half_a_surrogate": "SELECT '\ud800'",
    "nul": "SELECT '\0'",
}  # fmt: skip


@pytest.mark.parametrize("sql", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_statements_are_answered_in_time_and_change_nothing(path, database, sql):
    before, started = contents(path), time.thread_time()
    result = database.run(sql.replace("{folder}", str(path.parent)))
    assert (result.rows, bool(result.error)) == (None, True)
    assert time.thread_time() - started < 1.5
    assert contents(path) == before
    assert "5ecret" not in format_result(result)
    assert database.run("SELECT count(*) FROM disease").rows == ((20,),)  # and the next one has its whole time


@pytest.mark.parametrize("sql", ["SELECT * FROM patients", "EXPLAIN SELECT 1", "SELECT load_extension('x')"])
def test_a_refusal_says_what_is_allowed_and_nothing_of_the_rest(database, sql):
    allowed = "Error: not allowed: only SELECT over disease and drugs_info, with common functions"
    assert format_result(database.run(sql)) == allowed


def test_a_long_comment_is_looked_through_in_time(database):
    started = time.thread_time()
    assert database.run("/* */" * 3_000 + "SELECT 1").rows == ((1,),)
    assert time.thread_time() - started < 0.5


LONG = "WITH RECURSIVE r(n, k) AS (SELECT 'a', 1 UNION ALL SELECT n || n, k + 1 FROM r WHERE k < 18) SELECT"
"""Of 131,072 letters in the end."""


@pytest.mark.parametrize("expression", [
    "instr(n, n || 'b')", "n LIKE '%' || n || 'b'", "n LIKE '%a%a%a%a%a%a%a%a%a%b'", "n LIKE '%_a_a_a_a_a_a_a_b%'",
    "replace(n, 'aa', 'aaa')", "group_concat(n)",
])  # fmt: skip
def test_long_texts_are_looked_through_in_time(database, expression):
    started = time.thread_time()
    database.run(f"{LONG} {', '.join([expression] * 90)} FROM r")
    assert time.thread_time() - started < 2.0
    assert database.run("SELECT count(*) FROM disease").rows == ((20,),)


def test_the_file_itself_is_open_for_reading_only(path):
    with closing(connect(path)) as connection:
        for unlock in ("SELECT 1", "PRAGMA query_only = OFF"):
            connection.execute(unlock)
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                connection.execute("DELETE FROM disease")


def contents(path):
    """Every file beside the database, by its bytes."""
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.parent.iterdir()}


def test_a_result_is_bounded_in_rows_and_in_characters(database):
    many = database.run("SELECT a.id FROM disease a, disease b")  # 20 x 20 = 400 rows
    assert len(many.rows) == MAX_ROWS
    text = format_result(database.run("SELECT * FROM drugs_info"))
    assert (len(text), text.endswith(TRUNCATED)) == (MAX_RESULT_CHARS + len(TRUNCATED), True)


def test_what_a_policy_reads_of_a_result():
    found = Result((("茶", None, 1.5, b"\x01"), ("half \ud800", None, -math.inf, b"")), ("a", "b", "c", "d"))
    expected = '{"columns": ["a", "b", "c", "d"], "rows": [["茶", null, 1.5, "01"], ["half ?", null, null, ""]]}'
    assert format_result(found) == expected
    assert format_result(Result(error="no such column: x")) == "Error: no such column: x"


def test_a_database_that_goes_away_is_not_the_policys_doing(path, watchdog, tmp_path):
    with pytest.raises(BackendUnavailable, match=r"cannot be opened: .*; leave it in place during the run"):
        MedicalDatabase(tmp_path / "none.db", {}, watchdog, statement_timeout_s=1.0)
    copy = tmp_path / "copy.db"
    copy.write_bytes(path.read_bytes())
    with closing(MedicalDatabase(copy, read_schema(copy), watchdog, statement_timeout_s=1.0)) as database:
        copy.write_bytes(b"x" * copy.stat().st_size)
        with pytest.raises(BackendUnavailable, match=r"no longer be read: .*; leave it as it is until the run ends"):
            database.run("SELECT * FROM disease")


# a user's own database ------------------------------------------------------------------------------------------------


def made(path, *statements):
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    return path


def test_one_of_the_two_tables_is_enough_and_what_it_lacks_is_named(tmp_path):
    columns = ", ".join(f"{column} TEXT" for column in TABLES["disease"].columns if column != "prognosis")
    table = f"CREATE TABLE disease (id INTEGER, disease_name TEXT, {columns}, our_notes TEXT)"
    file = made(tmp_path / "own.db", table, "INSERT INTO disease (id, disease_name) VALUES (1, 'x')")
    schema = read_schema(file)
    assert list(schema) == ["disease"]
    assert schema["disease"][:2] == ("id", "disease_name")
    assert "our_notes" in schema["disease"]  # the policy is shown it as well
    assert missing(schema) == ["drugs_info", "disease.prognosis"]


NAMED = "CREATE TABLE disease (id INTEGER, disease_name TEXT)"


@pytest.mark.parametrize(("statements", "words"), [
    pytest.param(["CREATE TABLE drugs (id INTEGER)"], "neither of the tables drugs_info and disease.*: drugs", id="no"),
    pytest.param(["CREATE TABLE disease (name TEXT)"], "no column id and no column disease_name; see", id="columns"),
    pytest.param([NAMED], "disease hold no row; add entries", id="empty"),
    pytest.param([NAMED.replace("disease (", "t ("), "CREATE VIEW disease AS SELECT * FROM t"], "not views", id="view"),
])  # fmt: skip
def test_what_a_database_lacks_is_named(tmp_path, statements, words):
    with pytest.raises(UsageError, match=words):
        read_schema(made(tmp_path / "own.db", *statements))


@pytest.mark.parametrize(("ids", "words"), [
    pytest.param("(1, 'a'), (NULL, 'b')", r"no whole number or text \(1 of 2\)", id="null"),
    pytest.param("(1, 'a'), (2.5, 'b'), (x'01', 'c')", r"no whole number or text \(2 of 3\)", id="fraction_and_bytes"),
    pytest.param("(7, 'a'), ('7', 'b'), (8, 'c')", r"an id that another row has \(1 of 3\)", id="doubled"),
])  # fmt: skip
def test_ids_that_name_no_one_row_are_refused(tmp_path, ids, words):
    table = "CREATE TABLE disease (id, disease_name TEXT)"
    with pytest.raises(UsageError, match=rf"table disease.*{words}.*give every row its own number or text"):
        read_schema(made(tmp_path / "own.db", table, f"INSERT INTO disease VALUES {ids}"))


def test_names_are_matched_without_case_as_sqlite_does(tmp_path, watchdog):
    table = "CREATE TABLE Disease (ID INTEGER, Disease_Name TEXT, CAUSE TEXT, Our_Notes TEXT)"
    file = made(tmp_path / "own.db", table, "INSERT INTO Disease VALUES (1, 'x', 'why', 'z')")
    schema = read_schema(file)
    assert schema == {"disease": ("id", "disease_name", "cause", "Our_Notes")}
    with closing(MedicalDatabase(file, schema, watchdog, statement_timeout_s=1.0)) as database:
        for name in ("disease", "Disease"):
            assert database.run(f"SELECT cause FROM {name} WHERE id = 1").rows == (("why",),)
            assert database.run(f"SELECT count(*) FROM {name}").rows == ((1,),)


def test_what_is_no_database_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"no database at .*agentgrpo tasks medical --output"):
        read_schema(tmp_path / "none.db")
    (tmp_path / "text.db").write_text("Dear Sir or Madam, " * 100)
    with pytest.raises(UsageError, match=r"be read as a SQLite database \(.*\); name one with --set env.database=FILE"):
        read_schema(tmp_path / "text.db")


@pytest.mark.parametrize("wrong", [
    {"table": "patients"}, {"column": "nosuch"}, {"row_id": 999}, {"column": None},
])  # fmt: skip
def test_questions_of_another_database_are_refused(path, wrong):
    fields = {"table": "disease", "row_id": 3, "column": "cause"}
    right = Question("q-0", "Why?", **fields)
    check_questions([right, Question("q-1", "Why?")], path, read_schema(path))
    with pytest.raises(UsageError, match=r"1 of 2 questions rest on .* first is 'q-2'.*; give their own database"):
        check_questions([right, Question("q-2", "Why?", **(fields | wrong))], path, read_schema(path))

"""Questions about a person's own SQLite databases: what is read, shown, allowed and called right."""

import json
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from itertools import permutations, product
from pathlib import Path

import pytest

from agentgrpo.checks import UsageError
from agentgrpo.tests.seconds import seconds_here
from dbbench_adapter.engines import Result
from dbbench_adapter.engines.engine import Change, ColumnInfo, TableInfo
from dbbench_adapter.engines.mysql import MYSQL
from dbbench_adapter.engines.postgresql import POSTGRESQL
from dbbench_adapter.engines.sqlite import SQLITE
from dbbench_adapter.engines.sqlite.databases import DatabaseFiles
from dbbench_adapter.engines.sqlite.schema import read_schema
from dbbench_adapter.tests.test_user_database import SHOP
from sql_agent.environments.base import make_environment
from sql_agent.prompts.fit import PromptLimit, fit_split
from sql_agent.settings.groups import AgentConfig, DataConfig, EnvironmentSettings
from sql_agent.text_to_sql import environment as text_to_sql
from sql_agent.text_to_sql.datatypes import Question
from sql_agent.text_to_sql.environment import TextToSql
from sql_agent.text_to_sql.episode import format_rows, unfenced
from sql_agent.text_to_sql.judges import EXECUTION_JUDGES, as_run, likeness, same_result, same_state
from sql_agent.text_to_sql.load import kind_of, orders_rows, read_questions, split_questions
from sql_agent.text_to_sql.nondeterministic import nondeterministic_part
from sql_agent.text_to_sql.schema import lengths, render_schema

pytestmark = pytest.mark.usefixtures("few_objects")
GEOGRAPHY = Path(__file__).resolve().parents[3] / "shared" / "text2sql" / "geography"


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    file = tmp_path_factory.mktemp("own") / "my shop?.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(SHOP)
    return file


@pytest.fixture
def environment(shop):
    with TextToSql(shop) as opened:
        yield opened


def written(path, rows, *, lines=False):
    path.write_text("\n".join(map(json.dumps, rows)) if lines else json.dumps(rows))
    return path


# rows -----------------------------------------------------------------------------------------------------------------


def test_rows_of_spider_and_bird_and_answers_are_read(shop, tmp_path):
    rows = [
        {"db_id": "my shop?", "question": " How many? ", "query": "SELECT count(*) FROM orders", "sql": {"select": []}},
        {"question_id": 7, "db_id": "my shop?", "question": "Who?", "SQL": "SELECT name FROM customer ORDER BY id",
         "evidence": "names are in name", "difficulty": "moderate"},
        {"question": "Which town?", "answer": "Ulm"},
        {"question": "Which ids?", "answer": [1, 2]},
        {"question": "Which pairs?", "answer": [[1, None], [2, 2.5]]},
        {"question": "Any?", "answer": True},
    ]  # fmt: skip
    expected = [
        Question("q-1", "How many?", "my shop?", "SELECT count(*) FROM orders", kind="aggregate"),
        Question(
            "q-2", "Who?", "my shop?", "SELECT name FROM customer ORDER BY id", None, "names are in name", "moderate"
        ),
        Question("q-3", "Which town?", "my shop?", answer=(("Ulm",),)),
        Question("q-4", "Which ids?", "my shop?", answer=((1,), (2,))),
        Question("q-5", "Which pairs?", "my shop?", answer=((1, None), (2, 2.5))),
        Question("q-6", "Any?", "my shop?", answer=((1,),)),
    ]
    for name, lines in (("q.json", False), ("q.jsonl", True)):
        assert read_questions(written(tmp_path / name, rows, lines=lines), DatabaseFiles(shop)) == expected
    assert [Question.from_dict(json.loads(json.dumps(q.to_dict()))) for q in expected] == expected


def test_an_id_is_the_line_that_messages_name(shop, tmp_path):
    (tmp_path / "q.jsonl").write_text('\n{"question": "a", "query": "SELECT 1"}\n\n{"question": "b", "answer": 1}\n')
    assert [q.id for q in read_questions(tmp_path / "q.jsonl", DatabaseFiles(shop))] == ["q-2", "q-4"]
    (tmp_path / "q.jsonl").write_text('\n{"question": "a", "query": "SELECT 1"}\n\n{"question": "b"}\n')
    with pytest.raises(UsageError, match=r"q\.jsonl, line 4: found 'question'; expected question and query, or"):
        read_questions(tmp_path / "q.jsonl", DatabaseFiles(shop))


def test_a_folder_of_questions_is_called_one(shop, tmp_path):
    with pytest.raises(UsageError, match=r" is a folder; expected rows .* JSON or JSONL$"):
        read_questions(tmp_path, DatabaseFiles(shop))


def test_a_file_is_the_database_whatever_its_rows_call_it(shop, tmp_path):
    asked = {"question": "How many?", "query": "SELECT count(*) FROM orders"}
    file = written(tmp_path / "q.json", [{**asked, "db_id": "concert_singer"}, asked], lines=False)
    assert {q.db_id for q in read_questions(file, DatabaseFiles(shop))} == {"my shop?"}


def test_rows_about_several_databases_do_not_go_with_one_file(shop, tmp_path):
    asked = {"question": "How many?", "query": "SELECT count(*) FROM orders"}
    rows = [{**asked, "db_id": name} for name in ("shop", "town", "shop", "city")]
    file = written(tmp_path / "q.json", rows, lines=False)
    words = r"q.json is about 3 databases \(shop 2, town 1, city 1\), and --database is one; give the folder"
    with pytest.raises(UsageError, match=words):
        read_questions(file, DatabaseFiles(shop))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[{"query": "SELECT 1"}]',
            "row 1: found 'query'; expected question and query, or question and answer; name yours: --columns ",
        ),
        (
            '{"question": "a", "query": "b"}\n{"question": "a", "db_id": 3, "query": "b"}',
            "line 2: `db_id` is 3, expect",
        ),
        ('[{"question": "a", "query": 3}]', "row 1: `query` is 3, expected a text"),
        ('[{"question": "a"}]', "row 1: found 'question'; expected question and query"),
        ('[{"question": 1, "query": "b"}]', "row 1: `question` is 1, expected a text"),
        (
            '[{"question": "a", "answer": [{"b": 1}]}]',
            "row 1: `answer` holds {'b': 1}, expected numbers, texts or null",
        ),
        ('["a"]', "row 1: expected an object, found 'a'"),
        ("[]", "holds no question"),
        ("", "holds no question"),
        ("[", "row 1: end of the list missing"),
        ('{"a": 1}\n{', "line 1: found 'a'"),
        ("{", "q.json is neither JSON nor JSON Lines: not JSON"),
        ('[{"question": "a", "answer": ' + "9" * 5000 + "}]", "row 1: not JSON: Exceeds the limit"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(shop, tmp_path, text, said):
    (tmp_path / "q.json").write_text(text)
    with pytest.raises(UsageError, match=said):
        read_questions(tmp_path / "q.json", DatabaseFiles(shop))


def test_a_line_ends_at_a_line_feed_alone(shop, tmp_path):
    rows = [{"question": "One\u2028or\x85two?", "query": "SELECT 1"}] * 2
    (tmp_path / "q.jsonl").write_bytes("\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode())
    assert [q.question for q in read_questions(tmp_path / "q.jsonl", DatabaseFiles(shop))] == [
        "One\u2028or\x85two?"
    ] * 2


@pytest.mark.parametrize(("query", "kind", "ordered"), [
    ("SELECT a FROM t", "plain", False),
    ("SELECT a FROM t ORDER BY a", "plain", True),
    ("SELECT a FROM (SELECT a FROM t ORDER BY a LIMIT 3)", "nested", False),
    ("SELECT a FROM t UNION SELECT b FROM u ORDER BY 1", "set", True),
    ("SELECT a FROM t JOIN u USING (b)", "join", False),
    ("SELECT a, count(*) FROM t GROUP BY a", "group", False),
    ("SELECT max(a) FROM t", "aggregate", False),
    ("SELECT a FROM t WHERE (", "other", False),
    ("SELECT a FROM t WHERE a IN (SELECT a FROM t ORDER BY a) - 1", "other", False),  # sqlglot does not read it
    ("SELECT a FROM t WHERE a IN (SELECT a FROM t) - 1 ORDER -- by\n BY a", "other", True),
    ("SELECT a FROM t ORDER/**/BY a", "plain", True),
    ("SELECT 'order by', \"order by\" FROM t -- order by", "plain", False),
    ('SELECT max( t.a ) FROM t WHERE b = "x"', "aggregate", False),
    ("SELECT a FROM t ORDER BY a; -- a comment", "plain", True),
    ("SELECT a FROM t; /* order by */", "plain", False),
    ("SELECT " + "(" * 500 + "1" + ")" * 500 + " ORDER BY 1", "other", True),
])  # fmt: skip
def test_a_reference_says_its_kind_and_whether_it_orders_rows(query, kind, ordered):
    assert (kind_of(query), orders_rows(query)) == (kind, ordered)


def test_a_held_out_reference_is_never_trained_on_and_several_databases_are_held_out_whole():
    one = [Question(f"q-{i}", "?", "a", f"SELECT {i // 2}") for i in range(20)]
    train, val = split_questions(one, 0.2)
    assert (len(train), len(val)) == (16, 4)
    assert not {q.query for q in train} & {q.query for q in val}
    several = [Question(f"q-{i}", "?", f"db{i % 5}", f"SELECT {i}") for i in range(20)]
    train, val = split_questions(several, 0.2)
    assert [len({q.db_id for q in part}) for part in (train, val)] == [4, 1]
    assert not {q.db_id for q in train} & {q.db_id for q in val}
    assert split_questions(several, 0.2) == (train, val)
    with pytest.raises(ValueError, match=r"2 question\(s\) with 1 different reference\(s\) are too few"):
        split_questions(one[:2], 0.2)


# the schema -----------------------------------------------------------------------------------------------------------

WHOLE = """\
CREATE TABLE customer (
  id INTEGER, -- 1, 2
  name TEXT, -- 'Ann O''Hara', 'Bo'
  "home town" TEXT, -- 'Ulm', 'a town whose name goes o...'
  PRIMARY KEY (id)
);
CREATE TABLE orders (
  nr INTEGER, -- 1, 2
  customer INTEGER, -- 1, 2
  total REAL, -- 2.5, 4.0
  note BLOB,
  PRIMARY KEY (nr, customer),
  FOREIGN KEY (customer) REFERENCES customer(id)
);
CREATE VIEW spent (
  customer INTEGER,
  total
);"""


def test_the_schema_shows_types_keys_and_values(shop):
    whole = render_schema(read_schema(shop).tables, form="ddl")
    assert (whole.text, whole.values, whole.columns, whole.tables) == (WHOLE, True, (), ())


def test_a_schema_that_is_too_long_says_what_it_leaves_out(shop, tmp_path):
    tables = read_schema(shop).tables
    assert render_schema(tables, len(WHOLE), form="ddl").text == WHOLE
    cut = render_schema(tables, len(WHOLE) - 1, form="ddl")
    text = cut.text
    assert (cut.values, cut.columns, cut.tables) == (False, (), ())
    assert text.startswith("CREATE TABLE customer (\n  id INTEGER,\n") and text.endswith("-- left out: example values")
    shortest = (
        'CREATE TABLE customer (\n  id INTEGER,\n  name TEXT,\n  "home town" TEXT,\n  PRIMARY KEY (id)\n);\n'
        "-- left out: example values, the columns of orders, spent"
    )
    cut = render_schema(tables, 200, form="ddl")
    assert (cut.text, cut.tables) == (shortest, ("orders", "spent"))
    assert render_schema(tables, 1, form="ddl").text == shortest  # never empty
    found = lengths(tables, form="ddl")
    assert found == sorted(found, reverse=True) and found[-1] == len(shortest)
    wide = tmp_path / "wide.db"
    with closing(sqlite3.connect(wide)) as connection:
        connection.execute(f"CREATE TABLE w ({', '.join(f'c{i} INT' for i in range(50))}, PRIMARY KEY (c49))")
    cut = render_schema(read_schema(wide).tables, 150, form="ddl")
    assert cut.columns == tuple(("w", f"c{i}") for i in range(4, 49))  # the key stays
    assert cut.text == (
        "CREATE TABLE w (\n  c0 INT,\n  c1 INT,\n  c2 INT,\n  c3 INT,\n  c49 INT,\n  PRIMARY KEY (c49)\n);\n"
        "-- left out: 45 columns"
    )


@pytest.fixture
def odd(tmp_path):
    with closing(sqlite3.connect(tmp_path / "odd.db")) as connection:
        connection.executescript("""
            CREATE TABLE "order" (id INTEGER PRIMARY KEY, twice INT AS (id * 2), "group" TEXT, no TEXT);
            CREATE TABLE "cast" (nr INT, "order" INT REFERENCES "order", code TEXT AS (printf('%03d', nr)));
            CREATE VIEW broken AS SELECT gone FROM "order";
            CREATE VIEW trimmed AS SELECT trim(code, '0') AS code FROM "cast";
            CREATE VIRTUAL TABLE area USING rtree(id, low, high);
            DROP TABLE area;
            CREATE VIRTUAL TABLE area USING fts4(title);
            INSERT INTO "order" (id, "group") VALUES (7, 'g');
            INSERT INTO "cast" VALUES (5, 7);
            -- as sqlite-vec leaves it, which is not loaded here
            CREATE TABLE near_rowids (rowid INTEGER PRIMARY KEY, id);
            CREATE TABLE near_vector_chunks00 (rowid PRIMARY KEY, vectors BLOB NOT NULL);
            CREATE TABLE near_chunk (a);
            PRAGMA writable_schema = ON;
            INSERT INTO sqlite_master
                VALUES ('table', 'near', 'near', 0, 'CREATE VIRTUAL TABLE near USING vec0(a float[4])');
        """)
    return tmp_path / "odd.db"


def test_the_schema_shows_what_a_statement_may_name_as_it_has_to_be_written(odd):
    """Generated columns, names that are keywords, and what a foreign key without a column means; no virtual table, no
    data of one and no view that fails."""
    found = read_schema(odd)
    tables = {table.name: table for table in found.tables}
    assert tables.keys() == {"order", "cast", "trimmed", "near_chunk"}
    data = "it keeps the data of a virtual table"
    assert found.unreadable == {
        "broken": "no such column: gone",
        "area": "a virtual table",
        **{f"area_{part}": data for part in ("content", "segments", "segdir", "docsize", "stat")},
        "near": "a virtual table",
        "near_rowids": data,
        "near_vector_chunks00": data,
    }
    assert (
        render_schema([tables[name] for name in ("order", "cast", "trimmed")], form="ddl").text
        == """\
CREATE TABLE "order" (
  id INTEGER, -- 7
  twice INT, -- 14
  "group" TEXT, -- 'g'
  no TEXT,
  PRIMARY KEY (id)
);
CREATE TABLE "cast" (
  nr INT, -- 5
  "order" INT, -- 7
  code TEXT, -- '005'
  FOREIGN KEY ("order") REFERENCES "order"(id)
);
CREATE VIEW trimmed (
  code
);"""
    )


def test_the_cuts_of_a_schema_of_many_tables_take_no_time():
    columns = tuple(ColumnInfo(f"column{i}", "INT") for i in range(5))
    tables = [TableInfo(f"t{i}", columns) for i in range(1000)]
    started = time.thread_time()
    assert len(lengths(tables)) == 999  # ever fewer tables
    assert time.thread_time() - started < seconds_here(0.5)


# verdicts -------------------------------------------------------------------------------------------------------------

A, B = ((1, "x"), (2, "y"), (2, "y")), ((2, "y"), (1, "x"), (2, "y"))


@pytest.mark.parametrize(("given", "expected", "reference", "right"), [
    (A, A, "SELECT a, b FROM t", "strict spider bird"),
    (B, A, "SELECT a, b FROM t", "strict spider bird"),  # as multisets
    (B, A, "SELECT a, b FROM t ORDER BY a", "bird"),
    (A[:2], A, "SELECT a, b FROM t", "bird"),  # BIRD compares sets
    ((("x", 1), ("y", 2), ("y", 2)), A, "SELECT a, b FROM t", "spider"),  # Spider lets columns change places
    ((("x", 1), ("y", 2), ("y", 2)), A, "SELECT a, b FROM t ORDER BY a", "spider"),
    ((("x", 2), ("y", 1), ("y", 2)), A, "SELECT a, b FROM t", ""),
    (((1.0,),), ((1,),), "SELECT a", "strict spider bird"),
    (((0.1 + 0.2,),), ((0.3,),), "SELECT a", "strict"),  # the others compare numbers exactly
    ((("1",),), ((1,),), "SELECT a", ""),  # a number is no text, either way
    (((1,),), (("1",),), "SELECT a", ""),
    ((("null",),), ((None,),), "SELECT a", ""),
    (((None,),), (("None",),), "SELECT a", ""),
    (((0.00024,),), ((0.0002,),), "SELECT a", ""),
    (((2.3333,),), ((2.33333333333,),), "SELECT a", ""),
    (((3.0000000000000004,),), ((3,),), "SELECT a", "strict"),
    (((3,),), ((3.0000000000000004,),), "SELECT a", "strict"),
    (((10**12 + 1,),), ((10**12,),), "SELECT a", ""),  # whole numbers are compared exactly
    (((5.6e-17,),), ((0,),), "SELECT a", "strict"),  # 0.1 + 0.2 - 0.3
    (((1.6e-19,),), ((1.7e-19,),), "SELECT a", ""),
    (((9e999,),), ((9e999,),), "SELECT a", "strict spider bird"),
    (((10**400,),), ((1.5,),), "SELECT a", ""),
    ((("x'01'",),), ((b"\1",),), "SELECT a", ""),
    ((("a",),), (("' a '",),), "SELECT a", ""),
    (((" a ",),), (("a",),), "SELECT a", ""),
    ((("A",),), (("a",),), "SELECT a", ""),
    ((("A\udcff",),), (("A\udcfe",),), "SELECT a", "spider"),  # Spider leaves out bytes that are no UTF-8
    (((1, 1.5),), ((1.0, 1.5),), "SELECT a, b", "strict bird"),  # Spider sorts the cells of a row by their text
    (((1, "b"),), ((1.0, "b"),), "SELECT a, b", "strict spider bird"),
    (((1, 1.5), (2, 1.5)), ((1.0, 1.5), (2, 1.5)), "SELECT a, b ORDER BY a", "strict bird"),
    (((None,),), ((0,),), "SELECT a", ""),
    (((b"\1",),), ((b"\1",),), "SELECT a", "strict spider bird"),
    (((b"\1",),), ((1,),), "SELECT a", ""),
    ((), (), "SELECT a", "strict spider bird"),
    ((), ((1,),), "SELECT a", ""),
    (((1, 1),), ((1,),), "SELECT a", ""),
    (B, A, "SELECT a FROM t ORDER BY a; -- all", "bird"),
    (B, A, "SELECT a FROM (SELECT a FROM t ORDER BY a)", "strict bird"),  # Spider looks for the words alone
])  # fmt: skip
def test_each_judge_calls_right_what_its_rule_says(given, expected, reference, right):
    assert [judge for judge in EXECUTION_JUDGES if same_result(judge, given, expected, reference)] == right.split()


def test_columns_that_look_alike_are_not_tried_in_every_order():
    flags = [tuple(int(i == j) for j in range(12)) for i in range(12)]
    wrong = [(*row[:-1], row[0]) for row in flags]  # its columns have the same values as those of `flags`
    started = time.thread_time()
    assert not same_result("spider", tuple(wrong), tuple(flags), "SELECT *")
    assert same_result("spider", tuple(flags), tuple(flags), "SELECT *")
    assert time.thread_time() - started < seconds_here(0.5)


@pytest.mark.parametrize(("query", "part"), [
    ("SELECT current_timestamp", "CURRENT_TIMESTAMP"),
    ("SELECT a FROM t WHERE b < date('NOW', '-1 year')", "DATE('NOW', '-1 year')"),
    ("SELECT strftime('%s','now') - a FROM t", "STRFTIME('%s', 'now')"),
    ("SELECT strftime('%s', 'now', '-1 day')", "STRFTIME('%s', 'now', '-1 day')"),
    ("SELECT a FROM (SELECT julianday('now') - b AS a FROM t)", "JULIANDAY('now')"),
    ("SELECT date(coalesce(closed, 'now')) FROM t", "DATE(COALESCE(closed, 'now'))"),
    ("SELECT timediff(a, 'now') FROM t", "TIMEDIFF(a, 'now')"),
    ('SELECT time("now")', 'TIME("now")'),  # a text, to SQLite
    ("SELECT datetime()", "DATETIME()"),
    ("SELECT unixepoch('subsec')", "UNIXEPOCH('subsec')"),
    ("SELECT a FROM t ORDER BY random()", "RANDOM()"),
    ("INSERT INTO t VALUES (1); UPDATE t SET a = CURRENT_DATE", "CURRENT_DATE"),
    ("SELECT * FROM t WHERE state = 'now'", None),
    ("SELECT date(a), strftime('%Y', b), unixepoch(a, 'subsec'), time(t.now) FROM t", None),
    ('SELECT "current_date", t.current_time, [current_timestamp], now, utc_date FROM t -- date(\'now\')', None),
])  # fmt: skip
def test_what_makes_a_result_of_sqlite_depend_on_time_or_chance_is_found(query, part):
    assert nondeterministic_part(query, SQLITE) == part


@pytest.mark.parametrize("part", [
    *("NOW()", "NOW(3)", "CURDATE()", "CURTIME()", "CURRENT_DATE", "CURRENT_TIMESTAMP(6)", "LOCALTIME"),
    *("SYSDATE()", "UTC_DATE", "utc_time", "UTC_TIMESTAMP()", "UNIX_TIMESTAMP()", "RAND()", "UUID()", "UUID_SHORT()"),
])  # fmt: skip
def test_what_makes_a_result_of_mysql_depend_on_time_or_chance_is_found(part):
    assert nondeterministic_part(f"SELECT a FROM t WHERE DATEDIFF({part}, b) > 3 -- 'x", MYSQL)


@pytest.mark.parametrize("part", [
    *("`current_date`", "t.now", "`UTC_DATE`", "UNIX_TIMESTAMP(a)", "RAND(7)", "'NOW()'", "TIMESTAMP(a)"),
])  # fmt: skip
def test_what_only_looks_like_time_or_chance_in_mysql_is_kept(part):
    assert nondeterministic_part(f"SELECT {part} FROM t", MYSQL) is None


@pytest.mark.parametrize("part", [
    "now()", "LOCALTIMESTAMP", "clock_timestamp()", "statement_timestamp()", "timeofday()", "random()",
    "gen_random_uuid()", "age(born)", "'now'::timestamp", "DATE 'today'", "CAST('yesterday' AS date)",
])  # fmt: skip
def test_what_depends_on_time_or_chance_in_postgresql_is_found(part):
    assert nondeterministic_part(f"SELECT a FROM t WHERE {part} IS NOT NULL -- 'x", POSTGRESQL)


@pytest.mark.parametrize("part", ["age(born, DATE '2020-01-01')", "'today'", "DATE '2020-01-01'", "random_x", "now"])
def test_what_only_looks_so_in_postgresql_is_not(part):
    assert nondeterministic_part(f"SELECT {part} FROM t", POSTGRESQL) is None


def test_spiders_evaluator_changes_queries_before_it_runs_them():
    query = "SELECT DISTINCT a, 'distinct' FROM t WHERE b > = 1 AND c = YEAR(CURDATE())"
    assert as_run("spider", query) == "SELECT  a, 'distinct' FROM t WHERE b >= 1 AND c = 2020"
    assert as_run("bird", query) == query


@pytest.mark.parametrize(("query", "run"), [
    ("SELECT 1; SELECT 2", "SELECT 1;"),
    ("SELECT ';' ; -- end\nSELECT 2", "SELECT ';' ; -- end\n"),
    ("SELECT 1; # end", "SELECT 1; # end"),  # a comment there, and an error to SQLite
    ("; SELECT 1", "; "),
    ("SELECT (1; SELECT 2", "SELECT (1; SELECT 2"),
    ("SELECT CASE WHEN 1 THEN 2 END; SELECT 3", "SELECT CASE WHEN 1 THEN 2 END; "),
    ("SELECT begin FROM t; SELECT 2", "SELECT begin FROM t; SELECT 2"),  # a block to its parser
    ("SELECT t.begin FROM t; SELECT 2", "SELECT t.begin FROM t; SELECT 2"),
    ("SELECT begin.a FROM begin; SELECT 2", "SELECT begin.a FROM begin; "),
    ("SELECT DISTINCT a -- it's\n FROM t WHERE b = 'DISTINCT'", "SELECT  a -- it's\n FROM t WHERE b = 'DISTINCT'"),
    ("SELECT /* don't */ COUNT(DISTINCT a) /* distinct */", "SELECT /* don't */ COUNT( a) /* distinct */"),
    ("SELECT 'a\\'; SELECT distinct 'b'", "SELECT 'a\\'; SELECT distinct 'b'"),  # the backslash stands before a quote
])  # fmt: skip
def test_spiders_evaluator_runs_the_first_statement_as_sqlparse_sees_it(query, run):
    assert as_run("spider", query).strip() == run.strip()


def test_the_order_of_spider_counts_by_the_words_of_what_it_runs():
    a, b = ((1,), (2,)), ((2,), (1,))
    assert same_result("spider", a, b, "SELECT a FROM t; SELECT a FROM t ORDER BY a")
    assert not same_result("spider", a, b, "SELECT a FROM t /* order by */")


def test_strict_joins_the_split_operators_of_tokenized_references():
    query = "SELECT 'a ! = b' FROM t WHERE a ! = 1 AND b > = 2 AND c <\n= 3 -- > ="
    assert as_run("strict", query) == "SELECT 'a ! = b' FROM t WHERE a != 1 AND b >= 2 AND c <= 3 -- > ="
    assert as_run("strict", r"SELECT 'a\'! = b'", MYSQL) == r"SELECT 'a\'! = b'"


def test_averages_of_mysql_have_four_decimals():
    long, short = ((2.33333333333,),), ((2.3333,),)
    assert same_result("strict", long, short, "SELECT avg(a)", MYSQL)
    assert not same_result("strict", short, long, "SELECT avg(a)", MYSQL)
    assert not same_result("strict", ((0.00026,),), ((0.0002,),), "SELECT avg(a)", MYSQL)


def test_rows_pair_whatever_order_their_last_digits_sort_them_into():
    expected = tuple((1 / 3, n, n / 7) for n in range(3_000))
    given = tuple((1 / 3 + n % 5 * 1e-17, float(n), n / 7 * (1 + 1e-12)) for n in reversed(range(3_000)))
    assert same_result("strict", given, expected, "SELECT a, b, c")
    assert not same_result("strict", given, (*expected[:-1], expected[0]), "SELECT a, b, c")


@pytest.mark.parametrize(("rows", "changed"), [
    ([(1.5 + n * 1e-13,) for n in range(2_000)], (1.6,)),
    ([(1.5 + n * 1e-13, 2.5 + (n * 7 % 2_000) * 1e-13) for n in range(2_000)], (1.5, 2.6)),
    # a chain: each is close to some of the others alone, and its neighbours pair
    ([(1 + n * 4e-10, 2.5 - n % 5 * 1e-13) for n in range(2_000)], (1.0, 2.6)),
])  # fmt: skip
def test_thousands_of_rows_that_differ_in_their_last_digits_are_compared_in_a_moment(rows, changed):
    # 2,000 sums in another order took 13 s of CPU, in the loop that all rollouts share
    given = [tuple(cell * (1 + 1e-13) for cell in row) for row in reversed(rows)]
    started = time.thread_time()
    assert same_result("strict", tuple(given), tuple(rows), "SELECT a, b")
    assert not same_result("strict", (*given[1:], changed), tuple(rows), "SELECT a, b")
    assert time.thread_time() - started < seconds_here(1.0)


@pytest.mark.parametrize(("given", "expected", "same"), [
    (1234567890124.0, 1234567890123, False),  # the next whole number, and no rounding of it
    (1234567890124.0, 1234567890123.0, False),
    (1234567890123.0, 1234567890123, True),
    (1234567890123.0002, 1234567890123, True),
    (2.0**53 + 2, 2.0**53, True),  # all such floats are whole, so their last digits are rounding
    (2**53 + 1, 2.0**53, True),
    (2**53 + 1, 2**53, False),
    (10**400, 1e300, False),
])  # fmt: skip
def test_whole_numbers_are_compared_exactly_as_far_as_floats_tell_them_apart(given, expected, same):
    assert same_result("strict", ((given, "a"),), ((expected, "a"),), "SELECT a, b") is same


def test_another_whole_number_that_a_task_leaves_behind_is_another_state():
    left = [{"t": Change((), ((amount, "a"),))} for amount in (1234567890123.0, 1234567890124.0, 1234567890123.0002)]
    assert (same_state(left[1], left[0]), same_state(left[2], left[0])) == (False, True)


def test_results_without_a_row_are_equal_whatever_their_columns():
    # no cell shows which columns were meant, and a question without rows is not trained on
    assert same_result("strict", (), (), "SELECT a, b FROM t WHERE 0")
    assert not same_result("strict", ((1, 2),), ((1,),), "SELECT a")


def test_tied_rows_are_free_to_change_places():
    a, b = ((1, "x"), (2, "y"), (3, "z")), ((2, "y"), (1, "x"), (3, "z"))
    assert same_result("strict", b, a, "SELECT a, b FROM t ORDER BY c", ranks=[1, 1, 2])
    assert not same_result("strict", b, a, "SELECT a, b FROM t ORDER BY c", ranks=[1, 2, 2])
    assert not same_result("strict", b[::-1], a, "SELECT a, b FROM t ORDER BY c", ranks=[1, 1, 2])
    assert same_result("strict", b, a, "SELECT a, b FROM t", ranks=[1, 2, 2])


def play(environment, question, *calls):
    episode = environment.open(question, AgentConfig(statement_timeout_s=0.5))
    with closing(episode):
        said = [episode.call_tool(name, json.dumps({"sql": sql})) for name, sql in calls]
        return said, episode.status, environment.judge(episode)


NAMES = Question("q-1", "Who?", "my shop?", "SELECT name FROM customer WHERE id < 3")


@pytest.mark.parametrize(("sql", "value", "reason"), [
    ("WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n FROM r", 0.0, "too_many_rows"),
    ("WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r", 0.0, "sql_error"),
])  # fmt: skip
def test_a_submitted_query_without_end_is_wrong(environment, monkeypatch, sql, value, reason):
    monkeypatch.setattr(text_to_sql, "JUDGED_S", 0.5)
    said, status, score = play(environment, NAMES, ("submit_sql", sql))
    assert (said, status, score.value, score.reason) == ([""], "completed", value, reason)


TIED = """
CREATE TABLE t (a INT, b TEXT, c TEXT COLLATE NOCASE);
INSERT INTO t VALUES (1, 'p', 'x'), (1, 'q', 'X'), (2, 'r', 'y'), (2, 's', NULL), (NULL, 'u', 'y');
"""


@pytest.mark.parametrize(("reference", "places"), [
    ("SELECT b FROM t ORDER BY a", "u pq rs"),
    ("SELECT b FROM t ORDER BY a DESC", "rs pq u"),
    ("SELECT b FROM t ORDER BY a DESC, b", "r s p q u"),
    ("SELECT b FROM t ORDER BY c", "s pq ru"),  # of the column's collation
    ("SELECT b FROM t ORDER BY c COLLATE BINARY", "s q p ru"),
    ("SELECT b, a + 1 AS n FROM t ORDER BY n", "u pq rs"),
    ("SELECT b, a FROM t ORDER BY 2 DESC", "rs pq u"),
    ("SELECT b FROM t WHERE a ORDER/**/BY a > 1 -- the larger", "pq rs"),
    ("SELECT min(b), count(*) FROM t GROUP BY a ORDER BY count(*) DESC", "pr u"),
    ("SELECT b, rank() OVER (ORDER BY a) AS place FROM t ORDER BY 2", "u pq rs"),
    ("SELECT DISTINCT b, a FROM t ORDER BY a", "u pq rs"),
    ("SELECT b, a FROM t UNION SELECT b, a FROM t ORDER BY a", "u pq rs"),
    ("WITH w AS (SELECT * FROM t) SELECT b FROM w ORDER BY a LIMIT 5", "u pq rs"),
    ("SELECT b, 0 - a AS n FROM t ORDER BY abs(n)", "u pq rs"),
    ("SELECT b, a AS n FROM t ORDER BY -n, c IS NULL", "u r s pq"),
    ("SELECT b, 2 - a AS a FROM t ORDER BY -a", "u rs pq"),  # inside an expression it is the table's column
    ("SELECT b, a AS \"the n\" FROM t ORDER BY -\"the n\"", "u rs pq"),
    ("SELECT min(b), count(*) AS n FROM t GROUP BY a ORDER BY 1 - n", "pr u"),
    ("SELECT b, rank() OVER (ORDER BY a) AS place FROM t ORDER BY -place", "rs pq u"),
    ("SELECT DISTINCT b, a AS n FROM t ORDER BY -n", "u rs pq"),
    ("SELECT DISTINCT b, 2 - a AS a FROM t ORDER BY -a", "u r s p q"),  # the table's column is not seen
    ("SELECT b FROM t ORDER BY 'b'", "pqrsu"),  # a text orders nothing
    ("SELECT b FROM t ORDER BY 'b', a", "u pq rs"),
    ("SELECT b FROM t ORDER BY NULL", "pqrsu"),
    ("SELECT DISTINCT b FROM t ORDER BY a", "u p q r s"),  # what is not seen has no ties
    ("SELECT * FROM (SELECT b, a FROM t) ORDER BY 2", "u p q r s"),
])  # fmt: skip
def test_ties_of_an_ordered_reference_are_free(tmp_path, reference, places):
    """Every order of the expected rows is right in which no row leaves its place; each word is one place."""
    with closing(sqlite3.connect(tmp_path / "tied.db")) as connection:
        connection.executescript(TIED)
    question = Question("q", "?", "tied", reference)
    with TextToSql(tmp_path / "tied.db") as environment:
        rows = environment.expected(question)
        wanted = {"".join(order) for order in product(*(map("".join, permutations(tied)) for tied in places.split()))}
        assert "".join(row[0] for row in rows) in wanted
        right = {
            "".join(row[0] for row in order)
            for order in permutations(rows)
            if environment._is_right(question, order, rows)
        }
        assert right == wanted


UNREADABLE_TEXTS = "SELECT CAST(x'41ff' AS TEXT)", "SELECT CAST(x'41fe' AS TEXT)"


@pytest.mark.parametrize(("judge", "reasons"), [
    ("strict", ["match", "wrong_result"]),
    ("spider", ["match", "match"]),
    ("bird", ["sql_error", "sql_error"]),  # it reads no such text, of the reference neither
])  # fmt: skip
def test_texts_that_are_no_utf8_are_compared_as_each_judge_reads_them(shop, judge, reasons):
    with TextToSql(shop, judge) as environment:
        asked = Question("q", "?", "my shop?", UNREADABLE_TEXTS[0])
        assert [play(environment, asked, ("submit_sql", sql))[2].reason for sql in UNREADABLE_TEXTS] == reasons
        assert (environment.expected(asked) is None) == (judge == "bird")
        with closing(environment.open(asked, AgentConfig())) as episode:
            shown = episode.call_tool("execute_sql", json.dumps({"sql": UNREADABLE_TEXTS[0]}))
            episode.call_tool("submit_sql", json.dumps({"sql": UNREADABLE_TEXTS[1]}))
            environment.judge(episode)
            json.dumps(environment.comparison(episode).to_dict(), ensure_ascii=False).encode()
        assert shown.endswith('["A\N{REPLACEMENT CHARACTER}"]')


@pytest.mark.parametrize(("judge", "answer", "reason"), [
    ("bird", "SELECT id FROM customer WHERE id > 9", "match"),
    ("bird", "SELECT id FROM customer", "no_answer"),
    ("strict", "SELECT id FROM customer WHERE id > 9", "no_answer"),
    ("spider", "SELECT id FROM customer WHERE id > 9", "no_answer"),
])  # fmt: skip
def test_no_answer_is_an_empty_prediction_to_birds_evaluator(shop, judge, answer, reason):
    with TextToSql(shop, judge) as environment:
        assert play(environment, Question("q", "?", "my shop?", answer))[2].reason == reason


@pytest.mark.parametrize(("judge", "left"), [("strict", 30.0), ("spider", 30.0), ("bird", 17.5)])
def test_only_for_bird_a_query_shares_its_time_with_the_reference(shop, monkeypatch, judge, left):
    with TextToSql(shop, judge) as environment:
        measured = environment._reference("my shop?", NAMES.query)
        assert measured.seconds > 0.0
        monkeypatch.setattr(environment, "_reference", lambda *_: measured._replace(seconds=12.5))
        assert environment._seconds_left(NAMES) == left


def test_what_is_submitted_has_as_long_as_the_reference(environment):
    """Else the reference itself, which a run keeps if it ends in 30 s, would be wrong where it takes 5."""
    slow = f"SELECT count(*) FROM {', '.join(f'customer c{n}' for n in range(11))}"  # 3 ** 11 rows
    question = Question("q", "How many?", "my shop?", slow)
    with closing(environment.open(question, AgentConfig(statement_timeout_s=0.001))) as episode:
        assert "Error" in episode.call_tool("execute_sql", json.dumps({"sql": slow}))
        episode.call_tool("submit_sql", json.dumps({"sql": slow}))
        assert environment.judge(episode).reason == "match"


def test_an_episode_looks_first_and_then_submits(environment):
    looked, submitted = "SELECT id, name FROM customer", "SELECT name FROM customer WHERE id IN (1, 2)"
    calls = ("execute_sql", looked), ("look", "x"), ("execute_sql", " "), ("submit_sql", submitted)
    said, _, score = play(environment, NAMES, *calls)
    assert said == [
        '["id", "name"]\n[1, "Ann O\'Hara"]\n[2, "Bo"]\n[3, "Cy"]',
        "Error: unknown tool 'look'; call execute_sql or submit_sql.",
        'Error: execute_sql takes {"sql": "SELECT ..."}.',
        "",
    ]
    assert score.value == 1.0
    episode = environment.open(NAMES, AgentConfig())
    assert (episode.without_call("I think Ann"), episode.done, environment.judge(episode).reason) == (
        [],
        True,
        "no_answer",
    )


@pytest.mark.parametrize(
    ("written", "statement"),
    [
        ("```sql\nSELECT 1;\n```", "SELECT 1;"),
        ("```\nSELECT 1\n```\n", "SELECT 1"),
        ("  ```SQLite SELECT 1```", "SELECT 1"),
        ("```sql\nSELECT 1", "SELECT 1"),
        ("```SELECT\n1```", "SELECT\n1"),
        ("``` mysql\nSELECT 1\n```", "SELECT 1"),
        ("```\n```", "```\n```"),
        ("SELECT '```sql'", "SELECT '```sql'"),
        ("```sql\nSELECT 1\n```\n```sql\nSELECT 2\n```", "```sql\nSELECT 1\n```\n```sql\nSELECT 2\n```"),
        ("SELECT 1", "SELECT 1"),
        ("```sql\nSELECT 1\n```\nIt counts the `ferries`.", "SELECT 1"),
        ("Here's the query:\n\n```sql\nSELECT 1;\n```", "SELECT 1;"),
        ("Look:\n  ```\nSELECT 1\n  ```\nDone.", "SELECT 1"),
        ("SELECT '\n```sql\nx\n```\n'", "SELECT '\n```sql\nx\n```\n'"),
        ("-- a\n```sql\nSELECT 1\n```", "-- a\n```sql\nSELECT 1\n```"),
        ("Use ```SELECT 1```", "Use ```SELECT 1```"),
        *(
            (f"{sentence}\n```sql\nSELECT 1\n```", "SELECT 1")
            for sentence in (
                "With the following query:",
                "Select the rows from the ferries' table:",
                "(This counts them.)",
                "Update the set of rows:",
                "Replace into is not needed.",
                "Explain this query:",
                "Values are counted:",
                "Select the owner's name:",
                "Select all the rows with a name",
                "Delete from the table:",
            )
        ),
        *(
            (f"{sql}\n```\nx\n```", f"{sql}\n```\nx\n```")
            for sql in (
                "SELECT 1",
                "SELECT a b FROM t;",
                "WITH a AS (SELECT 1) SELECT * FROM a",
                "EXPLAIN SELECT 1",
                "UPDATE t SET a = 1",
                "REPLACE INTO t VALUES (1)",
                "(SELECT 1)",
                "SELECT 1 /* a:",
                "DELETE FROM t",
                "SELECT 'It is:",
                "UPDATE t SET a = 'So:",
                "EXPLAIN QUERY PLAN SELECT 1",
                "VALUES (1)",
            )
        ),
    ],
)
def test_a_code_fence_around_a_statement_and_the_sentences_beside_it_are_taken_off(written, statement):
    assert unfenced(written) == statement


def test_a_long_result_is_cut_and_the_rest_is_counted(environment):
    with closing(environment.databases.open("my shop?", statement_timeout_s=0.5)) as database:
        many = format_rows(database.run("SELECT a.id FROM customer a, customer b, customer c"))
        assert many.splitlines()[-2:] == ["[3]", "... 7 more rows"]
        assert format_rows(database.run("SELECT printf('%5000s', 'x')")).endswith("   [TRUNCATED]")


def test_a_question_with_an_answer_needs_no_reference(environment):
    question = Question("q", "Which town?", "my shop?", answer=(("Ulm",),))
    assert play(environment, question, ("submit_sql", 'SELECT "home town" FROM customer WHERE id = 1'))[2].value == 1.0
    assert environment.reference_replies(question) == []


def test_a_reference_that_failed_once_is_tried_again(environment, monkeypatch):
    found = [Result(error="the statement takes too much memory"), Result((("Ann",),), ("name",))]
    monkeypatch.setattr(environment, "_run_timed", lambda *_: (found.pop(0), 0.0))
    assert [environment.expected(NAMES) for _ in range(3)] == [None, (("Ann",),), (("Ann",),)]


def test_the_reference_is_in_no_message(environment):
    asked = Question("q", "Who?", "my shop?", "SELECT secret", evidence="names are in name")
    assert environment.messages(asked) == [
        {"role": "system", "content": environment.messages(asked)[0]["content"]},
        {"role": "user", "content": "Who?\nnames are in name"},
    ]
    assert environment.schema_text(asked) in environment.messages(asked)[0]["content"]
    assert "secret" not in str(environment.messages(asked))
    assert json.loads(environment.reference_replies(asked)[0]["tool_calls"][0]["function"]["arguments"]) == {
        "sql": "SELECT secret"
    }


def test_prompts_that_are_too_long_get_a_shorter_schema_which_is_said(environment, tmp_path):
    file = written(tmp_path / "q.json", [{"question": "Who?", "query": "SELECT name FROM customer"}] * 2)
    found = environment.read_split(DataConfig(train_file=file, val_file=file), seed=0)

    def length(question):
        return sum(len(message["content"]) for message in environment.messages(question))

    whole, prompts = fit_split(found, environment, length, PromptLimit(10_000, "as given", "--max_prompt_tokens", True))
    assert (whole, prompts.cuts(), prompts.missed()) == (found, [], [])
    limit = PromptLimit(length(found.train[0]) - 1, "as given", "--max_prompt_tokens", True)
    cut, prompts = fit_split(found, environment, length, limit)
    assert {question.schema_chars for question in [*cut.train, *cut.val]} == {
        lengths(environment.databases.schema("my shop?"))[0]
    }
    assert all(length(question) < length(found.train[0]) for question in cut.train)
    assert [str(problem) for problem in prompts.cuts()] == [
        "the schema of my shop? is cut in 4 of 4 first prompts; left out: 2 all columns of the tables: orders, spent; "
        f"--max_prompt_tokens {length(found.train[0])} keeps everything, where the model's context holds it"
    ]


# settings -------------------------------------------------------------------------------------------------------------


def test_the_settings_name_the_database_and_the_judge(shop):
    made = make_environment(EnvironmentSettings("text2sql", judge="bird", database=shop))
    assert isinstance(made, TextToSql) and made.databases.path == shop
    for settings, said in (
        (EnvironmentSettings("text2sql"), "needs a database: --database FILE.sqlite"),
        (EnvironmentSettings("text2sql", judge="fc", database=shop), "one of strict, spider, bird; got fc"),
        (EnvironmentSettings("text2sql", protocol="lab", database=shop), "acts by tool calls"),
        (EnvironmentSettings("dbbench", judge="bird"), "one of .*strict.*; got bird"),
    ):
        with pytest.raises(ValueError, match=said):
            make_environment(settings)


@pytest.mark.skipif(not GEOGRAPHY.is_dir(), reason="../shared/text2sql/geography is not there")
@pytest.mark.slow
@pytest.mark.parametrize("judge", EXECUTION_JUDGES)
def test_every_reference_of_geoquery_is_right(judge):
    with TextToSql(GEOGRAPHY, judge) as environment:
        data = DataConfig(train_file=GEOGRAPHY / "train.json", val_file=GEOGRAPHY / "test.json")
        split = environment.load_split(data, seed=0)
        assert (len(split.train), len(split.val), split.left_out) == (526, 270, {})
        for question in split.val:
            assert play(environment, question, ("submit_sql", question.query))[2].value == 1.0


def test_the_example_makes_questions_of_which_every_reference_is_right(tmp_path):
    example = Path(__file__).resolve().parents[2] / "examples" / "own_database" / "make_shop.py"
    subprocess.run([sys.executable, str(example), str(tmp_path)], check=True, timeout=60)
    with TextToSql(tmp_path / "shop.sqlite") as environment:
        data = DataConfig(train_file=tmp_path / "train.json", val_file=tmp_path / "test.json")
        split = environment.load_split(data, seed=0)
        assert (len(split.train), len(split.val), split.left_out) == (169, 120, {})
        assert {question.kind for question in split.train} == {"plain", "aggregate", "nested", "join"}
        for question in [*split.train, *split.val]:
            assert play(environment, question, ("submit_sql", question.query))[2].value == 1.0


@pytest.mark.parametrize(("given", "share"), [
    pytest.param([(1, "a"), (3, "c")], 0.25, id="one_row_of_two"),  # rows 2 x 1 / 4, columns 0
    pytest.param([(1, "a", "x"), (2, "b", "y")], 0.4, id="a_column_too_many"),  # rows 0, columns 2 x 2 / 5
    pytest.param([(2, "b"), (1, "a")], 1.0, id="another_order"),
    pytest.param([(1,), (2,)], 1 / 3, id="a_column_is_missing"),  # rows 0, columns 2 x 1 / 3
    pytest.param([(1, "a"), (2, "b"), (1, "a")], 0.4, id="a_row_twice"),  # rows 2 x 2 / 5, columns 0
    pytest.param([("a", 1), ("b", 2)], 0.5, id="columns_the_wrong_way_round"),
    pytest.param([(9,)], 0.0, id="nothing"),
    pytest.param([], 0.0, id="no_row"),
])  # fmt: skip
def test_a_wrong_result_is_like_the_right_one_in_rows_and_columns(given, share):
    assert likeness(given, [(1, "a"), (2, "b")]) == pytest.approx(share)


def test_an_answer_may_have_rows_of_several_lengths():
    assert likeness([(1,)], [(1,), (2, 3)]) == pytest.approx(1 / 3)  # rows 2 x 1 / 3, columns 0

"""A person's own SQLite file: how it is found, what of it is read, what a statement may do, and what it may cost.

`test_engines.py` has what every engine promises.
"""

import hashlib
import resource
import shutil
import sqlite3
import subprocess
import time
from contextlib import closing

import pytest

from agentgrpo.limited_fork import forked
from agentgrpo.tests.seconds import seconds_here
from dbbench_adapter.datatypes import DatabaseError
from dbbench_adapter.engines import BackendUnavailable
from dbbench_adapter.engines.sqlite.databases import DatabaseFiles
from dbbench_adapter.engines.sqlite.sandbox import Watchdog
from dbbench_adapter.engines.sqlite.schema import read_schema
from dbbench_adapter.engines.sqlite.user_database import REFUSAL, ChangeableDatabase, UserDatabase

pytestmark = pytest.mark.usefixtures("few_objects")
SHOP = """
CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT, "home town" TEXT);
CREATE TABLE orders (
    nr INTEGER, customer INTEGER REFERENCES customer(id), total REAL, note BLOB, PRIMARY KEY (nr, customer)
);
CREATE VIEW spent AS SELECT customer, sum(total) AS total FROM orders GROUP BY customer;
INSERT INTO customer VALUES (1, 'Ann O''Hara', 'Ulm'), (2, 'Bo', NULL), (3, 'Cy', 'a town whose name goes on and on');
INSERT INTO orders VALUES (1, 1, 2.5, x'00'), (2, 1, 4, NULL), (3, 2, 1.25, NULL);
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    file = tmp_path_factory.mktemp("own") / "my shop?.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(SHOP)
    return file


# databases ------------------------------------------------------------------------------------------------------------


def test_a_file_is_a_database_and_a_folder_holds_one_per_id(shop, tmp_path):
    assert DatabaseFiles(shop).files == {"my shop?": shop}
    for db_id, suffix in (("shop", "sqlite"), ("town", "db")):
        (tmp_path / "database" / db_id).mkdir(parents=True)
        (tmp_path / "database" / db_id / f"{db_id}.{suffix}").write_bytes(shop.read_bytes())
    (tmp_path / "database" / "empty").mkdir()
    for folder in (tmp_path, tmp_path / "database"):  # as downloaded, or the folder of the databases itself
        assert list(DatabaseFiles(folder).files) == ["shop", "town"]
    with pytest.raises(DatabaseError, match=r"no database 'city' in .*, which has shop, town"):
        DatabaseFiles(tmp_path).db_id("city")
    with pytest.raises(DatabaseError, match=r"no db_id, and .* holds 2 databases: name one of them"):
        DatabaseFiles(tmp_path).db_id(None)


def test_what_is_no_database_is_named(tmp_path):
    (tmp_path / "notes.txt").write_text("a text of more than sixteen characters")
    for path, said in ((tmp_path / "notes.txt", "is no SQLite database"), (tmp_path / "none", "does not exist"),
                       (tmp_path, "holds no database; expected DB_ID/DB_ID.sqlite")):  # fmt: skip
        with pytest.raises(DatabaseError, match=said):
            DatabaseFiles(path)


# the schema -----------------------------------------------------------------------------------------------------------


def test_views_that_double_over_and_over_are_left_out_before_sqlite_expands_them(tmp_path, watchdog):
    with closing(sqlite3.connect(tmp_path / "views.db")) as connection:
        connection.execute("CREATE TABLE t (a)")
        connection.execute("CREATE VIEW v0 AS SELECT a FROM t")
        for place in range(1, 25):
            below = f"v{place - 1}"
            connection.execute(f"CREATE VIEW v{place} AS SELECT x.a FROM {below} x JOIN {below} y")
    # v7 joins 128 tables; v8 uses 2 + 4 + ... + 256 = 510 views and itself, v9 would be more than 1,000
    found = read_schema(tmp_path / "views.db")
    assert [table.name for table in found.tables] == ["t", *(f"v{place}" for place in range(7))]
    assert [found.unreadable[f"v{place}"] for place in (7, 8, 9)] == [
        "at most 64 tables in a join",
        "too many FROM clause terms, max: 200",
        "it uses more than 1,000 views",
    ]
    started = time.thread_time()  # PRAGMA table_list takes 10 s
    with closing(ChangeableDatabase(tmp_path / "views.db", watchdog, statement_timeout_s=1.0)) as database:
        assert database.run("INSERT INTO t VALUES (1)").rows == ((1,),)
    assert time.thread_time() - started < seconds_here(3)


def test_a_view_and_a_generated_column_may_call_what_a_statement_may_call(tmp_path, watchdog):
    with closing(sqlite3.connect(tmp_path / "odd.db")) as connection:
        connection.executescript("""
            CREATE TABLE made (nr INT, code TEXT AS (printf('%03d', nr)));
            CREATE VIEW trimmed AS SELECT trim(code, '0') AS code FROM made;
            INSERT INTO made VALUES (5);
        """)
    with closing(UserDatabase(tmp_path / "odd.db", watchdog, statement_timeout_s=1.0)) as database:
        assert database.run("SELECT code FROM made").rows == (("005",),)
        assert database.run("SELECT code FROM trimmed").rows == (("5",),)


def test_a_file_without_tables_or_with_other_contents_is_refused(tmp_path):
    (tmp_path / "empty.db").touch()
    with pytest.raises(DatabaseError, match="holds no table"):
        read_schema(tmp_path / "empty.db")
    (tmp_path / "torn.db").write_bytes(b"SQLite format 3\0" + b"x" * 500)
    with pytest.raises(DatabaseError, match="cannot be read as a SQLite database"):
        read_schema(tmp_path / "torn.db")


# the sandbox ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def watchdog():
    dog = Watchdog()
    dog.ensure_alive()
    yield dog
    dog.stop()


@pytest.fixture
def database(shop, watchdog):
    with closing(UserDatabase(shop, watchdog, statement_timeout_s=0.5)) as opened:
        yield opened


def contents(path):
    """Every file beside the database, by its bytes."""
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.parent.iterdir()}


@pytest.mark.parametrize(("sql", "rows"), [
    ("SELECT NAME FROM Customer WHERE name LIKE 'b%'", (("Bo",),)),
    ('SELECT id FROM customer WHERE name = "Bo"', ((2,),)),  # SQLite reads an unknown name as a text
    ("SELECT total FROM spent ORDER BY total", ((1.25,), (6.5,))),
    ("SELECT name FROM sqlite_master WHERE type = 'view'", (("spent",),)),
    ("SELECT strftime('%Y', '2024-05-06'), CAST('12abc' AS INTEGER), 7 / 2, typeof(note) FROM orders LIMIT 1",
     (("2024", 12, 3, "blob"),)),
    ("SELECT rank() OVER (ORDER BY total DESC) FROM orders ORDER BY nr", ((2,), (1,), (3,))),
    ("SELECT trim('xxaxx', 'x'), ltrim(1.50, 1), rtrim(NULL, 'x'), trim('  b ')", (("a", ".5", None, "b"),)),
    ("SELECT printf('%5.2f|%s|%,d|%%', 1, 'x', 1234567), format('%05d', 42), printf('%s')",
     ((" 1.00|x|1,234,567|%", "00042", ""),)),
    ("SELECT json_extract('{\"a\": [1, 2]}', '$.a[1]')", ((2,),)),
    ("SELECT soundex('Robert'), hex(zeroblob(2)), json_set('{\"a\": 1}', '$.b', 2), json_remove('[1, 2]', '$[0]'), "
     "json_insert('[1]', '$[#]', 2), json_replace('[1]', '$[0]', 2), tanh(0), acosh(1)",
     (("R163", "0000", '{"a":1,"b":2}', "[2]", "[1,2]", "[2]", 0.0, 0.0),)),
    ("SELECT id IN (SELECT 1) - 1 FROM customer", ((0,), (-1,), (-1,))),  # sqlglot does not read these
    ("SELECT (SELECT CAST(name AS VARYING CHARACTER(9)) FROM customer LIMIT 1)", (("Ann O'Hara",),)),
    ("SELECT window.id, lateral.id FROM customer window JOIN (SELECT 1 AS id) lateral USING (id)", ((1, 1),)),
    ("SELECT qualify FROM (SELECT id AS qualify FROM customer) qualify LIMIT 1", ((1,),)),
    ("SELECT " + "1 + " * 900 + "1", ((901,),)),
    (" UNION ALL ".join(["SELECT 1"] * 500), ((1,),) * 500),
    (f"SELECT max({', '.join(map(str, range(127)))})", ((126,),)),
    ("SELECT trim('xyx', 'yx'), rtrim('axy', 'yx'), ltrim('xy', 'yx'), trim(9e999, 'x')", (("", "a", "", "Inf"),)),
])  # fmt: skip
def test_statements_mean_what_they_mean_in_sqlite(shop, database, sql, rows):
    assert database.run(sql).rows == rows
    with closing(sqlite3.connect(shop)) as plain:
        assert tuple(plain.execute(sql).fetchall()) == rows


@pytest.mark.parametrize("sql", [
    "INSERT INTO customer VALUES (4, 'x', 'y')", "DROP TABLE orders", "CREATE TEMP TABLE t (x)", "BEGIN IMMEDIATE",
    "PRAGMA user_version = 1", "ATTACH 'new.db' AS x", "VACUUM INTO 'copy.db'", "SELECT load_extension('x')",
    "SELECT * FROM pragma_table_info('orders')", "SELECT randomblob(9)", "SELECT sqlite_version()",
    "SELECT json_patch('{}', '{}')",  # takes quadratic time, and cannot be interrupted
])  # fmt: skip
def test_what_is_not_a_look_at_the_tables_is_refused(shop, database, sql):
    before = contents(shop)
    assert database.run(sql).error == REFUSAL
    assert contents(shop) == before


@pytest.mark.parametrize("sql", ["SELECT '\ud800'", "SELECT '\0'"])
def test_what_is_no_text_for_sqlite_is_an_error(database, sql):
    result = database.run(sql)
    assert (result.rows, bool(result.error)) == (None, True)


def test_a_database_that_goes_away_is_not_the_policys_doing(shop, watchdog, tmp_path):
    with pytest.raises(BackendUnavailable, match=r"cannot be opened: .*; leave it in place during the run"):
        UserDatabase(tmp_path / "none.db", watchdog, statement_timeout_s=1.0)
    copy = tmp_path / "copy.db"
    copy.write_bytes(shop.read_bytes())
    with closing(UserDatabase(copy, watchdog, statement_timeout_s=1.0)) as database:
        copy.write_bytes(b"x" * copy.stat().st_size)
        with pytest.raises(BackendUnavailable, match=r"no longer be read: .*; leave it as it is until the run ends"):
            database.run("SELECT * FROM customer")


LONG = """WITH RECURSIVE r(n, k) AS (SELECT 'a', 1 UNION ALL SELECT n || n, k + 1 FROM r WHERE k < 18),
h AS (SELECT substr(n, 1, 99000) AS n, substr(n, 1, 98999) || 'b' AS m, substr(n, 1, 990) AS p FROM r WHERE k = 18)"""


@pytest.mark.parametrize("expression", [
    "instr(n || n, m)", "replace(n || n, m, 'x')", "n || n LIKE '%' || p || 'b'", "trim(n || n, m)", "hex(n)",
    "n || n GLOB '*' || substr(p, 9) || 'b'", "printf('%.*c', 100000000, 'x')", "json(replace(n, 'a', '['))",
    "group_concat(n)",
    "ltrim(replace(substr(n, 1, 66000), 'a', char(20065)), "
    "replace(substr(n, 1, 65000), 'a', char(20321)) || char(20065))",
])  # fmt: skip
def test_no_function_takes_long_with_the_longest_texts(database, expression):
    """A function is not interrupted, so the length of a value bounds its time."""
    times = []
    for _ in range(2):
        started = time.thread_time()
        database.run(f"{LONG} SELECT {expression} FROM h")
        times.append(time.thread_time() - started)
    assert min(times) < 1.0


def test_a_long_statement_and_a_wide_row_are_refused(shop, watchdog, database):
    """A parser in Python would read the one, and 400 MB would be the other."""
    assert database.run("SELECT 1 FROM (SELECT 1) WHERE 1 IN (" + "1," * 10_000 + "1)").error == (
        "the statement is longer than 20000 characters"
    )
    wide = f"{LONG}, w AS (SELECT {', '.join(f'n AS c{i}' for i in range(200))} FROM h) SELECT * FROM w"
    assert database.run(wide).error == "the statement takes too much memory"
    many = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 10001) SELECT " + "1, " * 199 + "1"
    with closing(UserDatabase(shop, watchdog, statement_timeout_s=30.0)) as patient:
        assert patient.run(f"{many} FROM r").error == "the result is too long; ask for less"  # two million cells


def test_a_result_of_more_than_a_million_characters_is_an_error(database):
    texts = "SELECT printf('%9999s', a.id) FROM customer a, customer b, customer c, customer d, customer e"  # 243
    assert database.run(texts).error == "the result is too long; ask for less"
    assert len(database.run(f"{texts} LIMIT 100").rows) == 100


DOUBLED = ", ".join(f"c{k} AS (SELECT 1 AS x FROM c{k - 1} p, c{k - 1} q)" for k in range(1, 30))
QUOTED = ", ".join(f"'c{k}' AS MATERIALIZED (SELECT 1 AS x FROM 'c{k - 1}' p, 'c{k - 1}' q)" for k in range(1, 30))
LONGEST = "replace(hex(zeroblob(1900000)), '0', 'a')"  # beyond the usual limit
SMALL = ", ".join(f"c{k} AS (SELECT 1)" for k in range(1, 29))
NESTED = "SELECT x + x AS x FROM (" * 25 + "SELECT 1 AS x" + ")" * 25


@pytest.mark.parametrize(("sql", "error"), [
    (f"WITH c0 AS (SELECT 1 AS x), {DOUBLED} SELECT count(*) FROM c29", "the statement is too complex"),
    (NESTED, "the statement is too complex"),
    (f"WITH c0 AS (SELECT 1 AS x), {DOUBLED} SELECT count(*) FROM c29 WHERE 1 IN (WITH {SMALL} SELECT 1)",
     "the statement is too complex"),
    ("SELECT printf('%.*c', 2000000000, 'x')", "user-defined function raised exception"),
    (f"{LONG} SELECT printf(replace(substr(n, 1, 28000), 'a', '%9999d')) FROM h",
     "user-defined function raised exception"),  # of 280 MB
    ("SELECT format('%2000000000d', 1)", "user-defined function raised exception"),
    (f"{NESTED} WHERE x IN (SELECT 1) - 1",  # sqlglot cannot read it
     "the statement cannot be read; check its syntax, or write its sub-queries in a simpler way"),
    (f"WITH c0 AS (SELECT 1 AS x), {DOUBLED} SELECT count(*) FROM c29 WHERE 1 IN (SELECT 1) - 1",
     "the statement cannot be read; check its syntax, or write its sub-queries in a simpler way"),
    (f"WITH 'c0' AS (SELECT 1 AS x), {QUOTED} SELECT count(*) FROM 'c29' WHERE 1 IN (SELECT 1) - 1",
     "the statement cannot be read; check its syntax, or write its sub-queries in a simpler way"),
    ("SELECT (SELECT 1 FROM customer WHERE (", "incomplete input"),
    ("SELECT zeroblob(1000000000)", "string or blob too big: a value or a row has more than 4,000,000 bytes"),
    (f"SELECT length(replace({LONGEST}, 'a', substr({LONGEST}, 9)))",
     "string or blob too big: a value or a row has more than 4,000,000 bytes"),
    (f"SELECT {LONGEST} LIKE '%{'a' * 60}b'", "LIKE or GLOB pattern too complex"),
    # SQLite's own take a minute for these
    (f"SELECT instr({LONGEST}, substr({LONGEST}, 1900000) || 'b')", None),
    (f"SELECT length(replace({LONGEST}, substr({LONGEST}, 1900000) || 'b', ''))", None),
])  # fmt: skip
def test_what_sqlite_does_without_a_clock_is_refused_before(database, sql, error):
    started = time.thread_time()
    assert database.run(sql).error == error
    assert time.thread_time() - started < seconds_here(0.5)


@pytest.mark.slow
@pytest.mark.parametrize("sql", [
    f"SELECT id IN ({'id,' * 2999}id) AS x FROM customer WHERE x IN ({'x,' * 4999}x)",
    f"SELECT id IN ({'id,' * 4999}id) AS x FROM customer ORDER BY {'x,' * 1899}x",
    "SELECT id + id + id + id AS x0 FROM customer WHERE (" + "".join(
        f"SELECT x{i} + x{i} + x{i} + x{i} AS x{i + 1} WHERE (" for i in range(10)) + "1" + ")" * 11,
])  # fmt: skip
def test_a_short_statement_that_the_planner_writes_out_to_gigabytes_ends_in_memory_and_time(shop, sql):
    """An alias is written out wherever it is used, and no tree shows it."""

    def run():
        dog = Watchdog()
        dog.ensure_alive()
        with closing(UserDatabase(shop, dog, statement_timeout_s=0.5)) as database:
            error = database.run(sql).error
        return error, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 800 * 1024

    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert forked(run, cpu_s=20, memory_bytes=3 * 1024**3 // 2) == ("the statement takes too much memory", True)


def test_a_table_of_many_rows_is_sorted_and_grouped(tmp_path, watchdog):
    file = tmp_path / "large.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript("CREATE TABLE t (a INT, b TEXT)")
        connection.executemany(
            "INSERT INTO t VALUES (?, ?)", ((i * 7 % 300_007, f"n{i % 1000}") for i in range(300_007))
        )
        connection.commit()
    with closing(UserDatabase(file, watchdog, statement_timeout_s=5.0)) as database:
        assert database.run("SELECT a FROM t ORDER BY a DESC LIMIT 2").rows == ((300_006,), (300_005,))
        counted = database.run("SELECT b, count(*) FROM t GROUP BY b ORDER BY 2 DESC, b LIMIT 2").rows
        assert counted == (("n0", 301), ("n1", 301))


def test_a_database_in_wal_mode_is_read_without_files_beside_it(tmp_path, watchdog):
    file = tmp_path / "wal.db"
    with closing(sqlite3.connect(file)) as writer:
        writer.executescript("PRAGMA journal_mode = WAL; CREATE TABLE t (a); INSERT INTO t VALUES (1);")
    with closing(UserDatabase(file, watchdog, statement_timeout_s=1.0)) as database:
        assert database.run("SELECT a FROM t").rows == ((1,),)
        assert [path.name for path in tmp_path.iterdir()] == ["wal.db"]


def stopped_while_it_changes(file):
    # A copy of file and journal while a change is half written is what a killed program leaves.
    with closing(sqlite3.connect(file.with_name("whole.db"))) as writer:
        writer.executescript("PRAGMA cache_size = 1; BEGIN; UPDATE t SET a = 2; CREATE TABLE big (x);")
        writer.executemany("INSERT INTO big VALUES (zeroblob(4000))", [()] * 50)
        for end in ("", "-journal"):
            shutil.copy(file.with_name(f"whole.db{end}"), f"{file}{end}")
        yield


def writes_to_its_log(file):
    with closing(sqlite3.connect(file.with_name("whole.db"))) as writer:
        writer.executescript("PRAGMA journal_mode = WAL; UPDATE t SET a = 2; UPDATE t SET a = 1")
        file.symlink_to("whole.db")  # the log is not beside the link
        yield


def locks_it(file):
    with closing(sqlite3.connect(file)) as writer:
        writer.executescript("CREATE TABLE t (a); INSERT INTO t VALUES (1); BEGIN EXCLUSIVE")
        yield


@pytest.mark.parametrize(
    ("program", "why", "remedy"),
    [
        (
            writes_to_its_log,
            "is in WAL mode and its newest changes are in whole.db-wal",
            "close the programs that write",
        ),
        (stopped_while_it_changes, "a program was stopped while it changed", "undo it"),
        (locks_it, "is locked by a program that is changing it", "wait until it has finished, or close it"),
    ],
)
def test_a_healthy_file_that_a_program_holds_is_read_after_what_the_message_says(
    tmp_path, watchdog, program, why, remedy
):
    # seen by users of an application that runs on, and of a backup that was made while it ran
    file = tmp_path / "Ann's shop (new).db"
    with closing(sqlite3.connect(tmp_path / "whole.db")) as writer:
        writer.executescript("CREATE TABLE t (a); INSERT INTO t VALUES (1)")
    holding = program(file)
    next(holding)
    with pytest.raises(BackendUnavailable) as unavailable:
        UserDatabase(file, watchdog, statement_timeout_s=1.0)
    with pytest.raises(DatabaseError) as refused:
        read_schema(file)
    assert str(refused.value) == str(unavailable.value)
    reason, _, said = str(refused.value).partition("; ")
    assert why in reason
    assert remedy in said
    command = said.partition(": ")[2]
    if command:
        subprocess.run(command, shell=True, check=True, cwd="/")
    else:
        holding.close()
    with closing(UserDatabase(file, watchdog, statement_timeout_s=1.0)) as database:
        assert database.run("SELECT a FROM t").rows == ((1,),)

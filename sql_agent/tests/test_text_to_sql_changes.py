"""Tasks that change data: what an episode may change, what becomes of the file, and which state is right."""

import hashlib
import json
import os
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from agentgrpo.limited_fork import forked
from dbbench_adapter.engines import BackendUnavailable
from dbbench_adapter.engines.engine import Change
from dbbench_adapter.engines.mysql import MYSQL
from dbbench_adapter.engines.sqlite import copy_on_write, sandbox, statements
from dbbench_adapter.engines.sqlite.copy_on_write import CopyOnWrite
from dbbench_adapter.engines.sqlite.databases import DatabaseFiles
from dbbench_adapter.engines.sqlite.sandbox import Watchdog
from dbbench_adapter.engines.sqlite.user_database import CHANGE_REFUSAL, TOO_LARGE, ChangeableDatabase
from dbbench_adapter.tests.hostile import STATEMENTS
from sql_agent.settings.groups import AgentConfig, DataConfig
from sql_agent.sft.data import reference_demonstrations
from sql_agent.text_to_sql.datatypes import Question
from sql_agent.text_to_sql.environment import TextToSql
from sql_agent.text_to_sql.judges import same_state
from sql_agent.text_to_sql.load import changes_data, kind_of, read_questions

pytestmark = pytest.mark.usefixtures("few_objects")
STOCK = """
CREATE TABLE product (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, price REAL, sold INT DEFAULT 0);
CREATE TABLE shelf (room TEXT, place INT, product INT, PRIMARY KEY (room, place)) WITHOUT ROWID;
CREATE TABLE note (rowid TEXT, text TEXT);
CREATE TABLE t (a TEXT, b INT);
CREATE TABLE log (what TEXT);
CREATE VIEW cheap AS SELECT id, name FROM product WHERE price < 2;
CREATE TRIGGER logged AFTER DELETE ON product BEGIN INSERT INTO log VALUES ('gone: ' || old.name); END;
CREATE TRIGGER onto INSTEAD OF INSERT ON cheap BEGIN
    INSERT INTO product (name, price) VALUES (new.name, 1);
END;
CREATE VIRTUAL TABLE page USING fts4(title);
INSERT INTO page VALUES ('one');
INSERT INTO product (name, price) VALUES ('Nail', 0.1), ('Saw', 12.5), ('Tape', 1.75);
INSERT INTO shelf VALUES ('A', 1, 1), ('A', 2, 2), ('B', 1, 3);
INSERT INTO note VALUES ('x', 'first'), ('y', 'second');
INSERT INTO t VALUES ('x', 1), ('y', 2), ('z', 3), ('x', 4);
"""


@pytest.fixture
def stock(tmp_path):
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "stock.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(STOCK)
    return file


@pytest.fixture
def environment(stock):
    with TextToSql(stock) as opened:
        yield opened


@pytest.fixture
def database(stock):
    dog = Watchdog()
    dog.ensure_alive()
    with closing(ChangeableDatabase(stock, dog, statement_timeout_s=0.5)) as opened:
        yield opened
    dog.stop()


def state(file):
    """The folder's files by their bytes and times, so that a file written beside the database shows too."""
    return {
        each.name: (hashlib.sha256(each.read_bytes()).hexdigest(), each.stat().st_mtime_ns)
        for each in file.parent.iterdir()
    }


def play(environment, query, *calls):
    """Run the statements as an agent, the last one as what it hands in; None ends the episode without handing in."""
    question = Question("q", "?", "stock", query, changes=True)
    with closing(environment.open(question, AgentConfig(statement_timeout_s=0.5))) as episode:
        for place, sql in enumerate(calls):
            if sql is None:
                episode.without_call("Done.")
            else:
                tool = "submit_sql" if place == len(calls) - 1 else "execute_sql"
                episode.call_tool(tool, json.dumps({"sql": sql}))
        return environment.judge(episode)


# the file -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o644, 0o444])
def test_sixteen_episodes_change_their_own_view_and_never_the_file(environment, stock, mode):
    stock.chmod(mode)
    stock.parent.chmod(0o755 if mode == 0o644 else 0o555)
    before, question = state(stock), Question("q", "?", "stock", "DELETE FROM product", changes=True)
    episodes = [environment.open(question, AgentConfig()) for _ in range(16)]

    def work(number):
        database = episodes[number].database
        for _ in range(20):
            assert database.run(f"UPDATE product SET sold = sold + {number}").rows == ((3,),)
        return database.run("SELECT sum(sold) FROM product").rows

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(work, range(16))) == [((60 * number,),) for number in range(16)]
    assert modes_of_open_files(stock) == {os.O_RDONLY}
    for episode in episodes:
        episode.close()
    assert modes_of_open_files(stock) == set()
    assert state(stock) == before
    stock.parent.chmod(0o755)


def modes_of_open_files(file):
    """How this process has the file open: for reading, for writing or for both."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            if os.readlink(link) == str(file):
                flags = Path("/proc/self/fdinfo", link.name).read_text().split("flags:")[1].split()[0]
                found.add(int(flags, 8) & os.O_ACCMODE)
        except FileNotFoundError:  # the listing's own descriptor
            continue
    return found


def test_a_file_in_wal_mode_is_changed_without_files_beside_it(tmp_path):
    file = tmp_path / "wal.db"
    with closing(sqlite3.connect(file)) as writer:
        writer.executescript("PRAGMA journal_mode = WAL; CREATE TABLE t (a); INSERT INTO t VALUES (1);")
    before = state(file)
    with closing(CopyOnWrite(file)) as view:
        view.connection.execute("UPDATE t SET a = 2")
        assert view.connection.execute("SELECT a FROM t").fetchall() == [(2,)]
        assert state(file) == before


def test_a_view_of_a_file_that_somebody_else_changes_is_lost(stock, database):
    assert database.run("UPDATE product SET sold = 1").rows == ((3,),)
    with closing(sqlite3.connect(stock)) as other, other:
        other.execute("UPDATE product SET sold = 7 WHERE id = 1")
    for use in (lambda: database.run("SELECT 1"), database.changes):
        with pytest.raises(BackendUnavailable, match="was changed; leave it as it is until the run ends"):
            use()


def test_an_episode_costs_the_memory_and_the_time_of_what_it_changes(tmp_path):
    """A copy would cost 60 MB; the file's pages that a statement reads do not count against its limit either."""
    file = tmp_path / "large.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", ((i, f"{i:0>2000}") for i in range(30_000)))

    def cost():
        dog = Watchdog()
        dog.ensure_alive()
        with closing(ChangeableDatabase(file, dog, statement_timeout_s=20.0)) as database:
            database.run("SELECT 1")
            before_bytes, started = sandbox._memory_bytes(), time.perf_counter()
            with closing(ChangeableDatabase(file, dog, statement_timeout_s=20.0)) as other:
                opened_s = time.perf_counter() - started
                other.run("UPDATE t SET b = 'x' WHERE a % 100 = 0")  # 300 pages, 1.2 MB; SQLite's cache has 2 MB
                assert other.run("SELECT count(*), sum(length(b)) FROM t").rows == ((30_000, 59_400_300),)
                return opened_s, (sandbox._memory_bytes() - before_bytes) / 1024**2

    opened_s, grown_mib = forked(cost, memory_bytes=1024**3)
    assert opened_s < 0.1
    assert grown_mib < 6


# what may be done -----------------------------------------------------------------------------------------------------


LONG = f"replace(printf('%9000s', ''), ' ', '{'x' * 20}')"
"""A text of 180,000 characters."""


@pytest.mark.parametrize(("sql", "rows"), [
    ("INSERT INTO product (name, price) VALUES ('Glue', 3), ('Rope', 4)", ((2,),)),
    ("WITH dear AS (SELECT id FROM product WHERE price > 10) UPDATE product SET sold = 1 WHERE id IN dear", ((1,),)),
    ("DELETE FROM product WHERE id = 9", ((0,),)),
    ("DELETE FROM product WHERE id < 3", ((4,),)),  # with what the trigger writes
    ("UPDATE product SET price = price + 1 WHERE id = 2 RETURNING name, price", (("Saw", 13.5),)),
    (f"INSERT INTO product (price) SELECT 1 FROM shelf s, shelf t RETURNING {LONG}", ((9,),)),  # too long to return
    ("REPLACE INTO product (id, name) VALUES (1, 'Saw')", ((1,),)),
    ("INSERT INTO product (id, name) VALUES (1, 'x') ON CONFLICT DO UPDATE SET sold = 5", ((1,),)),
    ("INSERT INTO cheap (name) VALUES ('Pin')", ((1,),)),
    ("UPDATE shelf SET product = 9", ((3,),)),
])  # fmt: skip
def test_a_statement_changes_the_view_as_it_would_in_sqlite(stock, database, sql, rows):
    assert database.run(sql).rows == rows
    with closing(sqlite3.connect(":memory:")) as plain:
        plain.executescript(STOCK)
        plain.execute(sql).fetchall()
        for table in ("product", "shelf", "log", "cheap"):
            assert database.run(f"SELECT * FROM {table}").rows == tuple(plain.execute(f"SELECT * FROM {table}"))


@pytest.mark.parametrize("sql", [
    "DROP TABLE product", "CREATE TABLE u (a)", "CREATE TEMP TABLE u (a)", "ALTER TABLE product ADD COLUMN c",
    "PRAGMA user_version = 1", "PRAGMA writable_schema = 1", "ATTACH 'new.db' AS x", "VACUUM", "VACUUM INTO 'copy.db'",
    "BEGIN", "SAVEPOINT x", "COMMIT", "REINDEX", "ANALYZE", "DROP TRIGGER logged", "CREATE VIEW v AS SELECT 1",
    "UPDATE sqlite_sequence SET seq = 99", "DELETE FROM sqlite_sequence", "INSERT INTO page VALUES ('two')",
    "UPDATE page_content SET c0title = 'x'", "DELETE FROM page_segdir", "SELECT load_extension('x')",
    "UPDATE product SET name = randomblob(9)", "INSERT INTO log SELECT * FROM pragma_database_list",
])  # fmt: skip
def test_what_is_no_change_of_rows_is_refused(stock, database, sql):
    before = state(stock)
    assert database.run(sql).error == CHANGE_REFUSAL
    assert (database.changes(), state(stock)) == ({}, before)


def test_the_schema_cannot_be_written(database):
    assert database.run("DELETE FROM sqlite_master").error == "table sqlite_master may not be modified"


def test_a_change_that_is_too_large_is_undone_and_the_episode_goes_on(database, monkeypatch):
    many = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT {}) INSERT INTO t SELECT {}, n FROM r"
    monkeypatch.setattr(copy_on_write, "MAX_CHANGED_ROWS", 3_000)
    assert database.run(many.format(2_000, "'x'")).rows == ((2_000,),)
    assert database.run(many.format(9_000, "'x'")).error == TOO_LARGE
    assert database.run("SELECT count(*) FROM t").rows == ((2_004,),)
    assert len(database.changes()["t"].added) == 2_000


def test_what_was_undone_does_not_count(database, monkeypatch):
    many = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT {}) INSERT INTO t SELECT {}, n FROM r"
    monkeypatch.setattr(copy_on_write, "MAX_CHANGED_ROWS", 3_000)
    assert database.run(many.format(9_000, "'x'")).error == TOO_LARGE
    assert database.run(many.format(9_000, "'x'")).error == TOO_LARGE
    assert database.run(many.format(2_900, "'x'")).rows == ((2_900,),)
    assert database.run(many.format(2_900, "'x'")).error == TOO_LARGE
    assert len(database.changes()["t"].added) == 2_900


def test_rows_that_a_failed_statement_leaves_behind_count(database):
    # OR FAIL keeps what was inserted before the row that fails
    sql = "INSERT OR FAIL INTO product (name, price) VALUES ('Axe', 5), ('Nail', 1)"
    assert database.run(sql).error == "UNIQUE constraint failed: product.name"
    assert [row[1] for row in database.changes()["product"].added] == ["Axe"]


def test_long_values_of_a_table_that_is_read_whole_are_compared(tmp_path):
    file = tmp_path / "long.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE w (k TEXT PRIMARY KEY, v TEXT) WITHOUT ROWID")
        # 5,000,000 bytes; a statement of an agent may have values of 4,000,000
        connection.executemany("INSERT INTO w VALUES (?, ?)", [("a", "x" * 5_000_000), ("b", "y")])
    dog = Watchdog()
    dog.ensure_alive()
    with closing(ChangeableDatabase(file, dog, statement_timeout_s=5.0)) as database:
        assert database.run("UPDATE w SET v = 'z' WHERE k = 'b'").rows == ((1,),)
        assert database.changes() == {"w": Change((("b", "y"),), (("b", "z"),))}
        assert database.run("SELECT v FROM w WHERE k = 'a'").error.startswith("string or blob too big: ")  # as before
    dog.stop()


@pytest.mark.parametrize("sql", [
    # the file would grow by 200 MB
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 3000) "
    "INSERT INTO t SELECT replace(printf('%9999s', ''), ' ', '1234567'), n FROM r",
    "INSERT INTO t SELECT x.a, y.b FROM t x, t y, t z, t u, t v, t w, t a, t b, t c",  # 262,144 rows
])  # fmt: skip
def test_a_statement_that_writes_without_end_is_stopped(stock, sql):
    dog = Watchdog()
    dog.ensure_alive()
    with closing(ChangeableDatabase(stock, dog, statement_timeout_s=20.0)) as database:
        assert database.run(sql).error == TOO_LARGE
        assert database.run("SELECT count(*) FROM t").rows == ((4,),)
    dog.stop()


def test_a_statement_that_overwrites_too_much_is_stopped(tmp_path, monkeypatch):
    with closing(sqlite3.connect(tmp_path / "wide.db")) as connection, connection:
        connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", ((i, "x" * 5_000) for i in range(2_000)))  # 16 MB
    dog = Watchdog()
    dog.ensure_alive()
    monkeypatch.setattr(copy_on_write, "MAX_WRITTEN_BYTES", 4 * 1024**2)
    with closing(ChangeableDatabase(tmp_path / "wide.db", dog, statement_timeout_s=20.0)) as database:
        overwrite = "UPDATE t SET b = replace(b, 'x', 'y') WHERE a < {}"
        assert database.run(overwrite.format(200)).rows == ((200,),)
        assert database.run(overwrite.format(2_000)).error == TOO_LARGE
        assert len(database.changes()["t"].added) == 200
    dog.stop()


@pytest.mark.slow
def test_hostile_statements_change_no_file_and_end_in_time_and_memory(stock):
    def late():
        dog = Watchdog()
        dog.ensure_alive()
        found = []
        for name, sql in STATEMENTS:
            with closing(ChangeableDatabase(stock, dog, statement_timeout_s=0.5)) as database:
                started = time.thread_time()
                database.run(sql)
                if time.thread_time() - started > 1.5:
                    found.append((name, sql[:80]))
                assert database.run("SELECT count(*) FROM product").rows == ((3,),)
                database.changes()
        return found

    before = state(stock)
    assert forked(late, cpu_s=120.0, memory_bytes=1024**3) == []
    assert state(stock) == before


@pytest.mark.parametrize(("query", "found"), [
    ("UPDATE t SET b = 1; -- done", ["UPDATE t SET b = 1"]),  # else a demonstration would hand in the comment
    ("UPDATE t SET b = 1; /* done */", ["UPDATE t SET b = 1"]),
    ("-- first; second\nUPDATE OR IGNORE t SET b = 1", ["-- first; second\nUPDATE OR IGNORE t SET b = 1"]),
    ("/* a */ REPLACE INTO t VALUES ('-- x', 1)", ["/* a */ REPLACE INTO t VALUES ('-- x', 1)"]),
])  # fmt: skip
def test_comments_of_a_reference_are_no_statements(query, found):
    assert (statements(query), changes_data(query)) == (found, True)


# what is right --------------------------------------------------------------------------------------------------------

RAISE = "UPDATE product SET price = price + 1 WHERE id < 3"


@pytest.mark.parametrize(("query", "calls", "reason"), [
    (RAISE, [RAISE], "match"),
    (RAISE, ["UPDATE product SET price = 1.1 WHERE id = 1", "UPDATE product SET price = 13.5 WHERE id = 2"], "match"),
    (RAISE, [RAISE, None], "match"),  # whatever is said, what was left behind counts
    (RAISE, [RAISE, "SELECT 'nothing was changed'"], "match"),
    (RAISE, ["SELECT 'I have changed it'"], "no_change"),
    (RAISE, [None], "no_change"),
    (RAISE, [RAISE, "UPDATE product SET price = price - 1 WHERE id = 2"], "wrong_state"),
    (RAISE, [RAISE, RAISE], "wrong_state"),
    (RAISE, [RAISE, "UPDATE product SET sold = 1 WHERE id = 3"], "wrong_state"),
    (RAISE, [RAISE, "INSERT INTO note VALUES ('z', 'third')"], "wrong_state"),
    (RAISE, ["UPDATE product SET price = price + 1.0000000000001 WHERE id < 3"], "match"),  # last digits
    (RAISE, ["UPDATE product SET price = price + 1.0001 WHERE id < 3"], "wrong_state"),
    (RAISE, ["UPDATE product SET price = price + 1.0001 WHERE id < 3", "UPDATE product SET price = nil", RAISE],
     "wrong_state"),
    ("UPDATE product SET price = 0.3 WHERE id = 1", ["UPDATE product SET price = 0.1 + 0.2 WHERE id = 1"], "match"),
    ("INSERT INTO t VALUES ('p', 1), ('q', 2)", ["INSERT INTO t VALUES ('q', 2)", "INSERT INTO t VALUES ('p', 1)"],
     "match"),
    ("INSERT INTO t VALUES ('p', 1), ('p', 1)", ["INSERT INTO t VALUES ('p', 1)"], "wrong_state"),
    ("INSERT INTO t VALUES ('p', 1)", ["INSERT INTO t VALUES ('p', '1')"], "match"),  # the column makes it a number
    ("INSERT INTO log VALUES ('1')", ["INSERT INTO log VALUES (1)"], "match"),
    ("INSERT INTO t VALUES ('p', NULL)", ["INSERT INTO t VALUES ('p', 0)"], "wrong_state"),
    ("INSERT INTO t VALUES ('p', 1)", ["INSERT INTO t VALUES ('p ', 1)"], "wrong_state"),
    ("DELETE FROM t WHERE b = 2", ["DELETE FROM t", "INSERT INTO t VALUES ('x', 4), ('z', 3), ('x', 1)"], "match"),
    ("DELETE FROM t", ["DELETE FROM t WHERE 1"], "match"),
    ("DELETE FROM t", ["DELETE FROM t WHERE b < 4"], "wrong_state"),
    ("REPLACE INTO product (id, name) VALUES (1, 'Saw')",
     ["DELETE FROM product WHERE id IN (1, 2)", "INSERT INTO product (id, name) VALUES (1, 'Saw')"], "wrong_state"),
    ("REPLACE INTO product (id, name) VALUES (1, 'Saw')",  # which deletes two rows and tells no trigger of it
     ["UPDATE product SET name = 'gone', price = NULL WHERE id = 2", "UPDATE OR REPLACE product SET name = 'Saw', "
      "price = NULL WHERE id = 1", "REPLACE INTO product (id, name) VALUES (1, 'gone')",
      "UPDATE product SET name = 'Saw' WHERE id = 1"], "match"),
    ("DELETE FROM product WHERE id = 1", ["DELETE FROM product WHERE id = 1"], "match"),
    ("UPDATE shelf SET product = 2 WHERE room = 'A'", ["UPDATE shelf SET product = 2 WHERE product < 3"], "match"),
    ("UPDATE shelf SET product = 2 WHERE room = 'A'", ["UPDATE shelf SET product = 2"], "wrong_state"),
    ("UPDATE note SET text = 'one' WHERE rowid = 'x'", ["UPDATE note SET text = 'one' WHERE text = 'first'"], "match"),
    ("UPDATE note SET text = 'one' WHERE rowid = 'x'", ["UPDATE note SET text = 'one' WHERE text = 'second'"],
     "wrong_state"),
    ("DELETE FROM t WHERE b = 1; INSERT INTO log VALUES ('a;b'); UPDATE t SET a = 'w'",
     ["INSERT INTO log VALUES ('a;b')", "UPDATE t SET a = 'w'", "DELETE FROM t WHERE b = 1;"], "match"),
])  # fmt: skip
def test_what_an_episode_leaves_behind_is_compared_with_what_the_reference_does(environment, query, calls, reason):
    score = play(environment, query, *calls)
    assert (score.reason, score.value) == (reason, float(reason == "match"))


def test_only_the_rows_that_were_touched_are_read(stock, database):
    database.run("UPDATE t SET a = 'w' WHERE b = 3")
    database.run("INSERT INTO t VALUES ('new', 5)")
    database.run("UPDATE product SET sold = 1")
    database.run("UPDATE product SET sold = 0")
    assert database.changes() == {"t": Change(removed=(("z", 3),), added=(("w", 3), ("new", 5)))}


@pytest.mark.parametrize(("given", "expected", "same"), [
    ({}, {}, True),
    ({"t": Change((), ((1, 0.3),))}, {"t": Change((), ((1, 0.1 + 0.2),))}, True),
    # a row that held 0.3 before, and got 0.1 + 0.2
    ({"t": Change(((1, 0.3),), ((1, 0.1 + 0.2),))}, {}, True),
    ({"t": Change(((1, 0.3),), ((1, 0.4),))}, {}, False),
    ({"t": Change((), ((1,), (1,)))}, {"t": Change((), ((1,),))}, False),
    ({"t": Change((), ((b"\1",),))}, {"t": Change((), (("1",),))}, False),
    ({"t": Change((), ((1,),))}, {"u": Change((), ((1,),))}, False),
])  # fmt: skip
def test_states_are_compared_by_their_differences_from_the_file(given, expected, same):
    assert same_state(given, expected) == same_state(expected, given) == same


# tasks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("query", "changes", "kind"), [
    ("INSERT INTO t VALUES (1)", True, "insert"),
    ("REPLACE INTO t VALUES (1)", True, "insert"),
    ("WITH x AS (SELECT 1) DELETE FROM t WHERE a IN x", True, "delete"),
    ("update t set a = 1 -- all", True, "update"),
    ("UPDATE OR IGNORE t SET a = 1", True, "update"),
    ("WITH x AS (SELECT 1), y AS (SELECT 'values') UPDATE OR IGNORE t SET a = 1", True, "update"),
    ("WITH \"update\" AS (DELETE), y AS ('delete') SELECT (1", False, "other"),
    ("INSERT INTO t VALUES (1); DELETE FROM t WHERE a = ';';", True, "several"),
    ("SELECT 'DELETE FROM t'", False, "plain"),
    ("SELECT a FROM t; -- DELETE FROM t", False, "plain"),
    ("DROP TABLE t", False, "plain"),
])  # fmt: skip
def test_a_reference_says_whether_it_changes_data(query, changes, kind):
    assert (changes_data(query), kind_of(query)) == (changes, kind)


def test_a_reference_for_mysql_is_read_with_mysqls_quotes():
    query = r"SELECT 'it\'s; DELETE FROM t; --' FROM t"
    assert (changes_data(query), changes_data(query, MYSQL), kind_of(query, MYSQL)) == (True, False, "plain")
    assert changes_data(r"UPDATE t SET a = 'it\'s' LIMIT 1", MYSQL)


def test_statements_are_parted_by_semicolons_outside_of_texts():
    query = "INSERT INTO t VALUES ('a;b', \"c;d\"); /* ; */ DELETE FROM t;;"
    assert statements(query) == ["INSERT INTO t VALUES ('a;b', \"c;d\")", "/* ; */ DELETE FROM t"]


def test_references_that_fail_or_change_nothing_are_left_out(environment, tmp_path):
    queries = (
        *("DELETE FROM t", "DELETE FROM t WHERE b > 9", "DELETE FROM nowhere", "DROP TABLE t; DELETE FROM t"),
        *("SELECT a FROM t", "UPDATE t SET b = b", "DELETE FROM log; SELECT 1 FROM t"),
    )
    (tmp_path / "q.json").write_text(json.dumps([{"question": str(i), "query": q} for i, q in enumerate(queries)]))
    data = DataConfig(train_file=tmp_path / "q.json", val_file=tmp_path / "q.json")
    split = environment.read_split(data, seed=0)
    assert ([q.id for q in split.train], [q.id for q in split.val]) == (
        ["q-1", "q-5"],
        ["q-1", "q-2", "q-5", "q-6", "q-7"],
    )
    assert split.left_out == {"reference_failed": 4, "changes_nothing": 3}


def test_the_prompt_says_that_data_may_be_changed_and_a_demonstration_changes_them(environment, tmp_path):
    query = "DELETE FROM t WHERE b = 1; INSERT INTO log VALUES ('one')"
    (tmp_path / "q.json").write_text(json.dumps([{"question": "Drop one.", "query": query}, {"question": "?",
                                                 "query": "SELECT a FROM t"}]))  # fmt: skip
    change, look = read_questions(tmp_path / "q.json", DatabaseFiles(environment.databases.path))
    assert "Change the data" in environment.messages(change)[0]["content"]
    assert "Answer the question" in environment.messages(look)[0]["content"]
    other = environment.with_instructions("Read with execute_sql, end with submit_sql.\n")
    schema = environment.messages(look)[0]["content"].partition("\n\n")[2]
    assert other.messages(look)[0]["content"] == f"Read with execute_sql, end with submit_sql.\n\n{schema}"
    assert other.messages(change) == environment.messages(change)
    found = reference_demonstrations([change, look], environment)
    assert found.left_out == {}
    said = [
        (call["function"]["name"], json.loads(call["function"]["arguments"])["sql"])
        for message in found.kept[0].messages
        for call in message.get("tool_calls", [])
    ]
    assert said == [("execute_sql", "DELETE FROM t WHERE b = 1"), ("submit_sql", "INSERT INTO log VALUES ('one')")]


def test_what_is_handed_in_has_as_long_as_the_reference(environment):
    """Else a reference that takes longer than other statements would be wrong when it is handed in."""
    slow = "UPDATE t SET b = (SELECT count(*) FROM t, t u, t v, t w, t x, t y, t z, t a, t b, t c)"  # 4 ** 10 rows
    with closing(
        environment.open(Question("q", "?", "stock", slow, changes=True), AgentConfig(statement_timeout_s=0.001))
    ) as episode:
        assert "takes too long" in episode.call_tool("execute_sql", json.dumps({"sql": slow}))
        assert episode.call_tool("submit_sql", json.dumps({"sql": slow})) == '["rows changed"]\n[4]'
        assert environment.judge(episode).reason == "match"

"""What is DuckDB's own; what all engines promise: test_engines."""

import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from dbbench_adapter.datatypes import DatabaseError
from dbbench_adapter.engines import BackendUnavailable, known_places, open_databases
from dbbench_adapter.engines.duckdb import DUCKDB
from dbbench_adapter.engines.duckdb.lexer import tokens
from dbbench_adapter.engines.duckdb.processes import MAX_PROCESSES, REFUSAL
from dbbench_adapter.tests.engine_worlds import duckdb_world, file_contents

duckdb = pytest.importorskip("duckdb")
pytestmark = pytest.mark.usefixtures("few_objects")
TOO_LONG = "the statement takes too long; ask for less"
TOO_LARGE = "the statement takes too much memory; ask for less"


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    return duckdb_world(tmp_path_factory.mktemp("duckdb")).place


@pytest.fixture
def databases(shop):
    with closing(open_databases(shop)) as opened:
        yield opened


def run(databases, sql, timeout_s=5.0):
    return databases.open(databases.ids[0], statement_timeout_s=timeout_s).run(sql)


def made(file, *statements):
    with duckdb.connect(file) as connection:
        for statement in statements:
            connection.execute(statement)
    return file


# files ----------------------------------------------------------------------------------------------------------------


def test_a_file_is_known_by_its_content_and_only_then_by_its_name(shop, tmp_path):
    shutil.copy(shop, tmp_path / "shop.db")
    with closing(sqlite3.connect(tmp_path / "a.duckdb")) as connection:
        connection.execute("CREATE TABLE t (a)")
    names = {}
    for path in (tmp_path / "shop.db", tmp_path / "a.duckdb"):
        with closing(open_databases(path)) as databases:
            names[path.name] = databases.engine.name
    assert names == {"shop.db": "DuckDB", "a.duckdb": "SQLite"}
    (tmp_path / "b.duckdb").write_text("a,b\n")
    for name, said in (("b.duckdb", "is no DuckDB database"), ("c.duckdb", "does not exist; expected a DuckDB file")):
        with pytest.raises(DatabaseError, match=f"{name} {said}"):
            open_databases(tmp_path / name)
    assert "FILE.duckdb, a folder DB_ID/DB_ID.duckdb" in known_places()


def test_a_folder_has_a_database_for_each_id_and_a_folder_of_sqlite_files_stays_one(shop, tmp_path):
    for name in ("one", "two"):
        (tmp_path / "database" / name).mkdir(parents=True)
        made(tmp_path / "database" / name / f"{name}.duckdb", f"CREATE TABLE {name} (a INT)")
    with closing(open_databases(tmp_path)) as databases:
        assert [databases.db_id(name) for name in ("one", "two")] == databases.ids == ["one", "two"]
        assert [databases.schema(name)[0].name for name in databases.ids] == ["one", "two"]
        assert "2 DuckDB, 2 tables and views" in databases.summary()
    with closing(sqlite3.connect(tmp_path / "database" / "one" / "one.sqlite")) as connection:
        connection.execute("CREATE TABLE t (a)")
    with closing(open_databases(tmp_path)) as databases:
        assert databases.engine.name == "SQLite"


def test_without_the_package_the_line_that_installs_it_is_given(shop, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DatabaseError, match=r"needs the package duckdb, which is not installed; .*--extra duckdb"):
        open_databases(shop)


def test_settings_and_schemas_of_other_engines_need_no_duckdb(shop):
    code = f"import sys; from dbbench_adapter.engines import open_databases, Path; open_databases(Path({str(shop)!r}))"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'duckdb' not in sys.modules"], check=True, timeout=60)


def fault_of(file):
    with closing(open_databases(file)) as databases, pytest.raises(DatabaseError) as caught:
        databases.check()
    return str(caught.value)


WRITER = """
import duckdb, sys
writer = duckdb.connect(sys.argv[1])
for statement in ("CREATE TABLE t (a INT)", "CHECKPOINT", "INSERT INTO t VALUES (1)"):
    writer.execute(statement)
print("ready", flush=True)
input()
"""


def test_a_file_that_is_open_for_writing_is_refused_and_then_one_with_a_wal(tmp_path):
    file = tmp_path / "a.duckdb"
    command = [sys.executable, "-c", WRITER, file]  # a process loses its lock when it closes another handle of the file
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout.readline() == "ready\n"
        assert re.search(r"Could not set lock .*; close the program that has it open for writing", fault_of(file))
        for each in (file, Path(f"{file}.wal")):
            shutil.copy(each, tmp_path / each.name.replace("a.", "b."))
        writer.kill()
    log = tmp_path / "b.duckdb.wal"
    before = file_contents(tmp_path)
    said = fault_of(tmp_path / "b.duckdb")
    assert "its newest changes are in b.duckdb.wal; close the programs that write to it" in said
    assert (file_contents(tmp_path), log.exists()) == (before, True)
    subprocess.run(shlex.split(said.rpartition("into the file: ")[2]), check=True, timeout=60)
    with closing(open_databases(tmp_path / "b.duckdb")) as databases:
        assert run(databases, "FROM t").rows == ((1,),)


def test_files_that_cannot_be_read_are_refused_with_what_to_do(shop, tmp_path):
    content = shop.read_bytes()
    (tmp_path / "cut.duckdb").write_bytes(content[:9000])
    assert fault_of(tmp_path / "cut.duckdb").endswith("give an intact DuckDB file that this user may read")
    newer = bytearray(content)
    newer[12:20] = (1000).to_bytes(8, "little")  # the storage version
    (tmp_path / "newer.duckdb").write_bytes(newer)
    checksum = re.search(r"computed checksum (\d+)", fault_of(tmp_path / "newer.duckdb"))
    newer[:8] = int(checksum[1]).to_bytes(8, "little")
    (tmp_path / "newer.duckdb").write_bytes(newer)
    assert re.search("storage version number 1000.*; it may be of a newer DuckDB", fault_of(tmp_path / "newer.duckdb"))
    attach = f"ATTACH '{tmp_path}/locked.duckdb' AS locked (ENCRYPTION_KEY 'abc')"
    with duckdb.connect() as connection:
        for statement in ("SET force_mbedtls_unsafe = 'true'", attach, "CREATE TABLE locked.t (a INT)"):
            connection.execute(statement)
    assert fault_of(tmp_path / "locked.duckdb").endswith("without a key; give a copy without encryption")


# the schema -----------------------------------------------------------------------------------------------------------


def test_tables_of_other_schemas_and_views_that_fail_are_left_out_and_named(tmp_path):
    (tmp_path / "a.csv").write_text("a\n1\n")
    file = made(
        tmp_path / "a.duckdb",
        "CREATE TABLE t (a INT)",
        "CREATE SCHEMA other",
        "CREATE TABLE other.u (a INT)",
        f"CREATE VIEW v AS FROM '{tmp_path}/a.csv'",
    )
    with closing(open_databases(file)) as databases:
        assert [table.name for table in databases.schema("a")] == ["t"]
        left_out = databases.unreadable("a")
        assert left_out["other.u"] == "only tables of the schema main are shown"
        assert "file system operations are disabled" in left_out["v"]
        assert run(databases, "FROM other.u").rows == ()


def test_names_that_are_words_of_duckdb_need_quotes(tmp_path):
    file = made(tmp_path / "a.duckdb", 'CREATE TABLE "pivot" ("qualify" INT, "Home Town" TEXT, date DATE, "map" INT)')
    with closing(open_databases(file)) as databases:
        assert databases.schema("a")[0].plain == {"date"}


# statements -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sql", "value"), [
    ("12345678901234567890123456789::HUGEINT", 12345678901234567890123456789), ("2::DECIMAL(3, 0)", 2),
    ("1.50::DECIMAL(5, 2)", 1.5), ("true", 1), ("'inf'::DOUBLE", float("inf")), ("x'00ff'::BLOB", b"\0\xff"),
    ("DATE '1990-02-03'", "1990-02-03"), ("DATE 'infinity'", "infinity"), ("TIME '12:30'", "12:30:00"),
    ("TIMESTAMP '1990-02-03 04:05:06.5'", "1990-02-03 04:05:06.5"),
    ("TIMESTAMPTZ '1990-02-03 04:05:06+02'", "1990-02-03 02:05:06+00"), ("INTERVAL '1 month 3 days'", "1 month 3 days"),
    ("'f4d85ef1-7322-4a09-b5e8-9370c002c1f2'::UUID", "f4d85ef1-7322-4a09-b5e8-9370c002c1f2"),
    ("[1, NULL]", "[1,null]"), ("{'a': 1, 'b': DATE '1990-02-03'}", '{"a":1,"b":"1990-02-03"}'),
    ("map {'a': 1.5}", '{"a":1.5}'), ("'x'::ENUM ('x', 'y')", "x"), ("'0101'::BIT", "0101"),
    ("'{\"a\": 1}'::JSON", '{"a": 1}'), ("NULL", None), ("'a\0b'", "a\0b"),
])  # fmt: skip
def test_values_are_numbers_texts_and_bytes(databases, sql, value):
    result = run(databases, f"SELECT {sql}")
    assert (result.rows, result.error) == (((value,),), None)
    assert type(result.rows[0][0]) is type(value)


def test_no_number_is_a_float_too(databases):
    assert str(run(databases, "SELECT 'nan'::FLOAT").rows[0][0]) == "nan"


@pytest.mark.parametrize(("sql", "first"), [
    ("FROM t ORDER BY b DESC", ("x", 4)), ("TABLE t", ("x", 1)), ("DESCRIBE t", ("a", "VARCHAR")),
    ("SUMMARIZE t", ("a", "VARCHAR")), ("SHOW TABLES", ("customer",)), ("VALUES (1, 2)", (1, 2)),
    ("SELECT 1 AS a, 2 AS a", (1, 2)), ("SELECT * FROM t PIVOT (sum(b) FOR a IN ('x', 'y'))", (5, 2)),
])  # fmt: skip
def test_duckdbs_own_queries_run(databases, sql, first):
    assert run(databases, sql).rows[0][: len(first)] == first


@pytest.mark.parametrize("sql", [
    "", "--", "SELECT 1; SELECT 2", "EXPLAIN ANALYZE SELECT 1", "PRAGMA table_info('t')", "CALL pragma_version()",
    "PIVOT t ON a USING sum(b)", "BEGIN", "CHECKPOINT", "VACUUM", "ANALYZE", "USE my_shop", "SET threads = 8",
    "SET VARIABLE x = 1", "RESET threads", "PREPARE p AS SELECT 1", "EXECUTE p", "CREATE TEMP TABLE q (a INT)",
    "CREATE TEMP MACRO m() AS 1", "CREATE SECRET s (TYPE http)", "ATTACH ':memory:' AS m", "DETACH my_shop",
    "LOAD httpfs", "INSTALL httpfs", "COPY t TO '{}/o.csv'", "EXPORT DATABASE '{}/o'", "TRUNCATE t",
    "MERGE INTO t USING t s ON t.a = s.a WHEN MATCHED THEN DELETE", "COMMENT ON TABLE t IS 'x'",
    "PRAGMA profiling_output = '{}/o.json'", "PRAGMA enable_logging",
])  # fmt: skip
def test_what_is_no_select_is_refused(shop, databases, sql):
    assert run(databases, sql.format(shop.parent)).error == REFUSAL


@pytest.mark.parametrize("sql", [
    "FROM '/etc/passwd.csv'", "FROM read_csv('/etc/passwd')", "FROM read_text('/proc/self/environ')",
    "FROM read_blob('/etc/passwd')", "FROM read_json('/etc/passwd')", "FROM parquet_scan('/etc/passwd')",
    "FROM glob('/*')", "FROM sniff_csv('/etc/passwd')", "FROM read_csv('/dev/stdin')", "FROM 'other.duckdb'",
    "FROM read_duckdb('other.duckdb')", "FROM 'https://localhost/a.parquet'", "FROM sqlite_scan('a', 'b')",
    "FROM connection", "FROM query('COPY t TO ''/tmp/o''')", "FROM query_table('/etc/passwd.csv')",
    "FROM enable_logging(storage = 'file', storage_path = '/tmp/agentgrpo-escape')",
    "FROM enable_profiling(save_location = '/tmp/agentgrpo-escape')", "FROM add_grammar_extension('x')",
    "SELECT getenv('HOME')", "WITH x AS (INSERT INTO t VALUES ('q', 1) RETURNING *) FROM x",
    "FROM json_execute_serialized_sql('DELETE FROM t')", "IMPORT DATABASE '/etc'", "UPDATE EXTENSIONS",
    "FROM arrow_scan(1, 2, 3)", "FROM pandas_scan(140737488355328)",
])  # fmt: skip
def test_nothing_but_the_file_is_read(databases, sql):
    result = run(databases, sql)
    assert (result.rows, bool(result.error)) == (None, True)
    assert not os.path.exists("/tmp/agentgrpo-escape")


NESTED = ", ".join(
    ["c0 AS (SELECT 1 AS x)"]
    + [
        f"c{n} AS NOT MATERIALIZED (SELECT (SELECT x FROM c{n - 1}) + (SELECT x FROM c{n - 1}) AS x)"
        for n in range(1, 60)
    ]
)
BOMBS = {
    "8 GB in one value": ("SELECT len(range(1000000000))", TOO_LARGE),
    "2 GB in one text": ("SELECT length(repeat('a', 1000000000))", TOO_LARGE),
    "a list of all rows": ("SELECT list(x) FROM range(100000000) r(x)", None),
    "a format's width": ("SELECT format('{:1000000000}', 1)", TOO_LARGE),
    "a sample's size": ("FROM t USING SAMPLE 1000000000 ROWS", TOO_LARGE),
    "memory inside of another function": ("SELECT reservoir_quantile(x, 0.5, 100000000) FROM range(9) t(x)", None),
    "SQL in a text": (
        "FROM json_execute_serialized_sql(json_serialize_sql('SELECT len(range(1000000000))'))",
        TOO_LARGE,
    ),
    "no interrupt is heard": ("SELECT lpad('a', 2000000000, 'b')", None),
    "nor here": ("SELECT bitstring('1', 2000000000)", None),
    "sleep": ("SELECT sleep_ms(60000)", TOO_LONG),
    "a row without an end": (
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r",
        None,
    ),
    "quadratic": ("SELECT levenshtein(repeat('a', 100000), repeat('b', 100000))", TOO_LONG),
    "a cross product": ("SELECT count(DISTINCT a.x * b.x) FROM range(100000) a(x), range(100000) b(x)", None),
    "2 to the 60th queries": (f"WITH {NESTED} SELECT * FROM c59", TOO_LONG),
    "300 tables": (f"SELECT * FROM {', '.join(f't t{n}' for n in range(300))}", TOO_LONG),
    "a deep type": (f"SELECT NULL::{'STRUCT(a ' * 500}INT{')' * 500}", None),
    "an error of 100 MB": ("SELECT error(repeat('x', 100000000))", None),
    "half a pair": ("SELECT '\ud800'", "the statement is no valid text"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_statement_ends_in_time_and_memory_and_the_next_one_runs(shop, databases, name):
    sql, error = BOMBS[name]
    before, pids = file_contents(shop.parent), {child.pid for child in psutil.Process().children()}
    run(databases, "SELECT 1")
    (child,) = [each for each in psutil.Process().children() if each.pid not in pids]
    most, done = [0], threading.Event()

    def watch():
        while not done.wait(0.02) and child.is_running():
            with_rss = child.memory_info() if child.status() != psutil.STATUS_ZOMBIE else None
            most[0] = max(most[0], with_rss.rss if with_rss else 0)

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.monotonic()
    said = run(databases, sql, 1.0).error
    taken_s = time.monotonic() - started
    done.set()
    watcher.join()
    assert said == (error or said) and (said is not None)
    assert len(said) < 5_000 and "site-packages" not in said
    assert (taken_s < 4.0, most[0] < 800 * 1024**2) == (True, True), (taken_s, most[0])
    assert run(databases, "SELECT count(*) FROM t").rows == ((4,),)
    assert file_contents(shop.parent) == before


# processes ------------------------------------------------------------------------------------------------------------


def children():
    return [each for each in psutil.Process().children() if "child.py" in " ".join(each.cmdline())]


def test_a_process_is_kept_for_the_next_statement_and_ends_at_the_close(shop):
    with closing(open_databases(shop)) as databases:
        assert [run(databases, "SELECT count(*) FROM t").rows for _ in range(3)] == [((4,),)] * 3
        assert len(children()) == 1
    assert children() == []


def test_threads_share_a_few_processes(shop):
    with closing(open_databases(shop)) as databases:
        found = []
        ask = lambda: found.append(run(databases, "SELECT count(*), sleep_ms(50) FROM t").rows[0][0])  # noqa: E731
        threads = [threading.Thread(target=ask) for _ in range(2 * MAX_PROCESSES + 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (found, len(children())) == ([4] * len(threads), MAX_PROCESSES)


@pytest.mark.parametrize(("sign", "said"), [
    (signal.SIGKILL, None), (signal.SIGTERM, None), (signal.SIGABRT, TOO_LARGE),
    (signal.SIGSEGV, r"the statement ended DuckDB's process \(-11\)"),
])  # fmt: skip
def test_a_process_that_others_end_is_no_fault_of_the_statement_and_a_crash_is(databases, sign, said):
    run(databases, "SELECT 1")
    (child,) = children()
    timer = threading.Timer(0.3, child.send_signal, [sign])
    timer.start()
    if said is None:
        with pytest.raises(BackendUnavailable, match="was ended during a statement"):
            run(databases, "SELECT sleep_ms(20000)", 30.0)
    else:
        assert re.fullmatch(said, run(databases, "SELECT sleep_ms(20000)", 30.0).error)
    assert run(databases, "SELECT count(*) FROM t").rows == ((4,),)


def test_one_that_was_ended_between_two_statements_is_replaced(databases):
    run(databases, "SELECT 1")
    (child,) = children()
    child.kill()
    child.wait(10)
    assert run(databases, "SELECT count(*) FROM t").rows == ((4,),)


def test_a_file_that_is_gone_during_a_run_is_no_fault_of_the_statement(tmp_path):
    file = made(tmp_path / "a.duckdb", "CREATE TABLE t (a INT)")
    with closing(open_databases(file)) as databases:
        file.unlink()
        with pytest.raises(BackendUnavailable, match=r"cannot be read: .*database does not exist"):
            run(databases, "FROM t")


def test_a_process_that_does_not_start_is_no_fault_of_the_statement(databases, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(BackendUnavailable, match="DuckDB's process did not start; see what"):
        run(databases, "SELECT 1")


@pytest.mark.parametrize("name", ["no interrupt is heard", "quadratic", "2 to the 60th queries"])
def test_the_process_of_a_killed_command_ends_at_once(shop, name):
    code = f"""
from dbbench_adapter.engines import Path, open_databases
session = open_databases(Path({str(shop)!r})).open("my_shop", statement_timeout_s=60.0)
session.run("SELECT 1")
print("ready", flush=True)
session.run({BOMBS[name][0]!r})
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout.readline() == "ready\n"
        (child,) = psutil.Process(command.pid).children()
        time.sleep(0.3)
        command.kill()
        assert psutil.wait_procs([child], timeout=10)[1] == []


# tokens ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sql", "parts"), [
    ("SELECT /* a /* b */ ' */ 1 -- x", ["SELECT", "1"]), ("/* open", []), ("'open", ["'open"]),
    ("'it''s' \"a\"\"b\" `c d`", ["'it''s'", '"a""b"', "`c d`"]), (r"E'a\'b' c", [r"E'a\'b'", "c"]),
    ("$$ ; $$ $t$ ' $$ $t$ $1", ["$$ ; $$", "$t$ ' $$ $t$", "$1"]), ("a=$$open", ["a", "=", "$$open"]),
])  # fmt: skip
def test_a_text_is_split_as_duckdb_splits_it(sql, parts):
    found = list(tokens(sql))
    assert "".join(token.text for token in found) == sql
    assert [token.text for token in found if token.kind != "blank"] == parts
    assert DUCKDB.statements(sql) == [sql]

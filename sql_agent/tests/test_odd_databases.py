"""Databases as other programs and archives leave them: what cannot be used is named, and the rest is played."""

import json
import sqlite3
from contextlib import closing

import pytest

from agentgrpo.checks import UsageError
from dbbench_adapter.datatypes import DatabaseError
from dbbench_adapter.engines.sqlite.databases import DatabaseFiles
from dbbench_adapter.engines.sqlite.schema import read_schema
from sql_agent.interactive.user_database import read_database
from sql_agent.settings.groups import DataConfig
from sql_agent.startup.input_checks import check_database
from sql_agent.text_to_sql.environment import TextToSql
from sql_agent.text_to_sql.load import read_questions

CARDS = "CREATE TABLE card (id INTEGER PRIMARY KEY, due INTEGER); INSERT INTO card VALUES (1, 10), (2, 11);"
BOATS = "CREATE TABLE boat (name TEXT); INSERT INTO boat VALUES ('Alba'), ('Brae');"
COUNT = {"question": "How many boats?", "query": "SELECT count(*) FROM boat"}


def made(path, script, *collations):
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        for name in collations:
            connection.create_collation(name, lambda a, b: (a > b) - (a < b))
        connection.executescript(script)
    return path


def asked(path, *rows):
    path.write_text(json.dumps(rows))
    return path


# Collations -----------------------------------------------------------------------------------------------------------

KEYED = (
    "CREATE TABLE label (word TEXT PRIMARY KEY COLLATE {}, uses INTEGER) WITHOUT ROWID; "
    "INSERT INTO label VALUES ('a', 1);"
)


@pytest.mark.parametrize("written", ["unicase", '"unicase"', "`unicase`", "[unicase]"])
def test_a_table_that_another_programs_collation_sorts_is_left_out_and_named(tmp_path, written):
    found = read_schema(made(tmp_path / "a.sqlite", CARDS + KEYED.format(written), "unicase"))
    assert [table.name for table in found.tables] == ["card"]
    assert found.unreadable == {"label": "no query solution; the collation unicase is another program's"}


def test_a_view_that_another_programs_collation_sorts_is_left_out_and_named(tmp_path):
    script = "CREATE TABLE label (word TEXT COLLATE own); CREATE VIEW ordered AS SELECT word FROM label ORDER BY word;"
    found = read_schema(made(tmp_path / "a.sqlite", script, "own"))
    assert [table.name for table in found.tables] == ["label"]
    assert found.unreadable == {"ordered": "no such collation sequence: own"}


def test_the_other_tables_are_played_and_the_left_out_one_is_said(tmp_path, capsys):
    path = made(tmp_path / "a.sqlite", CARDS + KEYED.format("own"), "own")
    rows = asked(
        tmp_path / "q.json",
        {"question": "How many cards?", "query": "SELECT count(*) FROM card"},
        {"question": "Due?", "query": "SELECT min(due) FROM card"},
        {"question": "Uses?", "query": "SELECT uses FROM label WHERE word = 'a'"},
        {"question": "All?", "query": "SELECT * FROM label"},
    )
    with TextToSql(path) as environment:
        environment.check_episodes()
        split = environment.read_split(DataConfig(train_file=rows, val_file=rows), seed=0)
    assert ([q.question for q in split.train], split.left_out) == (
        ["How many cards?", "Due?"],
        {"reference_failed": 4},
    )
    printed = capsys.readouterr().out
    assert "left out of a: label (no query solution; the collation own is another program's)" in printed
    assert "(Uses?): no such collation sequence: own: only the program that wrote the database has it; write" in printed
    assert "(All?): no query solution: a table is sorted by a collation that only the program which wrote it" in printed
    finding = check_database(path, rows)
    assert "left out: label (no query solution; the collation own is another program's) of a" in finding.found
    assert finding.problems[0].remedy.startswith("leave the questions out") and not finding.problems[0].blocks


def test_a_table_that_computes_by_another_programs_function_is_left_out_and_named(tmp_path):
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.create_function("own", 1, lambda value: value, deterministic=True)
        connection.executescript(CARDS + "CREATE TABLE made (a, b AS (own(a)))")
    found = read_schema(path)
    assert [table.name for table in found.tables] == ["card"]
    assert found.unreadable == {"made": "unknown function: own()"}
    rows = asked(tmp_path / "q.json", {"question": "How many?", "query": "SELECT count(*) FROM card"})
    assert not check_database(path, rows).problems


def test_a_file_of_such_tables_alone_is_refused_and_names_them(tmp_path):
    path = made(tmp_path / "a.sqlite", KEYED.format("own"), "own")
    with pytest.raises(DatabaseError, match=r"no table that can be read: label \(.*own is another program's\); give"):
        DatabaseFiles(path).schema("a")


def test_a_conversation_over_a_copy_leaves_such_a_table_out_and_says_so(tmp_path):
    found = read_database(made(tmp_path / "a.sqlite", CARDS + KEYED.format("own"), "own"))
    assert [table.name for table in found.task.tables] == ["card"]
    why = "label (no query solution; the collation own is another program's)"
    assert found.left_out == (f"not copied, since no statement can read it: {why}",)
    with pytest.raises(ValueError, match=r"there is no table that can be read: label \(no query solution"):
        read_database(made(tmp_path / "b.sqlite", KEYED.format("own"), "own"))


# Other versions of SQLite ---------------------------------------------------------------------------------------------

NEWER = {
    "cheap": "CREATE VIEW cheap AS SELECT name FROM fish WHERE price THAN 3",
    "stock": "CREATE TABLE stock (n INTEGER) NEWSTYLE",
    "sold": "CREATE TRIGGER sold AFTER DELETE ON boat BEGIN INSERT INTO fish VALUES (OLD.name, 0) ON GUESS; END",
    "by_price": "CREATE INDEX by_price ON fish (price) BY GUESS",
}
"""Definitions in a syntax that no SQLite has; of the view and the table SQLite takes what stands before it."""
OLDER = """
CREATE TABLE fish (name TEXT PRIMARY KEY, price REAL); INSERT INTO fish VALUES ('cod', 2.5), ('eel', 9);
CREATE TABLE stock (n INTEGER); INSERT INTO stock VALUES (7); CREATE TABLE whale (name TEXT);
CREATE VIEW cheap AS SELECT name FROM fish; CREATE VIEW cheapest AS SELECT count(*) AS n FROM cheap;
CREATE VIEW dear AS SELECT name FROM fish WHERE price > 5;
CREATE TRIGGER sold AFTER DELETE ON boat BEGIN SELECT 1; END; CREATE INDEX by_price ON fish (price);
"""


def written_by_a_newer_sqlite(path, *names):
    made(path, BOATS + OLDER)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA writable_schema = ON")
        for name in names:
            connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (NEWER[name], name))
    return path


OF_ANOTHER = "syntax error; another version of SQLite wrote its definition"
FAULTS = {
    "cheap": {"cheap": f'near "THAN": {OF_ANOTHER}', "cheapest": "it reads what another version of SQLite defined"},
    "stock": {"stock": "unknown table option: NEWSTYLE; another version of SQLite wrote its definition"},
    "sold": {"trigger sold of boat": f'near "GUESS": {OF_ANOTHER}; its rows cannot change'},
    "by_price": {"index by_price of fish": f'near "BY": {OF_ANOTHER}; its rows cannot change'},
}


@pytest.mark.parametrize("names", [*([name] for name in NEWER), [*NEWER]], ids=lambda names: "_".join(names))
def test_what_a_newer_sqlite_defined_is_left_out_and_named_and_the_rest_is_read(tmp_path, names):
    path = written_by_a_newer_sqlite(tmp_path / "a.sqlite", *names)
    found = read_schema(path)
    expected = {part: why for name in names for part, why in FAULTS[name].items()}
    assert found.unreadable == expected
    there = ["boat", "fish", "stock", "whale", "cheap", "cheapest", "dear"]
    assert [table.name for table in found.tables] == [name for name in there if name not in expected]
    assert DatabaseFiles(path).summary().endswith(" of a")
    copied = read_database(path)
    assert [table.name for table in copied.task.tables] == [n for n in there[:4] if n not in expected]


@pytest.fixture
def newer(tmp_path):
    return DatabaseFiles(written_by_a_newer_sqlite(tmp_path / "a.sqlite", *NEWER))


@pytest.mark.parametrize("opened", [DatabaseFiles.open, DatabaseFiles.open_view])
@pytest.mark.parametrize(
    "sql",
    ["SELECT * FROM cheap", "SELECT count(*) FROM cheap", "SELECT 1 FROM CHEAP", "SELECT * FROM cheapest",
     "SELECT 1 FROM fish NATURAL JOIN cheap", "WITH a AS (SELECT * FROM cheap) SELECT 1 FROM a",
     "SELECT 1 WHERE EXISTS (SELECT 1 FROM cheap)", "SELECT name FROM boat WHERE name IN cheap"],
)  # fmt: skip
def test_a_statement_reads_no_half_of_a_view_and_says_why(newer, opened, sql):
    with closing(opened(newer, "a", statement_timeout_s=5)) as database:
        assert database.run(sql).error == f'cheap cannot be read: near "THAN": {OF_ANOTHER}'
        assert database.run("SELECT name FROM dear").rows == (("eel",),)
        assert database.run("SELECT n FROM stock").error.startswith("stock cannot be read: unknown table option")


@pytest.mark.parametrize(
    ("table", "entry"), [("boat", 'trigger sold: near "GUESS"'), ("fish", 'index by_price: near "BY"')]
)
def test_rows_whose_trigger_or_index_is_unknown_cannot_be_changed_and_others_can(newer, table, entry):
    with closing(newer.open_view("a", statement_timeout_s=5)) as database:
        for sql in (f"DELETE FROM {table}", f"INSERT INTO {table} (name) VALUES ('x')", f"UPDATE {table} SET name = 1"):
            assert database.run(sql).error == f"{table} cannot be changed: {entry}: {OF_ANOTHER}"
        assert database.run("INSERT INTO whale VALUES ('orca')").rows == ((1,),)
        assert database.run("INSERT INTO whale VALUES (1, 2)").error is not None
        assert database.run("INSERT INTO whale SELECT name FROM dear").rows == ((1,),)
        assert [*database.changes()] == ["whale"]


def test_questions_about_what_a_newer_sqlite_defined_are_left_out_and_named(newer, tmp_path):
    queries = ("SELECT name FROM cheap", "DELETE FROM boat", "SELECT name FROM dear")
    rows = asked(tmp_path / "q.json", *({"question": query, "query": query} for query in queries))
    finding = check_database(newer.path, rows)
    assert f'cheap (near "THAN": {OF_ANOTHER})' in finding.found
    [problem] = finding.problems
    assert "2 references fail" in problem.what and not problem.blocks
    assert f'boat cannot be changed: trigger sold: near "GUESS": {OF_ANOTHER}' in problem.what
    assert problem.remedy.startswith("leave the questions out")


@pytest.mark.parametrize("opened", [DatabaseFiles.open, DatabaseFiles.open_view])
def test_nobody_may_write_the_schema_of_such_a_file(newer, opened):
    with closing(opened(newer, "a", statement_timeout_s=5)) as database:
        for sql in (
            *("PRAGMA writable_schema = ON", "DROP VIEW cheap", "CREATE TABLE a (b)", "DELETE FROM sqlite_schema"),
            *("UPDATE sqlite_master SET sql = ''", "INSERT INTO sqlite_master (name) VALUES (1)"),
        ):
            assert database.run(sql).error.startswith(("not allowed: only SELECT", "table sqlite_master may not be"))
        assert database._connection.execute("SELECT name FROM boat LIMIT 1").fetchone() == ("Alba",)
        database._connection.set_authorizer(None)
        assert database._connection.execute("PRAGMA writable_schema").fetchone() == (0,)


def test_a_schema_that_is_damaged_otherwise_is_refused_in_sqlites_words(tmp_path):
    path = made(tmp_path / "a.sqlite", BOATS)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET rootpage = 99")
    with pytest.raises(DatabaseError, match=r"malformed database schema \(boat\) - invalid rootpage"):
        read_schema(path)


# Folders --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stray", [".db", ".sqlite3"])
@pytest.mark.parametrize("content", ["", "CREATE TABLE old (a)"])
def test_the_sqlite_file_of_a_folder_wins_over_a_stray_one(tmp_path, stray, content):
    made(tmp_path / "boats" / "boats.sqlite", BOATS)
    made(tmp_path / "boats" / f"boats{stray}", content)
    databases = DatabaseFiles(tmp_path)
    assert [table.name for table in databases.schema("boats")] == ["boat"]
    assert databases.summary().endswith(f"; left out: boats{stray}, since boats.sqlite is there")


def test_other_suffixes_are_databases_where_nothing_else_is(tmp_path):
    made(tmp_path / "boats" / "boats.db", BOATS)
    assert DatabaseFiles(tmp_path).files == {"boats": tmp_path / "boats" / "boats.db"}


BROKEN = {
    "pointer": (b"version https://git-lfs.github.com/spec/v1", "file is not a database"),
    "empty": (b"", "holds no table"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_database_blocks_the_questions_about_it_alone(tmp_path, kind):
    content, why = BROKEN[kind]
    made(tmp_path / "boats" / "boats.sqlite", BOATS)
    (tmp_path / "dud").mkdir()
    (tmp_path / "dud" / "dud.sqlite").write_bytes(content)
    good = asked(tmp_path / "good.json", {**COUNT, "db_id": "boats"})
    with TextToSql(tmp_path) as environment:
        environment.check_episodes()
        assert [q.db_id for q in environment.read_tasks(good)] == ["boats"]
    finding = check_database(tmp_path, good)
    assert (
        not finding.problems and f"; left out: dud ({tmp_path}/dud/dud.sqlite" in finding.found and why in finding.found
    )
    with pytest.raises(UsageError, match=rf"bad\.json, row 2: .*dud\.sqlite .*{why}"):
        read_questions(
            asked(tmp_path / "bad.json", {**COUNT, "db_id": "boats"}, {**COUNT, "db_id": "dud"}),
            DatabaseFiles(tmp_path),
        )


def test_a_folder_without_one_good_database_is_refused(tmp_path):
    made(tmp_path / "void" / "void.sqlite", "")
    with TextToSql(tmp_path) as environment, pytest.raises(DatabaseError, match=r"void\.sqlite holds no table"):
        environment.check_episodes()


def test_a_folder_of_another_form_says_what_it_has(tmp_path):
    made(tmp_path / "flat" / "boats.sqlite", BOATS)
    made(tmp_path / "above" / "dev_databases" / "boats" / "boats.sqlite", BOATS)
    with pytest.raises(DatabaseError, match=r"it has boats\.sqlite: give that file, or move each into a folder"):
        DatabaseFiles(tmp_path / "flat")
    with pytest.raises(DatabaseError, match=r"give .*above/dev_databases, which has boats/boats\.sqlite"):
        DatabaseFiles(tmp_path / "above")


# Long cells -----------------------------------------------------------------------------------------------------------

LETTERS = (
    "CREATE TABLE letter (id INTEGER PRIMARY KEY, body TEXT, scan BLOB); INSERT INTO letter VALUES (1, 'short', NULL);"
)


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT id FROM letter WHERE body LIKE '%harbour%'", ((2,), (9,))),
        ("SELECT max(length(body)) FROM letter", ((250_008,),)),
        ("SELECT instr(body, 'rb'), replace(substr(body, 1, 7), 'r', 'RR') FROM letter WHERE id = 9",
         ((3, "haRRbouRR"),)),
        ("SELECT id FROM letter WHERE replace(body, '', 'x') = body AND instr(body, NULL) IS NULL", ((1,), (2,), (9,))),
        ("SELECT instr(x'6162', x'62'), instr(1.0, '.'), replace(12, 2, 1.0), length(body) FROM letter WHERE id = 9",
         ((2, 2, "11.0", 250_008),)),
        ("UPDATE letter SET scan = x'00'", ((3,),)),
    ],
)  # fmt: skip
def test_one_long_cell_leaves_the_searches_of_its_table_alone(tmp_path, sql, rows):
    # an archive with one letter of 250 kB lost half of its questions
    path = made(
        tmp_path / "a.sqlite",
        LETTERS + "INSERT INTO letter VALUES (2, 'the harbour', NULL), "
        "(9, 'harbour ' || replace(hex(zeroblob(125000)), '00', 'ab'), NULL)",
    )
    databases = DatabaseFiles(path)
    with closing(databases.open_view("a", statement_timeout_s=5.0)) as database:
        assert database.run(sql).rows == rows
    databases.close()


@pytest.mark.parametrize(
    ("more", "query", "said"),
    [
        pytest.param(
            "INSERT INTO letter VALUES (9, replace(hex(zeroblob(2500000)), '00', 'ab'), NULL)",
            "SELECT id FROM letter WHERE body LIKE '%harbour%'",
            "4,000,000 bytes: body of letter, row 9 has 5,000,000 bytes",
            id="text",
        ),
        pytest.param(
            "INSERT INTO letter VALUES (9, replace(hex(zeroblob(125000)), '00', 'ab'), NULL)",
            f"SELECT id FROM letter WHERE body LIKE '%harbour%' OR body = '{'x' * 1000}'",
            "200,000 bytes: body of letter, row 9 has 250,000 bytes",
            id="long_statement",
        ),
        pytest.param(
            "INSERT INTO letter VALUES (4, 'a', zeroblob(6000000))",
            "SELECT * FROM letter",
            "4,000,000 bytes: scan of letter, row 4 has 6,000,000 bytes",
            id="blob",
        ),
        pytest.param(
            "CREATE TABLE page (no INTEGER PRIMARY KEY, text TEXT) WITHOUT ROWID; "
            "INSERT INTO page VALUES (3, hex(zeroblob(3000000)))",
            "SELECT text FROM page",
            "4,000,000 bytes: text of page has 6,000,000 bytes",
            id="without_row_ids",
        ),
        pytest.param(
            "INSERT INTO letter VALUES (5, 'a', zeroblob(6000000))",
            "UPDATE letter SET body = 'x' WHERE id = 5",
            "4,000,000 bytes: scan of letter, row 5 has 6,000,000 bytes",
            id="row_that_is_changed",
        ),
        pytest.param(
            "",
            "SELECT hex(zeroblob(3000000)) FROM letter",
            "4,000,000 bytes: no cell of the tables is longer, so the statement makes a longer value",
            id="made_by_the_statement",
        ),
    ],
)
def test_a_long_cell_is_named_with_the_limit_and_its_row(tmp_path, more, query, said):
    path = made(tmp_path / "a.sqlite", LETTERS + more)
    rows = asked(tmp_path / "q.json", {"question": "Which?", "query": query})
    with TextToSql(path) as environment:
        (question,) = environment.read_tasks(rows)
        assert environment.reference_fault(question) == (
            f"string or blob too big: a value or a row has more than {said}; ask about other rows or columns, or "
            "shorten it in a copy of the file"
        )
    assert check_database(path, rows).problems[0].remedy.startswith("leave the questions out")

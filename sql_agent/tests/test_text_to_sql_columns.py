"""Columns of question files: which hold the reference, which the hints, and what is refused by its name."""

import json
import sqlite3
from contextlib import closing

import pytest

from agentgrpo.checks import UsageError
from dbbench_adapter.engines.sqlite.databases import DatabaseFiles
from sql_agent.text_to_sql.columns import DATABASE_KEYS, HINT_KEYS, REFERENCE_KEYS, is_sql
from sql_agent.text_to_sql.datatypes import Question
from sql_agent.text_to_sql.environment import TextToSql
from sql_agent.text_to_sql.load import read_questions

ROW = {"question": "How many?", "query": "SELECT count(*) FROM fish"}
COUNTED = Question("q-1", "How many?", "fish", "SELECT count(*) FROM fish", kind="aggregate")


@pytest.fixture(scope="module")
def fish(tmp_path_factory):
    file = tmp_path_factory.mktemp("columns") / "fish.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript("CREATE TABLE fish (name TEXT);")
    return file


@pytest.fixture
def read(fish, tmp_path):
    def read(row):
        (tmp_path / "q.json").write_text(json.dumps([row]))
        [question] = read_questions(tmp_path / "q.json", DatabaseFiles(fish))
        return question

    return read


# Which database -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("databases")
    for name in ("fish", "boat"):
        (folder / name).mkdir()
        with closing(sqlite3.connect(folder / name / f"{name}.sqlite")) as connection:
            connection.executescript("CREATE TABLE fish (name TEXT);")
    return folder


def asked(database, tmp_path, *rows):
    (tmp_path / "q.json").write_text(json.dumps([ROW | row for row in rows]))
    return [question.db_id for question in read_questions(tmp_path / "q.json", DatabaseFiles(database))]


@pytest.mark.parametrize("name", ["db_id", *DATABASE_KEYS])
def test_a_database_of_a_folder_is_named_by_any_of_these_columns(folder, tmp_path, name):
    assert asked(folder, tmp_path, {name: "boat"}, {name: " fish"}) == ["boat", "fish"]
    assert asked(folder, tmp_path, {"db_id": "fish", name: "fish"}) == ["fish"]


@pytest.mark.parametrize("path", ["database/boat/boat.sqlite", "boat.db", "/data/boat.sqlite3",
    "boat.SQLITE", "boat.db3", "database/boat/", "boat/", r"C:\data\boat.DB"])  # fmt: skip
def test_a_path_names_its_database(folder, tmp_path, path):
    assert asked(folder, tmp_path, {"db_path": path}) == ["boat"]


@pytest.mark.parametrize("name", DATABASE_KEYS)
def test_a_database_that_is_not_there_is_refused_by_the_name_of_its_column(folder, tmp_path, name):
    with pytest.raises(UsageError, match=rf"q\.json, row 2: `{name}`: no database 'boats' in .* has boat, fish"):
        asked(folder, tmp_path, {name: "boat"}, {name: "boats"})


def test_of_several_columns_the_one_with_a_database_that_is_there_counts(folder, tmp_path):
    assert asked(folder, tmp_path, {"database": "sqlite", "db": "boat"}) == ["boat"]
    assert asked(folder, tmp_path, {"db_id": "fish", "database": "CREATE TABLE boat (a)", "db": {"a": 1}}) == ["fish"]
    with pytest.raises(UsageError, match="`db` and `db_name` name different databases, 'boat' and 'fish'"):
        asked(folder, tmp_path, {"db": "boat", "db_name": "fish"})
    with pytest.raises(UsageError, match=r"no db_id, and .* holds 2 databases: name one of them"):
        asked(folder, tmp_path, {"database": "CREATE TABLE boat (a)"})


@pytest.mark.parametrize("name", ["db_id", *DATABASE_KEYS])
def test_one_file_is_meant_whatever_its_rows_call_it_but_they_may_call_it_one_name_only(fish, tmp_path, name):
    assert asked(fish, tmp_path, {name: "x"}, {name: "x"}) == ["fish", "fish"]
    with pytest.raises(UsageError, match=r"is about 2 databases \(x 2, y 1\), and --database is one"):
        asked(fish, tmp_path, {name: "x"}, {name: "y"}, {name: "x"})


@pytest.mark.parametrize("name", DATABASE_KEYS)
def test_an_engine_names_no_database(fish, folder, tmp_path, name):
    for engine in ("postgres", "PostgreSQL 14", "mysql", "SQLite3", "Microsoft SQL Server"):
        assert asked(fish, tmp_path, {name: engine}, {name: "sqlite"}, {name: "fish"}) == ["fish"] * 3
        with pytest.raises(UsageError, match=r"row 1: no db_id, and .* holds 2 databases: name one of them"):
            asked(folder, tmp_path, {name: engine})


def test_a_folder_with_one_database_is_meant_unless_db_id_names_another(tmp_path):
    (tmp_path / "d" / "mysql").mkdir(parents=True)
    with closing(sqlite3.connect(tmp_path / "d" / "mysql" / "mysql.sqlite")) as connection:
        connection.executescript("CREATE TABLE fish (name TEXT);")
    rows = [{"db": "prod", "database": "main"}, {}, {"database": "postgres"}]
    assert asked(tmp_path / "d", tmp_path, *rows) == ["mysql"] * 3
    rows = [{"db": "prod", "db_name": "mysql"}, {"db": "test", "db_name": "mysql"}]
    assert asked(tmp_path / "d", tmp_path, *rows) == ["mysql"] * 2
    with pytest.raises(UsageError, match="no database 'prod' in"):
        asked(tmp_path / "d", tmp_path, {"db_id": "prod"})


# What of a row is read ------------------------------------------------------------------------------------------------

STATEMENTS = [
    "SELECT count(*)", "select name from fish;", "(SELECT name FROM fish)", "-- all\nSELECT name FROM fish",
    "WITH a AS (SELECT 1) SELECT * FROM a", "VALUES (1)", "SELECT a FROM t WHERE a IN (SELECT a FROM t) - 1",
    "INSERT INTO fish VALUES ('cod')", "REPLACE INTO fish VALUES ('cod')", "UPDATE fish SET name = 'cod'",
    "DELETE FROM fish",
]  # fmt: skip
WORDS = ["Select Comfort", "With love", "Select", "Insert coin", "Delete me", "Update 5", "Values", "cod", "", "42"]


def test_a_statement_is_told_from_words_that_begin_like_one():
    assert [is_sql(text) for text in STATEMENTS] == [True] * len(STATEMENTS)
    assert [is_sql(text) for text in WORDS] == [False] * len(WORDS)


@pytest.mark.parametrize("name", REFERENCE_KEYS)
def test_each_name_of_the_reference_is_read(read, name):
    assert read({"question": "How many?", name: ROW["query"]}) == COUNTED


@pytest.mark.parametrize(
    "name", ["answer", "gold", "gold_sql", "sqlQuery", "ground_truth", "target", "output", "label"]
)
def test_sql_under_another_name_is_no_answer_and_is_refused_by_its_name(read, name):
    for value in [value for sql in STATEMENTS for value in (sql, [sql], [sql, sql])]:
        with pytest.raises(UsageError, match=f"row 1: `{name}` holds SQL, and no `query` or `SQL` does; rename it"):
            read({"question": "How many?", "answer": 3} | {name: value})


def test_nulls_that_a_data_library_filled_in_are_no_answer(read):
    with pytest.raises(UsageError, match="neither `query`"):
        read({"question": "How many?", "query": None, "answer": None})


@pytest.mark.parametrize("name", REFERENCE_KEYS)
def test_a_list_of_references_is_refused_as_one(read, name):
    with pytest.raises(UsageError, match=f"row 1: `{name}` is a list, and a question has one reference"):
        read({"question": "How many?", name: [ROW["query"], "SELECT 1"]})


@pytest.mark.parametrize("value", [*WORDS, [["SELECT name FROM fish"]]])
def test_a_text_that_is_no_statement_and_rows_are_an_answer(read, value):
    rows = tuple(map(tuple, value)) if isinstance(value, list) else ((value,),)
    assert read({"question": "Which?", "answer": value}) == Question("q-1", "Which?", "fish", answer=rows)


@pytest.mark.parametrize("first", REFERENCE_KEYS)
def test_two_columns_with_different_sql_are_refused_by_both_names(read, first):
    for second in {*REFERENCE_KEYS, "gold_sql", "answer", "reference_query"} - {first}:
        with pytest.raises(UsageError) as error:
            read({"question": "How many?", first: ROW["query"], second: "SELECT name FROM fish"})
        assert "hold different texts; keep the one that is the reference" in str(error.value)
        assert f"`{first}`" in str(error.value) and f"`{second}`" in str(error.value)
        same = read({"question": "How many?", first: ROW["query"], second: " SELECT  count(*)\nFROM fish ;"})
        assert same.kind == "aggregate"


@pytest.mark.parametrize(
    "name", ["pred_sql", "wrong_query", "query_template", "query_toks", "schema_sql", "question_id"]
)
def test_columns_about_the_reference_are_not_read(read, name):
    assert read(ROW | {name: "SELECT name FROM fish"}) == COUNTED


@pytest.mark.parametrize("name", HINT_KEYS)
def test_a_hint_under_each_name_reaches_the_prompt(fish, read, name):
    question = read(ROW | {name: " a fish is a name "})
    assert question.evidence == "a fish is a name"
    with TextToSql(fish) as environment:
        assert environment.messages(question)[-1]["content"] == "How many?\na fish is a name"


def test_several_hints_are_all_read_and_equal_ones_once(read):
    row = ROW | {"hint": ["b", "c "], "evidence": "a", "external_knowledge": None, "knowledge": "a", "background": ""}
    assert read(row).evidence == "a\nb\nc"


@pytest.mark.parametrize("name", HINT_KEYS)
@pytest.mark.parametrize(
    ("value", "words"),
    [([1, 2], "is [1, 2], expected a text"), (3, "is 3, expected a text"), ("ga360.md", "names the file 'ga360.md'")],
)
def test_a_hint_that_stands_elsewhere_is_refused_by_its_name(read, name, value, words):
    with pytest.raises(UsageError) as error:
        read(ROW | {name: value})
    assert f"row 1: `{name}` {words}; write" in str(error.value)


@pytest.mark.parametrize("name", ["context", "history", "instruction", "interaction", "messages", "extra_knowledge",
    "prompt", "user_hint", "previous_questions", "input", "previous", "prior_turns", "notes", "note", "prev_turn",
    "user_definitions", "previous_sql", "previous_query", "termMeanings", "business_rules", "comment",
    "column_info"])  # fmt: skip
def test_a_column_that_looks_like_a_part_of_the_prompt_is_refused_by_its_name(read, name):
    said = "Think of cod."
    earlier = ["SELECT name FROM fish"] if name.startswith("prev") or name == "history" else []
    for value in (said, [said], [{"role": "user", "content": said}], *earlier):
        with pytest.raises(UsageError, match=f"row 1: `{name}` looks like a part of the prompt, and no prompt would"):
            read(ROW | {name: value})


SAME_OR_SCHEMA = [
    ("context", "CREATE TABLE fish (name TEXT)"),
    ("question_toks", ["How", "cod"]),
    ("context", None),
    ("instruction", "How many?"),
    ("query_split", "train"),
    ("history", []),
]


@pytest.mark.parametrize(("name", "value"), SAME_OR_SCHEMA)
def test_a_column_with_the_schema_or_the_same_text_is_not_read(read, name, value):
    assert read(ROW | {name: value}) == COUNTED


@pytest.mark.parametrize(
    ("value", "kind"),
    [("moderate", "moderate"), (3, "3"), (2.0, "2"), (0, "0"), (" ", "aggregate"), (None, "aggregate")],
)
def test_a_difficulty_is_a_text_or_a_number(read, value, kind):
    assert read(ROW | {"difficulty": value}).kind == kind


def test_another_difficulty_is_refused(read):
    with pytest.raises(UsageError, match=r"row 1: `difficulty` is \['hard'\], expected a text or a number"):
        read(ROW | {"difficulty": ["hard"]})

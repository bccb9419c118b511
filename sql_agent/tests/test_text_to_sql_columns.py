"""Columns of question files: known names in any case, or the user's, and the line that a refusal prints."""

import json
import sqlite3
from contextlib import closing

import pytest

from agentgrpo.checks import UsageError
from dbbench_adapter.engines.sqlite.databases import DatabaseFiles
from sql_agent.text_to_sql.datatypes import Question
from sql_agent.text_to_sql.load import is_sql, read_questions

SQL = "SELECT count(*) FROM fish"
ROW = {"question": "How many?", "query": SQL}
COUNTED = Question("q-1", "How many?", "fish", SQL, kind="aggregate")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("databases")
    for name in ("fish", "boat"):
        (folder / name).mkdir()
        with closing(sqlite3.connect(folder / name / f"{name}.sqlite")) as connection:
            connection.executescript("CREATE TABLE fish (name TEXT);")
    return folder


@pytest.fixture
def read(folder, tmp_path):
    def read(row, columns=None, database="fish/fish.sqlite"):
        (tmp_path / "q.json").write_text(json.dumps([row]))
        [question] = read_questions(tmp_path / "q.json", DatabaseFiles(folder / database), columns)
        return question

    return read


@pytest.mark.parametrize(
    "row",
    [
        ROW,
        {"Question": "How many?", "SQL": SQL, "question_id": 7, "evidence": None},
        ROW | {"sql": {"select": []}, "query_toks": ["SELECT"], "question_toks": ["How"], "pred_sql": "SELECT 1"},
        ROW | {"SQL": " SELECT  count(*)\nFROM fish ;", "context": "CREATE TABLE fish (name TEXT)", "split": "train"},
    ],
)
def test_spiders_and_birds_columns_are_known_in_any_case(read, row):
    assert read(row) == COUNTED


@pytest.mark.parametrize(
    ("row", "line", "expected"),
    [
        (
            {"utterance": "How many?", "gold_sql": SQL, "db_name": "fish", "hint": "a fish", "notes": "a name"},
            "question=utterance,query=gold_sql,db_id=db_name,evidence=hint+notes",
            Question("q-1", "How many?", "fish", SQL, evidence="a fish\na name", kind="aggregate"),
        ),
        ({"question": "How many?", "context": "CREATE TABLE t (a)", "sql_query": SQL},
         "question=question,query=sql_query", COUNTED),
        ({"question": "How many?", "context": "CREATE TABLE t (a)", "answer": SQL},
         "question=question,query=answer", COUNTED),
        (ROW | {"hint": "a fish"}, "question=question,query=query,evidence=hint",
         Question("q-1", "How many?", "fish", SQL, evidence="a fish", kind="aggregate")),
        (ROW | {"history": "Which?"}, "question=question,query=query", COUNTED),
        (ROW | {"previous_question": "Which?"}, "question=question+previous_question,query=query",
         Question("q-1", "How many?\nWhich?", "fish", SQL, kind="aggregate")),
    ],
)  # fmt: skip
def test_other_names_are_refused_with_a_line_that_reads_them(read, row, line, expected):
    with pytest.raises(UsageError) as refused:
        read(row)
    assert f"--columns {line}" in str(refused.value)
    assert read(row, line) == expected


def test_a_path_may_name_the_database_of_a_folder(read):
    row = ROW | {"db_path": r"C:\data\boat.DB"}
    with pytest.raises(UsageError, match=r"no db_id, and .* holds 2 databases: name one of them"):
        read(row | {"db_path": None}, database="")
    assert read(row, "question=question,query=query,db_id=db_path", database="").db_id == "boat"
    with pytest.raises(UsageError, match=r"row 1: no database 'boats' in .* has boat, fish"):
        read(ROW | {"db_id": "boats"}, database="")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("question", "--columns 'question': expected what=COLUMN, what=COLUMN"),
        ("quest=question", "row 1: --columns quest=...: what is read is question, query, answer"),
        ("question=question,query=gold", "row 1: found 'question', 'query'; expected question and query, or"),
    ],
)
def test_columns_that_cannot_be_read_are_named(read, columns, words):
    with pytest.raises(ValueError) as refused:
        read(ROW, columns)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (ROW | {"SQL": "SELECT 1"}, "SQL: holds something else than another column with query; keep one of them"),
        (ROW | {"query": [SQL]}, "`query` is ['SELECT count(*) FROM fish'], expected a text"),
        (ROW | {"query": None, "answer": None}, "found 'question', 'query', 'answer'; expected question and query"),
        (ROW | {"difficulty": ["hard"]}, "`difficulty` is ['hard'], expected a text"),
        (ROW | {"evidence": 3}, "`evidence` is 3, expected a text or a list of texts"),
    ],
)
def test_a_value_that_cannot_be_read_is_named(read, row, words):
    with pytest.raises(UsageError) as refused:
        read(row)
    assert f"q.json, row 1: {words}" in str(refused.value)


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


@pytest.mark.parametrize("value", [*WORDS, [["SELECT name FROM fish"]]])
def test_a_text_that_is_no_statement_and_rows_are_an_answer(read, value):
    rows = tuple(map(tuple, value)) if isinstance(value, list) else ((value,),)
    assert read({"question": "Which?", "answer": value}) == Question("q-1", "Which?", "fish", answer=rows)


@pytest.mark.parametrize(
    ("value", "kind"),
    [("moderate", "moderate"), (3, "3"), (2.0, "2"), (0, "0"), (" ", "aggregate"), (None, "aggregate")],
)
def test_a_difficulty_is_a_text_or_a_number(read, value, kind):
    assert read(ROW | {"difficulty": value}).kind == kind

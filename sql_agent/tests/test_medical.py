"""Medical question answering: its questions, its pairs, and rollouts of it against a scripted endpoint over HTTP."""

import json
import sqlite3
from collections import Counter
from contextlib import closing

import pytest

from agentgrpo.chat.messages import num_tool_calls
from agentgrpo.checks import UsageError
from dbbench_adapter.datatypes import Score
from dbbench_adapter.engines.sqlite.read_only import connect
from sql_agent.datatypes import Reward, ScorerResult
from sql_agent.medical.database import read_schema
from sql_agent.medical.datatypes import TABLES, Question, read_questions, write_questions
from sql_agent.medical.environment import Medical
from sql_agent.medical.pairs import KINDS, make_pairs
from sql_agent.medical.questions import make_questions
from sql_agent.medical.words import NOTICE, make_database
from sql_agent.oracle import app, call, calls, recite, serve
from sql_agent.play.check import check
from sql_agent.play.served import run_rollout
from sql_agent.rewards import REWARDS, reward
from sql_agent.settings.groups import AgentConfig, DataConfig


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("medical") / "medical.db"
    make_database(file, n_drugs=30, n_diseases=20)
    return file


@pytest.fixture(scope="module")
def schema(path):
    return read_schema(path)


# the database and its questions ---------------------------------------------------------------------------------------


def test_the_invented_database_says_that_it_is_invented(path, schema):
    with closing(connect(path)) as connection:
        assert tuple(text for (text,) in connection.execute("SELECT text FROM notice")) == NOTICE
        names = [name for (name,) in connection.execute("SELECT med_name FROM drugs_info")]
        cells = [cell for table in schema for row in connection.execute(f"SELECT * FROM {table}") for cell in row]
    assert schema == {table: ("id", of.name_column, *of.columns) for table, of in TABLES.items()}
    assert len(set(names)) == 30
    assert sum(name.isascii() for name in names) == 15  # English and Chinese take turns
    assert all(cells) and not any("{" in str(cell) for cell in cells)


def test_a_question_names_the_field_that_its_answer_stands_in(path, schema):
    questions = make_questions(path, schema, 1_000, half="train")
    with closing(connect(path)) as connection:
        for question in questions:
            name = TABLES[question.table].name_column
            sql = f"SELECT {name}, {question.column} FROM {question.table} WHERE id = ?"
            asked, answer = connection.execute(sql, (question.row_id,)).fetchone()
            assert (asked in question.question, question.answer) == (True, answer)
            assert question.language == ("en" if asked.isascii() else "zh")
    assert len({question.id for question in questions}) == len(questions)


def test_no_entry_is_in_both_halves_and_the_seed_decides_the_questions(path, schema):
    halves = [make_questions(path, schema, 2_000, half=half) for half in ("train", "held_out")]
    entries = [{question.entry for question in half} for half in halves]
    assert entries[0].isdisjoint(entries[1])
    assert len(entries[0] | entries[1]) == 50
    again = make_questions(path, schema, 30, half="train", seed=1)
    assert again == make_questions(path, schema, 30, half="train", seed=1)
    assert again != make_questions(path, schema, 30, half="train", seed=2)
    assert len({question.entry for question in again}) == 30  # every entry's first before any entry's second


def test_entries_that_share_a_name_are_asked_about_by_nobody(tmp_path):
    file = tmp_path / "own.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE drugs_info (id INTEGER, med_name TEXT, dosage TEXT)")
        rows = [
            (1, "Twin", "1 a day"),
            (2, "Twin", "2 a day"),
            (3, "Lone", "3 a day"),
            (4, "Mute", ""),
            (5, "", "5 a day"),
        ]
        connection.executemany("INSERT INTO drugs_info VALUES (?, ?, ?)", rows)
        connection.commit()
    questions = [q for half in ("train", "held_out") for q in make_questions(file, read_schema(file), 9, half=half)]
    assert [(q.row_id, q.answer) for q in questions] == [(3, "3 a day")]


def test_bytes_are_no_text_to_ask_about(tmp_path):
    file = tmp_path / "own.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE drugs_info (id TEXT, med_name TEXT, dosage TEXT, storage TEXT)")
        rows = [("u-1", "Lone", b"\xff", "cold"), ("u-2", b"\x00", "2 a day", "warm"), ("u-3", "Pal", b"\xff", "dry")]
        connection.executemany("INSERT INTO drugs_info VALUES (?, ?, ?, ?)", rows)
        connection.commit()
    schema = read_schema(file)
    questions = make_questions(file, schema, 9, half="train", held_out_fraction=0.0)
    assert sorted((q.row_id, q.column, q.answer) for q in questions) == [
        ("u-1", "storage", "cold"),
        ("u-3", "storage", "dry"),
    ]
    said = [message.content for pair in make_pairs(file, schema, questions) for message in pair.preference.rejected]
    assert not any("xff" in text for text in said)


def test_what_is_written_reads_back_equal(path, schema, tmp_path):
    questions = make_questions(path, schema, 20, half="train")
    write_questions(questions, tmp_path / "q.jsonl")
    assert read_questions(tmp_path / "q.jsonl") == questions
    assert [Question.from_dict(question.to_dict()) for question in questions] == questions


@pytest.mark.parametrize(("text", "words"), [
    ('{"id": "1", "question": "?", "anser": "x"}\n', "line 1, anser: Unexpected keyword"),
    ('{"id": "1"}\n', "line 1, question: Missing required argument|line 1, question: Field required"),
    ('{"id": "1", "question": "?"}\n' * 2, "line 2: id '1' occurs twice; give each its own"),
    ("\n", "holds no question; agentgrpo tasks medical --questions writes such files"),
])  # fmt: skip
def test_a_file_of_questions_that_cannot_be_used_is_named(tmp_path, text, words):
    (tmp_path / "q.jsonl").write_text(text)
    with pytest.raises(UsageError, match=words):
        read_questions(tmp_path / "q.jsonl")


def test_a_users_questions_are_split_by_entry(path, schema, tmp_path):
    write_questions(make_questions(path, schema, 200, half="train", held_out_fraction=0.0), tmp_path / "q.jsonl")
    split = Medical(path).load_split(DataConfig(train_file=tmp_path / "q.jsonl", val_limit=100), seed=0)
    assert len(split.train) + len(split.val) == 200
    assert split.train and split.val
    assert {q.entry for q in split.train}.isdisjoint(q.entry for q in split.val)


def test_the_check_finds_nothing_that_a_policy_could_break(path, schema):
    report = check(lambda: Medical(path), make_questions(path, schema, 2, half="train"))
    assert [remark.text for remark in report.remarks if remark.kind == "problem"] == []
    assert {play.lost for play in report.played} == {None}


# pairs ----------------------------------------------------------------------------------------------------------------


def test_size_tells_nothing_about_which_side_is_better(path, schema):
    pairs = make_pairs(path, schema, make_questions(path, schema, 60, half="train"))
    for kind in KINDS:
        longer = Counter(pair.longer > 0 for pair in pairs if pair.kind == kind)
        assert longer[True] == longer[False] >= 20
    for pair in pairs:
        assert num_tool_calls(pair.preference.chosen) == num_tool_calls(pair.preference.rejected) == 1
        assert [m.role for m in pair.preference.rejected] == ["assistant", "tool", "assistant"]


def test_the_better_side_says_what_the_field_says_and_the_worse_one_does_not(path, schema):
    questions = {question.id: question for question in make_questions(path, schema, 30, half="train")}
    for pair in make_pairs(path, schema, list(questions.values())):
        question = questions[pair.preference.metadata["task_id"]]
        (_, result, answer), (asked, _, wrong) = pair.preference.chosen, pair.preference.rejected
        assert question.answer in json.loads(result.content)["rows"][0]
        assert answer.content.endswith(question.answer)
        assert not wrong.content.endswith(question.answer)
        looked_right = question.column in asked.tool_calls[0].function.arguments
        assert looked_right == (pair.kind != "wrong_field")


# rollouts -------------------------------------------------------------------------------------------------------------

LOOK = call("query_database_by_sql", {"sql": "SELECT id FROM disease WHERE id < 3"})
UNJUDGED = Score(None, "no_judge")


@pytest.fixture
def play(path):
    """Plays a question against fixed replies; `play.requests` holds what went over the wire."""

    async def play(*replies, config=AgentConfig(temperature=0.0), **endpoint):  # noqa: B008  frozen
        play.requests = []
        question = Question("q-0", "What is the cause of Teacup elbow itch?", answer="5ecret")
        with Medical(path) as medical, serve(app(recite(replies), on_request=play.requests.append, **endpoint)) as url:
            return await run_rollout(question, environment=medical, base_url=url, model="oracle", config=config)

    return play


def say(text, **more):
    return {"role": "assistant", "content": text, **more}


async def test_a_reply_without_a_call_is_the_answer(play):
    record = await play(calls(LOOK), say("It is too much thunder."))
    assert (record.stop_reason, record.score, record.num_turns) == ("answered", UNJUDGED, 2)
    assert record.messages[-2]["content"] == '{"columns": ["id"], "rows": [[1], [2]]}'
    assert record.messages[-1] == say("It is too much thunder.")
    (tool,) = play.requests[0]["tools"]
    assert tool["function"]["name"] == "query_database_by_sql"
    assert "disease(id, disease_name, overview" in play.requests[0]["messages"][0]["content"]
    assert "5ecret" not in json.dumps(play.requests)


async def test_calls_that_cannot_be_read_are_answered_in_words_and_counted(play):
    bad = [
        call("query_database_by_sql", "SELECT 1", "a"),
        call("query_database_by_sql", {"query": "SELECT 1"}, "b"),
        call("execute_sql", {"sql": "SELECT 1"}, "c"),
    ]
    record = await play(
        calls(*bad), calls(call("query_database_by_sql", {"sql": "DELETE FROM disease"}, "d")), say("No.")
    )
    results = [message["content"] for message in record.messages if message["role"] == "tool"]
    assert results[:3] == [
        "Error: the arguments of query_database_by_sql do not parse; they are a JSON object.",
        'Error: query_database_by_sql takes {"sql": "..."}.',
        "Error: unknown tool 'execute_sql'; call query_database_by_sql.",
    ]
    assert results[3].startswith("Error: not allowed: only SELECT over disease and drugs_info")
    assert (record.malformed_calls, record.stop_reason) == (3, "answered")


@pytest.mark.parametrize(("replies", "stop_reason", "turns"), [
    pytest.param([calls(LOOK)], "max_turns", 4, id="only_calls"),
    pytest.param([calls(LOOK), say("It is", finish_reason="length")], "max_tokens", 2, id="cut"),
])  # fmt: skip
async def test_a_rollout_may_end_without_an_answer(play, replies, stop_reason, turns):
    record = await play(*replies, config=AgentConfig(max_turns=4))
    assert (record.stop_reason, record.score, record.num_turns) == (stop_reason, UNJUDGED, turns)


async def test_wall_clock_does_not_count_as_no_answer(play):
    """Where nobody judges, a rollout without an answer costs -1; here the time was up before its fourth reply."""
    config = AgentConfig(statement_timeout_s=0.1, turn_timeout_s=0.4, rollout_timeout_s=1.25)
    record = await play(calls(LOOK), config=config, latency_s=0.35)
    assert (record.stop_reason, record.score.value) == ("timeout", None)
    assert record.score.reason in ("model_deadline", "rollout_deadline")  # the latter where the machine is slow
    assert reward(record, REWARDS["agentbench"], ScorerResult(3.0)) == Reward(None, record.score.reason)


async def test_the_answer_may_be_the_last_reply_that_is_allowed(play):
    record = await play(calls(LOOK), say("Thunder."), config=AgentConfig(max_turns=2))
    assert (record.stop_reason, record.num_turns) == ("answered", 2)


async def test_an_endpoint_that_fails_is_lost_and_not_unjudged(play, monkeypatch):
    monkeypatch.setattr("sql_agent.play.served.MAX_RETRIES", 0)
    record = await play(say("out of memory", status=500))
    assert record.score == Score(None, "model_unavailable")

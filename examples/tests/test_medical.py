"""Medical question answering: its data, its command, and rollouts of it against a scripted endpoint over HTTP."""

import json
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from agentgrpo.user_files import load_object
from dbbench_adapter.datatypes import Score
from reward_model.preferences import read_preferences
from sql_agent import names
from sql_agent.datatypes import Reward, ScorerResult
from sql_agent.environments.base import make_environment
from sql_agent.environments.rows import RowTask
from sql_agent.oracle import app, call, calls, recite, serve
from sql_agent.play.check import check_plays
from sql_agent.play.served import run_rollout
from sql_agent.rewards import REWARDS, reward
from sql_agent.settings.groups import AgentConfig, EnvironmentSettings

Medical, _ = load_object(names.ENVIRONMENTS["medical"])
medical_data = sys.modules["medical_data"]
make_pairs, make_questions = medical_data.make_pairs, medical_data.make_questions


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("medical") / "medi cal?#.db"
    medical_data.make_database(file, n_drugs=30, n_diseases=20)
    return file


@pytest.fixture
def own(tmp_path):
    """A database of the user's own: two that share a name, one without a text, one of bytes, one without a name."""
    file = tmp_path / "own.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE Drugs_Info (ID TEXT, Med_Name TEXT, dosage TEXT, storage TEXT)")
        rows = [
            ("a", "Twin", "1", "x"),
            ("b", "Twin", "2", "y"),
            ("c", "Lone", "3 a day", None),
            ("d", "Mute", "", " "),
        ]
        rows += [("e", "Odd", b"\xff", "dry"), ("f", "", "5 a day", "z")]
        connection.executemany("INSERT INTO Drugs_Info VALUES (?, ?, ?, ?)", rows)
        connection.commit()
    return file


# the data -------------------------------------------------------------------------------------------------------------


def test_the_invented_database_says_that_it_is_invented(path):
    with closing(sqlite3.connect(path)) as connection:
        notice = [text for (text,) in connection.execute("SELECT text FROM notice")]
        names = [name for (name,) in connection.execute("SELECT med_name FROM drugs_info")]
        tables = ("drugs_info", "disease")
        cells = [cell for table in tables for row in connection.execute(f"SELECT * FROM {table}") for cell in row]
    assert notice[0].startswith("Every entry of this database is invented.")
    assert len(set(names)) == 30
    assert sum(name.isascii() for name in names) == 15  # English and Chinese take turns
    assert all(cells) and not any("{" in str(cell) for cell in cells)


def test_a_question_names_the_field_that_its_answer_stands_in(path):
    questions = make_questions(path, 1_000, held_out=False)
    with closing(sqlite3.connect(path)) as connection:
        for question in questions:
            name = medical_data.NAMES[question["kind"]]
            sql = f"SELECT {name}, {question['column']} FROM {question['kind']} WHERE id = ?"
            asked, answer = connection.execute(sql, (question["row_id"],)).fetchone()
            assert (asked in question["question"], question["answer"]) == (True, answer)
    assert len({question["id"] for question in questions}) == len(questions)


def test_no_entry_is_in_both_halves_and_the_seed_decides_the_questions(path):
    halves = [make_questions(path, 2_000, held_out=held_out) for held_out in (False, True)]
    entries = [{(question["kind"], question["row_id"]) for question in half} for half in halves]
    assert entries[0].isdisjoint(entries[1])
    assert len(entries[0] | entries[1]) == 50
    again = make_questions(path, 30, held_out=False, seed=1)
    assert again == make_questions(path, 30, held_out=False, seed=1)
    assert again != make_questions(path, 30, held_out=False, seed=2)
    assert len({(q["kind"], q["row_id"]) for q in again}) == 30  # every entry's first before any entry's second


def test_a_row_without_a_database_is_about_the_invented_one_which_is_made(tmp_path, monkeypatch):
    """Such a file was refused, since only a run without a file made the database."""
    module = Medical.prompt.__globals__
    monkeypatch.setitem(module, "INVENTED", tmp_path / "made.db")
    monkeypatch.setitem(module, "databases", module["databases"].__wrapped__)  # one of another test may be kept
    rules, question = Medical.prompt({"question": "Who makes it?"})
    assert rules["content"].removeprefix(module["RULES"]).splitlines() == [
        "drugs_info(id, med_name, component, indication, dosage, adverse_reactions, storage, company_name)",
        "disease(id, disease_name, overview, department, cause, clinical_manif, treatment, prognosis)",
    ]
    assert question == {"role": "user", "content": "Who makes it?"}


def test_of_a_users_database_only_a_text_under_a_name_of_its_own_is_asked_about(own):
    questions = make_questions(own, 9, held_out=False, held_out_fraction=0.0)
    assert sorted((q["row_id"], q["answer"]) for q in questions) == [("c", "3 a day"), ("e", "dry")]


def test_length_tells_nothing_about_which_side_is_better(path):
    pairs = make_pairs(path, make_questions(path, 60, held_out=False))
    for kind in ("wrong_row", "wrong_field", "refusal"):
        longer = Counter(medical_data.longer(pair) > 0 for pair in pairs if pair["metadata"]["kind"] == kind)
        assert longer[True] == longer[False] >= 10


def test_the_better_side_says_what_the_field_says_and_the_worse_one_does_not(path):
    questions = {question["id"]: question for question in make_questions(path, 30, held_out=False)}
    for pair in make_pairs(path, list(questions.values())):
        question = questions[pair["metadata"]["task_id"]]
        (_, result, answer), (asked, _, wrong) = pair["chosen"], pair["rejected"]
        assert question["answer"] in json.loads(result["content"])["rows"][0]
        assert answer["content"].endswith(question["answer"])
        assert not wrong["content"].endswith(question["answer"])
        sql = asked["tool_calls"][0]["function"]["arguments"]["sql"]
        assert (question["column"] in sql) == (pair["metadata"]["kind"] != "wrong_field")


# the command ----------------------------------------------------------------------------------------------------------


def made(folder, *more):
    files = ["--questions", str(folder / "q"), "--pairs", str(folder / "p.jsonl"), "--n-questions", "50"]
    return medical_data.main([*files, *(more or ["--output", str(folder / "m.db")])])


def rows(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_command_writes_files_that_a_run_and_a_scorer_take(tmp_path, capsys):
    assert made(tmp_path) == 0
    halves = [rows(tmp_path / "q" / f"{half}.jsonl") for half in ("train", "held_out")]
    assert list(map(len, halves)) == [40, 10]
    assert "40 questions: " in capsys.readouterr().out
    for name, questions in (("p.jsonl", halves[0]), ("p.held_out.jsonl", halves[1])):
        pairs = read_preferences(tmp_path / name)
        assert {pair.metadata["task_id"] for pair in pairs} <= {question["id"] for question in questions}
        assert rows(tmp_path / name) == [pair.to_dict() for pair in pairs]  # as a scorer reads rollouts
    environment = make_environment(EnvironmentSettings("medical"))
    assert [task.row for task in environment.read_tasks(tmp_path / "q" / "train.jsonl")] == halves[0]


def test_the_same_seed_gives_the_same_files_and_nothing_is_overwritten_unasked(tmp_path, capsys):
    (tmp_path / "a").mkdir()
    output = ["--output", str(tmp_path / "a" / "m.db"), "--seed"]
    assert made(tmp_path / "a", *output, "1") == 0
    files = [tmp_path / "a" / name for name in ("m.db", "q/train.jsonl", "p.jsonl", "p.held_out.jsonl")]
    before = [file.read_bytes() for file in files]
    assert made(tmp_path / "a", *output, "2") == 1
    assert "m.db is there already; give --overwrite or another --output" in capsys.readouterr().err
    assert [file.read_bytes() for file in files] == before
    assert made(tmp_path / "a", *output, "1", "--overwrite") == 0
    assert [file.read_bytes() for file in files] == before
    assert made(tmp_path / "a", *output, "2", "--overwrite") == 0
    assert all(new.read_bytes() != old for new, old in zip(files, before, strict=True))


def test_a_database_of_ones_own_is_asked_about_and_left_as_it_is(own, tmp_path, capsys):
    before = own.read_bytes()
    assert made(tmp_path, "--database", str(own)) == 0
    asked = [question for half in ("train", "held_out") for question in rows(tmp_path / "q" / f"{half}.jsonl")]
    assert {question["database"] for question in asked} == {str(own)}
    assert " of 40 asked for; more entries give more" in capsys.readouterr().out
    assert own.read_bytes() == before
    with closing(sqlite3.connect(own)) as connection:
        connection.execute("DROP TABLE Drugs_Info")
    assert made(tmp_path, "--database", str(own), "--overwrite") == 1
    assert "has no entry in drugs_info or disease" in capsys.readouterr().err


def test_it_runs_under_the_name_that_is_typed():
    command = [sys.executable, "-m", "agentgrpo", "tasks", "medical", "--help"]
    result = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert (result.returncode, "--n-questions" in result.stdout) == (0, True)


def test_without_the_repository_the_name_says_where_its_folder_is(monkeypatch, capsys):
    from sql_agent.commands import medical_data as command

    monkeypatch.setattr(names, "IS_CLONE", False)
    words = "an example of the repository, which an installed package lacks; copy its folder examples/medical"
    with pytest.raises(ValueError, match=words):
        names.check_name("medical")
    assert command.main() == 1
    assert words in capsys.readouterr().err


# rollouts -------------------------------------------------------------------------------------------------------------

LOOK = call("query_database_by_sql", {"sql": "SELECT id FROM disease WHERE id < 3"})
UNJUDGED = Score(None, "no_judge")


@pytest.fixture
def play(path):
    """Plays a question against fixed replies; `play.requests` holds what went over the wire."""

    async def play(*replies, config=AgentConfig(temperature=0.0), **endpoint):  # noqa: B008  frozen
        play.requests = []
        medical = make_environment(EnvironmentSettings("medical"))
        row = {"question": "What is the cause?", "database": str(path), "answer": "5ecret"}
        with medical, serve(app(recite(replies), on_request=play.requests.append, **endpoint)) as url:
            return await run_rollout(
                RowTask("q-0", "disease", row), environment=medical, base_url=url, model="oracle", config=config
            )

    return play


def say(text, **more):
    return {"role": "assistant", "content": text, **more}


async def test_a_reply_without_a_call_is_the_answer(play):
    record = await play(calls(LOOK), say("It is too much thunder."))
    assert (record.stop_reason, record.score, record.num_turns) == ("answered", UNJUDGED, 2)
    assert record.messages[-2]["content"] == '{"columns": ["id"], "rows": [[1], [2]]}'
    (tool,) = play.requests[0]["tools"]
    assert tool["function"]["name"] == "query_database_by_sql"
    prompt = play.requests[0]["messages"][0]["content"]
    assert "disease(id, disease_name, overview" in prompt and "notice" not in prompt
    assert "5ecret" not in json.dumps(play.requests)


@pytest.mark.parametrize(("sql", "result"), [
    ("DELETE FROM disease", "Error: not allowed: only SELECT over the tables of this database"),
    ("SELECT name FROM disease", "Error: no such column: name"),
    ("SELECT '\ud800' AS a, 9e999 AS b, x'01' AS c", "Error: 'utf-8' codec can't encode"),
    ("SELECT '茶' AS a, 9e999 AS b, x'01' AS c", '{"columns": ["a", "b", "c"], "rows": [["茶", null, "01"]]}'),
    ("SELECT CAST(x'ff' AS TEXT) AS a", '{"columns": ["a"], "rows": [["?"]]}'),
])  # fmt: skip
def test_what_a_policy_reads_of_a_result(path, sql, result):
    environment = Medical()
    environment.reset(database=str(path))
    assert environment.query_database_by_sql(sql).startswith(result)
    long = environment.query_database_by_sql("SELECT * FROM drugs_info")
    assert (len(long), long[-11:]) == (2_011, "[TRUNCATED]")
    environment.close()


@pytest.mark.parametrize(("replies", "stop_reason", "turns"), [
    pytest.param([calls(LOOK)], "max_turns", 4, id="only_calls"),
    pytest.param([calls(LOOK), say("It is", finish_reason="length")], "max_tokens", 2, id="cut"),
])  # fmt: skip
async def test_a_rollout_may_end_without_an_answer(play, replies, stop_reason, turns):
    record = await play(*replies, config=AgentConfig(max_turns=4))
    assert (record.stop_reason, record.score, record.num_turns) == (stop_reason, UNJUDGED, turns)


async def test_wall_clock_does_not_count_as_no_answer(play):
    """Where nobody judges, a rollout without an answer costs -1; here the time was up before its fourth reply."""
    config = AgentConfig(turn_timeout_s=0.4, rollout_timeout_s=1.25, statement_timeout_s=0.1)
    record = await play(calls(LOOK), config=config, latency_s=0.35)
    assert (record.stop_reason, record.score.value) == ("timeout", None)
    assert record.score.reason in ("model_deadline", "rollout_deadline")  # the latter where the machine is slow
    assert reward(record, REWARDS["agentbench"], ScorerResult(3.0)) == Reward(None, record.score.reason)


def test_the_check_finds_nothing_that_a_policy_could_break(path):
    tasks = [RowTask(row["id"], row["kind"], row) for row in make_questions(path, 2, held_out=False)]
    report = check_plays(lambda: make_environment(EnvironmentSettings("medical")), tasks)
    assert [remark.text for remark in report.remarks if remark.kind == "problem"] == []
    assert {play.lost for play in report.played} == {None}

"""A database engine is one module and one row; with both, settings, doctor, prompts and verdicts know it."""

import json
from contextlib import closing

import pytest

from agentgrpo.checks import UsageError
from dbbench_adapter import engines
from dbbench_adapter.engines import open_backend, open_databases
from dbbench_adapter.tests.toy_engine import CSV
from sql_agent.environments.base import make_environment
from sql_agent.settings.groups import AgentConfig, EnvConfig, EnvironmentSettings
from sql_agent.startup.input_checks import check_database
from sql_agent.text_to_sql.load import read_questions


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "ENGINES", (*engines.ENGINES, CSV))
    (tmp_path / "harbour").mkdir()
    (tmp_path / "harbour" / "boat.csv").write_text("name,crew\nAlba,3\nBrae,5\n")
    return f"csv://{tmp_path}/harbour"


def written(tmp_path, *rows):
    (tmp_path / "q.json").write_text(json.dumps(rows))
    return tmp_path / "q.json"


def test_its_places_are_read_from_settings_and_named_where_one_is_missing(place):
    assert EnvConfig(type="text2sql", database=place).database == place
    with pytest.raises(ValueError, match=r"folder DB_ID/DB_ID.sqlite, .*postgresql://.*/database, or csv:///FOLDER$"):
        make_environment(EnvironmentSettings("text2sql"))
    with pytest.raises(ValueError, match="expected a path or MySQL's or PostgreSQL's or CSV's form"):
        EnvConfig(type="text2sql", database="tsv:///data")


def test_the_doctor_reads_its_schema_and_runs_references(place, tmp_path):
    tasks = written(tmp_path, {"question": "a", "query": "SELECT name FROM boat"}, {"question": "b", "query": "SELECT"})
    found = check_database(place, tasks)
    assert found.found == "1 CSV files; 2 questions"
    assert found.problems[0].remedy == f"correct them in {tasks}; a reference is CSV's SQL, one SELECT"


def test_a_rollout_is_prompted_played_and_judged(place, tmp_path):
    tasks = written(tmp_path, {"question": "Who has the larger crew?", "query": "SELECT max(name) FROM boat"})
    with make_environment(EnvironmentSettings("text2sql", database=place)) as environment:
        [task] = environment.read_tasks(tasks)
        system, user = environment.messages(task)
        assert system["content"].startswith("Answer the question with one CSV query")
        assert system["content"].endswith("\n\nboat(name, crew)")
        assert user["content"] == "Who has the larger crew?"
        episode = environment.open(task, AgentConfig())
        assert episode.call_tool("execute_sql", '{"sql": "SELECT crew FROM boat"}') == '["crew"]\n["3"]\n["5"]'
        assert "not allowed" in episode.call_tool("execute_sql", '{"sql": "DELETE FROM boat"}')
        episode.call_tool("submit_sql", json.dumps({"sql": "SELECT name FROM boat ORDER BY crew DESC LIMIT 1"}))
        assert environment.judge(episode).reason == "match"


def test_what_it_does_not_offer_is_refused(place, tmp_path):
    change = written(tmp_path, {"question": "a", "query": "DELETE FROM boat"})
    databases = open_databases(place)
    with closing(databases), pytest.raises(UsageError, match="row 1: the reference changes data"):
        read_questions(change, databases)
    with pytest.raises(ValueError, match="unknown backend 'csv:///x'; known: sqlite, mariadb, mysql://"):
        open_backend("csv:///x").__enter__()

"""What a model has learnt: the record beside it, and the tasks that are found again in it."""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.tasks.load import write_tasks
from sql_agent.environments.base import make_environment
from sql_agent.environments.dbbench import DbBench
from sql_agent.environments.rows import RowTask
from sql_agent.settings.groups import DataConfig, EnvironmentSettings
from sql_agent.text_to_sql.datatypes import Question
from sql_agent.text_to_sql.environment import TextToSql
from sql_agent.trained_on import (
    LearntError,
    TaskSource,
    TrainedOn,
    check_not_learnt,
    read_trained_on,
    trained_by,
    write_trained_on,
)

ENVIRONMENT, SETTINGS = DbBench("strict"), EnvironmentSettings("dbbench", "lab")
TASKS = generate_tasks(6, seed=0)
PRINTS = [ENVIRONMENT.fingerprint(task) for task in TASKS]


def test_a_task_is_found_again_under_another_id_in_another_form_and_with_a_cut_prompt():
    assert ENVIRONMENT.fingerprint(replace(TASKS[0], id="another", skills=())) == PRINTS[0]
    assert len({len(each) for each in PRINTS}) == 1 and len(set(PRINTS)) == 6
    rows = make_environment(EnvironmentSettings("gsm8k"))
    assert rows.fingerprint(RowTask("1", "k", {"id": 1, "x": 2, "y": None})) == "718f6017e2f1a118"
    assert rows.fingerprint(RowTask("2", "k", {"x": 2})) == "718f6017e2f1a118"


def test_a_question_is_found_again_about_a_copy_of_the_database_and_not_about_another(tmp_path):
    for name, column in (("shop", "town"), ("copied", "town"), ("other", "city")):
        with closing(sqlite3.connect(tmp_path / f"{name}.sqlite")) as connection:
            connection.execute(f"CREATE TABLE customer (name TEXT, {column} TEXT)")
    question = Question("q-1", "How many  customers live in Lyon?", "shop", "SELECT 1")
    same = Question("dev-7", "how many customers live in Lyon? ", "copied", answer=((2,),), schema_chars=100)
    prints = []
    for task in (question, same, replace(question, db_id="other")):
        with TextToSql(tmp_path / f"{task.db_id}.sqlite") as environment:
            prints.append(environment.fingerprint(task))
    assert prints[0] == prints[1] != prints[2]


def test_a_task_of_both_files_is_held_out_and_counted(tmp_path):
    write_tasks(tmp_path / "train.jsonl", TASKS)
    write_tasks(tmp_path / "val.jsonl", [replace(task, id=f"v-{n}") for n, task in enumerate(TASKS[:2])])
    data = DataConfig(train_file=tmp_path / "train.jsonl", val_file=tmp_path / "val.jsonl")
    split = ENVIRONMENT.load_split(data, seed=0)
    assert ([task.id for task in split.train], len(split.val)) == ([task.id for task in TASKS[2:]], 2)
    assert split.left_out == {"also_held_out": 2}
    with pytest.raises(ValueError, match=r"all 6 tasks of .*train.jsonl are held out too, in .*train.jsonl"):
        ENVIRONMENT.load_split(data.model_copy(update={"val_file": data.train_file}), seed=0)


def test_a_share_of_nothing_trains_on_every_row(tmp_path):
    write_tasks(tmp_path / "train.jsonl", TASKS)
    split = ENVIRONMENT.load_split(DataConfig(train_file=tmp_path / "train.jsonl", held_out_fraction=0), seed=0)
    assert (split.train, split.val) == (list(TASKS), [])


def trained(command: str, before: Path, after: Path, train, held_out) -> TrainedOn:
    data = DataConfig(train_file=Path("/somewhere/tasks.jsonl"))
    record = trained_by(command, before, ENVIRONMENT, SETTINGS, data, train, held_out)
    after.mkdir()
    write_trained_on(after, record)
    return record


def test_a_model_carries_on_what_the_models_before_it_learnt(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    trained("agentgrpo sft", tmp_path, first, TASKS[:2], TASKS[2:3])
    trained("agentgrpo local", first, second, TASKS[1:2] + TASKS[3:4], TASKS[4:])
    assert json.loads((second / "trained_on.json").read_text()) == {
        "env": "dbbench",
        "protocol": "lab",
        "sources": [
            {"command": "agentgrpo sft", "tasks": "tasks.jsonl", "learnt": 2, "held_out": 1, "listed": True},
            {"command": "agentgrpo local", "tasks": "tasks.jsonl", "learnt": 2, "held_out": 2, "listed": True},
        ],
        "learnt": sorted([PRINTS[0], PRINTS[1], PRINTS[3]]),
        "held_out": sorted(PRINTS[4:]),
    }
    assert check_not_learnt(second, ENVIRONMENT, TASKS[4:], "") == []
    with pytest.raises(LearntError) as refused:
        check_not_learnt(second, ENVIRONMENT, TASKS[2:], "Name others.")
    assert str(refused.value) == (
        f"{second} has learnt 1 of the 4 tasks to measure it on, for example '{TASKS[3].question}'; its "
        "trained_on.json says: agentgrpo sft learnt 2 of tasks.jsonl, 1 held out; agentgrpo local learnt 2 of "
        "tasks.jsonl, 2 held out. Success on them says nothing about new tasks. Name others."
    )


def test_an_adapter_without_a_record_has_learnt_what_its_base_has(tmp_path):
    record = trained("agentgrpo sft", tmp_path, tmp_path / "base", TASKS[:2], [])
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path / "base")}))
    assert read_trained_on(adapter) == record
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(adapter)}))
    assert read_trained_on(adapter) == TrainedOn()


def test_a_record_of_an_earlier_version_names_the_environment_alone(tmp_path):
    (tmp_path / "trained_on.json").write_text('{"env": "dbbench", "protocol": "fc"}\n')
    assert read_trained_on(tmp_path) == TrainedOn(env="dbbench", protocol="fc")
    assert check_not_learnt(tmp_path, ENVIRONMENT, TASKS, "") == []


def test_a_record_that_cannot_be_read_is_refused_where_something_is_measured(tmp_path):
    (tmp_path / "trained_on.json").write_text('{"learnt": [')
    with pytest.raises(LearntError, match=r"trained_on.json cannot be read .* nobody knows what the model has learnt"):
        check_not_learnt(tmp_path, ENVIRONMENT, TASKS, "")


def test_rows_that_are_not_listed_are_named(tmp_path):
    source = TaskSource(command="agentgrpo dpo", tasks="pairs.jsonl", learnt=40, held_out=4, listed=False)
    write_trained_on(tmp_path, TrainedOn(sources=(source,)))
    assert check_not_learnt(tmp_path, ENVIRONMENT, TASKS, "") == [
        f"{tmp_path} has also learnt from pairs.jsonl (agentgrpo dpo); its trained_on.json does not list those rows, "
        "so nobody can tell whether tasks to measure it on are among them"
    ]

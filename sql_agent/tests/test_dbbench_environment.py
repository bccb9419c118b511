"""`sql_agent.environments.dbbench`: which tasks a run trains on."""

import pytest

from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.load import write_tasks
from sql_agent.config import DataConfig
from sql_agent.environments.dbbench import DbBench


@pytest.fixture
def split():
    return lambda **data: DbBench("strict").load_split(DataConfig(**data), seed=3)


def skills(tasks):
    return {skill for task in tasks for skill in task.skills}


def test_without_skills_every_kind_is_there(split):
    found = split(generate=16, val_limit=8)
    assert (found.train, found.val) == (
        generate_tasks(16, seed=3, split="train"),
        generate_tasks(8, seed=3, split="held_out"),
    )


def test_asked_for_skills_are_what_both_halves_show_and_the_number_of_tasks_is_kept(split):
    found = split(generate=16, val_limit=8, skills=("delete", "order_by_single_column"))
    assert (len(found.train), len(found.val)) == (16, 8)
    assert all({"delete", "order_by_single_column"} & set(task.skills) for task in [*found.train, *found.val])
    assert {"delete", "order_by_single_column"} <= skills(found.train)


def test_tasks_of_a_file_are_kept_by_skill(split, tmp_path):
    file = tmp_path / "tasks.jsonl"
    write_tasks(file, generate_tasks(32, seed=0))
    found = split(train_file=file, val_file=file, skills=("delete",))
    assert found.train == found.val == [task for task in generate_tasks(32, seed=0) if "delete" in task.skills]
    assert len(found.train) == 4  # each eight in a row hold each kind once


def test_skills_that_nothing_shows_are_named_beside_those_that_are_there(split, tmp_path):
    with pytest.raises(
        ValueError, match=r"no task shows joins or deletee \(data.skills\); these tasks show delete, insert"
    ):
        split(skills=("joins", "deletee"))
    file = tmp_path / "tasks.jsonl"
    write_tasks(file, [task for task in generate_tasks(32, seed=0) if "delete" in task.skills])
    with pytest.raises(ValueError, match="these tasks show delete, where_single_condition"):
        split(train_file=file, skills=("insert",))

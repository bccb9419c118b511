import itertools
import math
from collections import Counter

import pytest

from dbbench_adapter.datatypes import Gold, Task
from dbbench_adapter.sql_skills import SKILLS
from dbbench_adapter.tasks.load import TaskFileError, write_tasks
from dbbench_adapter.tasks.single_skill import (
    SingleSkillTaskGenerator,
    _new,
    by_skill,
    num_others,
    read_single_skill,
    skills_of,
    write_single_skill,
)

FULL = ("select", "order_by_single_column", "limit_only")


def task(name: str, *skills: str, sql: str | None = None) -> Task:
    return Task(name, "?", "SELECT", (), Gold(rows=((1,),), sql=sql), skills=skills)


def names(tasks: list[Task]) -> list[str]:
    return [each.id for each in tasks]


def test_the_purest_tasks_of_a_skill_are_taken_and_plain_select_does_not_count():
    tasks = [task("full", *FULL), task("order", "select", "order_by_single_column"), task("bare", "select")]
    found = by_skill(tasks)
    assert list(found) == list(SKILLS)
    assert names(found["order_by_single_column"]) == ["order"]
    assert names(found["limit_only"]) == ["full"]  # there is no purer one
    assert names(found["select"]) == ["bare"]
    assert found["delete"] == []
    assert num_others("limit_only", frozenset(FULL)) == 1


def test_less_pure_tasks_fill_up_to_the_least_number():
    tasks = [task("full", *FULL), task("order", "select", "order_by_single_column"), task("full2", *FULL)]
    assert names(by_skill(tasks, min_tasks=2)["order_by_single_column"]) == ["order", "full"]


def test_skills_are_read_off_the_reference_where_a_file_has_no_labels():
    assert skills_of(task("a", sql="SELECT a FROM t LIMIT 1")) == {"select", "limit_only"}
    assert skills_of(task("a")) == skills_of(task("a", sql="this is no sql (")) == frozenset()


def test_a_file_of_single_skills_reads_back(tmp_path):
    path = tmp_path / "new" / "single_skill_tasks.json"
    found = {"limit_only": [task("full", *FULL)], "select": [task("bare", "select")]}
    write_single_skill(path, found)
    assert read_single_skill(path) == found
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_any_task_file_is_sorted_on_the_way_in(tmp_path):
    write_tasks(tmp_path / "tasks.jsonl", [task("full", *FULL)])
    assert set(read_single_skill(tmp_path / "tasks.jsonl")) == set(FULL)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param('{"select": [{"id": 1}]}', "a record is no task", id="bad_record"),
        pytest.param('{"joins": []}', "expected", id="unknown_form"),
    ],
)
def test_a_file_of_no_known_form_is_refused(tmp_path, text, message):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(TaskFileError, match=message):
        read_single_skill(tmp_path / "x.json")


def test_from_a_file_every_task_of_a_skill_comes_once_before_one_comes_again(tmp_path):
    write_single_skill(tmp_path / "x.json", {"select": [task(str(n), "select") for n in range(5)]})
    ids = names(list(itertools.islice(SingleSkillTaskGenerator.from_file(tmp_path / "x.json", seed=1), 10)))
    assert set(ids[:5]) == set(ids[5:]) == set("01234")
    again = SingleSkillTaskGenerator.from_file(tmp_path / "x.json", seed=1)
    assert names(list(itertools.islice(again, 10))) == ids


def test_skills_are_drawn_by_weight():
    sources = {"select": itertools.repeat(task("s", "select")), "delete": itertools.repeat(task("d", "delete"))}
    generator = SingleSkillTaskGenerator(sources, seed=0, weights={"select": 1.0, "delete": 3.0})
    counts = Counter(generator.draw()[0] for _ in range(2000))
    assert 0.70 < counts["delete"] / 2000 < 0.80
    assert {generator.draw() for _ in range(20)} == {("select", task("s", "select")), ("delete", task("d", "delete"))}


def test_from_the_generator_tasks_show_the_skill_drawn_and_never_repeat():
    generator = SingleSkillTaskGenerator.from_generator(seed=0)
    drawn = [generator.draw() for _ in range(200)]
    assert all(skill in new.skills for skill, new in drawn)
    assert {skill for skill, _ in drawn} == set(SKILLS)
    assert len({new.gold.sql for _, new in drawn}) == len({new.id for _, new in drawn}) == 200
    assert all(len(new.skills) <= (5 if skill == "having_aggregate_calculation" else 3) for skill, new in drawn)
    repeated = SingleSkillTaskGenerator.from_generator(seed=0)
    assert [repeated.draw() for _ in range(20)] == drawn[:20]


def test_a_statement_of_one_skill_is_not_drawn_again_for_another():
    first, second = task("a", "select", sql="SELECT 1"), task("b", "select", sql="SELECT 2")
    seen: set[str | None] = set()
    assert names(list(_new(iter([first]), seen))) == ["a"]
    assert names(list(_new(iter([first, second]), seen))) == ["b"]


def test_weights_and_split_reach_the_generator():
    new = next(SingleSkillTaskGenerator.from_generator(seed=0, split="held_out", weights={"delete": 1.0}))
    assert new.id.startswith("synthetic-held_out-") and "delete" in new.skills


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        pytest.param({"joins": 1.0}, "no tasks of skill 'joins'; choose among select", id="unknown"),
        pytest.param({"select": -1.0}, "each above 0", id="negative"),
        pytest.param({"select": math.inf}, "each above 0 and finite", id="infinite"),
        pytest.param({}, "one or more", id="none"),
    ],
)
def test_weights_that_cannot_be_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        SingleSkillTaskGenerator({"select": iter([])}, seed=0, weights=weights)

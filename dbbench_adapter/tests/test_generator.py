import hashlib
import json
import re
import sqlite3
import subprocess
import sys
from collections import Counter

import pytest

from dbbench_adapter import generator
from dbbench_adapter.datatypes import Column, Gold, Table, Task
from dbbench_adapter.generator import DRAFTS, HELD_OUT_WORDS, TRAIN_WORDS, TaskDraft, generate_tasks, gold_on_sqlite
from dbbench_adapter.tasks.load import load_tasks

FRUIT = Table(
    "fruit",
    (Column("name", "TEXT"), Column("price", "INT")),
    (("plum", 5), ("pear", 4), ("fig", 9), ("date", 9)),
)
PRICE = Column("price", "INT")


@pytest.fixture(scope="module")
def train() -> list[Task]:
    return generate_tasks(800, seed=3)


@pytest.fixture(scope="module")
def held_out() -> list[Task]:
    return generate_tasks(800, seed=3, split="held_out")


def gold_of(kind: str, sql: str, ranked_by: Column | None = None) -> Gold | None:
    return gold_on_sqlite(FRUIT, TaskDraft(kind, "...", sql, (), ranked_by))


def database_of(task: Task) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    for table in task.tables:
        connection.execute(f"CREATE TABLE `{table.name}` ({', '.join(f'`{c.name}` {c.type}' for c in table.columns)})")
        marks = ", ".join("?" * len(table.columns))
        connection.executemany(f"INSERT INTO `{table.name}` VALUES ({marks})", table.rows)
    return connection


def words_in(task: Task) -> set[str]:
    cells = [cell for table in task.tables for row in table.rows for cell in row]
    return set(re.findall(r"[a-z]+", f"{task.question} {task.table_note} {task.gold.sql} {cells}"))


def test_the_same_seed_gives_the_same_tasks_and_more_tasks_only_add_to_them(train):
    assert generate_tasks(100, seed=3) == train[:100]
    assert generate_tasks(100, seed=4) != train[:100]


@pytest.mark.parametrize(
    ("split", "sha256"),
    [
        ("train", "0f6dcb2ef8c4a4cf733cc3aa91e7bc596fe27039cf2b5eebd9c8ef798b007657"),
        ("held_out", "6099592d8e1c86b1447e688e9b20ffa000fc1a5db3facd6ef7abf417ead36931"),
    ],
)
def test_the_tasks_of_a_seed_never_change(split, sha256):
    """Published results and trained policies depend on them."""
    lines = "".join(json.dumps(task.to_dict()) + "\n" for task in generate_tasks(80, seed=0, split=split))
    assert hashlib.sha256(lines.encode()).hexdigest() == sha256


def test_every_eight_tasks_hold_each_kind_once(train):
    counts = Counter(task.kind for task in train)
    assert counts["other"] == counts["counting"] == counts["ranking"] == 100
    assert counts["INSERT"] == counts["UPDATE"] == counts["DELETE"] == 100
    assert counts["aggregation-MAX"] + counts["aggregation-MIN"] == 100
    assert counts["aggregation-SUM"] + counts["aggregation-AVG"] == 100
    assert len(DRAFTS) == 8


def test_held_out_uses_words_and_tables_that_train_never_uses(train, held_out):
    assert not set(HELD_OUT_WORDS) & set(TRAIN_WORDS)
    assert not set(HELD_OUT_WORDS) & set().union(*map(words_in, train))
    assert {table.name for task in held_out for table in task.tables} <= set(HELD_OUT_WORDS)
    assert {cell for t in held_out for row in t.tables[0].rows for cell in row if isinstance(cell, str)} <= set(
        HELD_OUT_WORDS
    )


def test_the_reference_of_a_select_gives_its_gold(train, held_out):
    for task in train + held_out:
        if not task.changes_state:
            assert tuple(database_of(task).execute(task.gold.sql).fetchall()) == task.gold.rows
            assert 1 <= len(task.gold.answers) == len(task.gold.rows) <= 4


def test_every_change_changes_something(train, held_out):
    for task in train + held_out:
        if task.changes_state:
            database = database_of(task)
            database.execute(task.gold.sql)
            after = database.execute(f"SELECT * FROM `{task.tables[0].name}`").fetchall()
            assert sorted(map(repr, after)) != sorted(map(repr, task.tables[0].rows))
            assert task.gold == Gold(sql=task.gold.sql)


def test_no_two_tasks_look_alike_to_an_agent_even_over_one_table(monkeypatch):
    untied = Table("fruit", FRUIT.columns, (("plum", 5), ("pear", 4), ("fig", 9)))
    monkeypatch.setattr(generator, "_table", lambda *_: (untied, ("kiwi", 3)))
    tasks = generate_tasks(64, seed=0)
    assert len({(task.question, task.table_note) for task in tasks}) == len({task.id for task in tasks}) == 64


def test_the_note_names_the_table_and_its_columns_in_backticks(train):
    names = ", ".join(f"`{column.name}`" for column in train[0].tables[0].columns)
    assert train[0].table_note == f"The table `{train[0].tables[0].name}` has the columns {names}."


def test_skills_are_those_of_the_reference(train):
    skills = {task.kind: task.skills for task in train}
    assert skills["other"] == skills["counting"] == ("select", "where_single_condition")
    assert skills["ranking"] == ("select", "order_by_single_column", "limit_only")
    assert skills["aggregation-MAX"] == skills["aggregation-AVG"] == ("select",)
    assert skills["INSERT"] == ("insert",)
    assert skills["UPDATE"] == ("update", "where_single_condition")
    assert skills["DELETE"] == ("delete", "where_single_condition")
    assert all(task.ordered == (task.kind == "ranking") for task in train)
    assert all(task.typed and task.source == "generated" for task in train)


@pytest.mark.parametrize(
    ("kind", "sql"),
    [
        pytest.param("DELETE", "DELETE FROM fruit WHERE price > 9", id="matches_no_row"),
        pytest.param("UPDATE", "UPDATE fruit SET price = 5 WHERE name = 'plum'", id="sets_what_is_there"),
        # plum and pear trade places: other rows, the same multiset
        pytest.param(
            "UPDATE",
            "UPDATE fruit SET price = 9 - price, name = IIF(name = 'plum', 'pear', 'plum') WHERE price < 9",
            id="same_rows_in_another_order",
        ),
    ],
)
def test_a_change_that_changes_nothing_is_refused(kind, sql):
    assert gold_of(kind, sql) is None


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param("SELECT name FROM fruit WHERE price > 9", id="no_row"),
        pytest.param(
            "SELECT COUNT(*) FROM fruit WHERE price > 9", id="a_count_of_zero_which_the_fc_judge_takes_for_empty"
        ),
        pytest.param("SELECT name FROM fruit, (SELECT 1 UNION SELECT 2)", id="eight_rows"),
        # (4 + 9 + 9) / 3 = 7.333..., which MySQL prints as 7.3333
        pytest.param("SELECT AVG(price) FROM fruit WHERE name <> 'plum'", id="an_average_that_has_to_be_rounded"),
    ],
)
def test_a_select_without_a_plain_answer_is_refused(sql):
    assert gold_of("other", sql) is None


def test_a_tied_first_place_is_refused():
    sql = "SELECT name FROM fruit ORDER BY price {} LIMIT 1"
    assert gold_of("ranking", sql.format("DESC"), ranked_by=PRICE) is None  # fig and date both cost 9


def test_an_average_keeps_its_type_in_the_rows_and_is_plain_in_the_answers():
    # (5 + 4 + 9 + 9) / 4 = 6.75; (5 + 9) / 2 = 7
    assert gold_of("aggregation-AVG", "SELECT AVG(price) FROM fruit") == Gold(
        answers=("6.75",), rows=((6.75,),), sql="SELECT AVG(price) FROM fruit"
    )
    whole = gold_of("aggregation-AVG", "SELECT AVG(price) FROM fruit WHERE name IN ('plum', 'fig')")
    assert (whole.answers, whole.rows) == (("7",), ((7.0,),))


@pytest.mark.parametrize(
    ("n", "split", "message"),
    [
        pytest.param(0, "train", "expected 1 or more", id="none"),
        pytest.param(1, "test", "expected train or held_out", id="unknown_split"),
    ],
)
def test_what_cannot_be_generated_is_refused_with_what_was_expected(n, split, message):
    with pytest.raises(ValueError, match=message):
        generate_tasks(n, seed=0, split=split)


def test_the_command_writes_tasks_that_load_again(tmp_path):
    output = tmp_path / "tasks" / "train.jsonl"
    command = [sys.executable, "-m", "dbbench_adapter.generator", "--n", "16", "--seed", "3", "--output", str(output)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert load_tasks(output) == generate_tasks(16, seed=3)

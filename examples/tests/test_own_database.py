"""The shop's questions can be learnt from: each has an answer, and none that is tested is in what is trained on."""

import json
import re
import sqlite3
from contextlib import closing

import pytest

from examples.own_database.make_shop import QUESTIONS, make
from sql_agent.environments.base import make_environment
from sql_agent.settings.groups import EnvironmentSettings


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop")
    make(folder)
    return folder


def rows_of(shop, part):
    return json.loads((shop / f"{part}.json").read_text())


PARTS = ("train", "log", "test")


def test_there_are_hundreds_of_questions_and_a_change_among_those_tested_can_be_clear(shop):
    assert [len(rows_of(shop, part)) for part in PARTS] == [169, 96, 120]


def test_no_question_and_no_reference_is_in_two_files(shop):
    for column in ("question", "query"):
        asked = [
            row[column] for part in PARTS for row in rows_of(shop, part) if not row["query"].startswith("SELECT *")
        ]
        assert len(set(asked)) == len(asked)


def test_most_look_ups_of_the_log_select_every_column_and_nothing_else_of_it_is_wrong(shop):
    typed = [row["query"] for row in rows_of(shop, "log")]
    stars = [query for query in typed if query.startswith("SELECT * FROM")]
    look_ups = stars + [query for query in typed if re.match(r"SELECT \w+ FROM", query)]
    assert (len(stars), len(look_ups)) == (29, 42)
    assert not [row for part in ("train", "test") for row in rows_of(shop, part) if "*" in row["query"].split()[1:2]]


def test_the_answer_of_each_question_is_neither_empty_nor_zero(shop):
    """A query that finds nothing would be right by chance."""
    with closing(sqlite3.connect(shop / "shop.sqlite")) as connection:
        for row in [row for part in PARTS for row in rows_of(shop, part)]:
            answer = connection.execute(row["query"]).fetchall()
            assert [cell for found in answer for cell in found if cell], row


def test_the_environment_uses_every_question(shop):
    with make_environment(EnvironmentSettings("text2sql", database=shop / "shop.sqlite")) as environment:
        for part in PARTS:
            for task in environment.read_tasks(shop / f"{part}.json"):
                assert environment.reference_fault(task) is None


def test_each_reference_is_asked_for_in_several_ways(shop):
    assert all(len(set(ways)) >= 2 for ways in QUESTIONS.values())


def test_a_shop_that_is_made_again_is_the_same(shop, tmp_path):
    make(tmp_path)
    for name in ("shop.sqlite", "train.json", "log.json", "test.json"):
        assert (tmp_path / name).read_bytes() == (shop / name).read_bytes()

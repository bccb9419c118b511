"""What a judge compared: shown to a person in excerpts, and kept out of what anything else reads."""

import json
import sqlite3
from contextlib import closing

import pytest

from dbbench_adapter.datatypes import Column, Gold, Score, Table, Task
from dbbench_adapter.engines import open_backend
from dbbench_adapter.protocols import open_episode
from sql_agent.comparison import Comparison, Excerpt
from sql_agent.datatypes import Reward
from sql_agent.environments.dbbench import DbBench
from sql_agent.lightning.spans import outcome_text
from sql_agent.settings.groups import AgentConfig
from sql_agent.source.run_context import trajectory_line
from sql_agent.tests.records import make_record, make_result, rewarded
from sql_agent.text_to_sql.datatypes import Question
from sql_agent.text_to_sql.environment import TextToSql

SHOP = """
CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT);
INSERT INTO customer VALUES (1, 'Ann'), (2, 'Bo'), (3, 'Cy');
"""
NAMES = "SELECT name FROM customer ORDER BY id"


@pytest.fixture
def shop(tmp_path):
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as connection:
        connection.executescript(SHOP)
    with TextToSql(tmp_path / "shop.sqlite") as environment:
        yield environment


def played(environment, query, *calls, changes=False):
    """What was compared after these calls, pairs of tool and statement, with its verdict."""
    question = Question("q-0", "Who?", "shop", query, changes=changes)
    with closing(environment.open(question, AgentConfig())) as episode:
        for tool, sql in calls:
            episode.call_tool(tool, json.dumps({"sql": sql}))
        score = environment.judge(episode)
        return score.reason, environment.comparison(episode)


def test_an_excerpt_keeps_ten_rows_twenty_cells_and_a_hundred_characters_and_counts_all():
    rows = [(n,) for n in range(12)]
    assert Excerpt.of(rows) == Excerpt([[n] for n in range(10)], count=12)
    assert Excerpt.of([tuple(range(22))]) == Excerpt([[*range(20), "… 2 more cells"]], count=1)
    assert Excerpt.of([("x" * 101, "y" * 100)]) == Excerpt([[f"{'x' * 100}… 101 characters", "y" * 100]], count=1)


def test_a_cell_that_json_or_a_browser_has_no_form_for_is_text():
    cells = (None, True, 1.5, 2**53, 2**53 + 1, float("inf"), b"\x00\xff", "\ud800")
    assert Excerpt.of([cells]).rows == [[None, True, 1.5, 2**53, "9007199254740993", "inf", "x'00ff'", "?"]]


def test_a_wrong_query_is_shown_beside_the_reference_with_the_rows_of_both(shop):
    submitted = "SELECT name FROM customer WHERE id < 3"
    assert played(shop, NAMES, ("submit_sql", submitted)) == (
        "wrong_result",
        Comparison(
            submitted,
            NAMES,
            expected=Excerpt([["Ann"], ["Bo"], ["Cy"]], 3),
            returned=Excerpt([["Ann"], ["Bo"]], 2),
            ordered=True,
        ),
    )


def test_a_query_that_fails_is_shown_with_the_databases_own_words_and_without_rows(shop):
    assert played(shop, NAMES, ("submit_sql", "SELECT nam FROM customer")) == (
        "sql_error",
        Comparison(
            "SELECT nam FROM customer",
            NAMES,
            expected=Excerpt([["Ann"], ["Bo"], ["Cy"]], 3),
            error="no such column: nam",
            ordered=True,
        ),
    )


def test_without_an_answer_there_is_the_reference_and_what_it_gives(shop):
    expected = Comparison(reference=NAMES, expected=Excerpt([["Ann"], ["Bo"], ["Cy"]], 3), ordered=True)
    assert played(shop, NAMES) == ("no_answer", expected)


def test_the_judge_runs_each_query_once_and_the_explanation_none(shop, monkeypatch):
    ran, run = [], TextToSql._run_timed
    monkeypatch.setattr(TextToSql, "_run_timed", lambda self, *query: ran.append(query[1]) or run(self, *query))
    played(shop, NAMES, ("submit_sql", "SELECT 1"))
    assert ran == ["SELECT 1", NAMES]


def test_of_a_change_the_rows_are_shown_that_only_one_of_both_leaves_behind(shop):
    update = "UPDATE customer SET name = 'Di' WHERE id = 2"
    reason, compared = played(shop, update, ("submit_sql", update.replace("2", "3")), changes=True)
    # both change a row: the agent leaves (2, Bo) and (3, Di) where the reference leaves (2, Di) and (3, Cy)
    assert (reason, compared.state) == ("wrong_state", True)
    assert sorted(compared.expected.rows) == [["customer", 2, "Di"], ["customer", 3, "Cy"]]
    assert sorted(compared.returned.rows) == [["customer", 2, "Bo"], ["customer", 3, "Di"]]
    refused = played(shop, update, ("submit_sql", "DROP TABLE customer"), changes=True)[1]
    assert refused.error.startswith("not allowed: only SELECT, INSERT, UPDATE and DELETE")
    assert (refused.expected.rows, refused.returned.rows) == ([["customer", 2, "Di"]], [["customer", 2, "Bo"]])


# DB-Bench -----------------------------------------------------------------------------------------------------------

FRUIT = Table("fruit", (Column("name"), Column("price")), (("Plum", "3"), ("Pear", "5")))


def bench(kind, gold, *calls):
    """What was compared after these calls, pairs of tool and arguments, with its verdict."""
    task = Task("t-0", "?", kind, (FRUIT,), gold)
    with open_backend("sqlite") as backend:
        environment = DbBench("strict", backend=backend)
        with open_episode(task, backend, "fc") as episode:
            for tool, arguments in calls:
                episode.call_tool(tool, json.dumps(arguments))
            return environment.judge(episode).reason, environment.comparison(episode)


def test_a_wrong_answer_to_a_task_of_dbbench_is_shown_beside_the_right_one():
    select = "SELECT name FROM fruit WHERE price = 3"
    gold = Gold(rows=(("Pear",),), sql="SELECT name FROM fruit WHERE price = 5")
    calls = ("execute_sql", {"query": select}), ("commit_final_answer", {"answers": ["Plum", "Fig"]})
    assert bench("other", gold, *calls) == (
        "wrong_answer",
        Comparison(select, gold.sql, expected=Excerpt([["Pear"]], 1), returned=Excerpt([["Plum"], ["Fig"]], 2)),
    )


def test_a_wrong_change_of_dbbenchs_tables_is_shown_by_the_rows_that_differ():
    gold = Gold(sql="DELETE FROM fruit WHERE price = 5")
    delete = "DELETE FROM fruit WHERE price = 3"
    calls = ("execute_sql", {"query": delete}), ("commit_final_answer", {"answers": []})
    assert bench("DELETE", gold, *calls) == (
        "wrong_state",
        Comparison(
            delete,
            gold.sql,
            expected=Excerpt([["fruit", "Plum", "3"]], 1),
            returned=Excerpt([["fruit", "Pear", "5"]], 1),
            state=True,
        ),
    )


# where it goes ------------------------------------------------------------------------------------------------------


def test_the_span_of_a_rollout_holds_no_solution_and_its_trajectory_does():
    compared = Comparison("SELECT 1", "SELECT 5ecret", Excerpt([["go1d"]], 1), Excerpt([[1]], 1))
    record = make_record(Score(0.0, "wrong_result"), comparison=compared.to_dict())
    result = make_result("g", rewarded(record, Reward(0.0, "wrong_result")))
    span = outcome_text(result)
    assert "5ecret" not in span and "go1d" not in span
    assert trajectory_line(result, 1, validate=True)["comparison"] == {
        "submitted": "SELECT 1",
        "reference": "SELECT 5ecret",
        "expected": {"rows": [["go1d"]], "count": 1, "digest": ""},
        "returned": {"rows": [[1]], "count": 1, "digest": ""},
        "error": None,
        "ordered": False,
        "state": False,
    }

"""The three commands that answer JSON lines: `judge`, `table_hash` and `episode`, each run as a user runs it."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentgrpo.json_lines import answer_lines
from dbbench_adapter import episode, judge
from dbbench_adapter.datatypes import Column, Table
from dbbench_adapter.table_hash import hash_after

ROOT = Path(__file__).parents[2]


def run(module, *rows, flags=()):
    lines = "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)
    done = subprocess.run(
        [sys.executable, "-m", f"dbbench_adapter.{module}", *flags],
        input=lines,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def md5(text):
    return hashlib.md5(text.encode()).hexdigest()


# lines --------------------------------------------------------------------------------------------------------------


def test_a_bad_line_is_answered_in_its_place_and_the_next_goes_on():
    case = {"id": "a", "variant": "fc", "expected": ["5"], "given": ["5.0"]}
    assert run("judge", case, "{\n", "\n", "[]\n", {**case, "id": 2, "variant": "fcc"}, {"id": 3}, case) == [
        {"id": "a", "correct": True, "reason": "match"},
        {"id": None, "error": "not JSON: Expecting property name enclosed in double quotes: line 2 column 1 (char 2)"},
        {"id": None, "error": "expected a JSON object, found list"},
        {"id": 2, "error": "field variant: Input should be 'text', 'fc', 'lab' or 'strict'; found 'fcc'"},
        {"id": 3, "error": "field variant: Field required; found {'id': 3}"},
        {"id": "a", "correct": True, "reason": "match"},
    ]


def test_a_fault_of_ours_costs_its_own_line_only(caplog):
    def fail(row):
        raise KeyError(row["id"])

    assert [json.loads(line) for line in answer_lines(['{"id": 1}', '{"id": 2}'], fail)] == [
        {"id": 1, "error": "internal error: KeyError: 1"},
        {"id": 2, "error": "internal error: KeyError: 2"},
    ]
    assert caplog.messages[0] == 'row {"id": 1}'


def test_a_line_nested_too_deeply_is_a_bad_line():
    [line] = answer_lines(["[" * 100_000], judge.answer)
    assert json.loads(line)["id"] is None and "error" in json.loads(line)


# judge --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "expected", "given", "correct"),
    [
        pytest.param("fc", ["Plum"], "['Plum']", True, id="fc_a_text"),
        pytest.param("fc", ["0"], None, True, id="fc_null_is_zero"),
        pytest.param("fc", ["5"], 5, True, id="fc_any_json_value"),
        pytest.param("text", ["Plum"], ' ["Plum"]', True, id="text_the_rest_of_the_line"),
        pytest.param("lab", [["Plum", 5]], "[('Plum', 5)]", True, id="lab_rows"),
        pytest.param("strict", ["5", "Plum"], ["Plum", "5.0"], True, id="strict_values"),
        pytest.param("strict", [["Plum", 5], [None, 4]], [[None, 4], ["Plum", 5]], True, id="strict_rows_in_any_order"),
        pytest.param("strict", [[None]], ["0"], False, id="strict_null_is_not_zero"),
        pytest.param("strict", [["5"]], [5], False, id="strict_a_text_is_no_number"),
        pytest.param("strict", [], [], True, id="strict_no_rows"),
    ],
)
def test_judge(variant, expected, given, correct):
    verdict = {"correct": correct, "reason": "match" if correct else "wrong_answer"}
    assert judge.answer({"id": 1, "variant": variant, "expected": expected, "given": given}) == verdict


@pytest.mark.parametrize(
    ("variant", "expected", "given", "words"),
    [
        ("fc", [5], ["5"], "Input should be a valid string"),
        ("text", ["5"], ["5"], "field given: expected the text of the answer line, found list"),
        ("lab", ["5"], "5", "Input should be a valid list"),
        ("strict", {"a": 1}, ["5"], "Input should be a valid list"),
    ],
)
def test_judge_names_what_has_another_form(variant, expected, given, words):
    [line] = answer_lines(
        [json.dumps({"id": 1, "variant": variant, "expected": expected, "given": given})], judge.answer
    )
    assert words in json.loads(line)["error"]


# table_hash ---------------------------------------------------------------------------------------------------------

TABLE = Table("T", (Column("a", "INT"), Column("b", "TEXT")), ((1, "x"), (2, None)))


@pytest.mark.parametrize(
    ("variant", "sql", "lines", "error"),
    [
        # one line a row, joined as CONCAT_WS does: text keeps NULL, which is skipped; fc and lab make it a text
        pytest.param("text", [], ["1,x", "2"], None, id="text"),
        pytest.param("fc", [], ["1,x", "2,None"], None, id="fc"),
        pytest.param("lab", [], ["1,x", "2,None"], None, id="lab"),
        pytest.param("lab", ["UPDATE T SET a = 2.5 WHERE b = 'x'"], ["3,x", "2,None"], None, id="lab_keeps_its_types"),
        pytest.param("fc", ["UPDATE T SET a = 2.5 WHERE b = 'x'"], ["2.5,x", "2,None"], None, id="fc_has_texts_only"),
        pytest.param(
            "fc", ["SELECT c FROM T", "DELETE FROM T WHERE a = 1"], ["2,None"], "1054", id="on_after_a_failure"
        ),
    ],
)
def test_hash_after_statements(backend, variant, sql, lines, error):
    digests = sorted(md5(line)[:5] for line in lines)
    found, failure = hash_after(backend, variant, [TABLE], sql)
    assert found == md5(",".join(digests))
    assert (failure or "")[:4] == (error or "")


def test_the_hash_of_170_rows_and_a_little_more_is_cut_as_group_concat_does(backend):
    table = Table("T", (Column("a"),), tuple((str(k),) for k in range(400)))
    digests = sorted(md5(str(k))[:5] for k in range(400))
    # MySQL's default of 1,024 bytes holds 170 hashes with their commas (1,020) and 4 characters of the next
    assert hash_after(backend, "fc", [table], []) == (md5(",".join(digests[:170]) + "," + digests[170][:4]), None)


def test_hashes_of_nothing_of_several_tables_and_of_a_table_that_is_gone():
    agentbench = {"table_name": "T", "columns": [{"name": "a", "type": "INT"}], "rows": [["1"]]}
    lifelong = {"name": "T", "column_info_list": [{"name": "a", "type": "INT"}], "row_list": [[1]]}
    one = md5(md5("1")[:5])
    assert run(
        "table_hash",
        {"id": 1, "variant": "fc", "backend": "sqlite", "tables": [agentbench], "sql": ["DELETE FROM T"]},
        {
            "id": 2,
            "variant": "fc",
            "backend": "sqlite",
            "tables": [agentbench, {**agentbench, "table_name": "U"}],
            "sql": [],
        },
        {"id": 3, "variant": "lab", "backend": "sqlite", "tables": [lifelong], "sql": ["DROP TABLE T"]},
        {"id": 4, "variant": "lab", "backend": "sqlite", "tables": [agentbench], "sql": []},
        {"id": 5, "variant": "fc", "backend": "sqlite", "tables": [{**agentbench, "rows": [["1", "2"]]}], "sql": []},
    ) == [
        {"id": 1, "hash": None, "error": None},
        {"id": 2, "hash": f"{one}_{one}", "error": None},
        {"id": 3, "hash": None, "error": None},
        {"id": 4, "error": "field tables.0.name: Field required; found " + repr(agentbench)[:120]},
        {
            "id": 5,
            "hash": None,
            "error": "table 'T', row 0: 2 cells, expected 1; correct the task file",
        },
    ]


# episode ------------------------------------------------------------------------------------------------------------

TASK = {
    "table": {
        "table_name": "Fruit List",
        "columns": [{"name": "Fruit", "type": "TEXT"}, {"name": "Price", "type": "INT"}],
        "rows": [["Plum", "5"], ["Pear", "4"]],
    },
    "type": "UPDATE",
    "question": "Set the price of Plum to 7.",
    "gold_sql": "UPDATE `Fruit List` SET `Price` = '7' WHERE `Fruit` = 'Plum'",
}
RAISE = "Action: Operation\n```sql\nUPDATE `Fruit List` SET Price = 7 WHERE Fruit = 'Plum'\n```"


def test_episodes_of_the_three_protocols():
    lab = {
        "table_info": {
            "name": "fruit",
            "column_info_list": [{"name": "name", "type": "TEXT"}, {"name": "price", "type": "INT"}],
            "row_list": [["Pear", 4], ["Plum", 5]],
        },
        "instruction": "List cheap fruit.",
        "sql": "SELECT name, price FROM fruit WHERE price < 5;",
        "direct": [["Pear", 4]],
    }
    look = "Action: Operation\n```sql\nSELECT * FROM fruit\n```"
    commit = {"function": {"name": "commit_final_answer", "arguments": '{"answers": []}'}}
    assert run(
        "episode",
        {"id": 1, "variant": "text", "task": TASK, "max_round": 1, "replies": [RAISE, "Goodbye.", "unread"]},
        {"id": 2, "variant": "fc", "task": TASK, "max_round": 2, "replies": [{"tool_calls": [commit]}]},
        {
            "id": 3,
            "variant": "lab",
            "task": lab,
            "max_round": 3,
            "replies": [look, "Action: Answer\nFinal Answer: (Pear, 4)"],
        },
        {"id": 4, "variant": "lab", "task": lab, "max_round": 3, "replies": [look]},
        flags=("--backend", "sqlite"),
    ) == [
        {
            "id": 1,
            "status": "task limit reached",
            "correct": True,
            "replies_used": 2,
            "sql_run": ["UPDATE `Fruit List` SET Price = 7 WHERE Fruit = 'Plum'"],
            "observations": ["[]"],
        },
        {"id": 2, "status": "completed", "correct": False, "replies_used": 1, "sql_run": [], "observations": []},
        {
            "id": 3,
            "status": "completed",
            "correct": True,
            "replies_used": 2,
            "sql_run": ["SELECT * FROM fruit"],
            "observations": ["[('Pear', 4), ('Plum', 5)]"],
        },
        {
            "id": 4,
            "status": "running",
            "correct": None,
            "replies_used": 1,
            "sql_run": ["SELECT * FROM fruit"],
            "observations": ["[('Pear', 4), ('Plum', 5)]"],
        },
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"task": {**TASK, "gold_sql": None}}, "field task.gold_sql: a task of type UPDATE needs it"),
        ({"task": {**TASK, "gold_sql": "UPDATE x SET a = 1"}}, "nobody can judge it: reference_failed"),
        ({"replies": [5]}, "field replies: expected a text, found int"),
        ({"task": {**TASK, "type": []}}, "field task.type"),
        ({"max_round": 0}, "field max_round: Input should be greater than or equal to 1"),
    ],
)
def test_what_is_wrong_with_an_episode_is_said(sqlite, change, words):
    row = {"id": 1, "variant": "text", "task": TASK, "max_round": 1, "replies": ["Goodbye."], **change}
    [line] = answer_lines([json.dumps(row)], lambda row: episode.answer(row, sqlite))
    assert words in json.loads(line)["error"]


def test_what_cannot_be_made_is_an_error_of_the_task_under_fc_only(sqlite):
    table = {**TASK["table"], "columns": [{"name": "a", "type": "TEXT"}] * 2}
    row = {"variant": "fc", "task": {**TASK, "table": table}, "max_round": 1, "replies": []}
    assert episode.answer(row, sqlite)["status"] == "task error"

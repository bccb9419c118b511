"""`sql_agent.evaluate`: its report, its files, its refusals, and the ceiling of DB-Bench's own task file."""

import dataclasses
import itertools
import json
import os
import re
import shutil
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from dbbench_adapter.datatypes import Column, Gold, Score, Table, Task
from dbbench_adapter.engines.sqlite.databases import DatabaseFiles
from dbbench_adapter.tasks.load import load_tasks, write_tasks
from sql_agent import oracle
from sql_agent.comparison import Comparison, Excerpt
from sql_agent.datatypes import RolloutRecord
from sql_agent.evaluate import Rate, interval_of_databases, main, summarise, three_way_mean, voted
from sql_agent.text_to_sql.datatypes import Question
from sql_agent.text_to_sql.load import read_questions

ROOT = Path(__file__).parents[2]
STANDARD = ROOT.parent / "shared/dbbench/data/agentbench/standard.jsonl"
FRUIT = Table("Fruit", (Column("Name"), Column("Price")), (("Plum", "5"), ("Pear", "4")))
CHEAPEST = Task(
    id="t-0", question="Which fruit is cheapest?", kind="other", tables=(FRUIT,), gold=Gold(answers=("Pear",)),
)  # fmt: skip
SET_PRICE = Task(
    id="t-1", question="Set the price of Plum to 7.", kind="UPDATE", tables=(FRUIT,),
    gold=Gold(sql="UPDATE Fruit SET Price = '7' WHERE Name = 'Plum'"),
)  # fmt: skip
RAGGED = Task(
    id="t-2", question="?", kind="other", tables=(Table("T", (Column("a"),), (("1", "2"),)),), gold=Gold(("1",)),
)  # fmt: skip


def record(kind, value, *, turns=2, malformed=0, calls=2, stop="answered", reason="match", task_id="t"):
    call = {"role": "assistant", "content": None, "tool_calls": [oracle.call("execute_sql", {})] * calls}
    return RolloutRecord(
        task_id=task_id, kind=kind, stop_reason=stop, score=Score(value, reason), num_turns=turns,
        malformed_calls=malformed, messages=[call], prompt_tokens=0, completion_tokens=0, seconds=0.5,
    )  # fmt: skip


@pytest.fixture
def evaluate(tmp_path):
    """Runs the command on tasks against the oracle; gives the trajectories it wrote."""

    def evaluate(tasks, *options, script=None):
        write_tasks(tmp_path / "tasks.jsonl", tasks)
        with oracle.serve(oracle.app(script or oracle.replay(tasks))) as url:
            main([
                "--base-url", url, "--model", "oracle", "--tasks", str(tmp_path / "tasks.jsonl"),
                "--output", str(tmp_path / "out.jsonl"), *options,
            ])  # fmt: skip
        return [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]

    return evaluate


# the report ---------------------------------------------------------------------------------------------------------


def test_success_is_reported_per_question_type_and_every_trajectory_written(evaluate, capsys):
    trajectories = evaluate([CHEAPEST, SET_PRICE])
    printed = capsys.readouterr().out
    # one of one: Wilson's interval is 1 / (1 + 1.96^2) = 20.7 % to 100 %
    for line in ("other", "UPDATE"):
        assert f"{line} 1 1 1 100.0 % 20.7 % – 100.0 %" in " ".join(printed.replace("│", " ").split())
    assert "turns per task: 1.50; malformed calls: 0.0 %" in printed
    assert {row["task_id"]: row["score"]["value"] for row in trajectories} == {"t-0": 1.0, "t-1": 1.0}


def test_each_task_is_sampled_as_often_as_asked_and_the_solved_ones_can_be_written(evaluate, tmp_path, capsys):
    unsolved = dataclasses.replace(CHEAPEST, id="t-9", gold=Gold(answers=("Fig",)))
    learnable = tmp_path / "learnable.jsonl"
    solved = tmp_path / "solved.jsonl"
    script = oracle.replay([CHEAPEST, SET_PRICE])  # it answers t-9, the same question, as t-0
    options = ["--samples", "3", "--temperature", "1"]
    options += ["--solved-tasks", str(solved), "--learnable-tasks", str(learnable)]
    rows = evaluate([CHEAPEST, SET_PRICE, unsolved], *options, script=script)
    assert Counter(row["task_id"] for row in rows) == {"t-0": 3, "t-1": 3, "t-9": 3}
    assert [row["comparison"]["expected"]["rows"] for row in rows if row["task_id"] == "t-9"] == [[["Fig"]]] * 3
    assert load_tasks(solved) == [CHEAPEST, SET_PRICE]
    assert learnable.read_text() == ""  # each is always solved or never
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "pass@3, solved in at least one rollout: 2 of 3 tasks" in printed
    assert "vote@3, the most frequent result: 66.7% of 3 (95 % interval 20.8% to 93.9%)" in printed
    # "other" has two tasks, one always solved and one never: draws of two tasks give 0, a half or all
    assert "other 6 6 3 50.0 % 0.0 % – 100.0 %" in printed


def test_the_most_frequent_result_of_a_task_is_its_vote():
    def record(task, success, rows, *, ordered=False, missing=None):
        returned = None if rows is None else Excerpt.of(rows, ordered=ordered)
        expected = None if missing is None else Excerpt.of(missing)
        compared = Comparison(returned=returned, expected=expected, state=missing is not None)
        score = Score(success, "match" if success else "wrong_result")
        return RolloutRecord(task, "answer", "answered", score, comparison=compared.to_dict())

    many = [(n,) for n in range(30)]
    played = [
        *(record("any order", 0.0, [(9,)]), record("any order", 1.0, many), record("any order", 1.0, many[::-1])),
        *(record("wrong", 1.0, many), record("wrong", 0.0, [(9,)]), record("wrong", 0.0, [(9,)])),
        *(record("a tie", 1.0, many), record("a tie", 0.0, [*many[:29], (99,)])),
        *(record("failed", 0.0, None), record("failed", 0.0, None), record("failed", 1.0, many)),
        *(record("its order", success, rows, ordered=True) for success, rows in ((0.0, many), (1.0, many[::-1]))),
        record("its order", 1.0, many[::-1], ordered=True),
        # a task that changes data: nothing but the reference's row is missing, or nothing is
        *(record("changes", success, [], missing=rows) for success, rows in ((0.0, [(1,)]), (1.0, []), (1.0, []))),
        record("no result", 0.0, None),
        RolloutRecord("lost", "answer", "environment_error", Score(None, "environment_error")),
        RolloutRecord("unsaid", "UPDATE", "answered", Score(1.0, "match"), comparison=Comparison(state=True).to_dict()),
    ]
    assert dict(voted(played)) == {
        "any order": 1.0, "wrong": 0.0, "a tie": 1.0, "failed": 1.0, "its order": 1.0, "changes": 1.0, "no result": 0.0,
    }  # fmt: skip
    assert voted(played[-2:]) == []


def test_the_interval_over_databases_is_wider_than_over_their_questions():
    """Ten databases of four questions, of which five are solved whole; Wilson says 35.2 to 64.8 % of 40."""
    tasks = [Question(f"q-{i}", "?", f"db-{i // 4}") for i in range(40)]
    records = [record("t", float(task.db_id < "db-5"), task_id=task.id) for task in tasks]
    assert interval_of_databases(records, tasks) == "95 % interval over 10 databases, by bootstrap: 20.0 % – 80.0 %"
    assert interval_of_databases(records[:36], tasks) is None  # nine
    assert interval_of_databases([record("t", 1.0, task_id=task.id) for task in tasks], tasks) is None
    assert interval_of_databases([record("t", None, task_id=task.id) for task in tasks], tasks) is None


def test_samples_at_temperature_0_are_refused(evaluate, capsys):
    with pytest.raises(SystemExit):
        evaluate([CHEAPEST], "--samples", "2")
    assert "--samples of a task are all the same at --temperature 0" in capsys.readouterr().err


def test_the_server_is_asked_for_the_temperature_and_the_reply_length_that_were_given(tmp_path):
    asked = []
    write_tasks(tmp_path / "tasks.jsonl", [CHEAPEST])
    endpoint = oracle.app(oracle.replay([CHEAPEST]), on_request=lambda body: asked.append(body))
    with oracle.serve(endpoint) as url:
        for number, options in enumerate(([], ["--temperature", "0.5", "--max-tokens", "384"])):
            main([
                "--base-url", url, "--model", "oracle", "--tasks", str(tmp_path / "tasks.jsonl"),
                "--output", str(tmp_path / f"{number}.jsonl"), *options,
            ])  # fmt: skip
    assert [(body["temperature"], body["max_tokens"]) for body in asked] == [(0.0, 512), (0.5, 384)]


def test_the_agent_reads_the_instructions_of_the_file(evaluate, tmp_path):
    (tmp_path / "mine.txt").write_text("Use execute_sql, then commit_final_answer.\n")
    (row,) = evaluate([CHEAPEST], "--instructions", str(tmp_path / "mine.txt"))
    assert row["messages"][0] == {"role": "system", "content": "Use execute_sql, then commit_final_answer."}
    (tmp_path / "mine.txt").write_text("Use execute_sql.\n")
    (tmp_path / "out.jsonl").unlink()
    with pytest.raises(SystemExit, match=r"^--instructions: .*not named: commit_final_answer"):
        evaluate([CHEAPEST], "--instructions", str(tmp_path / "mine.txt"))


def test_what_could_not_be_judged_is_counted_apart_and_is_no_zero(evaluate, capsys):
    trajectories = evaluate([CHEAPEST, RAGGED])
    printed = capsys.readouterr().out
    assert "other 2 1 1 100.0 %" in " ".join(printed.replace("│", " ").split())
    assert "not judged: table_error 1" in printed
    assert {row["task_id"]: row["score"]["value"] for row in trajectories} == {"t-0": 1.0, "t-2": None}


def test_malformed_calls_are_a_share_of_all_calls(evaluate, capsys):
    garbled, commit = oracle.call("execute_sql", "SELECT 1"), oracle.call("commit_final_answer", {"answers": ["Pear"]})
    evaluate([CHEAPEST], script=oracle.recite([oracle.calls(garbled), oracle.calls(commit)]))
    assert "malformed calls: 50.0 %" in capsys.readouterr().out


def test_summary_by_hand():
    records = [
        record("other", 1.0, turns=2, task_id="t-1"),
        record("other", 0.0, turns=6, malformed=1, stop="max_turns", reason="not_committed", task_id="t-2"),
        record("INSERT", None, turns=1, calls=0, stop="db_unavailable", reason="db_unavailable"),
    ]
    summary = summarise(records, [CHEAPEST])
    assert summary.by_kind == {"other": Rate(2, 2, 1)}
    assert (summary.overall, summary.overall.success) == (Rate(3, 2, 1), 0.5)
    assert summary.unjudged == {"db_unavailable": 1}
    assert summary.turns_per_task == 3.0  # (2 + 6 + 1) / 3
    assert summary.malformed_calls_frac == 0.25  # 1 of 2 + 2
    assert summary.three_way_mean is None  # no UPDATE was judged


def test_a_task_counts_for_each_of_its_skills():
    joined = Task.from_dict({**CHEAPEST.to_dict(), "id": "t-1", "skills": ["limit_only", "select"]})
    plain = Task.from_dict({**CHEAPEST.to_dict(), "id": "t-2", "skills": ["select"]})
    summary = summarise([record("other", 1.0, task_id="t-1"), record("other", 0.0, task_id="t-2")], [joined, plain])
    assert summary.by_skill == {"select": Rate(2, 2, 1), "limit_only": Rate(1, 1, 1)}
    assert summarise([record("other", 1.0)], [CHEAPEST]).by_skill == {}


def test_the_three_way_mean_weighs_question_types_and_not_tasks():
    selects = [record("other", 1.0), record("counting", 0.0), record("DELETE", 0.0), record("ranking", 0.0)]
    # (1/4 + 1/1 + 0/1) / 3
    assert three_way_mean([*selects, record("INSERT", 1.0), record("UPDATE", 0.0)]) == pytest.approx(1.25 / 3)


def test_a_limit_takes_tasks_of_every_question_type_and_says_so(tmp_path, capsys):
    kinds = ["other"] * 4 + ["INSERT"] * 4  # sorted by type: the first two would be of one
    tasks = [Task.from_dict({**CHEAPEST.to_dict(), "id": f"t-{i}", "kind": k, "question": f"Cheapest, {i}?"})
             for i, k in enumerate(kinds)]  # fmt: skip
    write_tasks(tmp_path / "tasks.jsonl", tasks)
    output = tmp_path / "out.jsonl"
    with oracle.serve(oracle.app(oracle.replay(tasks))) as url:
        main([
            "--base-url", url, "--model", "oracle", "--tasks", str(tmp_path / "tasks.jsonl"),
            "--output", str(output), "--limit", "2",
        ])  # fmt: skip
    assert sorted(json.loads(line)["kind"] for line in output.read_text().splitlines()) == ["INSERT", "other"]
    assert "2 of 8 tasks, drawn evenly by kind" in capsys.readouterr().out


# other environments -------------------------------------------------------------------------------------------------

GUESS = """
class Guess:
    {solved}
    hit = False

    def reset(self, secret, **row):
        self.hit, self._secret = False, secret

    def guess(self, number: int) -> str:
        \"\"\"Guess.

        Args:
            number: The guess.
        \"\"\"
        self.hit = number == self._secret
        return "right" if self.hit else "wrong"

    def get_reward(self):
        return 3.0 if self.hit else -1.0
"""


@pytest.mark.parametrize(("solved", "table", "solved_rows"), [
    ("solved = property(lambda self: self.hit)", "correct success 95 % interval Guess 2 2 1 50.0 %", 1),
    # where a reward is the only number, it is the number shown; (3 - 1) / 2
    ("pass", "question type n rewarded mean reward Guess 2 2 1 all 2 2 1", 0),
])  # fmt: skip
def test_an_environment_of_your_own_is_played_on_its_rows(tmp_path, capsys, solved, table, solved_rows):
    (tmp_path / "mine.py").write_text(GUESS.format(solved=solved))
    rows = [{"prompt": "Guess.", "secret": 7}, {"prompt": "Guess.", "secret": 9}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    script = oracle.recite([
        oracle.calls(oracle.call("guess", {"number": 7})), {"role": "assistant", "content": "done"},
    ])  # fmt: skip
    with oracle.serve(oracle.app(script)) as url:
        main([
            "--base-url", url, "--model", "oracle", "--env", f"{tmp_path}/mine.py:Guess",
            "--tasks", str(tmp_path / "rows.jsonl"), "--output", str(tmp_path / "out.jsonl"),
            "--solved-tasks", str(tmp_path / "solved.jsonl"),
        ])  # fmt: skip
    printed = " ".join(re.sub("[^\\x00-\\x7f]", " ", capsys.readouterr().out).split())
    assert table in printed
    assert ("mean reward: 1 ends: answered 2; not judged: none" in printed) == bool(solved_rows)
    written = [json.loads(line) for line in (tmp_path / "solved.jsonl").read_text().splitlines()]
    assert written == rows[:solved_rows]


def test_questions_about_a_database_of_your_own_are_played_and_those_that_were_solved_are_written(tmp_path, capsys):
    with closing(sqlite3.connect(tmp_path / "fish.db")) as connection:
        connection.executescript("CREATE TABLE fish (name TEXT); INSERT INTO fish VALUES ('cod'), ('eel');")
    rows = [
        {"question": "How many?", "query": "SELECT count(*) FROM fish"},
        {"question": "Which?", "SQL": "SELECT name FROM fish", "evidence": "all of them", "difficulty": "simple"},
    ]
    (tmp_path / "q.json").write_text(json.dumps(rows))
    script = oracle.recite([oracle.calls(oracle.call("submit_sql", {"sql": "SELECT name FROM fish ORDER BY 1 DESC"}))])
    with oracle.serve(oracle.app(script)) as url:
        main([
            "--base-url", url, "--model", "oracle", "--database", str(tmp_path / "fish.db"), "--judge", "bird",
            "--tasks", str(tmp_path / "q.json"), "--output", str(tmp_path / "out.jsonl"),
            "--solved-tasks", str(tmp_path / "solved.jsonl"),
        ])  # fmt: skip
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "aggregate 1 1 0 0.0 %" in printed and "simple 1 1 1 100.0 %" in printed
    solved = read_questions(tmp_path / "solved.jsonl", DatabaseFiles(tmp_path / "fish.db"))
    assert solved == [
        Question("solved-1", "Which?", "fish", "SELECT name FROM fish", evidence="all of them", kind="simple")
    ]


def test_questions_that_some_rollouts_solve_and_others_do_not_are_written_for_grpo(tmp_path, capsys):
    with closing(sqlite3.connect(tmp_path / "fish.db")) as connection:
        connection.executescript("CREATE TABLE fish (name TEXT); INSERT INTO fish VALUES ('cod'), ('eel');")
    queries = {
        "How many?": "SELECT count(*) FROM fish",
        "Which?": "SELECT name FROM fish",
        "The first?": "SELECT 'cod'",
    }
    rows = [{"question": question, "query": query} for question, query in queries.items()]
    (tmp_path / "q.json").write_text(json.dumps(rows))
    turns = itertools.cycle(["SELECT name FROM fish", "SELECT 1"])

    def script(history):
        asked = history[-1]["content"]
        query = "SELECT 2" if "How many?" in asked else next(turns) if "Which?" in asked else "SELECT 'eel'"
        return oracle.calls(oracle.call("submit_sql", {"sql": query}))

    command = ["--model", "oracle", "--database", str(tmp_path / "fish.db"), "--tasks", str(tmp_path / "q.json")]
    command += ["--output", str(tmp_path / "out.jsonl"), "--learnable-tasks", str(tmp_path / "some.jsonl")]
    with oracle.serve(oracle.app(script)) as url:
        main(["--base-url", url, *command, "--samples", "4", "--temperature", "1"])
    assert "the 1 tasks that were solved by some rollouts and not by others" in capsys.readouterr().out
    (found,) = read_questions(tmp_path / "some.jsonl", DatabaseFiles(tmp_path / "fish.db"))
    assert found.question == "Which?"
    with pytest.raises(SystemExit):
        main(["--base-url", url, *command])
    assert "--learnable-tasks needs several --samples of a task" in capsys.readouterr().err


def test_what_was_handed_in_is_written_as_spiders_evaluator_reads_it(tmp_path, capsys):
    with closing(sqlite3.connect(tmp_path / "fish.db")) as connection:
        connection.executescript("CREATE TABLE fish (name TEXT); INSERT INTO fish VALUES ('cod'), ('eel');")
    queries = {"How many?": "SELECT count(*)\nFROM fish", "Which?": "SELECT name\tFROM fish", "Who?": "SELECT 'cod'"}
    rows = [{"question": question, "query": query} for question, query in queries.items()]
    rows.insert(1, {"question": "Three?", "answer": 3})
    (tmp_path / "q.json").write_text(json.dumps(rows))

    def script(history):
        asked = history[-1]["content"]
        if "Who?" in asked:
            return {"role": "assistant", "content": "The cod."}
        return oracle.calls(oracle.call("submit_sql", {"sql": "SELECT 2\n" if "How many?" in asked else "SELECT\t1"}))

    command = ["--model", "oracle", "--database", str(tmp_path / "fish.db"), "--tasks", str(tmp_path / "q.json")]
    command += ["--output", str(tmp_path / "out.jsonl"), "--predictions", str(tmp_path / "predicted")]
    with oracle.serve(oracle.app(script)) as url:
        main(["--base-url", url, *command])
    assert "3 queries beside their references" in capsys.readouterr().out
    assert (tmp_path / "predicted" / "predictions.sql").read_text() == "SELECT 2\nSELECT 1\nnone\n"
    assert (tmp_path / "predicted" / "gold.sql").read_text() == (
        "SELECT count(*) FROM fish\tfish\nSELECT name FROM fish\tfish\nSELECT 'cod'\tfish\n"
    )
    for more, words in (
        (["--samples", "2", "--temperature", "1"], "--predictions are one query for each question"),
        ([], "exists; name another file, nothing is overwritten"),
    ):
        with pytest.raises(SystemExit):
            main(["--base-url", url, *command, *more])
        assert words in capsys.readouterr().err


def test_a_registered_environment_is_played_on_its_own_tasks(tmp_path, capsys):
    (tmp_path / "tasks.jsonl").write_text(
        json.dumps({"question": "What is 3 + 4?", "answer": "3 + 4 = 7\n#### 7"}) + "\n"
    )
    script = oracle.recite([{"role": "assistant", "content": "#### 7"}])
    with oracle.serve(oracle.app(script)) as url:
        main([
            "--base-url", url, "--model", "oracle", "--env", "gsm8k", "--tasks", str(tmp_path / "tasks.jsonl"),
            "--output", str(tmp_path / "out.jsonl"),
        ])  # fmt: skip
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "all 1 1 1 100.0 %" in printed


# interruption -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_every_trajectory_is_on_disk_as_it_ends_and_a_stop_still_gives_a_report(sign, tmp_path, capsys, heard_signals):
    tasks = [Task.from_dict({**CHEAPEST.to_dict(), "id": f"t-{i}", "question": f"Cheapest, {i}?"}) for i in range(50)]
    write_tasks(tmp_path / "tasks.jsonl", tasks)
    output = tmp_path / "out.jsonl"
    on_disk = []

    def interrupt_the_tenth(_request):  # one request a task, one at a time: nine trajectories are finished
        on_disk.append(len(output.read_text().splitlines()))
        if len(on_disk) == 10:
            os.kill(os.getpid(), sign)

    endpoint = oracle.app(oracle.replay(tasks), latency_s=0.01, on_request=interrupt_the_tenth)
    with oracle.serve(endpoint) as url, pytest.raises(SystemExit) as ended:
        main([
            "--base-url", url, "--model", "oracle", "--tasks", str(tmp_path / "tasks.jsonl"),
            "--output", str(output), "--concurrency", "1",
        ])  # fmt: skip
    assert on_disk == list(range(10))
    assert ended.value.code == 130
    assert len(output.read_text().splitlines()) == 9
    assert "interrupted: 9 of 50 rollouts were finished" in capsys.readouterr().out


# the ceiling --------------------------------------------------------------------------------------------------------

OF_KIND = {  # FACTS section 5
    "other": 17, "counting": 17, "comparison": 17, "ranking": 17, "aggregation-SUM": 8, "aggregation-MIN": 8,
    "aggregation-MAX": 8, "aggregation-AVG": 8, "INSERT": 100, "UPDATE": 100,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not STANDARD.exists(), reason=f"needs DB-Bench's own tasks at {STANDARD}")
@pytest.mark.parametrize(("backend", "judge", "misses"), [
    # FACTS 7.1: the stored hash of index 225 is reproduced by no server, its reference statement included
    pytest.param("mariadb", "fc", {"standard-225": "wrong_state"}, id="fc_misses_the_one_hash_that_nothing_reproduces"),
    # strict compares with what the reference leaves behind, and looks at no stored hash
    pytest.param("sqlite", "strict", {}, id="strict_misses_nothing"),
])  # fmt: skip
def test_the_oracle_reaches_the_ceiling_of_dbbench(evaluate, backend, judge, misses):
    try:
        trajectories = evaluate(load_tasks(STANDARD), "--backend", backend, "--judge", judge)
    except SystemExit as failure:
        if backend == "mariadb" and not shutil.which("mariadbd"):
            pytest.skip(str(failure))
        raise
    assert Counter(row["kind"] for row in trajectories) == OF_KIND
    assert {row["stop_reason"] for row in trajectories} == {"answered"}
    assert {row["task_id"]: row["score"]["reason"] for row in trajectories if row["score"]["value"] != 1.0} == misses


# refusals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "words"), [
    pytest.param({"--tasks": "missing.jsonl"}, "missing.jsonl does not exist", id="missing_file"),
    pytest.param({"--tasks": "{bad}"}, "line 2.*kind", id="bad_row"),
    pytest.param({"--base-url": "http://127.0.0.1:9/v1"}, "no model server at .*:9/v1/models", id="no_server"),
    pytest.param({"--base-url": "http://127.0.0.1:9/v1", "--tasks": "{bad}"}, "no model server", id="server_first"),
    pytest.param({"--base-url": "{url}/v1"}, "no model server at .*404", id="wrong_path"),
    pytest.param({"--model": "gpt"}, "does not serve 'gpt'; it serves oracle", id="model_not_served"),
    pytest.param({"--env": "{url}.py:Guess"}, "--env: .*No such file", id="no_environment"),
    pytest.param({"--backend": "oracle"}, "unknown backend 'oracle'; known: sqlite, mariadb", id="unknown_backend"),
])  # fmt: skip
def test_it_stops_before_the_first_rollout_with_words(tmp_path, change, words):
    write_tasks(tmp_path / "good.jsonl", [CHEAPEST])
    good = (tmp_path / "good.jsonl").read_text()
    (tmp_path / "bad.jsonl").write_text(good + good.replace('"kind"', '"sort"').replace("t-0", "t-1"))
    with oracle.serve(oracle.app(oracle.replay([CHEAPEST]))) as url:
        options = {
            "--base-url": url, "--model": "oracle", "--tasks": str(tmp_path / "good.jsonl"),
            "--output": str(tmp_path / "out.jsonl"), **change,
        }  # fmt: skip
        argv = [word.format(bad=tmp_path / "bad.jsonl", url=url) for pair in options.items() for word in pair]
        with pytest.raises(SystemExit, match=words):
            main(argv)
    assert not (tmp_path / "out.jsonl").exists()


def test_a_split_that_does_not_exist_is_answered_with_the_ones_that_do(capsys):
    with pytest.raises(SystemExit):
        main(["--split", "heldout"])
    assert "choose from" in (said := capsys.readouterr().err) and "did you mean held-out?" in said


def test_an_output_that_exists_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "out.jsonl").write_text("earlier results\n")
    with pytest.raises(SystemExit):
        main(["--base-url", "-", "--model", "-", "--tasks", "-", "--output", str(tmp_path / "out.jsonl")])
    assert "exists; name another file" in capsys.readouterr().err
    assert (tmp_path / "out.jsonl").read_text() == "earlier results\n"


def test_an_environment_that_nobody_knows_is_named_once(capsys):
    with pytest.raises(SystemExit):
        main(["--base-url", "http://127.0.0.1:9/v1", "--model", "m", "--tasks", "x.jsonl", "--env", "nope"])
    said = capsys.readouterr().err.splitlines()[-1]
    assert "--env: unknown environment 'nope'; known: " in said and said.count("nope") == 1

"""`agentgrpo improve`: questions, fine-tuning and GRPO by one command."""

import json
import re
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from scripts.tests.pages import ROOT, commands
from sql_agent.demo_shop import make_shop
from sql_agent.improve import compared, main, repeated
from sql_agent.text_to_sql.datatypes import Question
from sql_agent.text_to_sql.load import hold_out

COMMAND = [sys.executable, "-m", "agentgrpo", "improve"]


@pytest.fixture
def hotel(tmp_path):
    file = tmp_path / "hotel.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript("""
            CREATE TABLE guest (id INTEGER PRIMARY KEY, name TEXT, town TEXT, age INTEGER);
            CREATE TABLE booking (id INTEGER PRIMARY KEY, guest_id INTEGER REFERENCES guest, nights INTEGER);
        """)
        guests = [(n, f"Ann {n}", ["Ulm", "Kiel", "Graz"][n % 3], 20 + n) for n in range(30)]
        connection.executemany("INSERT INTO guest VALUES (?, ?, ?, ?)", guests)
        connection.executemany("INSERT INTO booking VALUES (?, ?, ?)", [(n, 7 * n % 29, n % 9 + 1) for n in range(60)])
        connection.commit()
    return file


def test_before_and_after_are_compared_by_task():
    def row(task, value):
        return {"task_id": task, "score": {"value": value, "reason": "match" if value else "wrong_result"}}

    change = compared([row("a", 0), row("b", 1), row("c", 0), row("d", None)], [row("c", 1), row("a", 1), row("b", 0)])
    assert change is not None and (change.tasks, change.gained, change.lost) == (3, 2, 1)


@pytest.mark.parametrize(("groups", "held_out"), [
    pytest.param([1] * 60, 30, id="a_half_of_sixty"),
    pytest.param([1] * 200, 40, id="a_fifth_of_many"),
    pytest.param([1] * 3, 1, id="three"),
    pytest.param([45, *[1] * 15], 15, id="one_reference_of_most"),
    pytest.param([2] * 30, 30, id="pairs"),
])  # fmt: skip
def test_thirty_questions_are_held_out_or_a_half_of_few(groups, held_out):
    """Twelve of a person's 60 questions were held out, and six had to be newly solved for a clear gain."""
    asked = [
        Question(f"{number} {n}", f"{number} {n}?", "shop", f"SELECT {number}")
        for number, size in enumerate(groups)
        for n in range(size)
    ]
    learnt, held = hold_out(asked, max(30, len(asked) // 5))
    assert (len(learnt), len(held)) == (len(asked) - held_out, held_out)
    assert not {each.query for each in learnt} & {each.query for each in held}


@pytest.mark.parametrize(("made", "own", "times"), [(496, 30, 6), (30, 30, 1), (500, 0, 1), (0, 30, 1)])
def test_questions_of_a_person_are_a_quarter_of_what_is_learnt(made, own, times):
    assert repeated(made, own) == times  # 6 x 30 of 676


def test_one_reference_alone_cannot_be_held_out():
    asked = [Question(f"{n}", f"{n}?", "shop", "SELECT 1") for n in range(4)]
    with pytest.raises(ValueError, match=r"none of 4 question\(s\) can be held out"):
        hold_out(asked, 30)


def test_without_any_question_the_command_says_what_to_give(hotel, small_policy, tmp_path, capsys):
    flags = ["--model", str(small_policy), "--database", str(hotel), "--run-dir", str(tmp_path / "run")]
    assert main([*flags, "--num-questions", "0"]) == 1
    assert "there is no question to learn: give --train-file" in capsys.readouterr().err


def test_a_folder_of_another_run_is_refused(hotel, small_policy, tmp_path, capsys):
    words = ["--model", str(small_policy), "--database", str(hotel), "--run-dir", str(tmp_path / "run")]
    settings = {"settings": {"seed": 1}, "minutes": {"questions": 1.0}}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "improve.json").write_text(json.dumps(settings))
    assert main(words) == 1
    said = capsys.readouterr().err
    assert "holds a run with another" in said and "seed" in said


def test_held_out_questions_are_learnt_in_no_words_and_by_no_query(hotel, small_policy, tmp_path, capsys):
    rows = [{"question": "How many?", "query": "SELECT count(*) FROM guest"}]
    for name in ("own", "held"):
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
    words = ["--model", str(small_policy), "--database", str(hotel), "--run-dir", str(tmp_path / "run")]
    words += ["--train-file", str(tmp_path / "own.json"), "--val-file", str(tmp_path / "held.json")]
    words += ["--num-questions", "0"]
    assert main(words) == 1
    assert "0 questions are left to learn and 1 held out" in capsys.readouterr().err


def shapes(text: str) -> set[str]:
    """The lines of a run without their numbers and signs, those of steps up to what only some runs have."""
    kinds = r"(\[\d/\d\]|\[ *[\d.]+ s\] step|step|held-out success|change in all|minutes:)"
    lines = [re.split(r"  KL |  \.\.\.", line)[0] for line in text.splitlines() if re.match(kinds, line)]
    lines = [re.sub(r" +", " ", line).replace(" min left", " s left") for line in lines]
    return {re.sub(r"[-+]?\d[\d.,e-]*|not clear|clear", "0", line) for line in lines}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_stage_runs_and_the_same_command_begins_none_again(small_policy, tmp_path):
    """README's line on a stranger's schema of 32 tables and views, with 60 questions."""
    database, questions = make_shop(tmp_path, large=True)
    own = json.loads(questions.read_text())
    run = tmp_path / "run"
    (typed,) = (each.text for each in commands("README.md") if "agentgrpo improve" in each.text)
    for stands, ours in {
        "models/smollm2-135m-instruct": small_policy, "FILE.sqlite": database, "questions.json": questions,
        "runs/improved": run, "--minutes 30": "--minutes 0.1 --num-questions 30",
    }.items():  # fmt: skip
        assert stands in typed
        typed = typed.replace(stands, str(ours))
    words = shlex.split(typed)[2:]
    first = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=800)
    assert first.returncode == 0, first.stdout + first.stderr
    held_out = [json.loads(line) for line in (run / "questions" / "held_out.jsonl").read_text().splitlines()]
    learnt = [json.loads(line) for line in (run / "questions" / "train.jsonl").read_text().splitlines()]
    assert len(held_out) == 30 and {row["query"] for row in held_out} <= {row["query"] for row in own}
    assert not {row["query"] for row in held_out} & {row["query"] for row in learnt}
    assert 50 < len(learnt) <= 60
    sampled = [json.loads(line) for line in (run / "questions" / "grpo.jsonl").read_text().splitlines()]
    assert sorted({json.dumps(row) for row in learnt}) == sorted(json.dumps(row) for row in sampled)
    assert len((run / "before.jsonl").read_text().splitlines()) == 30
    said = first.stdout
    last = max(map(int, re.findall(r"the run ends with step (\d+) of 200, the last", said)))  # by the machine's speed
    assert last >= 2
    for stage in ("1-sft/sft.json", f"2-grpo/checkpoints/global_step_{last}", "2-grpo/report.html"):
        assert (run / stage).exists(), said
    shown = (ROOT / "doc" / "data" / "demo_output.txt").read_text("utf-8")
    assert shapes(shown) - shapes(said) == set(), "doc/data/demo_output.txt is not what the stages print now"
    for line in ("agentgrpo sft --model", "agentgrpo train --model", "agentgrpo report"):
        assert line in said
    end = said[said.rindex("held-out success before") :].splitlines()
    assert [line.partition("  ")[0].partition(":")[0] for line in end] == [
        "held-out success before", "held-out success after fine-tuning", f"held-out success after GRPO, step {last}",
        "change in all", "minutes", "next, with the better of the two",
    ]  # fmt: skip
    assert f"agentgrpo interactive --model {run}" in end[-1]
    again = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=60)
    assert again.returncode == 0 and again.stdout.strip().splitlines() == end

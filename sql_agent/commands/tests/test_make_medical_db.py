"""`agentgrpo tasks medical`: the files it writes, and what it refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

from reward_model.preferences import read_preferences
from sql_agent.commands.medical_data import main
from sql_agent.medical.database import check_questions, read_schema
from sql_agent.medical.datatypes import read_questions

SMALL = ["--n-drugs", "30", "--n-diseases", "20", "--n-questions", "50"]


def made(folder, *more):
    files = ["--output", str(folder / "m.db"), "--questions", str(folder / "q"), "--pairs", str(folder / "p.jsonl")]
    return main([*files, *SMALL, *more])


def test_database_questions_and_pairs_belong_together(tmp_path, capsys):
    assert made(tmp_path) == 0
    train, held_out = (read_questions(tmp_path / "q" / f"{half}.jsonl") for half in ("train", "held_out"))
    assert (len(train), len(held_out)) == (40, 10)
    check_questions([*train, *held_out], tmp_path / "m.db", read_schema(tmp_path / "m.db"))
    assert {q.entry for q in train}.isdisjoint(q.entry for q in held_out)
    for name, questions in (("p.jsonl", train), ("p.held_out.jsonl", held_out)):
        pairs = read_preferences(tmp_path / name)
        assert {pair.metadata["task_id"] for pair in pairs} <= {question.id for question in questions}
    out = capsys.readouterr().out
    assert "30 drugs and 20 diseases, all of them invented" in out
    assert "40 questions: " in out


def test_the_same_seed_gives_the_same_files(tmp_path):
    for folder, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        made(tmp_path / folder, "--seed", seed)
    files = ["m.db", "q/train.jsonl", "q/held_out.jsonl", "p.jsonl", "p.held_out.jsonl"]
    for name in files:
        a, b, c = ((tmp_path / folder / name).read_bytes() for folder in "abc")
        assert a == b != c


def test_nothing_is_overwritten_unasked(tmp_path, capsys):
    made(tmp_path)
    before = (tmp_path / "m.db").read_bytes()
    assert made(tmp_path, "--seed", "2") == 1
    assert "m.db is there already; give --overwrite or another --output" in capsys.readouterr().err
    assert (tmp_path / "m.db").read_bytes() == before
    assert made(tmp_path, "--seed", "2", "--overwrite") == 0


def test_more_questions_than_there_are_fields_is_said(tmp_path, capsys):
    arguments = ["--n-drugs", "3", "--n-diseases", "3", "--n-questions", "500"]
    assert main(["--output", str(tmp_path / "m.db"), "--questions", str(tmp_path / "q"), *arguments]) == 0
    assert " of 400 asked for; more entries give more" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--n-drugs", "--n-questions"])
def test_a_number_below_one_is_refused(tmp_path, capsys, flag):
    with pytest.raises(SystemExit):
        main(["--output", str(tmp_path / "m.db"), flag, "0"])
    assert f"{flag} is 0; it has to be 1 or more" in capsys.readouterr().err


def test_it_runs_as_a_script():
    command = [sys.executable, "-m", "agentgrpo", "tasks", "medical", "--help"]
    result = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert (result.returncode, "--n-diseases" in result.stdout) == (0, True)

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dbbench_adapter.generate import generate
from dbbench_adapter.tasks.load import load_tasks
from sql_agent.commands.generate import main, skill_weights

ROOT = Path(__file__).parents[3]


def run(output, *more):
    return main(["--output_path", str(output), *more])


def test_the_file_holds_the_tasks_of_the_generator_and_a_summary_is_printed(tmp_path, capsys):
    path = tmp_path / "new" / "entry_dict.json"
    assert run(path, "--num_samples", "30", "--seed", "7", "--split", "held_out", "--difficulty", "easy") == 0
    expected = generate(30, seed=7, split="held_out", difficulty="easy")
    assert [task.gold for task in load_tasks(path)] == [task.gold for task in expected]
    said = capsys.readouterr().out
    assert "30 tasks in " in said and str(path) in said
    assert f"select {sum('select' in task.skills for task in expected)}" in " ".join(said.split())
    assert [file.name for file in path.parent.iterdir()] == ["entry_dict.json"]


@pytest.mark.parametrize("command", [["scripts/generate_db_bench_data.py"], ["-m", "agentgrpo", "tasks", "generate"]])
def test_both_ways_to_call_it_give_the_same_file_whatever_python_hashes(tmp_path, command):
    path = tmp_path / "entry_dict.json"
    arguments = [*command, "--num_samples", "40", "--output_path", str(path)]
    environment = {**os.environ, "PYTHONHASHSEED": str(len(command))}
    subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, check=True, capture_output=True, timeout=60)
    assert [task.gold for task in load_tasks(path)] == [task.gold for task in generate(40, seed=0)]


def test_an_existing_file_is_kept_unless_told_otherwise(tmp_path, capsys):
    path = tmp_path / "entry_dict.json"
    path.write_text("mine")
    assert run(path, "--num_samples", "1") == 1
    assert path.read_text() == "mine" and "--overwrite" in capsys.readouterr().err
    assert run(path, "--num_samples", "1", "--overwrite") == 0
    assert len(load_tasks(path)) == 1


def test_an_output_that_cannot_be_written_is_said_before_the_work(capsys):
    assert run("/proc/x/z.json", "--num_samples", "1000000000") == 1
    assert "/proc/x/z.json cannot be written" in capsys.readouterr().err


def test_skills_are_asked_for_with_or_without_weights(tmp_path):
    assert skill_weights("limit_only, delete:3") == {"limit_only": 1.0, "delete": 3.0}
    path = tmp_path / "entry_dict.json"
    assert run(path, "--num_samples", "10", "--skills", "limit_only,delete:3") == 0
    assert all({"limit_only", "delete"} & set(task.skills) for task in load_tasks(path))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param(["--skills", "joins"], "unknown skill 'joins', expected some of select", id="skill"),
        pytest.param(["--skills", "delete:many"], "expected skill or skill:number", id="weight"),
        pytest.param(["--skills", "select:inf"], "--skills 'select:inf': expected skill or skill:number", id="inf"),
        pytest.param(["--skills", "select:0"], "--skills 'select:0': expected skill or skill:number", id="zero"),
        pytest.param(["--num_samples", "0"], "expected 1 or more", id="none"),
    ],
)
def test_a_bad_flag_is_an_error_and_writes_nothing(tmp_path, capsys, flags, message):
    assert run(tmp_path / "entry_dict.json", *flags) == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []

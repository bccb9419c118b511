import subprocess
import sys
from pathlib import Path

import pytest

from dbbench_adapter.generate import generate
from dbbench_adapter.sql_skills import SKILLS
from dbbench_adapter.tasks.load import write_tasks
from dbbench_adapter.tasks.single_skill import SingleSkillTaskGenerator, read_single_skill
from sql_agent.commands import generate as generate_db_bench_data
from sql_agent.commands.single_skill_data import main

ROOT = Path(__file__).parents[3]


def run(source, output, *more):
    return main(["--input_data_path", str(source), "--output_path", str(output), *more])


@pytest.mark.slow
def test_from_generated_data_to_single_skill_draws(tmp_path, capsys):
    source, output = tmp_path / "entry_dict.json", tmp_path / "out" / "single_skill_tasks.json"
    assert generate_db_bench_data.main(["--num_samples", "200", "--output_path", str(source)]) == 0
    for command in (["scripts/prepare_single_skill_data.py"], ["-m", "agentgrpo", "tasks", "single-skill"]):
        arguments = ["--input_data_path", str(source), "--output_path", str(output), "--overwrite"]
        subprocess.run(
            [sys.executable, *command, *arguments, "--min_tasks_per_skill", "1"], cwd=ROOT, check=True, timeout=60
        )
    found = read_single_skill(output)
    assert list(found) == list(SKILLS)
    assert all(skill in task.skills for skill, tasks in found.items() for task in tasks)
    skill, task = SingleSkillTaskGenerator.from_file(output, seed=0).draw()
    assert skill in task.skills


def test_a_skill_with_too_few_tasks_is_left_out_and_listed(tmp_path, capsys):
    source, output = tmp_path / "tasks.jsonl", tmp_path / "single_skill_tasks.json"
    inserts = generate(3, seed=0, difficulty="easy", skills={"insert": 1.0})
    write_tasks(source, inserts)
    assert run(source, output, "--min_tasks_per_skill", "3") == 0
    said = capsys.readouterr().out
    assert "left out: fewer than 3" in said and f"3 tasks: {output}" in said
    assert "insert" in read_single_skill(output) and "delete" not in read_single_skill(output)


def test_without_any_skill_left_nothing_is_written(tmp_path, capsys):
    source, output = tmp_path / "tasks.jsonl", tmp_path / "single_skill_tasks.json"
    write_tasks(source, generate(1, seed=0))
    assert run(source, output, "--min_tasks_per_skill", "5") == 1
    assert "no skill has 5 tasks" in capsys.readouterr().err and not output.exists()


def test_errors_say_what_to_do(tmp_path, capsys):
    output = tmp_path / "single_skill_tasks.json"
    assert run(tmp_path / "none.json", output) == 1
    assert "no such file" in capsys.readouterr().err
    assert run(tmp_path / "none.json", output, "--min_tasks_per_skill", "0") == 1
    assert "expected 1 or more" in capsys.readouterr().err
    output.write_text("mine")
    assert run(tmp_path / "none.json", output) == 1
    assert "--overwrite" in capsys.readouterr().err and output.read_text() == "mine"
    assert run(tmp_path / "none.json", "/proc/x/a.json") == 1
    assert "/proc/x/a.json cannot be written" in capsys.readouterr().err

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from agentgrpo.checks import Finding
from agentgrpo.printed_commands import program_command
from dbbench_adapter.datatypes import Score
from dbbench_adapter.tasks.single_skill import read_single_skill
from scripts.tests.metric_names import unregistered
from sql_agent.commands import single_skill as run_experiment
from sql_agent.commands.single_skill import for_this_machine, main
from sql_agent.settings.single_skill import LanguageModelConfig, load_experiment

ROOT = Path(__file__).parents[3]
TINY = ROOT / "sql_agent" / "configs" / "single_skill" / "experiments" / "tiny_cpu.yaml"


def run(*arguments: object) -> int:
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as end:
        print(end.code, file=sys.stderr)
        return 1


@pytest.fixture(scope="session")
def tiny_policy() -> Path:
    from sql_agent.tiny_policy.make import make_tiny_policy

    make_tiny_policy(ROOT / "models" / "tiny-sql")
    return ROOT / "models" / "tiny-sql"


def test_called_as_a_script_it_explains_itself_and_loads_nothing_heavy():
    arguments = [sys.executable, "-X", "importtime", "-m", "agentgrpo", "single-skill", "--help"]
    said = subprocess.run(arguments, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60)
    assert all(flag in said.stdout for flag in ("--config FILE", "--set A.B=C", "--resume RUN_DIR", "--prepare"))
    assert not {"torch", "transformers", "matplotlib"} & {
        line.split("|")[-1].strip() for line in said.stderr.splitlines()
    }


def test_a_dry_run_prints_settings_that_load_again(tmp_path, capsys):
    assert run("--config_path", TINY, "--set", "seed=4", "--dry-run") == 0
    (tmp_path / "again.yaml").write_text(capsys.readouterr().out)
    assert load_experiment(tmp_path / "again.yaml") == load_experiment(TINY, ["seed=4"])


def test_one_set_takes_several_settings_and_may_be_repeated(capsys):
    assert run("--set", "seed=4", "agent.max_rounds=2", "--config_path", TINY, "--set", "seed=5", "--dry-run") == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert (shown["seed"], shown["agent"]["max_rounds"]) == (5, 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--config_path", "none.yaml"], "config file none.yaml does not exist"),
        (["--config_path", TINY, "--set", "agent.tempo=1"], "agent.tempo: unknown setting"),
        (["--config_path", TINY, "--set", "language_model.model_path=no/where"], "no/where is no folder"),
    ],
)
def test_what_cannot_start_says_why(arguments, said, capsys):
    assert run(*arguments) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gib", "four_bit"), [(16.0, True), (24.0, False), (None, False)], ids=["small_gpu", "large_gpu", "no_gpu"]
)
def test_a_small_gpu_gets_the_base_in_four_bits(gib, four_bit, monkeypatch):
    monkeypatch.setattr(run_experiment, "gpu_gib", lambda: gib)
    model = LanguageModelConfig(model_path="m", four_bit_below_gib=24)
    assert for_this_machine(model).load_in_4bit is four_bit
    assert for_this_machine(model.model_copy(update={"device": "cpu"})).load_in_4bit is False


# Looking first


def prepared(capsys, *overrides: str) -> tuple[int, str]:
    settings = [part for override in overrides for part in ("--set", override)]
    status = run("--config_path", TINY, *settings, "--prepare")
    return status, " ".join(capsys.readouterr().out.split())


@pytest.fixture
def light(monkeypatch):
    """Without torch, and whatever is installed."""
    from sql_agent.local import model_files
    from sql_agent.startup import machine

    monkeypatch.setattr(run_experiment, "gpu_gib", lambda: None)
    monkeypatch.setattr(machine, "check_packages", lambda *_: Finding("as pinned"))
    monkeypatch.setattr(model_files, "whole_model", lambda path: path)


def test_what_is_there_is_said_line_by_line(light, capsys, tmp_path):
    status, said = prepared(capsys, f"language_model.model_path={tmp_path}")
    assert status == 0
    lines = (
        "ok database sqlite answers",
        "ok device CPU",
        f"ok model {tmp_path}: folder",
        "ok data generated while training (plain): 3 skills",
    )
    assert all(line in said for line in lines)


def test_missing_data_is_made_where_the_settings_say_how_many(light, capsys, tmp_path):
    files = [f"task.data={tmp_path}/a.json", f"task.held_out_data={tmp_path}/b.json", "task.generate_missing=44"]
    status, said = prepared(capsys, *files, "task.skills=null")
    assert status == 0
    assert f"a.json: 22 skills, {tmp_path}/a.json made now, {tmp_path}/b.json made now" in said
    counts = [{len(tasks) for tasks in read_single_skill(tmp_path / name).values()} for name in ("a.json", "b.json")]
    assert counts == [{2}, {1}]  # 44 / 22 of each skill, and a quarter of it, rounded up
    written = (tmp_path / "a.json").read_bytes()
    assert "made now" not in prepared(capsys, *files)[1]
    assert (tmp_path / "a.json").read_bytes() == written


def test_missing_data_is_a_problem_where_they_do_not(light, capsys, tmp_path):
    status, said = prepared(capsys, f"task.data={tmp_path}/a.json", f"task.held_out_data={tmp_path}/b.json")
    assert status == 1 and f"problem data {tmp_path}/a.json" in said and "--set task.generate_missing=4400" in said


def test_what_is_missing_comes_with_what_to_do(light, monkeypatch, capsys):
    monkeypatch.undo()
    monkeypatch.setattr(run_experiment, "gpu_gib", lambda: None)
    overrides = "language_model.model_path=no/where", "language_model.device=cuda", "task.backend=postgres"
    status, said = prepared(capsys, *overrides)
    assert status == 1
    assert "no/where is no folder, and no model of that name" in said
    assert f"unset that, fetch it elsewhere with `{program_command('hf', 'download', 'no/where')}`" in said
    assert "-> take a GPU, or --set language_model.device=cpu" in said
    assert "problem database postgres" in said and "--set task.backend=sqlite" in said


def test_the_one_command_prints_settings_without_looking_and_reads_paths_from_where_one_stands(tmp_path):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"import": str(TINY), "seed": 4}))
    environment = {**os.environ, "CONFIG": "mine.yaml", "MODEL": "my/model"}
    script = ["bash", str(ROOT / "scripts" / "run_rl_training_qwen25_7b.sh"), "--dry-run"]
    said = subprocess.run(script, cwd=tmp_path, env=environment, timeout=60, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    cfg = load_experiment(TINY, ["seed=4", "language_model.model_path=my/model"])
    assert yaml.safe_load(said.stdout) == json.loads(cfg.model_dump_json())


# Whole runs


SHORT = (
    "training.grad_accum=4",
    "training_callback.stop_after_episodes=24",
    "training_callback.evaluate_tasks_per_skill=2",
    "training_callback.evaluate_every=3",
    "training_callback.save_every=2",
    "training.baseline=running_mean",
    "language_model.adapter.dropout=0.1",
)


def command(tmp_path: Path, tiny_policy: Path, *more: str) -> list[str]:
    overrides = [*SHORT, f"language_model.model_path={tiny_policy}", f"output_dir={tmp_path}", *more]
    settings = [part for override in overrides for part in ("--set", override)]
    return [sys.executable, "-m", "agentgrpo", "single-skill", "--config_path", str(TINY), *settings]


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def without_clock(rows: list[dict]) -> list[dict]:
    return [{k: v for k, v in row.items() if k not in ("at", "seconds") and not k.startswith("time/")} for row in rows]


@pytest.mark.slow
@pytest.mark.full("the other local commands, which have the same loop, are killed in every run")
def test_a_run_that_is_killed_and_resumed_equals_the_unbroken_one_bit_for_bit(tmp_path, tiny_policy):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # the unbroken one evaluates nothing: that changes nothing either
    unbroken = command(tmp_path / "whole", tiny_policy, "training_callback.evaluate_every=0")
    subprocess.run(unbroken, cwd=ROOT, env=environment, check=True, timeout=280)
    (whole,) = (tmp_path / "whole" / "tiny-sql" / "db_bench").iterdir()

    broken = command(tmp_path / "broken", tiny_policy)
    process = subprocess.Popen(broken, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("update 5 "):  # the checkpoint is that of update 4
            process.send_signal(signal.SIGKILL)
            break
    process.wait(60)
    (run_dir,) = (tmp_path / "broken" / "tiny-sql" / "db_bench").iterdir()
    said = subprocess.run(
        [*broken, "--resume", str(run_dir)], cwd=ROOT, env=environment, check=True, timeout=280, capture_output=True,
        text=True,
    ).stdout  # fmt: skip
    assert "resumed after 16 episodes" in said and said.count("update 5 ") == 1 and "update 4 " not in said

    for name in ("sessions/episodes.jsonl", "logs/metrics.jsonl"):
        rows = [row for row in lines(run_dir / name) if "held_out" not in row]
        assert without_clock(rows) == without_clock(lines(whole / name))
        assert len(rows) == {"sessions/episodes.jsonl": 24, "logs/metrics.jsonl": 6}[name]
    adapters = [folder / "checkpoints" / "adapter" / "adapter_model.safetensors" for folder in (whole, run_dir)]
    assert adapters[0].read_bytes() == adapters[1].read_bytes()
    checkpoints = [sorted(path.name for path in (folder / "checkpoints").iterdir()) for folder in (whole, run_dir)]
    assert checkpoints == [["adapter", "step_000004", "step_000006"]] * 2


@pytest.mark.slow
def test_a_run_that_nobody_can_judge_ends_with_the_reason_and_how_to_go_on(tmp_path, tiny_policy, monkeypatch, capsys):
    from sql_agent.environments.dbbench import DbBench

    monkeypatch.setattr(DbBench, "judge", lambda *_: Score(None, "db_unavailable"))
    short = "training.grad_accum=1", "training_callback.evaluate_every=0", "agent.max_new_tokens=1"
    overrides = (*short, f"language_model.model_path={tiny_policy}", f"output_dir={tmp_path}")
    assert run("--config_path", TINY, *(part for override in overrides for part in ("--set", override))) == 1
    (run_dir,) = (tmp_path / "tiny-sql" / "db_bench").iterdir()
    said = capsys.readouterr().err
    assert "error: no episode of the last 3 updates could be judged (db_unavailable" in said
    assert f"--resume {run_dir}" in said


@pytest.mark.slow
def test_the_one_command_looks_then_trains_where_one_stands(tmp_path, tiny_policy):
    data = {"data": "tasks.json", "held_out_data": "held_out.json", "generate_missing": 22}
    (tmp_path / "tiny-sql").symlink_to(tiny_policy)
    short = {"stop_after_episodes": 8, "evaluate_every": 2, "evaluate_tasks_per_skill": 1}
    (tmp_path / "it.yaml").write_text(
        yaml.safe_dump(
            {
                "import": str(TINY),
                "overwrite": {"task": data | {"skills": None}, "training_callback": short, "output_dir": "out"},
            }
        )
    )
    environment = {**os.environ, "MODEL": "tiny-sql", "CONFIG": "it.yaml"}
    script = ["bash", str(ROOT / "scripts" / "run_rl_training_qwen25_7b.sh"), "--set", "training.grad_accum=4"]
    started = time.time()
    said = subprocess.run(
        script, cwd=tmp_path, env=environment, check=True, timeout=280, capture_output=True, text=True
    )
    found, _, trained = said.stdout.partition("a run can start")
    assert "tasks.json: 22 skills, tasks.json made now" in found and "tiny-sql: folder" in found
    assert "update 2  episodes 8/8" in trained
    assert re.search(r"held-out, after: +\d+\.\d% of 22", trained)
    (run_dir,) = (tmp_path / "out" / "tiny-sql" / "db_bench").iterdir()
    assert sorted(path.name for path in run_dir.iterdir()) == [
        ".lock", "checkpoints", "config.yaml", "logs", "run.json", "sessions",
    ]  # fmt: skip
    assert sorted(path.name for path in (run_dir / "logs").iterdir()) == ["metrics.jsonl", "success.png"]
    assert (run_dir / "checkpoints" / "adapter" / "adapter_model.safetensors").stat().st_mtime > started
    metrics = lines(run_dir / "logs" / "metrics.jsonl")
    assert [line["update"] for line in metrics] == [0, 1, 2, 2]
    assert unregistered({name for row in metrics for name in row}) == []
    assert len(lines(run_dir / "sessions" / "episodes.jsonl")) == 8


@pytest.mark.slow
def test_the_one_command_stops_before_loading_where_something_is_missing(tmp_path):
    environment = {**os.environ, "MODEL": f"{tmp_path}/gone", "CONFIG": str(TINY)}
    script = ["bash", "scripts/run_rl_training_qwen25_7b.sh"]
    said = subprocess.run(script, cwd=ROOT, env=environment, timeout=120, capture_output=True, text=True)
    assert said.returncode == 1 and "1 to mend before a run can start" in said.stdout

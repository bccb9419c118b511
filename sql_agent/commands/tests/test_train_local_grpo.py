"""GRPO on any environment as a user types it: what is refused before the weights are read, and whole runs."""

import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from agentgrpo.checks import UsageError
from agentgrpo.printed_commands import agentgrpo_command
from scripts.tests.metric_names import unregistered
from sql_agent.commands import local as train_local_grpo
from sql_agent.commands import sft
from sql_agent.commands.local import main, next_command
from sql_agent.local.run_folder import RunFolder
from sql_agent.local.tasks import entered
from sql_agent.settings.groups import EnvironmentSettings
from sql_agent.settings.local import LocalGrpoConfig, ModelConfig
from sql_agent.tests.conftest import random_policy_folder  # noqa: F401  a fixture
from sql_agent.tiny_policy.make import make_tiny_policy

ROOT = Path(__file__).parents[3]
ORDERS = f"{ROOT}/examples/own_environment/orders.py:Orders"
ROWS = ROOT / "examples" / "own_environment" / "rows.jsonl"
MINE = '''
class Silent:
    """Nobody says what its rollouts are worth."""

    def reset(self, **row):
        pass
'''


@pytest.fixture
def shop(tmp_path) -> Path:
    """A folder with a SQLite file and questions about it; the query of the last one is wrong."""
    with sqlite3.connect(tmp_path / "shop.sqlite") as connection:
        connection.execute("CREATE TABLE fruit (name TEXT, price INT)")
        connection.execute("INSERT INTO fruit VALUES ('apple', 3), ('pear', 5), ('fig', 9)")
    connection.close()
    rows = [
        {"question": f"What does a {name} cost?", "query": f"SELECT price FROM fruit WHERE name = '{name}'"}
        for name in ("apple", "pear", "fig")
    ]
    rows += [{"question": "How many fruits are there?", "query": "SELECT count(*) FROM fruit"}]
    rows += [{"question": "Which is rotten?", "query": "SELECT name FROM fruit WHERE rotten"}]
    (tmp_path / "train.json").write_text(json.dumps(rows))
    return tmp_path


def refusal(*arguments: object) -> str:
    """The message with which the command ends."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return str(ended.value)


def test_what_does_not_fit_is_said_before_the_weights_are_read(random_policy_folder, shop, monkeypatch):  # noqa: F811
    def never(*_, **__):
        raise AssertionError("the weights were read")

    monkeypatch.setattr("sql_agent.local.trainer.start_policy", never)
    (shop / "mine.py").write_text(MINE)
    (shop / "rows.jsonl").write_text('{"prompt": "Say a word."}\n{"prompt": "Say two words."}\n')
    (shop / "bad.jsonl").write_text('{"question": "How many?"}\n')
    always = ["--model_path", random_policy_folder, "--run_dir", shop / "run"]
    silent = ["--env", f"{shop}/mine.py:Silent", "--train-file", shop / "rows.jsonl"]
    said = refusal(*always, *silent)
    assert (
        f"nobody can tell right from wrong in environment {shop}/mine.py:Silent; give the class a `get_reward`" in said
    )
    assert "or a function of its record, --reward FILE.py:NAME" in said
    assert "--train-file ROWS.jsonl" in refusal(*always, "--env", ORDERS)
    assert f"{shop}/bad.jsonl, line 1: no `prompt`" in refusal(
        *always, "--env", ORDERS, "--train_file", shop / "bad.jsonl"
    )
    assert "questions to train on: --train-file FILE" in refusal(*always, "--database", shop / "shop.sqlite")
    assert "the judge of --env text2sql is one of" in refusal(
        *always, "--database", shop / "shop.sqlite", "--train_file", shop / "train.json", "--judge", "lab"
    )
    too_long = refusal(*always, "--env", ORDERS, "--train_file", ROWS, "--max_prompt_tokens", 16)
    assert "no training task has a first prompt of at most 16 tokens, the shortest has " in too_long
    assert too_long.endswith("; raise --max-prompt-tokens")
    assert not (shop / "run").exists()


def test_a_run_is_resumed_with_the_environment_file_it_began_with(shop):
    mine = shop / "mine.py"
    mine.write_text(MINE)
    cfg = LocalGrpoConfig(model=ModelConfig(model_path="x"), env=f"{mine}:Silent", run_dir=shop / "run")
    other, same = (f"mine.py with sha256 {hashlib.sha256(text.encode()).hexdigest()}" for text in ("other", MINE))
    RunFolder(cfg.run_dir, cfg, resumed=False, own_files={"env": other}).begin()
    with pytest.raises(UsageError, match=rf"started with own_files\.env = {other}, now it is {same}"):
        train_local_grpo.begun(cfg, "local", resumed=True, free=())
    saved = cfg.run_dir / "config.yaml"
    saved.write_text(saved.read_text().replace(other.split()[-1], same.split()[-1]))
    assert train_local_grpo.begun(cfg, "local", resumed=True, free=()).resumed


FLAKY = '''
import itertools

PLAYED = itertools.count()


class Flaky:
    """Some rows fail, and each other episode is worth more than the one before; nobody says what is solved."""

    def reset(self, fault=None, **row):
        self.fault = fault
        if fault == "reset":
            raise OSError("no table")

    def look(self) -> str:
        """Look."""
        return "nothing"

    def get_reward(self):
        if self.fault == "reward":
            raise ZeroDivisionError("no reward today")
        return float(next(PLAYED))
'''
QUIET = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@pytest.fixture
def run(capsys, one_thread):
    """Runs a command in this process; returns what it prints."""

    def run(command: str, *arguments: object) -> str:
        assert not {"local": main, "sft": sft.main}[command](["--device", "cpu", *map(str, arguments)])
        return capsys.readouterr().out

    return run


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_lost_episodes_are_counted_under_their_reasons_and_the_others_are_trained_on(
    random_policy_folder,  # noqa: F811
    run,
    tmp_path,
):
    (tmp_path / "mine.py").write_text(FLAKY)
    rows = [{"prompt": f"Look at {n}.", "fault": fault} for n, fault in enumerate(("reset", "reward", None, None))]
    rows.append({"prompt": "Look. " * 300, "fault": None})  # longer than the limit below
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    held = [row | {"prompt": f"Look at {n}."} for n, row in enumerate(rows[:3], start=10)]
    (tmp_path / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held))
    files = ["--train-file", tmp_path / "rows.jsonl", "--val-file", tmp_path / "held.jsonl"]
    sizes = ["--batch_size", 4, "--group_size", 2, "--max_new_tokens", 4, "--max_prompt_tokens", 400, "--lora_r", 2]
    always = ["--model_path", random_policy_folder, "--env", f"{tmp_path}/mine.py:Flaky"]
    out = tmp_path / "run"
    said = run("local", *always, *files, *sizes, "--run_dir", out, "--learning_rate", "1e-2")
    assert "tasks: 4 to train on, 3 held out; left out: too long 1\n" in said
    assert "held-out after 0 epochs: success of 3 is unknown  reward +" in said
    assert "not judged: get_reward_error 1, reset_error 1\n" in said
    assert "trained groups 2  skipped so far 2 (unjudged 2)  " in said
    assert "not judged so far 4 (get_reward_error 2, reset_error 2)\n" in said
    before, batch, after = lines(out / "metrics.jsonl")
    assert unregistered({*before, *batch, *after}) == []
    assert batch["rollout/success"] == {"n": 8, "judged": 0, "correct": 0}
    assert batch["train/steps"] == 1 and batch["policy/loss"] is not None
    assert before["held_out"] == after["held_out"] == {"n": 3, "judged": 0, "correct": 0}
    kept = [row for row in lines(out / "trajectories.jsonl") if not row["validate"]]
    assert [row["reward"] for row in kept if row["error"]] == [None] * 4
    assert sum("ZeroDivisionError: no reward today" in (row["error"] or "") for row in kept) == 2
    assert all(row["score"]["reason"] == "own_reward" and row["advantage"] for row in kept if not row["error"])
    assert f"--env {tmp_path}/mine.py:Flaky --tasks {tmp_path}/held.jsonl\n" in said
    assert load_file(out / "epoch_1" / "adapter_model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize(
    "of", ["own_database", pytest.param("own_environment", marks=pytest.mark.full("half a minute; the same commands"))]
)
def test_a_policy_that_was_shown_references_is_trained_on_a_database_and_on_a_class(of, shop, run, tmp_path):
    """From the rows alone: fine-tuning, then GRPO with updates, then a held-out success before and after."""
    make_tiny_policy(ROOT / "models" / "tiny-sql")
    named = {"own_database": ["--database", shop / "shop.sqlite"], "own_environment": ["--env", ORDERS]}[of]
    rows = shop / "train.json" if of == "own_database" else ROWS
    shown, out = tmp_path / "shown", tmp_path / "run"
    settings = ["--lora_r", 0, "--num_epochs", 30 if of == "own_database" else 12, "--learning_rate", "3e-3"]
    where = ["--max_length", 1024, "--output_dir", shown]
    said = run("sft", "--model_path", ROOT / "models" / "tiny-sql", *named, "--tasks", rows, *settings, *where)
    assert f"next: {agentgrpo_command('local', '--model', shown)} " in said
    flags = ["--batch_size", 2, "--group_size", 6, "--max_new_tokens", 90, "--num_epochs", 2, "--num_tasks", 6]
    flags += ["--temperature", 1.2, "--learning_rate", "1e-3", "--eval_tasks", 3, "--run_dir", out]
    said = run("local", "--model_path", shown, *named, "--train_file", rows, *flags)
    unusable = "left out: train-5 (Which is rotten?): no such column: rotten\n" if of == "own_database" else ""
    assert said.startswith(f"{unusable}tasks: ")
    if of == "own_database":
        assert "left out: too long 0, reference_failed 1\n" in said
    metrics = lines(out / "metrics.jsonl")
    held_out = [row["held_out"] for row in metrics if "held_out" in row]
    assert len(held_out) == 3 and all(row["judged"] == row["n"] for row in held_out)
    batches = [row for row in metrics if "batch" in row]
    assert sum(row["group/trained"] for row in batches) > 0 and batches[-1]["train/steps"] > 0
    assert any(row["rollout/success"]["correct"] for row in batches)
    adapter = load_file(out / "epoch_2" / "adapter_model.safetensors")
    assert any(weight.abs().max() > 0 for name, weight in adapter.items() if "lora_B" in name)


MINE_REWARD = '''
def brief(record):
    """Shorter conversations are better."""
    return 1 / (1 + record.completion_tokens)
'''


def without_clock(rows: list[dict]) -> list[dict]:
    return [
        {k: v for k, v in row.items() if not k.startswith("time/") and "seconds" not in k and k != "at"} for row in rows
    ]


@pytest.mark.slow
def test_a_run_with_a_reward_function_and_redraws_on_a_database_is_killed_and_ends_as_the_unbroken_one(
    random_policy_folder,  # noqa: F811
    shop,
    run,
    tmp_path,
):
    (tmp_path / "my.py").write_text(MINE_REWARD)
    always = ["--model", random_policy_folder, "--database", shop / "shop.sqlite", "--reward", "agentbench"]
    always += ["--reward", f"{tmp_path}/my.py:brief=0.5", "--max-resamples", 1, "--train-file", shop / "train.json"]
    always += ["--held-out-fraction", 0.5, "--eval-tasks", 1, "--batch-size", 1, "--group-size", 3, "--num-epochs", 2]
    always += ["--max-tokens", 24, "--max-turns", 1, "--learning-rate", "1e-3", "--save-every", 1, "--temperature", 1.2]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run("local", *always, "--run-dir", whole)
    metrics, played = (without_clock(lines(whole / name)) for name in ("metrics.jsonl", "trajectories.jsonl"))
    trained = [row for row in played if not row["validate"]]
    for row in trained:
        brief, terms = row["reward_parts"]["brief"], row["score"]["value"] + 0.5 * row["reward_parts"]["brief"]
        assert (brief, row["reward"]) == (1 / (1 + row["completion_tokens"]), pytest.approx(terms))
    batches = [row for row in metrics if "batch" in row]
    assert [row["train_step"] for row in batches] == [*range(1, len(batches) + 1)] and len(batches) >= 2
    assert batches[-1]["reward/brief"] > 0 and batches[-1]["train/steps"] > 0

    line = [sys.executable, "-m", "agentgrpo", "local", "--device", "cpu", *map(str, always), "--run-dir", str(broken)]
    process = subprocess.Popen(line, cwd=ROOT, env=QUIET, stdout=subprocess.PIPE)
    deadline = time.monotonic() + 200
    while not (broken / "checkpoints" / "step_000001" / "manifest.json").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait(20)
    assert "resumed after " in run("local", *always, "--run-dir", broken, "--resume")
    for name, expected in (("metrics.jsonl", metrics), ("trajectories.jsonl", played)):
        assert without_clock(lines(broken / name)) == expected
    adapters = [(run_dir / "epoch_2" / "adapter_model.safetensors").read_bytes() for run_dir in (whole, broken)]
    assert adapters[0] == adapters[1]


def test_a_run_that_measures_needs_something_to_measure_on():
    given = {"train_file": Path("rows.jsonl"), "held_out_fraction": 0, "env": "mine.py:Shop"}
    with pytest.raises(
        ValueError, match=r"--held-out-fraction 0 trains on every row .* and --eval-tasks 64 .*, or --eval-tasks 0"
    ):
        LocalGrpoConfig(**given)
    assert LocalGrpoConfig(**given, eval_tasks=0).data.held_out_fraction == 0


def test_the_next_command_keeps_the_protocol():
    cfg = LocalGrpoConfig(model=ModelConfig(model_path="m"), env="dbbench", protocol="text")
    assert next_command(cfg, 1).endswith("--env dbbench --protocol text")


def test_a_server_that_does_not_answer_is_named_by_its_flag():
    settings = EnvironmentSettings("text2sql", database="mysql://me@127.0.0.1:1/d")
    with pytest.raises(ValueError, match=r"^--database: mysql://me@127.0.0.1:1/d: "), entered(settings):
        pass

"""Greedy-then-GRPO as a user runs it: the command, its files, and what is left when it is killed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sql_agent.commands.greedy_grpo import main, parse_args
from sql_agent.settings.local import AdapterConfig, GreedyGrpoConfig, LossConfig, ModelConfig, OptimConfig
from sql_agent.tiny_policy.make import make_tiny_policy

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "agentgrpo", "greedy-grpo"]
QUIET = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def tiny_policy() -> str:
    make_tiny_policy(ROOT / "models" / "tiny-sql")
    return str(ROOT / "models" / "tiny-sql")


def flags(model: str, folder: Path, *more: str) -> list[str]:
    wanted = ["--num_tasks", "6", "--max_new_tokens", "100", "--learning_rate", "1e-3", "--save_every", "2"]
    return ["--model_path", model, "--save_dir", str(folder), *wanted, *more]


def lines(path: Path) -> list[dict]:
    """Without what depends on the clock."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("time/") and k not in ("at", "seconds")} for row in rows]


@pytest.fixture
def run(capsys):
    def said(*arguments: str) -> str:
        main(arguments)
        return capsys.readouterr().out

    return said


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_it_trains_and_goes_on_from_its_adapter(tiny_policy, tmp_path, run):
    whole = tmp_path / "whole"
    printed = run(*flags(tiny_policy, whole, "--eval_tasks", "4"))
    assert "held-out after 0 tasks  greedy " in printed and "held-out after 6 tasks  greedy " in printed
    assert printed.count("greedy accuracy") == 6 + 1 and f"adapter: {whole}/adapter" in printed

    logged = lines(whole / "metrics.jsonl")
    assert [row["task"] for row in logged if "held_out/greedy" in row] == [0, 6]
    assert all(row["held_out/sampled"]["judged"] == 4 for row in logged if "held_out/greedy" in row)
    metrics = [row for row in logged if "greedy/correct" in row]
    assert [row["task"] for row in metrics] == [1, 2, 3, 4, 5, 6]
    correct = sum(row["greedy/correct"] for row in metrics)
    assert metrics[-1]["greedy/accuracy"] == correct / 6
    assert metrics[-1]["train/steps"] + sum(metrics[-1]["group/skipped"].values()) == 6
    played = lines(whole / "trajectories.jsonl")
    assert [row["mode"] for row in played] == (["greedy"] + ["sampled"] * 4) * 6
    assert {row["reward"] for row in played if row["mode"] == "sampled"} <= {1.0, -1.0, -0.8, -0.2}

    again = run(*flags(f"{whole}/adapter", tmp_path / "on_top", "--num_tasks", "1"))
    assert "task 1/1" in again


@pytest.mark.slow
@pytest.mark.full("test_train_local_grpo.py kills a run of the same loop")
@pytest.mark.usefixtures("one_thread")
def test_a_killed_run_ends_as_the_unbroken_one(tiny_policy, tmp_path, run):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(*flags(tiny_policy, whole, "--eval_tasks", "4"))
    metrics = [row for row in lines(whole / "metrics.jsonl") if "greedy/correct" in row]
    process = subprocess.Popen([*COMMAND, *flags(tiny_policy, broken)], cwd=ROOT, env=QUIET, stdout=subprocess.PIPE)
    wait_for(broken / "checkpoints" / "step_000002" / "manifest.json", process)
    wait_for_lines(broken / "metrics.jsonl", 3, process)
    process.send_signal(signal.SIGKILL)
    process.wait(20)
    printed = run(*flags(tiny_policy, broken, "--resume"))
    assert "resumed after task " in printed
    assert lines(broken / "metrics.jsonl") == metrics
    assert lines(broken / "trajectories.jsonl") == lines(whole / "trajectories.jsonl")
    for name in ("adapter_model.safetensors", "tokenizer.json"):
        assert (broken / "adapter" / name).read_bytes() == (whole / "adapter" / name).read_bytes()


def wait_for(path: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


def wait_for_lines(path: Path, count: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while len(path.read_text().splitlines()) < count:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)


def test_the_flags_have_the_names_of_the_other_commands_and_the_predecessors_defaults(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    defaults = {
        "group-size": 4, "max-tokens": 512, "temperature": 0.8, "top-p": 1.0, "lora-rank": 16, "lora-alpha": 32,
        "lora-dropout": 0.05, "learning-rate": 2e-5, "weight-decay": 0.01, "kl-coef": 0.04, "clip-ratio": 0.2,
        "gradient-accumulation-steps": 1, "max-grad-norm": 1.0, "num-epochs": 1, "max-turns": 3,
    }  # fmt: skip
    for name, value in defaults.items():
        assert re.search(rf"--{name} [NX](?:(?! --).)* \(default {value}\)", shown), name
    for name in ("reference-model", "run-dir", "backend", "judge", "train-file", "seed", "resume"):
        assert f"--{name}" in shown


def test_the_rllm_predecessors_command_means_the_same_here():
    model, reference = "meta-llama/Meta-Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B"
    typed = (
        f"--model_path {model} --group_size 4 --max_new_tokens 512 --temperature 0.8 --top_p 0.95 --lora_r 16 "
        "--lora_alpha 32 --lora_dropout 0.05 --learning_rate 2e-5 --weight_decay 0.01 --beta 0.04 --clip_param 0.2 "
        "--grad_accum 1 --max_grad_norm 1.0 --num_epochs 1 "
        f"--reference_model_path {reference} --save_dir outputs/dbbench_grpo_lora"
    ).split()
    expected = GreedyGrpoConfig(
        model=ModelConfig(model_path=model),
        reference_model_path=reference,
        group_size=4,
        max_new_tokens=512,
        temperature=0.8,
        top_p=0.95,
        adapter=AdapterConfig(rank=16, alpha=32, dropout=0.05),
        optim=OptimConfig(learning_rate=2e-5, weight_decay=0.01, grad_accum=1, max_grad_norm=1.0),
        loss=LossConfig(beta=0.04, clip_param=0.2),
        num_epochs=1,
        save_dir=Path("outputs/dbbench_grpo_lora"),
    )
    assert parse_args(typed) == (expected, False)
    as_it_was = expected.model_copy(update={"protocol": "lab", "judge": "lab", "max_turns": 3})
    assert parse_args([*typed, "--preset", "rllm"])[0] == as_it_was


def test_a_flag_that_is_given_wins_over_the_preset():
    given = ["--judge", "strict", "--max_rounds", "5"]
    cfg, resumed = parse_args([*given, "--preset", "rllm", "--model_path", "x", "--resume"])
    assert (cfg.protocol, cfg.judge, cfg.max_turns, resumed) == ("lab", "strict", 5, True)

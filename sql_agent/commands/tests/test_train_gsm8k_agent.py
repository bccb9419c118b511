"""The word-problem trainer as a user runs it: the command, its files, what it learns, and what a killed run leaves."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from agentgrpo.printed_commands import agentgrpo_command
from sql_agent.commands.gsm8k import main
from sql_agent.tiny_policy.make import make_tiny_policy

ROOT = Path(__file__).parents[3]
QUIET = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def problems(tmp_path_factory) -> Path:
    """22 problems whose answer is 1; four of them are held out."""
    path = tmp_path_factory.mktemp("problems") / "ones.jsonl"
    rows = [{"question": f"Ann has {n} eggs and sells {n - 1}. How many?", "answer": "#### 1"} for n in range(2, 24)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def guessing_policy(tmp_path_factory, problems) -> Path:
    """A model of 50,000 weights that answers every problem `#### 1` or `#### 2`, each about half of the time."""
    from torch.nn.utils.rnn import pad_sequence as pad
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from agentgrpo.chat.replies import Conversation
    from sql_agent.environments.base import make_environment
    from sql_agent.environments.rows import RowTask
    from sql_agent.gsm8k.problems import load_problems
    from sql_agent.settings.groups import EnvironmentSettings
    from sql_agent.tiny_policy.tokenizer import END_ID, PAD_ID, build_tokenizer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = build_tokenizer(["You solve word problems with a calculator."])
    environment = make_environment(EnvironmentSettings("gsm8k"))
    conversation = Conversation(tokenizer, environment.tools)
    pairs: list[tuple[list[int], list[int]]] = []
    for row in load_problems(str(problems)):
        prompt = conversation.first_prompt(environment.messages(RowTask(row["id"], "gsm8k", row)))
        answers = [tokenizer.encode(f"#### {n}<|im_end|>", add_special_tokens=False) for n in (1, 2)]
        pairs += [(prompt, answer) for answer in answers]
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=1024, tie_word_embeddings=True,
        eos_token_id=END_ID, pad_token_id=PAD_ID, initializer_range=0.1,
    )  # fmt: skip
    model: torch.nn.Module = Qwen3ForCausalLM(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(150):
        drawn = [pairs[k] for k in torch.randint(len(pairs), (8,))]
        rows = pad([torch.tensor(prompt + answer) for prompt, answer in drawn], True, PAD_ID)
        labels = pad([torch.tensor([-100] * len(prompt) + answer) for prompt, answer in drawn], True, -100)
        loss = model(input_ids=rows, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    folder = tmp_path_factory.mktemp("guessing-policy")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def command(model: object, data: object, folder: Path, *more: object) -> list[str]:
    always = ["--model_path", model, "--dataset", data, "--output_dir", folder, "--device", "cpu"]
    return [*map(str, (*always, *more))]


@pytest.fixture
def run(capsys, one_thread):
    """Runs the command in this process; returns what it prints."""

    def run(arguments: list[str]) -> str:
        main(arguments)
        return capsys.readouterr().out

    return run


def lines(path: Path) -> list[dict]:
    """Without what depends on the clock."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    of_the_clock = ("at", "seconds", "rollout/seconds", "val/rollout/seconds")
    return [{k: v for k, v in row.items() if not k.startswith("time/") and k not in of_the_clock} for row in rows]


@pytest.mark.slow
def test_it_runs_end_to_end_on_the_tiny_policy_and_made_up_problems(run, tmp_path):
    make_tiny_policy(ROOT / "models" / "tiny-sql")
    short = ["--max_samples", 3, "--batch_size", 2, "--samples_per_prompt", 2, "--max_new_tokens", 40]
    out = tmp_path / "out"
    shown = run(command(ROOT / "models" / "tiny-sql", "generated", out, *short, "--eval_samples", 2, "--max_rounds", 2))
    assert "3 problems of generated, 2 held out\n" in shown and "\nheld-out after 0 epochs: " in shown
    assert "epoch 1/1  batch 2/2  correct " in shown and f"adapter after epoch 1: {out}/epoch_1\n" in shown
    assert shown.endswith(f"next: {agentgrpo_command('interactive', '--model', out / 'epoch_1')}\n")
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "chat_template.jinja"} <= {
        path.name for path in (out / "epoch_1").iterdir()
    }
    assert [row["task_id"] for row in lines(out / "trajectories.jsonl")].count("generated-train-0-0") == 2


LEARNS = ["--max_samples", 12, "--batch_size", 3, "--samples_per_prompt", 6, "--max_new_tokens", 12, "--lora_r", 4]
LEARNS += ["--total_epochs", 2, "--learning_rate", "5e-3", "--save_every", 2, "--max_rounds", 2, "--beta", 0]
LEARNS += ["--eval_samples", 4, "--temperature", 0.5]  # so small a policy leaves some chance to every token


@pytest.mark.slow
def test_it_learns_what_is_rewarded(guessing_policy, problems, run, tmp_path):
    shown = run(command(guessing_policy, problems, tmp_path, *LEARNS))
    assert shown.count("trained groups") == 8 and "held-out after 2 epochs: 100.0% of 4" in shown
    metrics = lines(tmp_path / "metrics.jsonl")
    rewards = [row["reward/mean"] for row in metrics if "batch" in row]
    assert rewards[0] < 0.2 and rewards[-1] > 0.5  # measured: 1 of 18, then 11 of 18


@pytest.mark.slow
@pytest.mark.full("test_train_local_grpo.py kills a run of the same loop")
def test_a_killed_run_ends_as_the_unbroken_one(guessing_policy, problems, run, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(command(guessing_policy, problems, whole, *LEARNS))
    line = [sys.executable, "-m", "agentgrpo", "gsm8k", *command(guessing_policy, problems, broken, *LEARNS)]
    process = subprocess.Popen(line, cwd=ROOT, env=QUIET)
    wait_until(lambda: (broken / "checkpoints" / "step_000002").exists(), process)
    wait_until(lambda: len((broken / "metrics.jsonl").read_text().splitlines()) > 3, process)
    process.send_signal(signal.SIGKILL)
    process.wait(20)
    assert "resumed after " in run([*command(guessing_policy, problems, broken, *LEARNS), "--resume"])
    assert lines(broken / "metrics.jsonl") == lines(whole / "metrics.jsonl")
    assert lines(broken / "trajectories.jsonl") == lines(whole / "trajectories.jsonl")
    for epoch in ("epoch_1", "epoch_2"):
        weights = [(folder / epoch / "adapter_model.safetensors").read_bytes() for folder in (whole, broken)]
        assert weights[0] == weights[1]


def wait_until(happened, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("dataset", ["gone.jsonl", "gsm8k:gone.jsonl"])
def test_problems_that_are_not_there_are_said_before_the_model_is_read(tmp_path, monkeypatch, dataset):
    monkeypatch.setattr("sql_agent.commands.local.require", lambda **_: None)
    with pytest.raises(SystemExit, match=r"error: gone\.jsonl: no such file, and no other source of problems"):
        main(["--model_path", "nowhere", "--dataset", dataset, "--output_dir", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()


def test_the_flags_have_the_names_of_the_other_commands_and_the_predecessors_defaults(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    defaults = {
        "group-size": 4, "max-tokens": 256, "num-epochs": 1, "batch-size": 8, "gradient-accumulation-steps": 1,
        "temperature": 0.8, "top-p": 1.0, "lora-rank": 16, "learning-rate": 2e-5, "kl-coef": 0.04, "clip-ratio": 0.2,
        "eval-tasks": 0, "max-turns": 10,
    }  # fmt: skip
    for name, value in defaults.items():
        assert re.search(rf"--{name} [NX](?:(?! --).)* \(default {value}\)", shown), name
    for name in ("model", "dataset", "num-tasks", "run-dir", "load-in-4bit", "gradient-checkpointing", "resume"):
        assert f"--{name}" in shown

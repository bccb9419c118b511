import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from agentgrpo.run_folder import METRICS
from reward_model.reward_modeling import main
from reward_model.scorer import RECORD, Scorer
from reward_model.tests.conftest import assistant, user

ROOT = Path(__file__).parents[2]
SHORT = ("--max_steps", "2", "--per_device_train_batch_size", "4", "--logging_steps", "1", "--save_strategy", "no")


def command(base: Path, pairs: Path, output: Path, *flags: str) -> list[str]:
    return [
        *("--dataset_name", str(pairs), "--model_name_or_path", str(base), "--output_dir", str(output), "--use_cpu"),
        *flags,
    ]


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("", "pairs.jsonl holds no row", id="empty"),
        pytest.param(
            '{"prompt": [{"role": "user", "content": NaN}], "chosen": [], "rejected": []}',
            "pairs.jsonl, row 1, prompt.0.content: Input should be a valid string",
            id="nan",
        ),
        pytest.param('{"prompt": "a", "chosen": "b", "rejected": "c"}', "row 1, prompt: ", id="not_converted"),
    ],
)
def test_a_file_that_holds_no_preferences_is_refused(base, tmp_path, capsys, text, words):
    (tmp_path / "pairs.jsonl").write_text(text)
    assert main(command(base, tmp_path / "pairs.jsonl", tmp_path / "out")) == 1
    assert words in capsys.readouterr().err


def test_a_model_has_to_be_named(pairs, capsys):
    assert main(["--dataset_name", str(pairs)]) == 1
    assert (
        "--model-name-or-path is missing: the language model to start from, a folder or ORG/NAME"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("learning_rat: 1.0e-3\n", "learning_rat"),
        pytest.param("seed: " + "[" * 3000, "--config is not YAML: brackets are nested too deep", id="3000_brackets"),
    ],
)
def test_a_file_of_settings_that_cannot_be_is_refused(base, pairs, tmp_path, capsys, text, words):
    (tmp_path / "run.yaml").write_text(text)
    assert main(command(base, pairs, tmp_path / "out", "--config", str(tmp_path / "run.yaml"))) == 1
    assert words in capsys.readouterr().err


# Runs -----------------------------------------------------------------------------------------------------------------


def metrics(output: Path) -> list[dict]:
    return [json.loads(line) for line in (output / METRICS).read_text().splitlines()]


def test_lora_trains_an_adapter_and_the_head_and_says_what_it_did(base, pairs, tmp_path, capsys):
    assert main(command(base, pairs, tmp_path / "out", *SHORT)) == 0
    said = capsys.readouterr().out
    assert "21 pairs to train on, 3 held out; left out as longer than 1024 tokens: 0 and 0" in said
    assert re.search(r"^step 1/2  loss \d\.\d{4}  accuracy", said, re.MULTILINE)
    assert said.endswith(f"reward model: {tmp_path / 'out'}\n")

    assert [(row["train_step"], "pair/loss" in row, "val/pair/loss" in row) for row in metrics(tmp_path / "out")] == [
        (1, True, False),
        (2, True, False),
        (2, False, True),
    ]
    adapter = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert {key.split(".")[-2] for key in adapter} == {"lora_A", "lora_B", "score"}
    assert all(torch.isfinite(weight).all() for weight in adapter.values())
    record = json.loads((tmp_path / "out" / RECORD).read_text())
    assert record["train_step"] == 2
    assert (record["dataset"]["train_pairs"], record["dataset"]["held_out_pairs"]) == (21, 3)
    assert (record["settings"]["use_peft"], record["settings"]["lora_r"], record["processes"]) == (True, 16, 1)
    scorer = Scorer.load(tmp_path / "out", device="cpu")
    assert scorer.max_length == 256
    assert isinstance(scorer.score([scorer.encode([user("1"), assistant("2")])])[0].value, float)


def test_without_lora_all_weights_are_trained_and_the_model_is_whole(base, pairs, tmp_path, capsys):
    assert main(command(base, pairs, tmp_path / "out", *SHORT, "--no_use_peft", "--learning_rate", "1e-3")) == 0
    trained, total = re.search(r"([\d,]+) of ([\d,]+) weights are trained", capsys.readouterr().out).groups()
    assert trained == total
    before, after = load_file(base / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert [key for key in before if torch.equal(before[key], after[key])] == []
    Scorer.load(tmp_path / "out", device="cpu")


def test_help_shows_how_to_start(capsys):
    assert main(["--help"]) == 0
    assert "accelerate launch reward_model/reward_modeling.py --dataset-name" in capsys.readouterr().out


# Whole processes ------------------------------------------------------------------------------------------------------


def run(*argv: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [str(part) for part in argv]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250)


@pytest.mark.slow
def test_two_processes_share_a_batch_and_write_one_line_a_step(base, pairs, tmp_path):
    flags = (
        "--max_steps",
        "2",
        "--per_device_train_batch_size",
        "2",
        "--logging_steps",
        "1",
        "--held_out_fraction",
        "0",
    )
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", 2)
    done = run(*torchrun, "reward_model/reward_modeling.py", *command(base, pairs, tmp_path / "out", *flags))
    assert done.returncode == 0, done.stderr
    assert [row["train_step"] for row in metrics(tmp_path / "out")] == [1, 2]
    assert done.stdout.count("reward model: ") == 1
    assert json.loads((tmp_path / "out" / RECORD).read_text())["processes"] == 2


def test_an_adapter_that_was_trained_on_a_relative_path_is_loaded_by_peft_from_anywhere(
    base, pairs, tmp_path, monkeypatch
):
    from peft import AutoPeftModelForSequenceClassification

    monkeypatch.chdir(base.parent)
    assert main(command(Path(base.name), pairs, tmp_path / "out", *SHORT)) == 0
    monkeypatch.chdir(tmp_path)
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
        base.resolve()
    )
    scorer = Scorer.load(tmp_path / "out", device="cpu")
    encoded = scorer.encode([user("Which number comes after 3?"), assistant("4")])
    model = AutoPeftModelForSequenceClassification.from_pretrained("out", num_labels=1).eval()
    model.config.pad_token_id = scorer.tokenizer.pad_token_id
    with torch.inference_mode():
        score = model(input_ids=torch.tensor([encoded.ids])).logits.item()
    assert score == pytest.approx(scorer.score([encoded])[0].value, abs=1e-6)

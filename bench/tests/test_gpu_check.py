"""The check of a GPU machine: its stages end within their limits, its page is whole, and on a CPU all of it runs."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from transformers import AutoTokenizer

from bench import gpu_check
from bench.gpu_check import discard, main, metrics_of, stages_of, stages_of_sizes
from bench.parts.gpu_stages import Result, Stage, run, write_page
from bench.parts.random_model import random_model

ROOT = Path(__file__).parents[2]


def stage(script: str, limit_s: float = 60.0, **more) -> Stage:
    return Stage("try", ["bash", "-c", script], limit_s, lambda output: {"said": output.strip()}, **more)


def test_a_stage_says_what_it_found_and_gets_the_environment(tmp_path):
    found = run(stage("sleep 2; echo $WORD"), tmp_path / "log", {"WORD": "hello"}, lambda: 5)
    assert (found.state, found.found, found.peak) == ("ok", {"said": "hello"}, 5)


def test_a_stage_that_fails_is_shown_with_the_ends_of_its_logs(tmp_path):
    (tmp_path / "driver.log").write_text("verl's last word\n")
    script = "for i in $(seq 50); do echo line $i; done; exit 3"
    found = run(stage(script, also=tmp_path / "driver.log"), tmp_path / "log", {}, None)
    assert (found.state, found.why, found.peak) == ("failed", "exit status 3", None)
    lines = "\n".join(f"line {i}" for i in range(21, 51))
    assert found.tail == f"log:\n{lines}\ndriver.log:\nverl's last word"


def test_a_stage_beyond_its_limit_is_ended_with_what_it_started(tmp_path):
    found = run(stage(f"echo begun; sleep 100 & echo $! > {tmp_path}/pid; wait", 2.0), tmp_path / "log", {}, None)
    assert (found.state, found.why) == ("too long", "it had not ended after 2 s, its limit")
    assert found.tail == "log:\nbegun"
    assert found.seconds < 20
    child = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10  # it was sent a signal, and is nobody's child
    while psutil.pid_exists(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_a_stage_is_killed_when_it_has_what_it_wants(tmp_path):
    began = time.monotonic()
    killed = stage(f"touch {tmp_path}/there; sleep 100", kill_at=(tmp_path / "there").exists)
    assert run(killed, tmp_path / "log", {}, None).state == "ok"
    assert time.monotonic() - began < 20
    ended = run(stage("true", kill_at=lambda: False), tmp_path / "log", {}, None)
    assert (ended.state, ended.why) == ("failed", "it ended (exit status 0) before it could be killed")


@pytest.mark.parametrize("error", [ValueError("no steps"), TypeError("None > 0")])
def test_what_a_stage_leaves_behind_has_to_be_readable(tmp_path, error):
    def read(output):
        raise error

    found = run(Stage("try", ["true"], 60, read), tmp_path / "log", {}, None)
    assert (found.state, found.why) == ("failed", f"what it left behind cannot be read: {error!r}")


def test_a_driver_that_stops_answering_leaves_the_peak_as_it_was(tmp_path):
    readings = iter([5, None])
    found = run(stage("sleep 3"), tmp_path / "log", {}, lambda: next(readings, None))
    assert (found.state, found.peak) == ("ok", 5)
    assert run(stage("sleep 2"), tmp_path / "log", {}, lambda: None).peak is None


def test_the_page_is_there_after_each_stage(tmp_path, monkeypatch):
    folder = tmp_path / "check"
    stages = [stage("true"), stage(f"grep stages {folder}/gpu-check.md")]
    monkeypatch.setattr(gpu_check, "stages_of", lambda *_: stages)
    assert main(["--device", "cpu", "--run-dir", str(folder)]) == 0
    page = (folder / "gpu-check.md").read_text()
    assert "2 of 2 stages passed." in page
    assert "| said 1 of 2 stages passed. |" in page


def test_a_run_that_began_anew_did_not_resume(tmp_path):
    (resume,) = [each for each in stages_of("cpu", tmp_path, tmp_path) if each.name == "resume after SIGKILL"]
    rows = [{"train_step": step, "engine/alarm": 0.0, "engine/probs_diff_mean": 0.00042} for step in (1, 2)]
    (tmp_path / "all-weights").mkdir()
    torn = '{"train_step": 3'  # of a run that was killed
    (tmp_path / "all-weights" / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows) + torn)
    found = {"steps": "1, 2", "mean difference of probabilities": "4.2e-04"}
    assert resume.read(f"resuming from {tmp_path}/all-weights/checkpoints/global_step_1\n") == found
    with pytest.raises(ValueError, match="the run did not go on from the checkpoint of step 1"):
        resume.read("training ...\n")


def test_a_models_random_weights_are_made_once_and_removed_after_its_last_run(tmp_path):
    """Four sizes take 25 GB of disk; a model of 7 billion weights takes 15."""
    stages = stages_of_sizes("cpu", tmp_path, tmp_path, ["7B lora", "0.5B all", "0.5B lora"])
    names = ["7B weights", "7B lora", "0.5B weights", "0.5B all", "0.5B lora"]
    assert [each.name for each in stages] == names
    (tmp_path / "model-0.5B").mkdir()
    weights = tmp_path / "model-0.5B" / "model.safetensors"
    weights.touch()
    for each in stages[3:]:
        assert weights.exists()
        (tmp_path / each.name.replace(" ", "-")).mkdir()
        metrics = {"train_step": 1, "engine/alarm": 0.0, "engine/probs_diff_mean": 0.00042}
        (tmp_path / each.name.replace(" ", "-") / "metrics.jsonl").write_text(f"{json.dumps(metrics)}\n")
        assert each.read("") == {"steps": "1", "mean difference of probabilities": "4.2e-04"}
        discard(each)  # however it ended
    assert not weights.exists()


def test_a_random_model_samples_only_tokens_of_its_tokenizer(small_policy):
    """Others would stand in no text; a real vocabulary has 149 times as many."""
    tokenizer = AutoTokenizer.from_pretrained(small_policy)
    model = random_model("tiny", tokenizer, "cpu").float()
    ids = torch.randint(len(tokenizer), (1, 50), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        probabilities = model(ids).logits[0].softmax(-1)
    assert probabilities.shape == (50, 151_936)
    assert probabilities[:, len(tokenizer) :].sum(-1).max() < 1e-15  # at 0.5B it is 1e-9
    assert probabilities.max() < 0.1  # and any of them


def test_the_page_is_whole():
    results = [
        Result("imports", "ok", 12.4, {"torch": "2.11.0", "vllm": "0.24.0"}, peak=3 * 2**30),
        Result("vLLM", "failed", 3.0, why="exit status 1", tail="vLLM.log:\n```\nno memory | none"),
    ]
    metrics = {"time/update_s": 0.25, "engine/probs_diff_mean": 0.000412345, "something/else": 1.0}
    steps = {"LoRA, step 1": metrics, "LoRA, step 2": {"time/update_s": 12.0}}
    assert write_page("GPU check", {"CPU": "2 cores"}, results, steps, "- LoRA: 4 GiB", 7) == (
        "# GPU check\n\n1 of 7 stages passed.\n\n## Machine\n\n"
        "| what | found |\n| --- | --- |\n| CPU | 2 cores |\n\n"
        "## Stages\n\n| stage | result | seconds | found |\n| --- | --- | --- | --- |\n"
        "| imports | ok | 12 | torch 2.11.0; vllm 0.24.0; of a GPU 3.0 GiB were taken at most |\n"
        "| vLLM | failed | 3 | exit status 1 |\n\n"
        "## Train steps\n\n| what | LoRA, step 1 | LoRA, step 2 |\n| --- | --- | --- |\n| update, s | 0.25 | 12 |\n"
        "| probability of a sampled token, sampler against trainer: mean difference | 0.0004123 |  |\n\n"
        "## Memory, estimated before the run\n\n- LoRA: 4 GiB\n\n"
        "## vLLM: failed\n\nexit status 1\n\n````text\nvLLM.log:\n```\nno memory | none\n````\n"
    )


REFUSED = "error: nvidia-smi finds no GPU here; run this on a machine with one\n"


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there is a GPU here")
def test_without_a_gpu_it_is_refused_in_a_sentence_before_anything_is_installed(capsys, tmp_path):
    assert main(["--run-dir", str(tmp_path / "check")]) == 2
    assert capsys.readouterr().err == REFUSED
    assert not (tmp_path / "check").exists()
    script = tmp_path / "clone" / "scripts" / "gpu_check.sh"
    script.parent.mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "gpu_check.sh", script)
    done = subprocess.run(["bash", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, REFUSED)
    assert not (tmp_path / "clone" / ".venv").exists()


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.full("five whole runs, minutes")
def test_every_stage_passes_on_a_cpu(small_policy, tmp_path):
    folder = tmp_path / "check"
    command = [sys.executable, "-m", "bench.gpu_check", "--device", "cpu", "--model", str(small_policy)]
    command += ["--run-dir", str(folder), "--sizes", "tiny lora"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1400)
    page = (folder / "gpu-check.md").read_text()
    assert done.returncode == 0, done.stdout + done.stderr + page
    assert "9 of 9 stages passed." in page
    for words in ("| imports | ok |", "| vLLM | ok |", "sampled 2048 tokens", "| resume after SIGKILL | ok |"):
        assert words in page
    assert "resuming from " in (folder / "resume-after-SIGKILL.log").read_text()
    assert "- LoRA: a training worker and its vLLM may take 6." in page
    every = metrics_of(folder / "all-weights")
    assert [step["train_step"] for step in every.values()] == [1, 2]
    assert every[2]["engine/probs_diff_max"] < 1e-3
    row = next(line for line in page.splitlines() if line.startswith("| ... largest difference |"))
    assert len(row.strip("| ").split(" | ")) == 5  # of the two steps, of the one with LoRA and of the random model's
    assert "- tiny, LoRA: " in page

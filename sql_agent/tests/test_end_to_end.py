"""The whole chain, nothing scripted: store, proxy, runners, vLLM, verl, a small policy, real DB-Bench tasks.

Two runs in one directory and one with LoRA. The first takes two steps through the LLM proxy and a store that is kept
outside; the second resumes with a store of its own and the runner's tracing, and is told to stop in the middle. About
six minutes.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from sql_agent.agl_light import agl
from sql_agent.processes import processes_of
from sql_agent.stitch import read_outcome, read_turns
from sql_agent.tests.conftest import free_port, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
LIFELONG = ROOT.parent / "shared" / "dbbench" / "data" / "lifelong" / "entry_dict.json"
"""500 real tasks, split by table into train and held-out. Where they are missing, generated ones take their place."""
TASKS = ["--train-file", str(LIFELONG)] if LIFELONG.is_file() else []
COMMAND = [sys.executable, "sql_agent/train_sql_agent.py", "--ci-fast", "--set", "trainer.save_every=1"]
# An entropy term, so that the weights change even in a step whose groups all have equal rewards; rows that hold every
# turn, since a policy that solves nothing may talk for all of its 15.
TRAINING = ["--set", "loss.entropy_coef=0.01", "--set", "data.max_response_tokens=3000", "--device", "cpu"]


@pytest.fixture(scope="module")
def model() -> Path:
    from scripts.make_tiny_policy import make_tiny_policy

    make_tiny_policy(ROOT / "models" / "tiny-sql")
    return ROOT / "models" / "tiny-sql"


@pytest.fixture(scope="module")
def first_run(model, tmp_path_factory):
    """Two steps through `agl store` and the LLM proxy; yields what they left behind while the store is still up."""
    run_dir, port = tmp_path_factory.mktemp("run"), free_port()
    address = f"http://127.0.0.1:{port}"
    agl_command = Path(sys.executable).with_name("agl")
    store = subprocess.Popen([agl_command, "store", "--host", "127.0.0.1", "--port", str(port)])
    try:
        wait_for(f"{address}/v1/agl/health", store)
        where = ["--llm-proxy", "--external-store-address", address, "--model", str(model), "--run-dir", str(run_dir)]
        result = subprocess.run(
            [*COMMAND, *TRAINING, *TASKS, *where, "--set", "trainer.steps=2"],
            cwd=ROOT,
            env={**os.environ, "AGL_MANAGED_STORE": "0"},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert result.returncode == 0, result.stdout + result.stderr + (run_dir / "logs/driver.log").read_text()[-5000:]
        run = json.loads((run_dir / "run.json").read_text())
        yield SimpleNamespace(dir=run_dir, id=run["run_id"], store=address, out=result.stdout, metrics=metrics(run_dir))
    finally:
        store.terminate()
        store.wait(30)


def metrics(run_dir: Path) -> dict[int, dict]:
    rows = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return {row["train_step"]: row for row in rows}


def rollouts_of(run) -> list:
    """(train step, outcome, turns) of every rollout in the store."""

    async def read():
        store = agl.LightningStoreClient(run.store)
        try:
            rollouts = [r for r in await store.query_rollouts() if r.metadata["run_id"] == run.id]
            spans = [await store.query_spans(r.rollout_id, attempt_id="latest") for r in rollouts]
            return [
                (r.metadata["train_step"], read_outcome(s), read_turns(s)) for r, s in zip(rollouts, spans, strict=True)
            ]
        finally:
            await store.close()

    return asyncio.run(read())


def huggingface(run_dir: Path, step: int) -> Path:
    return run_dir / "checkpoints" / f"global_step_{step}" / "actor" / "huggingface"


def test_two_steps_happened_and_the_console_shows_them(first_run):
    assert sorted(first_run.metrics) == [1, 2]
    assert "step 1/2" in first_run.out
    assert "step 2/2" in first_run.out
    assert first_run.metrics[1]["reward/unjudged_frac"] == 0.0


def test_the_store_holds_every_turn_and_every_reward(first_run):
    rollouts = rollouts_of(first_run)
    assert sorted(step for step, _, _ in rollouts) == [1] * 16 + [2] * 16  # four tasks, four rollouts each
    for _, outcome, turns in rollouts:
        assert outcome is not None
        assert outcome.reward in (0.0, 1.0)
        assert len(turns) == outcome.num_turns


def test_every_trained_token_was_sampled_by_the_engine(first_run):
    for step in (1, 2):
        row = first_run.metrics[step]
        assert row["prefix/broken_frac"] == row["prefix/overflow_frac"] == 0.0
        sampled = sum(len(turn.sampled_ids) for s, _, turns in rollouts_of(first_run) if s == step for turn in turns)
        assert row["rollout/sampled_tokens"] * row["rollout/count"] == pytest.approx(sampled)
        # the actor gives the sampled ids the probabilities that the engine gave them
        assert row["engine/probs_diff_max"] < 1e-3


def test_the_weights_changed_and_vllm_served_the_changed_ones(first_run, model):
    turns = [turn for step, _, turns in rollouts_of(first_run) if step == 2 for turn in turns]
    error_before = max(log_prob_error(model, turn) for turn in turns[:8])
    error_after = max(log_prob_error(huggingface(first_run.dir, 1), turn) for turn in turns[:8])
    assert error_after < 1e-3 < error_before


def log_prob_error(folder: Path, turn) -> float:
    """How far the engine's log-probs of one turn are from those of the model in `folder`, in nats."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([turn.prompt_ids + turn.sampled_ids])
    with torch.no_grad():
        log_probs = model(ids).logits[0, len(turn.prompt_ids) - 1 : -1].log_softmax(-1)
    ours = log_probs.gather(1, torch.tensor(turn.sampled_ids)[:, None])[:, 0]
    return (ours - torch.tensor(turn.log_probs)).abs().max().item()


def test_nothing_is_left_of_the_first_run(first_run):
    assert left_of(first_run.dir, first_run.id) == []
    assert not Path(f"/tmp/agentgrpo-{first_run.id}").exists()


def test_a_run_resumes_and_ends_when_told_to(first_run, model):
    log = first_run.dir / "second.log"
    with log.open("w") as out:
        # session of its own: SIGTERM goes to the command alone, as a service manager would send it
        where = ["--resume", "auto", "--model", str(model), "--run-dir", str(first_run.dir)]
        command = [*COMMAND, *TRAINING, *TASKS, *where, "--set", "trainer.steps=50"]
        environment = {name: value for name, value in os.environ.items() if name != "AGL_MANAGED_STORE"}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + 600
        while "step 3/50" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130, log.read_text()
    finally:
        process.kill()
    assert "step 1/50" not in log.read_text()
    run = json.loads((first_run.dir / "run.json").read_text())
    assert left_of(first_run.dir, run["run_id"]) == []
    assert sorted(metrics(first_run.dir))[:3] == [1, 2, 3]


def left_of(run_dir: Path, run_id: str) -> list[str]:
    """Processes of a run that are still there: by its mark in the environment, or its folder in the command line."""
    found = [str(pid) for pid in processes_of(run_id)]
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(run_dir) in command:
            found.append(command)
    return found


def test_a_lora_run_serves_and_saves_whole_weights(model, tmp_path):
    where = ["--model", str(model), "--run-dir", str(tmp_path), "--lora", "--lora-rank", "8", "--device", "cpu"]
    settings = ["--set", "trainer.steps=2", "--set", "loss.entropy_coef=0.01", "--set", "optim.learning_rate=1e-3"]
    environment = {name: value for name, value in os.environ.items() if name != "AGL_MANAGED_STORE"}
    result = subprocess.run(
        [*COMMAND, *where, *settings], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stdout + result.stderr
    # after an update, the sampler still gives the actor's probabilities: it has the adapter, in full precision
    assert metrics(tmp_path)[2]["engine/probs_diff_max"] < 1e-3

    from safetensors.torch import load_file

    before = load_file(model / "model.safetensors")
    after = load_file(huggingface(tmp_path, 2) / "model.safetensors")
    assert set(after) == set(before)
    assert any((after[name] != before[name]).any() for name in before)

"""Two training workers on a CPU in the whole chain, each with a vLLM beside it, against one; and one that computes
shared prompts as a GPU would, against the same one. About eight minutes."""

import json
import math
import os
import subprocess
from pathlib import Path

import pytest
from safetensors.torch import load_file

from agentgrpo.checkpoints import fault_of
from sql_agent.tests.test_end_to_end import COMMAND, ROOT, TASKS, TRAINING, differences, huggingface, metrics
from sql_agent.tests.test_workers import SAME, apart
from sql_agent.verl_side.checkpoints import SHARDS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def train(
    model: Path, run_dir: Path, *, workers: int, steps: int, resume: str = "auto", more: tuple[str, ...] = ()
) -> subprocess.CompletedProcess:
    where = ["--model", str(model), "--run-dir", str(run_dir), "--resume", resume]
    sizes = ["--set", f"cluster.workers_per_node={workers}", f"trainer.steps={steps}", *more]
    return subprocess.run(
        [*COMMAND, *TRAINING, *TASKS, *where, *sizes],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "AGL_MANAGED_STORE"},
        capture_output=True,
        text=True,
        timeout=900,
    )


def trained(model: Path, run_dir: Path, **how) -> Path:
    result = train(model, run_dir, **how)
    log = run_dir / "logs" / "driver.log"
    assert result.returncode == 0, result.stdout + result.stderr + (log.read_text()[-5000:] if log.exists() else "")
    return run_dir


@pytest.fixture(scope="module")
def one(small_policy, tmp_path_factory):
    return trained(small_policy, tmp_path_factory.mktemp("one"), workers=1, steps=2)


@pytest.fixture(scope="module")
def two(small_policy, tmp_path_factory):
    return trained(small_policy, tmp_path_factory.mktemp("two"), workers=2, steps=2)


def weights(run_dir: Path, step: int) -> dict:
    return load_file(huggingface(run_dir, step) / "model.safetensors")


def distance(one: dict, other: dict) -> float:
    return math.hypot(*(float((one[name] - other[name]).norm()) for name in one))


def test_two_workers_train_the_weights_of_one(one, two, small_policy):
    for step in (1, 2):
        assert metrics(two)[step]["reward/unjudged_frac"] == 0.0
        # AdamW makes a step of each gradient, however small, and so of its last digits: 4e-7, then 9e-7
        assert apart(weights(one, step), weights(two, step)) < step * SAME
    assert apart(weights(one, 1), weights(one, 2)) > 100 * SAME


METRICS = ("policy/loss", "policy/entropy", "policy/grad_norm", "reward/mean", "rollout/sampled_tokens")


def test_flex_attention_trains_the_same_weights_with_the_same_metrics(one, small_policy, tmp_path):
    run_dir = trained(small_policy, tmp_path, workers=1, steps=1, more=("engine.shared_prompts=flex_attention",))
    alone, shared = metrics(one)[1], metrics(run_dir)[1]
    assert {name: shared[name] for name in METRICS} == pytest.approx({name: alone[name] for name in METRICS}, abs=1e-5)
    # AdamW makes whole steps of gradients that are rounding alone, so single weights may differ by a part of one
    begun = load_file(small_policy / "model.safetensors")
    assert distance(weights(one, 1), weights(run_dir, 1)) < 1e-3 * distance(weights(one, 1), begun)


def test_both_servers_sample_from_the_policy_and_metrics_are_those_of_one(one, two):
    for step in (1, 2):
        alone, together = metrics(one)[step], metrics(two)[step]
        assert together["engine/probs_diff_max"] < 1e-3
        assert {name: together[name] for name in METRICS} == pytest.approx(
            {name: alone[name] for name in METRICS}, abs=1e-5
        )


def test_a_checkpoint_holds_the_files_of_both_and_is_whole(two):
    checkpoint = two / "checkpoints" / "global_step_2"
    assert fault_of(checkpoint) is None
    sealed = json.loads((checkpoint / "manifest.json").read_text())["files"]
    expected = {f"actor/{kind}_world_size_2_rank_{rank}.pt" for kind in SHARDS for rank in (0, 1)}
    assert expected <= set(sealed)


def test_two_workers_go_on_as_if_they_had_not_stopped(two, small_policy, tmp_path):
    trained(small_policy, tmp_path, workers=2, steps=1)
    refused = train(small_policy, tmp_path, workers=1, steps=2)
    assert refused.returncode != 0
    assert "was written by 2 workers, each its share; go on with as many (--set cluster.workers_per_node=2)" in (
        refused.stderr
    )
    trained(small_policy, tmp_path, workers=2, steps=2)
    assert differences(two, tmp_path, 2) == []

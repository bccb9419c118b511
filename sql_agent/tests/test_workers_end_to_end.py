"""Two training workers on a CPU in the whole chain, each with a vLLM beside it, against the one of `first_run`; against
the same one, one that computes shared prompts as a GPU would, and one whose vLLM is apart from it. About two minutes, a
few more with `--full`.
"""

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from safetensors.torch import load_file

from agentgrpo.checkpoints import check_checkpoint
from sql_agent.tests.conftest import COMMAND, ROOT, TASKS, TRAINING, metrics
from sql_agent.tests.test_end_to_end import differences, huggingface
from sql_agent.tests.test_workers import SAME, apart
from sql_agent.train_sql_agent import main
from sql_agent.verl_side.checkpoints import SHARDS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2700)]


def arguments(model: Path, run_dir: Path, *, workers: int) -> list[str]:
    where = ["--model", str(model), "--run-dir", str(run_dir), "--resume", "auto"]
    sizes = ["--set", f"cluster.workers_per_node={workers}", "trainer.steps=2"]
    return [*TRAINING, *TASKS, *where, *sizes]


def trained(model: Path, run_dir: Path, *settings: str, workers: int = 2, command: Sequence[str] = COMMAND) -> str:
    """Two steps; what the command said."""
    result = subprocess.run(
        [*command, *arguments(model, run_dir, workers=workers), *settings],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "AGL_MANAGED_STORE"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    log = run_dir / "logs" / "driver.log"
    assert result.returncode == 0, result.stdout + result.stderr + (log.read_text()[-5000:] if log.exists() else "")
    return result.stdout


# The command with a model server apart from the worker, as on GPUs of their own, but for what a CPU cannot do: a file
# stands in for NCCL, and Ray is told of a second GPU.
APART = """
import os
import sys

from sql_agent.startup import launch, preflight
from sql_agent.verl_side import config

engine = "actor_rollout_ref.rollout.checkpoint_engine"
config.SEPARATE |= {f"{engine}.backend": "folder", f"{engine}.custom_backend_module": "sql_agent.tests.folder_engine"}
preflight._check_samplers = lambda *_, **__: None
ray_of, environment_of = config._ray, config.worker_environment
config._ray = lambda *given, **how: ray_of(*given, **how) | {"ray_kwargs.ray_init.num_gpus": 2}
more = {"CUDA_VISIBLE_DEVICES": "-1,-1", "WEIGHTS_READ": os.environ["WEIGHTS_READ"]}
launch.worker_environment = lambda *given, **how: environment_of(*given, **how) | more

from sql_agent.train_sql_agent import main

sys.exit(main())
"""


@pytest.fixture(scope="module")
def one(first_run):
    return first_run.dir


@pytest.fixture(scope="module")
def two(small_policy, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("two")
    trained(small_policy, run_dir)
    return run_dir


def weights(run_dir: Path, step: int) -> dict:
    return load_file(huggingface(run_dir, step) / "model.safetensors")


def distance(one: dict, other: dict) -> float:
    return math.hypot(*(float((one[name] - other[name]).norm()) for name in one))


def same_tokens(one: Path, other: Path, step: int) -> bool:
    """Whether as many tokens were sampled up to a step. Two servers batch other requests together than one does, and
    once in many runs the last digits of a logit decide a token."""
    runs = [[metrics(run)[each]["rollout/sampled_tokens"] for each in range(1, step + 1)] for run in (one, other)]
    return runs[0] == runs[1]


def test_two_workers_train_the_weights_of_one(one, two, small_policy):
    begun = load_file(small_policy / "model.safetensors")
    for step in (1, 2):
        assert metrics(two)[step]["reward/unjudged_frac"] == 0.0
        # AdamW makes a step of each gradient, however small, and so of its last digits:
        # four of 918,400 weights here, by 3e-6 to 3e-5
        limit = 1e-3 if same_tokens(one, two, step) else 2e-2
        assert distance(weights(one, step), weights(two, step)) < limit * distance(weights(one, step), begun)
    assert apart(weights(one, 1), weights(one, 2)) > 100 * SAME


METRICS = ("policy/loss", "policy/entropy", "policy/grad_norm", "reward/mean", "rollout/sampled_tokens")


@pytest.mark.full("test_packed_engine.py compares its log-probs and gradients")
def test_flex_attention_trains_the_same_weights_with_the_same_metrics(one, small_policy, tmp_path):
    trained(small_policy, tmp_path, "engine.shared_prompts=flex_attention", "trainer.steps=1", workers=1)
    alone, shared = metrics(one)[1], metrics(tmp_path)[1]
    assert {name: shared[name] for name in METRICS} == pytest.approx({name: alone[name] for name in METRICS}, abs=1e-5)
    # AdamW makes whole steps of gradients that are rounding alone, so single weights may differ by a part of one
    begun = load_file(small_policy / "model.safetensors")
    assert distance(weights(one, 1), weights(tmp_path, 1)) < 1e-3 * distance(weights(one, 1), begun)


def test_both_servers_sample_from_the_policy_and_metrics_are_those_of_one(one, two):
    for step in (1, 2):
        alone, together = metrics(one)[step], metrics(two)[step]
        assert together["engine/probs_diff_max"] < 1e-3
        same = same_tokens(one, two, step)
        names = METRICS if same else ("policy/entropy", "policy/grad_norm", "rollout/sampled_tokens")
        assert {name: together[name] for name in names} == pytest.approx(
            {name: alone[name] for name in names}, abs=1e-5, rel=1e-6 if same else 0.02
        )


def test_a_checkpoint_holds_the_files_of_both_and_is_whole(two):
    checkpoint = two / "checkpoints" / "global_step_2"
    assert check_checkpoint(checkpoint) is None
    sealed = json.loads((checkpoint / "manifest.json").read_text())["files"]
    expected = {f"actor/{kind}_world_size_2_rank_{rank}.pt" for kind in SHARDS for rank in (0, 1)}
    assert expected <= set(sealed)


@pytest.mark.full("test_workers.py resumes two bit for bit, and test_end_to_end.py a whole run")
def test_two_workers_go_on_as_if_they_had_not_stopped(two, small_policy, tmp_path, capsys, monkeypatch):
    """From the folder of a run that was lost before its second checkpoint."""
    run_dir = tmp_path / "run"
    shutil.copytree(two, run_dir, ignore=shutil.ignore_patterns("global_step_2"))
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("AGL_MANAGED_STORE", raising=False)
    assert main([*COMMAND[2:], *arguments(small_policy, run_dir, workers=1)]) == 2
    assert "was written by 2 workers, each its share; go on with as many (--set cluster.workers_per_node=2)" in (
        capsys.readouterr().err
    )
    said = trained(small_policy, run_dir)
    assert f"resuming from {run_dir / 'checkpoints' / 'global_step_1'}" in said
    assert "step 1/2" not in said and "step 2/2" in said
    assert differences(two, run_dir, 2) == []


def test_a_model_server_apart_from_the_worker_gets_its_weights(one, small_policy, tmp_path, monkeypatch):
    monkeypatch.setenv("WEIGHTS_READ", str(tmp_path / "weights_read"))
    command = [sys.executable, "-c", APART, *COMMAND[2:]]
    trained(small_policy, tmp_path, "cluster.sampler_gpus=1", workers=1, command=command)
    for step in (1, 2):
        # the second step was sampled with what the first one sent
        assert metrics(tmp_path)[step]["engine/probs_diff_mean"] < 1e-6
        assert apart(weights(one, step), weights(tmp_path, step)) < step * SAME
    # the initial weights, and those after each step
    assert (tmp_path / "weights_read").read_text() == 3 * "read\n"

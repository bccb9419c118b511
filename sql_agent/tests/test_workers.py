"""Several training workers on a CPU update as one does: verl's own workers over gloo, without Ray and vLLM."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentgrpo.checkpoints import CheckpointError
from agentgrpo.machine import free_port
from agentgrpo.processes import own_run
from sql_agent.commands.merge import join_shards
from sql_agent.settings.load import load_config
from sql_agent.tests.test_end_to_end import leaves, repr_of
from sql_agent.verl_side.checkpoints import SHARDS, describe_checkpoint, missing_shards
from sql_agent.verl_side.config import worker_environment

ROOT = Path(__file__).parents[2]
SAME = 2e-6
"""How far weights in float32 may be apart, of which the largest are 0.1: the order of sums differs, nothing else."""


def update(workers: int, model: Path, logs: Path, *plans: tuple) -> None:
    """Let so many `actor_workers` take these plans one after another; a process that imports verl takes seconds."""
    settings = [f"cluster.workers_per_node={workers}", "data.train_batch_size=4"]
    place = {"MASTER_PORT": str(free_port()), "WORLD_SIZE": str(workers)}
    environment = worker_environment(load_config(None, settings), cpu=True) | place
    command = [sys.executable, "-m", "sql_agent.tests.actor_workers", str(model)]
    command += [json.dumps([str(folder), *more]) for folder, *more in plans]
    files = [logs / f"{workers}-{rank}.log" for rank in range(workers)]
    with own_run():  # ends what is left of them, and holds the file in which they meet
        processes = [
            subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | environment | {"RANK": str(rank)},
                stdout=log.open("w"),
                stderr=subprocess.STDOUT,
            )
            for rank, log in enumerate(files)
        ]
        codes = [process.wait(280) for process in processes]
    assert not any(codes), "\n".join(log.read_text()[-3000:] for log in files)


def apart(one: dict, other: dict) -> float:
    """The largest difference between two sets of weights."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def served(folder: Path, step: int) -> dict:
    from safetensors.torch import load_file

    return load_file(folder / str(step) / "actor" / "huggingface" / "model.safetensors")


class Runs:
    """Three steps by one worker and by two; two steps with small micro-batches; a step of an adapter by one and two."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model, self.one, self.two, self.few = model, folder / "one", folder / "two", folder / "few"
        self.adapter = {workers: folder / f"adapter-{workers}" for workers in (1, 2)}
        update(1, model, folder, (self.one, 1, 3), (self.adapter[1], 1, 1, "lora.rank=4"))
        # With 90 tokens the worker whose rows are lost would be done in one pass, and the other in several.
        few = self.few, 1, 2, "optim.micro_batch_tokens=90"
        update(2, model, folder, (self.two, 1, 3), few, (self.adapter[2], 1, 1, "lora.rank=4"))

    def metrics(self, folder: Path) -> list[dict]:
        return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def runs(random_policy_folder, tmp_path_factory):
    return Runs(random_policy_folder, tmp_path_factory.mktemp("workers"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_workers_end_with_the_weights_of_one_whoevers_rows_are_lost(runs):
    for step in (1, 2, 3):
        assert apart(served(runs.one, step), served(runs.two, step)) < SAME
    assert apart(served(runs.one, 1), served(runs.one, 3)) > 500 * SAME


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_their_metrics_are_means_over_the_tokens_of_both(runs):
    together = runs.metrics(runs.two)
    for one, two in zip(runs.metrics(runs.one), together, strict=True):
        names = [name for name in one if name.startswith("policy/")]
        assert {name: two[name] for name in names} == pytest.approx(
            {name: one[name] for name in names}, rel=1e-4, abs=1e-7
        )
        assert {name for name in two if not name.startswith("global_seqlen/")} == set(one)
    assert [step.get("policy/skipped_updates", 0.0) for step in together] == [0.0, 1.0, 0.0]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_workers_that_need_other_numbers_of_micro_batches_wait_for_one_another(runs):
    assert apart(served(runs.few, 2), served(runs.one, 2)) < SAME


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_adapter_is_the_same_and_merged_alike(runs):
    assert apart(served(runs.adapter[1], 1), served(runs.adapter[2], 1)) < SAME


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_workers_resume_bit_for_bit(runs, tmp_path):
    shutil.copytree(runs.two / "2", tmp_path / "2")
    update(2, runs.model, tmp_path, (tmp_path, 3, 3))  # in processes that know nothing of the first two steps
    for name in (f"{kind}_world_size_2_rank_{rank}.pt" for kind in SHARDS for rank in range(2)):
        assert state(tmp_path / "3" / "actor" / name) == state(runs.two / "3" / "actor" / name)


def state(file: Path) -> dict:
    import torch

    return {name: repr_of(value) for name, value in leaves(torch.load(file, weights_only=False))}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_their_shards_merge_to_what_one_worker_has(runs):
    merged = join_shards(runs.two / "3" / "actor")
    both = served(runs.two, 3)
    assert apart({name: merged[name] for name in both}, both) == 0.0
    assert apart(both, served(runs.one, 3)) < SAME


def test_a_checkpoint_that_lacks_files_of_a_worker_is_not_sealed(tmp_path):
    actor = tmp_path / "global_step_4" / "actor"
    actor.mkdir(parents=True)
    (actor / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 2}')
    for rank in range(2):
        for kind in SHARDS:
            (actor / f"{kind}_world_size_2_rank_{rank}.pt").write_bytes(b"share")
    assert len(describe_checkpoint(actor.parent, {})["files"]) == 7
    (actor / "optim_world_size_2_rank_1.pt").unlink()
    assert missing_shards(actor.parent) == ["optim_world_size_2_rank_1.pt"]
    with pytest.raises(CheckpointError, match=r"optim_world_size_2_rank_1.pt did not arrive; .* need the run's folder"):
        describe_checkpoint(actor.parent, {})


# a mini-batch of four tasks: six, six, three and three tokens a row beside a prompt of ten
TOKENS = [6, 6, 6, 6, 3, 3, 3, 3]


@pytest.mark.parametrize(
    ("responses", "group", "mini_batch", "expected"),
    [
        # 22 + 16 tokens each, groups whole
        pytest.param(TOKENS, 2, 8, [{0, 1, 6, 7}, {2, 3, 4, 5}], id="by_tokens"),
        # each mini-batch of two groups is shared by itself
        pytest.param(TOKENS, 2, 4, [{0, 1, 4, 5}, {2, 3, 6, 7}], id="mini_batch_by_mini_batch"),
        # one group: half of it each
        pytest.param(TOKENS[2:6], 4, 4, [{0, 1}, {2, 3}], id="a_group_is_parted_where_it_has_to_be"),
    ],
)
def test_rows_are_shared_by_the_tokens_that_are_computed(responses, group, mini_batch, expected):
    pytest.importorskip("verl")
    from sql_agent.verl_side.plugin.balance import shares

    found = shares([10] * len(responses), responses, group=group, mini_batch=mini_batch, workers=2)
    assert sorted(map(set, found), key=min) == expected
    assert len(found[0]) == len(found[1])


@pytest.mark.parametrize(("environment", "shares"), [
    pytest.param({"VERL_PLATFORM": "cpu"}, True, id="a_cpu"),
    pytest.param({"VERL_ENGINE_VENDOR": "flex_attention"}, True, id="a_gpu_with_shared_prompts"),
    pytest.param({}, False, id="another_gpu_where_verl_balances"),
])  # fmt: skip
def test_rows_are_shared_by_groups_where_a_group_is_computed_together(environment, shares, monkeypatch):
    from sql_agent.verl_side.plugin.balance import _share, shares_prompts

    class RayPPOTrainer:
        def _balance_batch(self, batch, metrics, logging_prefix="global_seqlen", keep_minibatch=False):
            metrics["rows"] = "verl's"

    for name in ("VERL_PLATFORM", "VERL_ENGINE_VENDOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert shares_prompts() is shares
    _share(SimpleNamespace(RayPPOTrainer=RayPPOTrainer))  # type: ignore[arg-type]
    metrics: dict[str, str] = {}
    if not shares:
        RayPPOTrainer()._balance_batch(None, metrics)
        assert metrics == {"rows": "verl's"}

"""Checkpoints of local runs: whole or not there, and enough to go on."""

import json
import random

import numpy as np
import pytest
import torch

from agentgrpo.checkpoints import MANIFEST, CheckpointError
from agentgrpo.checks import UsageError
from agentgrpo.settings import read_settings
from agentgrpo.signed_checkpoints import NotOursError, why_not_loadable
from sql_agent.local.learner import Learner
from sql_agent.local.policy import load_policy
from sql_agent.local.run_folder import RunFolder, newest_checkpoint, save_checkpoint
from sql_agent.settings.local import AdapterConfig, GreedyGrpoConfig, LossConfig, ModelConfig, OptimConfig


@pytest.fixture
def run(random_policy_folder):
    torch.manual_seed(0)
    policy = load_policy(random_policy_folder, adapter=AdapterConfig(rank=2), device="cpu")
    return policy, Learner(policy, OptimConfig(), LossConfig())


def test_adapter_random_numbers_counts_and_line_files_come_back(run, tmp_path):
    policy, learner = run
    folder = RunFolder(tmp_path / "run", config(tmp_path), resumed=False)
    folder.begin()
    for step in (6, 7):
        folder.log({"train_step": step})
        folder.keep({"train_step": step, "reply": "one"})
    folder.save(7, policy, learner, {"place": 7})
    written = folder.metrics.read_text(), folder.trajectories.read_text()
    weights = [p.detach().clone() for p in policy.parameters()]
    drawn = (torch.rand(3), np.random.rand(3), random.random())
    folder.log({"train_step": 8})
    folder.keep({"train_step": 8, "reply": "two"})
    with folder.metrics.open("a") as file:
        file.write('{"train_st')
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    assert RunFolder(tmp_path / "run", config(tmp_path), resumed=True).resume(policy, learner) == {"place": 7}
    assert all(map(torch.equal, weights, policy.parameters()))
    assert (folder.metrics.read_text(), folder.trajectories.read_text()) == written
    assert torch.equal(torch.rand(3), drawn[0])
    assert (np.random.rand(3) == drawn[1]).all() and random.random() == drawn[2]


@pytest.mark.parametrize("damage", ["cut", "changed", "missing", "no_manifest"])
def test_a_torn_checkpoint_is_passed_over_by_name(run, tmp_path, damage, caplog):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, *run, {"place": step})
    victim = tmp_path / "step_000002" / ("manifest.json" if damage == "no_manifest" else "training.pt")
    content = victim.read_bytes()
    if damage in ("missing", "no_manifest"):
        victim.unlink()
    else:
        victim.write_bytes(content[:-1] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    assert why_not_loadable(tmp_path / "step_000002", MANIFEST, run_dir=tmp_path) is not None
    assert newest_checkpoint(tmp_path) == tmp_path / "step_000001"
    assert "step_000002 is skipped: " in caplog.text


def test_a_run_whose_checkpoints_are_all_torn_is_not_begun_again_unasked(run, tmp_path):
    for step in (40, 60):
        save_checkpoint(tmp_path, step, *run, {})
    for step in (40, 60):
        (tmp_path / f"step_{step:06d}" / "training.pt").unlink()
    with pytest.raises(
        CheckpointError, match=r"no checkpoint in .* is whole \(step_000060: .*; step_000040: .*move these away"
    ):
        newest_checkpoint(tmp_path)
    assert save_checkpoint(tmp_path, 20, *run, {}).is_dir()  # newer ones never push it out


def test_a_checkpoint_that_this_user_did_not_sign_is_refused(run, tmp_path):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, *run, {"place": step})
    manifest = tmp_path / "step_000002" / MANIFEST
    record = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(record | {"signature": "0" * 64}))
    with pytest.raises(NotOursError, match=r"step_000002/manifest.json bears another signature than this user's"):
        newest_checkpoint(tmp_path)


def test_an_unfinished_checkpoint_is_none_and_the_two_newest_are_kept(run, tmp_path):
    assert newest_checkpoint(tmp_path) is None
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, *run, {})
    (tmp_path / "step_000004.part").mkdir()
    assert newest_checkpoint(tmp_path) == tmp_path / "step_000003"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000002", "step_000003", "step_000004.part"]


def config(folder, **changes) -> GreedyGrpoConfig:
    return GreedyGrpoConfig(model=ModelConfig(model_path="x"), run_dir=folder, **changes)


def test_a_folder_that_holds_something_is_not_written_into(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty; go on with its run by --resume, or name another"):
        RunFolder(tmp_path, config(tmp_path), resumed=False)


def test_a_run_is_resumed_with_the_settings_it_began_with(tmp_path):
    RunFolder(tmp_path / "run", config(tmp_path), resumed=False).begin()
    RunFolder(tmp_path / "run", config(tmp_path, save_every=5), resumed=True, free=["save_every"])
    with pytest.raises(UsageError, match="started with group_size = 4, now it is 8"):
        RunFolder(tmp_path / "run", config(tmp_path, group_size=8), resumed=True)
    freed = config(tmp_path, optim=OptimConfig(learning_rate=1e-7, micro_batch_tokens=64))
    RunFolder(tmp_path / "run", freed, resumed=True)
    with pytest.raises(UsageError, match=r"started with optim.weight_decay = 0.01, now it is 0.5"):
        RunFolder(tmp_path / "run", config(tmp_path, optim=OptimConfig(weight_decay=0.5)), resumed=True)
    with pytest.raises(UsageError, match="holds no run"):
        RunFolder(tmp_path / "elsewhere", config(tmp_path), resumed=True)


def test_a_run_that_an_earlier_version_began_has_the_defaults_of_settings_that_came_later(tmp_path):
    RunFolder(tmp_path, config(tmp_path), resumed=False).begin()
    saved = tmp_path / "config.yaml"
    saved.write_text(saved.read_text().replace("redraws: 0\n", ""))
    RunFolder(tmp_path, config(tmp_path), resumed=True)
    with pytest.raises(UsageError, match="started with redraws = 0, now it is 2"):
        RunFolder(tmp_path, config(tmp_path, max_resamples=2), resumed=True)


def test_a_run_is_not_resumed_without_a_file_that_it_began_with(tmp_path):
    RunFolder(tmp_path, config(tmp_path), resumed=False, own_files={"reward f": "a.py with sha256 1"}).begin()
    with pytest.raises(UsageError, match=r"started with own_files\.reward f = a.py with sha256 1, now it is None"):
        RunFolder(tmp_path, config(tmp_path), resumed=True)


def test_what_a_killed_run_wrote_before_its_first_checkpoint_is_written_anew(run, tmp_path):
    folder = RunFolder(tmp_path / "run", config(tmp_path), resumed=False)
    folder.begin()
    folder.log({"task": 1})
    again = RunFolder(tmp_path / "run", config(tmp_path), resumed=True)
    assert again.resume(*run) is None
    assert not folder.metrics.exists()


def test_what_a_policy_wrote_is_kept_whatever_it_is(tmp_path):
    folder = RunFolder(tmp_path / "run", config(tmp_path), resumed=False)
    folder.begin()
    folder.keep({"reply": "half a pair: \ud800"})
    assert json.loads(folder.trajectories.read_text())["reply"] == "half a pair: \ud800"


def test_the_finished_adapter_lies_there_whole(run, tmp_path):
    folder = RunFolder(tmp_path / "run", config(tmp_path), resumed=False)
    folder.begin()
    assert folder.finish(run[0]) == tmp_path / "run" / "adapter"
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "chat_template.jinja"} <= {
        path.name for path in (tmp_path / "run" / "adapter").iterdir()
    }
    assert read_settings(tmp_path / "run" / "config.yaml")["group_size"] == 4

"""Where one update follows a batch, its own pass gives the old log-probs: the same update, the same metrics."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentgrpo.machine import free_port
from sql_agent.settings.load import load_config
from sql_agent.tests.one_pass_worker import SETTINGS
from sql_agent.verl_side.config import Files, to_verl, worker_environment

FILES = Files(Path("model"), Path("train.parquet"), Path("val.parquet"))


@pytest.mark.parametrize(
    ("overrides", "cpu", "one"),
    [
        ([], True, True),
        ([], False, True),
        (["optim.mini_batch_size=8"], True, True),  # of the 8 tasks of a step
        (["optim.mini_batch_size=4"], True, False),
        (["verl.actor_rollout_ref.actor.ppo_epochs=2"], True, False),
        (["rollout.n_runners=1", "trainer.max_off_policy_steps=1"], True, True),
        (["rollout.n_runners=1", "trainer.max_off_policy_steps=1", "optim.mini_batch_size=4"], True, False),
        (["verl.algorithm.rollout_correction.rollout_is=sequence"], True, True),
        (
            ["trainer.max_off_policy_steps=1", "verl.algorithm.rollout_correction.rollout_is_batch_normalize=true"],
            True,
            False,
        ),
        (["verl.algorithm.rollout_correction.rollout_is_batch_normalize=true"], True, True),  # of no weights
        # verl's own engine would keep all logits of the update for their entropies
        (["verl.actor_rollout_ref.model.use_fused_kernels=false"], False, False),
        (["verl.actor_rollout_ref.model.use_fused_kernels=false", "engine.shared_prompts=flex_attention"], False, True),
    ],
)
def test_the_old_log_probs_are_the_updates_own_where_one_follows_and_nothing_needs_them_before(overrides, cpu, one):
    cfg = load_config(None, ["llm_proxy=true", *overrides])
    verl = to_verl(cfg, FILES, cpu=cpu)
    assert verl["algorithm"].get("rollout_correction", {}).get("bypass_mode", False) is one
    assert verl["actor_rollout_ref"]["actor"].get("calculate_entropy", False) is one


@pytest.mark.parametrize(
    ("shape", "overrides", "one"),
    [
        ({"attention_dropout": 0.0, "resid_pdrop": None}, [], True),
        ({"attention_dropout": 0.1}, [], False),
        ({"attn_pdrop": 0.1}, [], False),
        ({}, ["verl.actor_rollout_ref.model.override_config.attention_dropout=0.1"], False),
        ({"attention_dropout": 0.1}, ["verl.actor_rollout_ref.model.override_config.attention_dropout=0"], True),
    ],
)
def test_a_policy_with_dropout_keeps_the_pass_of_its_own(shape, overrides, one, tmp_path):
    """The update's pass drops activations; verl computes old log-probs without dropout."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"} | shape))
    verl = to_verl(load_config(None, overrides), Files(tmp_path, FILES.train, FILES.val), cpu=True)
    assert verl["algorithm"].get("rollout_correction", {}).get("bypass_mode", False) is one


LEVEL, LIMIT = (f"verl.algorithm.rollout_correction.{name}" for name in ("rollout_is", "rollout_is_threshold"))


GIVEN = {
    "float32": ["engine.precision=float32"],
    "bfloat16": ["engine.precision=bfloat16"],
    "importance_weights_of_tokens": ["engine.precision=float32", f"{LEVEL}=token", f"{LIMIT}=1.1"],
    "importance_weights_of_rollouts": ["engine.precision=float32", f"{LEVEL}=sequence"],
    "no_limit_and_so_no_weights": ["engine.precision=float32", f"{LEVEL}=token", f"{LIMIT}=null"],
}


@pytest.fixture(scope="module")
def answers(random_policy_folder):
    """What an update with two passes and one with one answer, for each list of settings; one process makes them all."""
    lists = [["loss.aggregation=seq-mean-token-mean", *given] for given in GIVEN.values()]
    cfg = load_config(None, [f"model={random_policy_folder}", *SETTINGS, *lists[0]])
    command = [sys.executable, "-m", "sql_agent.tests.one_pass_worker", str(random_policy_folder), str(free_port())]
    done = subprocess.run(
        [*command, *map(json.dumps, lists)],
        env=os.environ | worker_environment(cfg, cpu=True), capture_output=True, text=True, timeout=580,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return dict(zip(GIVEN, zip(lines[::2], lines[1::2], strict=True), strict=True))


@pytest.mark.parametrize(
    ("mask", "weights"), [([1, 1, 0], [1.5, 0.5, 0.0]), ([0, 0, 0], [0.0, 0.0, 0.0])], ids=["some", "all_lost"]
)
def test_importance_weights_are_ratios_to_the_samplers_probabilities_up_to_the_limit(mask, weights):
    import torch

    from sql_agent.verl_side.plugin.one_pass import _importance_weights

    data = {
        "old_log_probs": torch.tensor([[0.8, 0.25, 0.9]]).log(),
        "rollout_log_probs": torch.tensor([[0.2, 0.5, 0.9]]).log(),
        "response_mask": torch.tensor([mask]),
    }
    found = _importance_weights(data, {"rollout_is": "token", "rollout_is_threshold": 1.5})
    torch.testing.assert_close(found, torch.tensor([weights]))


UNLIKE = ("perf/", "actor/perf/", "actor/entropy_loss")
"""Memory and speed; and verl's second name for the entropy, which only an update that computes it logs."""


def told(metrics):
    return {name: value for name, value in metrics.items() if not name.startswith(UNLIKE)}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("given", GIVEN)
def test_the_update_is_the_same_in_every_bit_and_so_is_what_a_step_logs(given, answers):
    two, one = answers[given]
    assert one["same_weights"]
    assert told(one["metrics"]) == told(two["metrics"])
    assert one["metrics"]["policy/kl_k1"] == 0.0 and one["metrics"]["engine/alarm"] == 0.0
    assert one["metrics"]["policy/entropy"] > 1.0
    # a sampler with older weights raises the alarm as before
    wrong_two, wrong_one = (told(way["old_weights_in_the_sampler"]) for way in (two, one))
    assert wrong_one == wrong_two
    assert wrong_one["engine/alarm"] == 1.0 and wrong_one["engine/kl_k3"] > 0.0

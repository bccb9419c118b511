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


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("float32", []), id="float32"),
        pytest.param(("bfloat16", []), id="bfloat16"),
        pytest.param(("float32", [f"{LEVEL}=token", f"{LIMIT}=1.1"]), id="importance_weights_of_tokens"),
        pytest.param(("float32", [f"{LEVEL}=sequence"]), id="importance_weights_of_rollouts"),
        pytest.param(("float32", [f"{LEVEL}=token", f"{LIMIT}=null"]), id="no_limit_and_so_no_weights"),
    ],
)
def ways(request, random_policy_folder):
    """What an update with two passes and one with one answer."""
    precision, correction = request.param
    given = [f"engine.precision={precision}", "loss.aggregation=seq-mean-token-mean", *correction]
    settings = [f"model={random_policy_folder}", *SETTINGS, *given]
    done = subprocess.run(
        [sys.executable, "-m", "sql_agent.tests.one_pass_worker", str(random_policy_folder), str(free_port()), *given],
        env=os.environ | worker_environment(load_config(None, settings), cpu=True),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


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
@pytest.mark.timeout(300)
def test_the_update_is_the_same_in_every_bit_and_so_is_what_a_step_logs(ways):
    two, one = ways
    assert one["same_weights"]
    assert told(one["metrics"]) == told(two["metrics"])
    assert one["metrics"]["policy/kl_k1"] == 0.0 and one["metrics"]["engine/alarm"] == 0.0
    assert one["metrics"]["policy/entropy"] > 1.0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_sampler_with_older_weights_raises_the_alarm_as_before(ways):
    two, one = (told(way["old_weights_in_the_sampler"]) for way in ways)
    assert one == two
    assert one["engine/alarm"] == 1.0 and one["engine/kl_k3"] > 0.0

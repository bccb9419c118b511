"""`sql_agent.verl_side.allowed_keys`: every key that may be set reaches code of verl that reads it."""

import importlib.util
import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from sql_agent.credit.registry import VERLS, VERLS_ONLY
from sql_agent.settings.load import load_config
from sql_agent.verl_side.allowed_keys import ALLOWED_KEYS
from sql_agent.verl_side.config import Files, compose, to_verl

FILES = Files(Path("model"), Path("train.parquet"), Path("val.parquet"))


def whole(key):
    return f"{key}any_name" if key.endswith(".") else key


def test_every_allowed_key_reaches_verls_configuration():
    cfg = load_config(None, [f"verl.{whole(key)}={number}" for number, key in enumerate(ALLOWED_KEYS)])
    composed = compose(to_verl(cfg, FILES, cpu=False))
    found = {key: OmegaConf.select(composed, whole(key)) for key in ALLOWED_KEYS}
    assert found == {key: number for number, key in enumerate(ALLOWED_KEYS)}


@pytest.mark.parametrize("key", ALLOWED_KEYS)
def test_every_allowed_key_is_read_by_verl(key):
    module, _ = ALLOWED_KEYS[key]
    spec = importlib.util.find_spec("verl")
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).parent.joinpath(*module.split(".")[1:]).with_suffix(".py").read_text()
    name = key.removesuffix(".vllm.").rstrip(".").rpartition(".")[2]
    assert re.search(rf"""(\.|get\(["']|pop\(["']|\[["']|select\([^)]*["']){name}\b""", source)


def test_sequence_parallelism_is_refused_with_what_to_take_instead():
    key = "verl.actor_rollout_ref.actor.ulysses_sequence_parallel_size"
    with pytest.raises(ValueError, match=r"splits each row over several workers .*: cluster.workers_per_node on a CPU"):
        to_verl(load_config(None, [f"{key}=2"]), FILES, cpu=True)


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation", "text_config._attn_implementation"])
def test_an_attention_is_refused_where_the_rows_of_a_group_are_computed_together(name):
    key = f"actor_rollout_ref.model.override_config.{name}"
    cpu_or_gpu, shared = load_config(None, [f"verl.{key}=eager"]), "engine.shared_prompts=flex_attention"
    for cfg, cpu in ((cpu_or_gpu, True), (load_config(None, [f"verl.{key}=eager", shared]), False)):
        with pytest.raises(ValueError, match=f"verl.{key} chooses the attention, .*; leave the key out, or train on"):
            to_verl(cfg, FILES, cpu=cpu)
    assert OmegaConf.select(compose(to_verl(cpu_or_gpu, FILES, cpu=False)), key) == "eager"


def test_under_every_policy_loss_of_verls_an_unsampled_token_and_a_lost_rollout_move_nothing():
    """A tool result inside a row and a row that is masked whole have no gradient; every sampled token has one."""
    torch = pytest.importorskip("torch")
    core = pytest.importorskip("verl.trainer.ppo.core_algos")
    from verl.workers.config import FSDPActorConfig, FSDPOptimizerConfig, PolicyLossConfig

    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    old = torch.full((3, 3), -1.0)
    advantages = torch.tensor([[0.7], [-0.7], [0.0]]) * mask
    moved = {}
    for mode in (*VERLS.values(), "bypass_mode", *VERLS_ONLY):
        config = FSDPActorConfig(
            strategy="fsdp2", rollout_n=2, use_dynamic_bsz=True, optim=FSDPOptimizerConfig(lr=1e-3),
            policy_loss=PolicyLossConfig(loss_mode=mode, dro_beta=0.1),
        )  # fmt: skip
        config.global_batch_info.update(dp_size=1, batch_num_tokens=4, global_batch_size=3, loss_scale_factor=3)
        now = (old + 0.1).requires_grad_()
        loss, _ = core.get_policy_loss_fn(mode)(
            old_log_prob=old, log_prob=now, advantages=advantages, response_mask=mask, config=config,
            loss_agg_mode="token-mean",
        )  # fmt: skip
        loss.backward()
        moved[mode] = bool(loss.isfinite()) and torch.equal(now.grad != 0, mask.bool())
    assert set(moved.values()) == {True} and len(moved) == 12

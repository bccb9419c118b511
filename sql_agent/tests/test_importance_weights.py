"""Importance weights of rollouts that are older than the weights that they train (`trainer.max_off_policy_steps`): as
the settings ask verl for them, and as they enter our rows of the losses, which are verl's then in value and gradient.
"""

import functools
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from sql_agent.credit.registry import LOSSES, made
from sql_agent.settings.load import load_config
from sql_agent.tests.test_config import FILES
from sql_agent.tests.test_losses_parity import CLIP, verl_config
from sql_agent.verl_side.config import compose, to_verl

pytestmark = pytest.mark.slow  # imports verl


def weighed(sampler, trainer, mask):
    """verl's weights, and what it measures of them, for log-probs of the sampler and of the weights of today."""
    from verl import DataProto
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch

    cfg = load_config(None, ["trainer.max_off_policy_steps=1", "llm_proxy=true"])
    asked = compose(to_verl(cfg, FILES, cpu=True)).algorithm.rollout_correction
    tensors = {"rollout_log_probs": sampler, "old_log_probs": trainer, "response_mask": mask}
    batch, metrics = compute_rollout_correction_and_add_to_batch(DataProto.from_single_dict(tensors), asked)
    return batch.batch["rollout_is_weights"], metrics


def test_a_token_weighs_what_it_became_likelier_and_twice_at_most():
    # 1/4 of 1/2 is 0.5; 0.8 of 0.2 is 4, which is cut to 2; 1/4 of 1/4 is 1; the last one was not sampled
    sampler, trainer = torch.tensor([[0.5, 0.2, 0.25, 0.1]]).log(), torch.tensor([[0.25, 0.8, 0.25, 0.9]]).log()
    weights, metrics = weighed(sampler, trainer, torch.tensor([[1, 1, 1, 0]]))
    assert_close(weights, torch.tensor([[0.5, 2.0, 1.0, 0.0]]))
    assert metrics["rollout_corr/rollout_is_ratio_fraction_high"] == pytest.approx(1 / 3)
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(3.5 / 3)


@pytest.fixture
def losses():
    """A row of ours as the plugin registers it with verl, and verl's own."""
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla

    from sql_agent.verl_side.plugin.credit import policy_loss

    ours = functools.partial(policy_loss, made(LOSSES["grpo"], SimpleNamespace(clip_ratio=CLIP)))
    config = verl_config("token-mean", clip_ratio_c=1e9)
    return [functools.partial(loss, config=config) for loss in (ours, compute_policy_loss_vanilla)]


def with_gradient(loss, weights):
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(5, 7, generator=generator, dtype=torch.float64)
    new = (old + torch.rand(5, 7, generator=generator, dtype=torch.float64) - 0.5).requires_grad_()
    advantages = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    inputs = {"old_log_prob": old, "log_prob": new, "advantages": advantages, "response_mask": MASK}
    value, _ = loss(**inputs, loss_agg_mode="token-mean", rollout_is_weights=weights)
    return value, *torch.autograd.grad(value, new)


MASK = torch.rand(5, 7, generator=torch.Generator().manual_seed(1)) < 0.6


def test_a_weighted_loss_is_verls_in_value_and_gradient(losses):
    weights = 2 * torch.rand(5, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    ours, theirs = (with_gradient(loss, weights) for loss in losses)
    assert_close(ours, theirs)
    assert not torch.equal(ours[1], with_gradient(losses[0], None)[1])


def test_without_a_lag_every_weight_is_one_and_the_loss_is_the_unweighted_one(losses):
    log_probs = -torch.rand(5, 7, generator=torch.Generator().manual_seed(3))  # float32: sampler and trainer agree
    weights, metrics = weighed(log_probs, log_probs, MASK.long())
    assert torch.equal(weights, MASK.float())
    assert (metrics["rollout_corr/rollout_is_min"], metrics["rollout_corr/rollout_is_ratio_fraction_high"]) == (1, 0)
    for loss in losses:
        assert_close(with_gradient(loss, weights.double()), with_gradient(loss, None), rtol=0, atol=0)

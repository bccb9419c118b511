"""Registers with verl the estimator that hands on what the rollouts were credited with, and our policy losses."""

from __future__ import annotations

import functools
import os
from typing import Any

from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss, register_adv_est, register_policy_loss
from verl.utils.torch_functional import masked_mean

from sql_agent.credit.losses import Loss, LossInputs
from sql_agent.credit.registry import LOSSES, VERLS, made
from sql_agent.settings.main_job import LossConfig
from sql_agent.source.batch import CREDIT
from sql_agent.verl_side.config import ESTIMATOR, LOSS


def register() -> None:
    register_adv_est(ESTIMATOR)(credited_rows)
    settings = LossConfig.model_validate_json(os.environ.get(LOSS, "{}"))
    for name in LOSSES.keys() - VERLS.keys():
        # verl calls it by the names of its arguments, which its type leaves out
        register_policy_loss(name)(functools.partial(policy_loss, made(LOSSES[name], settings)))  # type: ignore[arg-type]


def credited_rows(response_mask: Tensor, **batch: Any) -> tuple[Tensor, Tensor]:
    """The advantages that came with the rows, and the same as returns, as in verl's GRPO; shape (B, T)."""
    advantages = batch[CREDIT] * response_mask
    return advantages, advantages


def policy_loss(loss: Loss, config: Any, loss_agg_mode: str, **batch: Any) -> tuple[Tensor, dict[str, Any]]:
    """Compute a loss as verl's `PolicyLossFn` does (core_algos.py); `ppo_loss` names its arguments."""
    log_probs, old, mask = batch["log_prob"], batch["old_log_prob"], batch["response_mask"]
    output = loss(LossInputs(log_probs, old, batch["advantages"], mask))
    weights = batch.get("rollout_is_weights")
    per_token = output.per_token if weights is None else output.per_token * weights
    metrics = {"actor/ppo_kl": masked_mean(old - log_probs, mask).item()}
    if output.clipped is not None:
        metrics["actor/pg_clipfrac"] = masked_mean(output.clipped.float(), mask).item()
    return agg_loss(per_token, mask, loss_agg_mode, **config.global_batch_info), metrics

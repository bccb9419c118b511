"""Makes the advantages of verl's batch those that the rollouts were credited with; registers our losses with verl."""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss
from verl.utils.torch_functional import masked_mean

from sql_agent.credit.losses import Loss, LossInputs
from sql_agent.credit.registry import LOSSES, VERLS, made
from sql_agent.settings.main_job import LossConfig
from sql_agent.source.batch import CREDIT
from sql_agent.verl_side.config import LOSS


def register() -> None:
    settings = LossConfig.model_validate_json(os.environ.get(LOSS, "{}"))
    for name in LOSSES.keys() - VERLS.keys():
        # verl calls it by the names of its arguments, which its type leaves out
        register_policy_loss(name)(functools.partial(policy_loss, made(LOSSES[name], settings)))  # type: ignore[arg-type]


def _take_credit(module: ModuleType) -> None:
    # An estimator that is registered with verl gets of a batch only the rewards, the mask and the groups.
    @functools.wraps(module.compute_advantage)
    def compute_advantage(
        data: Any,
        adv_estimator: Any,
        gamma: float = 1.0,
        lam: float = 1.0,
        num_repeat: int = 1,
        norm_adv_by_std_in_grpo: bool = True,
        config: Any = None,
    ) -> Any:
        """The advantages that came with the rows, and the same as returns, as in verl's GRPO; shape (B, T)."""
        data.batch["advantages"] = data.batch["returns"] = data.batch[CREDIT] * data.batch["response_mask"]
        return data

    module.compute_advantage = compute_advantage  # type: ignore[attr-defined]


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

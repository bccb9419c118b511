"""Takes the old log-probs from the update's own pass over the rows, where one update follows a batch.

verl computes the rows twice: for old log-probs, entropies and the comparison with the sampler, and for the update. If
one update follows, both passes have the same weights, so the first tells nothing that the second does not. `to_verl`
then sets verl's `bypass_mode`, which leaves the first pass out (trainer/ppo/ray_trainer.py, `fit`) and with it entropy
and comparison, and takes the sampler's log-probs for the old ones. Here the loss takes the log-probs that it has, as
TRL does, so that every ratio is 1 and nothing is approximated. Importance weights for older rollouts, which verl
computes before the update, are taken from them, too. The log-probs come back with the update's metrics, and what verl's
trainer computes of the first pass is computed from them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

# The batch's tensor of row numbers, its settings of importance weights, and the metric that brings back what the update
# computed.
ROW, CORRECTION, OF_ROWS = "row", "rollout_correction", "actor/of_rows"


class OfRows(NamedTuple):
    """What the pass over a micro-batch of B rows and T tokens computed, before the weights moved."""

    rows: Tensor
    """Numbers of the rows in the batch, shape (B,)."""
    log_probs: Tensor
    """Shape (B, T); 0 where nothing was sampled."""
    entropies: Tensor


def _take_own_log_probs(module: ModuleType) -> None:
    upstream = module.ppo_loss

    @functools.wraps(upstream)
    def ppo_loss(config: Any, model_output: Any, data: Any, dp_group: Any = None) -> Any:
        if "old_log_probs" in data:
            return upstream(config, model_output, data, dp_group)
        from verl.utils.tensordict_utils import get_non_tensor_data
        from verl.workers.utils.padding import no_padding_2_padding

        entropy = model_output["entropy"]
        data["old_log_probs"] = no_padding_2_padding(model_output["log_probs"].detach(), data)
        correction: Any = get_non_tensor_data(data, CORRECTION, None)
        if correction:
            data["rollout_is_weights"] = _importance_weights(data, correction)
        if not config.entropy_coeff:  # verl would add 0 times its gradient
            model_output = {**model_output, "entropy": entropy.detach()}
        loss, metrics = upstream(config, model_output, data, dp_group)
        entropies = no_padding_2_padding(entropy.detach(), data)
        of_rows = OfRows(*(values.cpu() for values in (data[ROW], data["old_log_probs"].float(), entropies.float())))
        return loss, metrics | {OF_ROWS: of_rows}

    module.ppo_loss = ppo_loss  # type: ignore[attr-defined]


def _importance_weights(data: Any, correction: dict[str, Any]) -> Tensor:
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

    mask = data["response_mask"]
    if not mask.any():  # every rollout of this micro-batch was lost, which verl's metrics refuse
        return torch.zeros_like(data["old_log_probs"])
    return compute_rollout_correction_weights(data["old_log_probs"] - data["rollout_log_probs"], mask, **correction)[0]


def _compare_afterwards(module: ModuleType) -> None:
    upstream = module.RayPPOTrainer._update_actor

    @functools.wraps(upstream)
    def update_actor(self: Any, batch: Any) -> Any:
        if not self.config.algorithm.rollout_correction.bypass_mode:
            return upstream(self, batch)
        del batch.batch["old_log_probs"]  # the sampler's
        batch.batch[ROW] = torch.arange(len(batch))
        correction = self.config.algorithm.rollout_correction
        if correction.rollout_is is not None and correction.rollout_is_threshold is not None:
            batch.meta_info[CORRECTION] = {key: correction[key] for key in ("rollout_is", "rollout_is_threshold")}
        output = upstream(self, batch)
        metrics = output.meta_info["metrics"]
        if computed := metrics.pop(OF_ROWS, None):  # None: every rollout was lost
            metrics |= compared(batch, computed, self.config)
        return output

    module.RayPPOTrainer._update_actor = update_actor  # type: ignore[attr-defined]


def compared(batch: Any, computed: Sequence[OfRows], config: Any) -> dict[str, float]:
    """The metrics that verl's `fit` computes before an update without `bypass_mode`; sets `old_log_probs`."""
    from verl.trainer.ppo.core_algos import agg_loss
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
    from verl.utils.debug.metrics import calculate_debug_metrics

    rows, log_probs, entropies = (torch.cat(values) for values in zip(*computed, strict=True))
    order, actor = rows.argsort(), config.actor_rollout_ref.actor
    batch.batch["old_log_probs"] = log_probs[order]
    entropy = agg_loss(
        loss_mat=entropies[order],
        loss_mask=batch.batch["response_mask"],
        loss_agg_mode=actor.loss_agg_mode,
        loss_scale_factor=actor.loss_scale_factor,
    )
    _, differences = compute_rollout_correction_and_add_to_batch(batch, config.algorithm.rollout_correction)
    return {"actor/entropy": entropy.item()} | calculate_debug_metrics(batch) | differences

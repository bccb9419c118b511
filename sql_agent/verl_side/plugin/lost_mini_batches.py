"""Leaves a mini-batch whose rows are all lost out of the update, and counts it.

verl divides a mini-batch's loss by its sampled tokens (trainer/ppo/core_algos.py, `agg_loss`). Without any, the loss is
NaN, and so are the step's means of loss, KL and gradient norm. Under verl's other aggregations the loss is 0, and AdamW
still moves the weights by its moments and by weight decay. Here there is no pass over the rows and no step of the
optimiser. The learning rate's schedule continues, because it counts train steps.
"""

from __future__ import annotations

import functools
import logging
from types import ModuleType
from typing import Any

logger = logging.getLogger(__name__)

# Metric of a mini-batch that was left out; verl prefixes it with `actor/` and sums it over the step.
SKIPPED = "skipped_updates"


def _skip(module: ModuleType) -> None:
    upstream = module.TrainingWorker.train_batch

    @functools.wraps(upstream)
    def train_batch(self: Any, data: Any) -> Any:
        return upstream(self, data) if _sampled_tokens(self, data) else _left_out(module, self, data)

    module.TrainingWorker.train_batch = train_batch  # type: ignore[attr-defined]


def _sampled_tokens(worker: Any, data: Any) -> int:
    """Sampled tokens over all workers, which take part in an update together or not at all."""
    import torch.distributed as dist
    from verl.utils.device import get_device_id

    tokens = data["loss_mask"].sum().to(get_device_id())
    dist.all_reduce(tokens, group=worker.engine.get_data_parallel_group())
    return int(tokens)


def _left_out(module: ModuleType, worker: Any, data: Any) -> Any:
    # What upstream's `train_batch` would return for an update that changes nothing.
    tu, metric = module.tu, module.Metric
    logger.warning("a mini-batch of %d rows has no judged rollout and is left out of the update", data.shape[0])
    # verl's trainer needs `mfu`, the model FLOPs utilisation
    metrics: dict[str, Any] = {SKIPPED: metric("sum", 1.0), "mfu": 0.0}
    if tu.get(data, key="update_lr_scheduler", default=False):
        metrics["lr"] = worker.engine.lr_scheduler_step()
    if not worker.engine.is_mp_src_rank_with_outputs():
        return None
    return tu.get_tensordict(tensor_dict={}, non_tensor_dict={"metrics": metrics}).cpu()

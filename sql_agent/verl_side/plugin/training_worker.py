"""Changes to verl's training worker.

- A mini-batch whose rows are all lost is left out of the update, and counted. verl divides a mini-batch's loss by its
  sampled tokens (trainer/ppo/core_algos.py, `agg_loss`). Without any, the loss is NaN, and so are the step's means of
  loss, KL and gradient norm. Under verl's other aggregations the loss is 0, and AdamW still moves the weights by its
  moments and by weight decay. Here there is no pass over the rows and no step of the optimiser. The learning rate's
  schedule continues, because it counts train steps.
- The state of recurrent layers is reset at the beginning of each chain of a row. Position ids keep the chains of a row
  apart in attention (`sql_agent.source.batch`). For recurrent layers (Qwen3.5's gated delta net), verl passes the ends
  of the rows of a micro-batch (`cu_seqlens`, workers/engine/fsdp/transformer_impl.py, `prepare_model_inputs`), and a
  state is carried to the end of a row. So a rollout's second conversation would begin with the state of the first.
- Each micro-batch is reported, on a CPU as on a GPU, to `sql_agent.verl_side.micro_batch_file`. verl computes log-probs
  and updates in one loop (same file, `forward_backward_batch`), which goes over the list that `prepare_micro_batches`
  returns. On a GPU a micro-batch counts as computed when its kernels are queued.
- The weights of LoRA runs are merged, for the checkpoint's Hugging Face folder and for a CPU's sampler. verl saves that
  folder with PEFT's names and separate adapters (utils/checkpoint/fsdp_checkpoint_manager.py), which no server loads.
  Here it holds merged weights, as in any other run. verl's own shards beside it keep the adapter separate, and resuming
  reads those. verl rounds merged weights to bfloat16 for the sampler (workers/engine/fsdp/transformer_impl.py,
  `_merged_lora_per_tensor_param`); in float32 that made a difference of 9e-3 between the sampler's probabilities and
  the actor's (measured).
- Workers begin with the run's seed, which a model with dropout needs too. verl does not seed them, so each start would
  initialise another adapter.
- TRL is hidden from verl, which patches a class of TRL for critics if TRL is installed (models/transformers/
  monkey_patch.py, `apply_monkey_patch`). TRL 1.16 no longer has that class, so no model would load.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from sql_agent import upstream_patches as patches
from sql_agent.verl_side.micro_batch_file import MicroBatches, write_progress

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


def _hide_trl(module: ModuleType) -> None:
    module.is_trl_available = lambda: False  # type: ignore[attr-defined]


def chain_ends(positions: torch.Tensor, row_ends: torch.Tensor) -> torch.Tensor:
    """The ends of the chains of a micro-batch, in the form of verl's `cu_seqlens`.

    Args:
        positions: position ids of the tokens of all rows, one row after another, shape (L,); 0 where a chain begins.
        row_ends: 0, then the end of each row, then the end of the padding if verl pads.
    Returns:
        0, then the end of each chain, then the end of the padding if there is one.
    """
    return torch.cat([(positions == 0).nonzero().flatten().to(row_ends), row_ends[row_ends >= len(positions)]])


def _end_states(module: ModuleType) -> None:
    upstream = module.FSDPEngineWithLMHead.prepare_model_inputs

    @functools.wraps(upstream)
    def prepare_model_inputs(self: Any, micro_batch: Any) -> Any:
        inputs, others = upstream(self, micro_batch)
        if "cu_seqlens" in inputs:
            ends = chain_ends(micro_batch["position_ids"].values(), inputs["cu_seqlens"])
            inputs |= {"cu_seqlens": ends, "cu_seqlens_cpu": ends.cpu()}
        return inputs, others

    module.FSDPEngineWithLMHead.prepare_model_inputs = prepare_model_inputs  # type: ignore[attr-defined]


class Reported(list):
    """
    Args:
        progress: the report before the first one.
    """

    def __init__(self, micro_batches: list[Any], progress: MicroBatches) -> None:
        super().__init__(micro_batches)
        self._progress = progress

    def __iter__(self) -> Iterator[Any]:
        for done, micro_batch in enumerate(super().__iter__()):
            write_progress(self._progress._replace(done=done))
            yield micro_batch
        write_progress(self._progress._replace(done=len(self)))


def _report(module: ModuleType) -> None:
    prepare, compute = module.prepare_micro_batches, module.FSDPEngine.forward_backward_batch
    now = MicroBatches(forward_only=True, updates=0, done=0, of=0)

    @functools.wraps(prepare)
    def prepare_micro_batches(*args: Any, **kwargs: Any) -> Any:
        micro_batches, indices = prepare(*args, **kwargs)
        first = module.torch.distributed.get_rank() == 0  # all workers have equally many
        return (Reported(micro_batches, now._replace(of=len(micro_batches))) if first else micro_batches), indices

    @functools.wraps(compute)
    def forward_backward_batch(self: Any, data: Any, loss_function: Any, forward_only: bool = False) -> Any:
        nonlocal now
        now = MicroBatches(forward_only, now.updates + (not forward_only), 0, 0)
        return compute(self, data, loss_function, forward_only)

    module.prepare_micro_batches = prepare_micro_batches  # type: ignore[attr-defined]
    module.FSDPEngine.forward_backward_batch = forward_backward_batch  # type: ignore[attr-defined]


def _seed(module: ModuleType) -> None:
    from accelerate.utils import set_seed

    upstream = module.FSDPEngine.initialize

    def initialize(self: Any) -> None:
        patches.require_patched("trainer")
        set_seed(self.engine_config.seed)
        upstream(self)

    module.FSDPEngine.initialize = initialize  # type: ignore[attr-defined]


def _save_merged(module: ModuleType) -> None:
    upstream = module.get_fsdp_full_state_dict

    def full_state_dict(model: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if not hasattr(model, "peft_config"):
            return upstream(model, *args, **kwargs)
        from verl.utils.fsdp_utils import merged_lora_context, normalize_peft_param_name

        with merged_lora_context(model, backup_adapters=True):
            state = normalize_peft_param_name(upstream(model, *args, **kwargs))
            return {name: weight.clone() for name, weight in state.items()}  # the context restores the base weights

    module.get_fsdp_full_state_dict = full_state_dict  # type: ignore[attr-defined]


def _send_float32(module: ModuleType) -> None:
    def merged_weights(self: Any) -> Iterator[tuple[str, Any]]:
        with module.merged_lora_context(self.module, backup_adapters=True):
            state = module.normalize_peft_param_name(self.module.state_dict())
            for name, weight in module.convert_weight_keys(state, self.module).items():
                whole = weight.full_tensor() if isinstance(weight, module.DTensor) else weight
                yield name, whole.detach().clone()

    module.FSDPEngine._merged_lora_per_tensor_param = merged_weights  # type: ignore[attr-defined]

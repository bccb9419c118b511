"""Merges the weights of LoRA runs, for the checkpoint's Hugging Face folder and for a CPU's sampler, and seeds workers.

verl saves that folder with PEFT's names and separate adapters (utils/checkpoint/fsdp_checkpoint_manager.py), which no
server loads. Here it holds merged weights, as in any other run. verl's own shards beside it keep the adapter separate,
and resuming reads those. verl rounds merged weights to bfloat16 for the sampler (workers/engine/fsdp/
transformer_impl.py, `_merged_lora_per_tensor_param`); in float32 that made a difference of 9e-3 between the sampler's
probabilities and the actor's (measured). verl does not seed its workers either, so each start would initialise another
adapter. Here they begin with the run's seed, which a model with dropout needs too.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from sql_agent import upstream_patches as patches


def _seed(module: ModuleType) -> None:
    from accelerate.utils import set_seed

    upstream = module.FSDPEngine.initialize

    def initialize(self: Any) -> None:
        patches.require("trainer")
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

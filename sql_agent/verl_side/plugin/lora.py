"""LoRA runs whose weights are whole wherever they go: in the checkpoint's Hugging Face folder and at a CPU's sampler.

verl saves that folder with PEFT's names, adapters apart (utils/checkpoint/fsdp_checkpoint_manager.py), which no server
loads; here it holds merged weights, like that of any other run. verl's own shards beside it keep the adapter apart, and
resuming reads those. On its way to the sampler verl rounds merged weights to bfloat16 (workers/engine/fsdp/
transformer_impl.py, `_merged_lora_per_tensor_param`), which a float32 sampler would show as 9e-3 between its
probabilities and the actor's (measured). Nor does verl seed its workers, so an adapter would begin as another one at
each start; here they begin with the run's seed, which a model with dropout needs too.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from sql_agent.verl_side import patches


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
            return {name: weight.clone() for name, weight in state.items()}  # the context puts the base weights back

    module.get_fsdp_full_state_dict = full_state_dict  # type: ignore[attr-defined]


def _send_float32(module: ModuleType) -> None:
    def merged_weights(self: Any) -> Iterator[tuple[str, Any]]:
        with module.merged_lora_context(self.module, backup_adapters=True):
            state = module.normalize_peft_param_name(self.module.state_dict())
            for name, weight in module.convert_weight_keys(state, self.module).items():
                whole = weight.full_tensor() if isinstance(weight, module.DTensor) else weight
                yield name, whole.detach().clone()

    module.FSDPEngine._merged_lora_per_tensor_param = merged_weights  # type: ignore[attr-defined]

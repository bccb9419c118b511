"""Lets new weights be loaded into a running vLLM on a CPU.

vLLM's CPU linear layers repack their weight for the kernel and drop the original (model_executor/layers/utils.py,
`dispatch_cpu_unquantized_gemm`), so the first weight sync finds no `weight_loader`. Keeping the plain weight and
torch's own linear costs nothing measurable at the sizes a CPU trains.
"""

from __future__ import annotations

from types import ModuleType

from sql_agent.verl_plugin.import_hook import after_import


def install() -> None:
    after_import("vllm.model_executor.layers.utils", _keep_plain_weights)


def _keep_plain_weights(module: ModuleType) -> None:
    import torch

    def plain_linear(layer: torch.nn.Module, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    module.dispatch_cpu_unquantized_gemm = plain_linear  # type: ignore[attr-defined]

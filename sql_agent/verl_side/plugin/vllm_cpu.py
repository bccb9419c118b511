"""Changes vLLM on a CPU: it loads new weights while it runs, and it starts without importing itself again.

Weights: vLLM's CPU linear layers repack their weight for the kernel and drop the original (model_executor/layers/
utils.py, `dispatch_cpu_unquantized_gemm`), so the first weight sync finds no `weight_loader`. Keeping the plain weight
and torch's own linear costs nothing measurable at the model sizes that a CPU trains.

Start: vLLM spawns its engine on a CPU (platforms/cpu.py) and inside Ray actors (utils/system_utils.py), because OpenMP
or Ray may be in use already. Here the parent has used neither before, so the engine is forked and inherits the imports,
which would take 15 s (measured on two cores).
"""

from __future__ import annotations

import multiprocessing
from types import ModuleType


def _keep_plain_weights(module: ModuleType) -> None:
    import torch

    def plain_linear(layer: torch.nn.Module, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear  # type: ignore[assignment]

    module.dispatch_cpu_unquantized_gemm = plain_linear  # type: ignore[attr-defined]


def _fork(module: ModuleType) -> None:
    module.get_mp_context = lambda: multiprocessing.get_context("fork")  # type: ignore[attr-defined]

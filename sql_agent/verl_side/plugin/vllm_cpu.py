"""Changes vLLM on a CPU: it loads new weights while it runs, it starts without importing itself again, and it does less
work for a token, in the same bits.

Weights: vLLM's CPU linear layers repack their weight for the kernel and drop the original (model_executor/layers/
utils.py, `dispatch_cpu_unquantized_gemm`), so the first weight sync finds no `weight_loader`. Keeping the plain weight
and torch's own linear costs nothing measurable at the model sizes that a CPU trains.

Start: vLLM spawns its engine on a CPU (platforms/cpu.py) and inside Ray actors (utils/system_utils.py), because OpenMP
or Ray may be in use already. Here the parent has used neither before, so the engine is forked and inherits the imports,
which would take 15 s (measured on two cores).

Sampling: without a compiler, vLLM norms with eight small operations and a dispatch around them (ir/ops/layernorm.py);
torch's own function is the same sum in one call, 7 % of a small model's pass. And where each row has a seed, vLLM's
sampler draws a number for every token of the vocabulary twice (v1/sample/ops/topk_topp_sampler.py), from the process's
generator and then from the row's, which replaces the first: 2 % of a pass with 8 rows, 9 % with 32.
"""

from __future__ import annotations

import multiprocessing
from types import ModuleType
from typing import Any


def _keep_plain_weights(module: ModuleType) -> None:
    import torch

    def plain_linear(layer: torch.nn.Module, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear  # type: ignore[assignment]

    module.dispatch_cpu_unquantized_gemm = plain_linear  # type: ignore[attr-defined]


def _fork(module: ModuleType) -> None:
    def get_mp_context() -> Any:
        # before the fork, because `_draw_once` is looked for in this process (`model_server`), not in the engine
        import vllm.v1.sample.ops.topk_topp_sampler  # noqa: F401

        return multiprocessing.get_context("fork")

    module.get_mp_context = get_mp_context  # type: ignore[attr-defined]


def _norm_in_one_call(module: ModuleType) -> None:
    import torch

    upstream = module.RMSNorm.forward_native

    def forward_native(self: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        weight = self.weight
        plain = self.has_weight and self.variance_size_override is None
        if not plain or x.dtype != torch.float32 or weight.dtype != torch.float32:  # upstream widens other numbers
            return upstream(self, x, residual)
        summed = x if residual is None else x + residual
        normed = torch.nn.functional.rms_norm(summed, weight.shape, weight, self.variance_epsilon)
        return normed if residual is None else (normed, summed)

    module.RMSNorm.forward_native = forward_native


def _draw_once(module: ModuleType) -> None:
    upstream = module.TopKTopPSampler.forward_cpu

    def forward_cpu(self: Any, logits: Any, generators: Any, k: Any, p: Any) -> Any:
        all_seeded = 0 < len(generators) == logits.shape[0]
        if not all_seeded or self.use_fp64_gumbel or self.logprobs_mode in module.PROCESSED_LOGPROBS_MODES:
            return upstream(self, logits, generators, k, p)
        probs = module.apply_top_k_top_p(logits, k, p).softmax(dim=-1, dtype=module.torch.float32)
        noise = module.empty_exponential_noise_like(probs, False)
        for row, generator in generators.items():
            noise[row].exponential_(generator=generator)
        return module.sample_with_exponential_noise(probs, noise), None

    module.TopKTopPSampler.forward_cpu = forward_cpu

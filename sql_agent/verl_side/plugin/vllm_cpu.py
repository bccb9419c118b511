"""Changes vLLM on a CPU: it loads new weights while it runs, it starts without importing itself again, and it does less
work for a token.

Products: vLLM's CPU linear layers repack their weight for the kernel and drop the original (model_executor/layers/
utils.py, `dispatch_cpu_unquantized_gemm`), so the first weight sync finds no `weight_loader`. Here they keep it, beside
the repacked one, which verl has made anew after each sync (workers/rollout/vllm_rollout/utils.py,
`update_weights_from_ipc`).

Start: vLLM spawns its engine on a CPU (platforms/cpu.py) and inside Ray actors (utils/system_utils.py), because OpenMP
or Ray may be in use already. Here the parent has used neither before, so the engine is forked and inherits the imports,
which would take 15 s (measured on two cores).

Norms: without a compiler, vLLM norms with eight small operations and a dispatch around them (ir/ops/layernorm.py);
torch's own function is the same sum in one call, in the same bits: 7 % of a small model's pass.

Sampling: where each row has a seed, vLLM draws a number for every token of the vocabulary from the row's generator
(v1/sample/ops/topk_topp_sampler.py), a quarter of the time of 32 requests of SmolLM2-135M. Here a row draws one number
and takes the token at that place of the cumulative probabilities: the same distribution.
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def _keep_weights(module: ModuleType) -> None:
    import torch

    upstream = module.dispatch_cpu_unquantized_gemm

    def dispatch_cpu_unquantized_gemm(layer: Any, remove_weight: bool) -> None:
        # an embedding is looked up, and the head of a model that ties them is a layer with the same weight
        if type(layer).__name__ == "VocabParallelEmbedding":
            layer.cpu_linear = torch.nn.functional.linear
            return
        upstream(layer, remove_weight=False)
        layer.cpu_linear = functools.partial(in_few_sizes, layer.cpu_linear)

    module.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm  # type: ignore[attr-defined]


def in_few_sizes(linear: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear` of x, (rows, inputs), with rows of zeros below it, so that passes have few numbers of rows.

    oneDNN compiles a product for each number of rows, which takes half a MiB and half a millisecond, and it looks the
    product up anew after each weight sync.
    """
    from torch.nn.functional import pad

    rows = len(x)
    if x.ndim != 2:  # an image encoder's rows are not the first dimension alone
        return linear(x, weight, bias)
    if rows <= 8:
        size = 1 << max(0, rows - 1).bit_length()
    else:
        step = 8 if rows <= 64 else 64
        size = -(-rows // step) * step
    return linear(x if size == rows else pad(x, (0, 0, 0, size - rows)), weight, bias)[:rows]


def _fork(module: ModuleType) -> None:
    def get_mp_context() -> Any:
        # before the fork, because `_draw_one_number` is looked for in this process (`model_server`), not in the engine
        import vllm.v1.sample.ops.topk_topp_sampler  # noqa: F401

        return multiprocessing.get_context("fork")

    module.get_mp_context = get_mp_context  # type: ignore[attr-defined]


def _norm_in_one_call(module: ModuleType) -> None:
    import torch

    upstream = module.RMSNorm.forward_native

    def forward_native(self: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        weight = self.weight
        if not self.has_weight or self.variance_size_override is not None or x.dtype != weight.dtype:
            return upstream(self, x, residual)
        wide = x.float()
        summed = wide if residual is None else wide + residual
        # vLLM rounds to a narrower dtype before it multiplies with a weight of that dtype
        in_one = weight if weight.dtype == torch.float32 else None
        normed = torch.nn.functional.rms_norm(summed, weight.shape, in_one, self.variance_epsilon)
        if in_one is None:
            normed = normed.to(x.dtype) * weight
        return normed if residual is None else (normed, summed.to(x.dtype))

    module.RMSNorm.forward_native = forward_native


def _draw_one_number(module: ModuleType) -> None:
    import torch

    upstream = module.TopKTopPSampler.forward_cpu

    def forward_cpu(self: Any, logits: Any, generators: Any, k: Any, p: Any) -> Any:
        if not 0 < len(generators) == len(logits) or self.use_fp64_gumbel:
            return upstream(self, logits, generators, k, p)
        logits = module.apply_top_k_top_p(logits, k, p)
        processed = None
        if self.logprobs_mode == "processed_logits":
            processed = logits
        elif self.logprobs_mode == "processed_logprobs":  # verl's default
            processed = logits.log_softmax(dim=-1, dtype=torch.float32)
        uniform = [torch.rand(1, generator=generators[row], dtype=torch.float64) for row in range(len(logits))]
        return inverse_transform(logits.softmax(dim=-1, dtype=torch.float32), torch.cat(uniform)), processed

    module.TopKTopPSampler.forward_cpu = forward_cpu


def inverse_transform(probs: Tensor, uniform: Tensor) -> Tensor:
    """Tokens sampled by the inverse of their distribution function.

    Args:
        probs: float32, rows times vocabulary.
        uniform: float64, a number in [0, 1) for each row.
    Returns:
        int64, the row's first token up to which the probabilities sum to more than its number. Its probability is above
        0, wherever rounding puts the number.
    """
    import torch

    width = 128  # sums of all tokens in float64 would take twice the memory of the logits, eight times as long
    blocks = torch.nn.functional.pad(probs, (0, -probs.shape[1] % width)).unflatten(1, (-1, width))
    ends = blocks.sum(-1, dtype=uniform.dtype).cumsum(-1)
    at = uniform[:, None] * ends[:, -1:]  # below the end, since the number is at most 1 - 2**-53
    # what is not a number is above every sum; vLLM's own sampler gives some token for it, too
    block = torch.searchsorted(ends, at, right=True).clamp_max(ends.shape[1] - 1)
    inside = blocks.take_along_dim(block[:, :, None], 1)[:, 0].cumsum(-1, dtype=uniform.dtype)
    at = (at - (ends.gather(1, block) - inside[:, -1:])).clamp_min(0)  # rounding may put it before the block
    return (width * block + torch.searchsorted(inside, at, right=True))[:, 0].clamp_max(probs.shape[1] - 1)

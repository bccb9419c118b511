"""Computes log-probs and entropies of tokens without keeping their logits, a tile of the vocabulary at a time.

verl's own `FusedLinearForPPOFunction` takes some positions and the whole vocabulary at a time: the gradient of the
output layer (113 MB for SmolLM2-135M) is added up once for each of these chunks, and six copies of its logits are made.
A tile of the vocabulary has the whole gradient of its own weights, and its logits fit into the cache. The backward pass
knows the sums over the vocabulary already, so it takes one tile at a time as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from sql_agent.matmul_onednn import matmul_onednn, rounded_factors

TILE, TILE_ON_GPU = 2**21, 2**26
"""Logits that exist at a time: 8 MiB in float32, which a CPU's cache holds, and 256 MiB, so that a GPU has products of
a useful size (not measured there). The forward pass keeps a copy of them."""


class LogProbs(torch.autograd.Function):
    """`apply(hidden, weight, labels, temperature, rounded)`: what the model says about the labels.

    Args:
        hidden: shape (K, D).
        weight: of the output layer, shape (V, D), in the dtype of `hidden`. Products are in that; all else is float32.
        labels: shape (K,).
        temperature: divisor of the logits, above 0.
        rounded: whether oneDNN rounds the factors of float32 products to bfloat16; on a CPU alone.
    Returns:
        Log-probs and entropies in nats, in float32, and whether no token is likelier, all of shape (K,).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, temperature: float, rounded: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        largest = hidden.new_full((len(hidden),), -torch.inf, dtype=torch.float32)
        # sums of exp(z) and of exp(z) z over the vocabulary, where z is a logit minus the largest one so far
        total, weighted, chosen = (torch.zeros_like(largest) for _ in range(3))
        powers = largest.new_empty(0)  # one for all tiles: newly allocated memory costs as much as what is done with it
        for start, _, logits in _tiles(hidden, weight, temperature, rounded):
            before, largest = largest, torch.maximum(largest, logits.amax(-1))
            inside, column = _columns(labels, start, logits)
            chosen = torch.where(inside, logits.gather(-1, column[:, None])[:, 0], chosen)
            logits -= largest[:, None]
            powers = torch.exp(logits, out=powers.resize_(logits.shape))
            # what was summed so far was measured from a smaller logit; there is nothing before the first tile
            step = torch.where(total > 0, before - largest, 0.0)
            weighted = (weighted + total * step) * step.exp()
            total = total * step.exp() + powers.sum(-1)
            weighted += powers.mul_(logits).sum(-1)
        log_total = total.log()
        entropies = log_total - weighted / total
        ctx.save_for_backward(hidden, weight, labels, largest + log_total, entropies)
        ctx.temperature, ctx.rounded = temperature, rounded
        ctx.set_materialize_grads(False)
        likeliest = chosen == largest
        ctx.mark_non_differentiable(likeliest)
        return chosen - largest - log_total, entropies, likeliest

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, labels, log_totals, entropies = ctx.saved_tensors
        of_log_probs, of_entropies, _ = gradients
        to_hidden = torch.zeros_like(hidden, dtype=torch.float32) if ctx.needs_input_grad[0] else None
        to_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        for start, part, logits in _tiles(hidden, weight, ctx.temperature, ctx.rounded):
            inside, column = _columns(labels, start, logits)
            logits -= log_totals[:, None]
            # d log_prob / d logit = [it is the label] - p; d entropy / d logit = -p (log p + entropy)
            factor = 0.0 if of_log_probs is None else -of_log_probs[:, None]
            if of_entropies is not None:
                factor = factor - of_entropies[:, None] * (logits + entropies[:, None])
            to_logits = logits.exp_().mul_(factor)
            if of_log_probs is not None:
                to_logits.scatter_add_(-1, column[:, None], torch.where(inside, of_log_probs, 0.0)[:, None])
            if ctx.temperature != 1:
                to_logits /= ctx.temperature
            to_logits = to_logits.to(hidden.dtype)
            if to_hidden is not None:
                to_hidden += _product(to_logits, part, ctx.rounded)
            if to_weight is not None:
                to_weight[start : start + len(part)] = _product(to_logits.t(), hidden, ctx.rounded)
        return None if to_hidden is None else to_hidden.to(hidden.dtype), to_weight, None, None, None, None


def _tiles(hidden: Tensor, weight: Tensor, temperature: float, rounded: bool) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield the start of each tile, its rows of the weight, and its logits, shape (K, tile), which the caller may
    change until the next one."""
    tile = TILE if hidden.device.type == "cpu" else TILE_ON_GPU
    width = min(len(weight), max(1, tile // max(1, len(hidden))))
    room = hidden.new_empty(0)
    for start in range(0, len(weight), width):
        part = weight[start : start + width]
        logits = _product(hidden, part.t(), rounded, room).float()
        if temperature != 1:
            logits /= temperature
        yield start, part, logits


def _product(a: Tensor, b: Tensor, rounded: bool, room: Tensor | None = None) -> Tensor:
    """`a @ b`. A product of rounded factors is written into `room`, whatever size that had."""
    if not rounded:
        return matmul_onednn(a, b)
    with rounded_factors():
        return torch.mm(a, b, out=None if room is None else room.resize_(len(a), b.shape[1]))


def _columns(labels: Tensor, start: int, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Whether each label is in the tile, and its column there."""
    column = labels - start
    return (column >= 0) & (column < logits.shape[-1]), column.clamp(0, logits.shape[-1] - 1)

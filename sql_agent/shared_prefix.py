"""Attention of rows whose shared prefix is computed once (`sql_agent.packed_rows`), a segment at a time.

Leaves out capped scores.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sql_agent.matmul_onednn import matmul_onednn
from sql_agent.packed_rows import Segment

SCORES = 2**18
"""Scores that exist at a time: 1 MiB in float32, which a core's cache holds."""
SMALL = 2**24
"""Multiplications of queries and keys below which torch's attention is faster: it is one call a segment."""
MOST_COPIED = 8
"""Tokens whose keys torch's attention copies for each segment, and autograd keeps, as a multiple of the sequence."""


def shared_prefix_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    *,
    segments: tuple[Segment, ...],
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Compute causal attention within each row, for rows that `pack_rows` has packed.

    Args:
        module: the attention layer; named in errors.
        query: shape (1, heads, L, D).
        key: shape (1, kv_heads, L, D); heads is a multiple of kv_heads.
        value: as `key`.
        attention_mask: None; the segments take its place.
        scaling: factor of the products; None: 1 / sqrt(D).
        segments: of `PackedRows`, in the order of the sequence.
        dropout: probability with which a weight is left out; transformers passes 0 outside of training.
        sliding_window: of the layer: how many tokens of its row a token sees, itself counted; None: all before it.
        softcap: of the layer; has to be None.
    Returns:
        Shape (1, L, heads, D), as transformers' attention functions return it, and no weights.
    Raises:
        NotImplementedError: the layer caps its scores.
    """
    check_not_capped(module, softcap)
    if torch.is_autocast_enabled(query.device.type):  # as torch's attention does; rotary embeddings made them float32
        query, key, value = (each.to(torch.get_autocast_dtype(query.device.type)) for each in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    work = max(segment.length * (segment.depth + segment.length) for segment in segments)
    copied = sum(segment.depth for segment in segments)
    large = query.shape[1] * query.shape[-1] * work >= SMALL or copied > MOST_COPIED * query.shape[2]
    if large and not dropout:
        with torch.autocast(query.device.type, enabled=False):
            attended = SegmentsAttention.apply(query[0], key[0], value[0], segments, scale, sliding_window)[None]
    else:
        attended = _by_torch(query, key, value, segments, dropout, scale, sliding_window)
    return attended.transpose(1, 2).contiguous(), None


def check_not_capped(module: torch.nn.Module, softcap: float | None) -> None:
    """
    Raises:
        NotImplementedError: the layer caps its scores.
    """
    if softcap is not None:
        raise NotImplementedError(
            f"{type(module).__name__} caps its attention scores (softcap={softcap}), which rows that are computed "
            "together do not support: train on a GPU without shared_prompts"
        )


def _by_torch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segments: tuple[Segment, ...],
    dropout: float,
    scale: float,
    window: int | None,
) -> Tensor:
    lengths = [segment.length for segment in segments]
    queries, keys, values = query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2)
    attended = []
    for number, segment in enumerate(segments):
        seen = [*segment.ancestors, number]
        states = [
            torch.cat([each[s] for s in seen], 2) if segment.ancestors else each[number] for each in (keys, values)
        ]
        mask = segment.mask if segment.ancestors else None
        if window is not None and window < segment.depth + segment.length:
            mask = segment.mask.triu(segment.depth - window + 1)
        attended.append(
            scaled_dot_product_attention(
                queries[number],
                *states,
                attn_mask=mask,
                dropout_p=dropout,
                is_causal=mask is None,
                scale=scale,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        )
    return torch.cat(attended, 2)


class SegmentsAttention(torch.autograd.Function):
    """Attention of packed rows: `apply(query, key, value, segments, scale, window)`, shape (heads, L, E).

    torch's kernel for CPUs (`_scaled_dot_product_flash_attention_for_cpu`) multiplies small blocks by MKL, and takes
    three to four times as long on an AMD EPYC. Here the scores and their gradients are float32 and all other products
    in the dtype of `query`, as there. Scores are computed twice and never kept.

    Args:
        query: shape (heads, L, D).
        key: shape (kv_heads, L, D); heads is a multiple of kv_heads.
        value: shape (kv_heads, L, E).
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        segments: tuple[Segment, ...],
        scale: float,
        window: int | None,
    ) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.segments, ctx.scale, ctx.window = segments, scale, window
        attended = query.new_empty(*query.shape[:2], value.shape[-1])
        exact_query, exact_key = _exact(query) * scale, _exact(key)
        for segment, places in _places(segments):
            keys, values = (_seen(each, places) for each in (exact_key, value))
            for heads, rows, head, seen in _blocks(segment, len(query) // len(key), len(key), window):
                weights = _weights(exact_query[heads, rows], keys[head, seen], window)
                own = matmul_onednn(weights.to(value.dtype), values[head, seen])
                attended[heads, rows] = own.view(-1, rows.stop - rows.start, own.shape[-1])
        return attended

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        query, key, value = ctx.saved_tensors
        exact_query, exact_key, exact_value, exact_gradient = map(_exact, (query, key, value, gradient))
        exact_query = exact_query * ctx.scale
        to_query = torch.empty_like(query)
        to_key, to_value = torch.zeros_like(exact_key), torch.zeros_like(exact_value)
        for segment, places in _places(ctx.segments):
            keys, exact_keys, exact_values = (_seen(each, places) for each in (key, exact_key, exact_value))
            to_keys, to_values = torch.zeros_like(exact_keys), torch.zeros_like(exact_values)
            for heads, rows, head, seen in _blocks(segment, len(query) // len(key), len(key), ctx.window):
                weights = _weights(exact_query[heads, rows], exact_keys[head, seen], ctx.window)
                to_values[head, seen] += matmul_onednn(weights.to(value.dtype).t(), _flat(gradient[heads, rows]))
                to_weights = matmul_onednn(_flat(exact_gradient[heads, rows]), exact_values[head, seen].t())
                to_scores = torch.ops.aten._softmax_backward_data(to_weights, weights, -1, weights.dtype)
                to_scores = to_scores.mul_(ctx.scale).to(query.dtype)
                to_query[heads, rows] = matmul_onednn(to_scores, keys[head, seen]).view_as(query[heads, rows])
                to_keys[head, seen] += matmul_onednn(to_scores.t(), _flat(query[heads, rows]))
            start = 0
            for place in places:
                end = start + place.stop - place.start
                to_key[:, place] += to_keys[:, start:end]
                to_value[:, place] += to_values[:, start:end]
                start = end
        return to_query, to_key.to(key.dtype), to_value.to(value.dtype), None, None, None


def _exact(states: Tensor) -> Tensor:
    return states.to(torch.promote_types(torch.float32, states.dtype))


def _flat(states: Tensor) -> Tensor:
    return states.reshape(-1, states.shape[-1])


def _places(segments: tuple[Segment, ...]) -> Iterator[tuple[Segment, list[slice]]]:
    """Yield each segment, and where the tokens that it sees stand in the sequence, itself last."""
    for segment in segments:
        seen = [*(segments[number] for number in segment.ancestors), segment]
        yield segment, [slice(each.start, each.start + each.length) for each in seen]


def _seen(states: Tensor, places: list[slice]) -> Tensor:
    return torch.cat([states[:, place] for place in places], 1)


def _blocks(
    segment: Segment, group: int, kv_heads: int, window: int | None
) -> Iterator[tuple[slice, slice, int, slice]]:
    """Yield the heads and rows of blocks of queries, about equally long, the head of their keys, and the tokens that
    the block sees, by their position in the row."""
    scores = group * segment.length * (segment.depth + segment.length)
    rows = math.ceil(segment.length / max(1, round(scores / SCORES)))
    for head in range(kv_heads):
        for start in range(0, segment.length, rows):
            end = min(start + rows, segment.length)
            place = slice(segment.start + start, segment.start + end)
            first = 0 if window is None else max(0, segment.depth + start - window + 1)
            yield slice(head * group, (head + 1) * group), place, head, slice(first, segment.depth + end)


def _weights(queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """What each of the last R tokens gives to each of M, shape (group * R, M).

    Args:
        queries: shape (group, R, D), times the scale.
        keys: shape (M, D).
    """
    group, rows, _ = queries.shape
    scores = matmul_onednn(_flat(queries), keys.t())
    by_head = scores.view(group, rows, -1)
    by_head[..., -rows:] += _later(rows, scores.dtype, scores.device)
    if window is not None and window < len(keys):
        by_head += _far(rows, len(keys), window, scores.dtype, scores.device)
    return scores.softmax(-1)


@functools.lru_cache(maxsize=32)
def _later(rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((rows, rows), -torch.inf, dtype=dtype, device=device).triu(1)


@functools.lru_cache(maxsize=32)
def _far(rows: int, keys: int, window: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((rows, keys), -torch.inf, dtype=dtype, device=device).tril(keys - rows - window)

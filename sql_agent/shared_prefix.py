"""Attention of rows whose shared prefix is computed once (`sql_agent.packed_rows`), a segment at a time.

Leaves out capped scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sql_agent.matmul_onednn import matmul_onednn, rounded_factors
from sql_agent.packed_rows import Segment, ends_of

SCORES = 2**22
"""Scores that exist at a time: 16 MiB in float32. Smaller blocks take more calls."""
LARGE = 2**22
"""Multiplications from which on a product goes by oneDNN, whose calls cost more than MKL's. Two sizes were measured: at
2^20 MKL is faster, at 2^28 oneDNN."""
SMALL = 2**21
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

    A token's scores stand by position in the row, so one softmax serves all tokens of a block. The tokens that see a
    segment follow one another, and are multiplied with it at once. Everything is added up in float32. Scores are
    computed twice and never kept.

    torch's kernel for CPUs (`_scaled_dot_product_flash_attention_for_cpu`) took thirteen times as long with gradients
    as without (archive/log.md).

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
        group, rounded = len(query) // len(key), query.dtype is torch.bfloat16
        queries, keys, values = _by_token(query, group), _exact(key), _exact(value)
        attended = queries.new_zeros(*queries.shape[:2], value.shape[-1])
        for rows, width, places in _blocks(segments, group, window):
            mask = _mask(segments, rows, width, window, queries)
            for head in range(len(keys)):
                weights = _weights(queries[head], keys[head], places, mask, scale, rounded)
                for place in places:
                    _add_product(
                        attended[head, place.rows],
                        weights[place.own, place.columns],
                        values[head, place.keys],
                        rounded,
                    )
        return _by_head(attended, group).to(value.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        query, key, value = ctx.saved_tensors
        group, scale, rounded = len(query) // len(key), ctx.scale, query.dtype is torch.bfloat16
        queries, keys, values = _by_token(query, group), _exact(key), _exact(value)
        gradients = _by_token(gradient, group)
        to_queries, to_keys, to_values = map(torch.zeros_like, (queries, keys, values))
        for rows, width, places in _blocks(ctx.segments, group, ctx.window):
            mask = _mask(ctx.segments, rows, width, ctx.window, queries)
            for head in range(len(keys)):
                weights = _weights(queries[head], keys[head], places, mask, scale, rounded)
                to_scores = torch.zeros_like(weights)
                for place in places:
                    above = gradients[head, place.rows]
                    _add_product(to_scores[place.own, place.columns], above, values[head, place.keys].t(), rounded)
                    seen = weights[place.own, place.columns].t()
                    _add_product(to_values[head, place.keys], seen, above, rounded)
                to_scores = torch.ops.aten._softmax_backward_data(to_scores, weights, -1, weights.dtype)
                for place in places:
                    own = to_scores[place.own, place.columns]
                    _add_product(to_queries[head, place.rows], own, keys[head, place.keys], rounded, scale)
                    _add_product(to_keys[head, place.keys], own.t(), queries[head, place.rows], rounded, scale)
        return (
            _by_head(to_queries, group).to(query.dtype),
            to_keys.to(key.dtype),
            to_values.to(value.dtype),
            None,
            None,
            None,
        )


def _exact(states: Tensor) -> Tensor:
    return states.to(torch.promote_types(torch.float32, states.dtype))


def _by_token(states: Tensor, group: int) -> Tensor:
    """Put the heads that share keys beside one another: (heads, L, D) to (kv_heads, L * group, D)."""
    heads, length, width = states.shape
    by_token = _exact(states).view(heads // group, group, length, width).transpose(1, 2)
    return by_token.reshape(heads // group, length * group, width)


def _by_head(states: Tensor, group: int) -> Tensor:
    """The inverse of `_by_token`."""
    kv_heads, rows, width = states.shape
    return states.view(kv_heads, rows // group, group, width).transpose(1, 2).reshape(-1, rows // group, width)


class _Place(NamedTuple):
    """The tokens of a block that see a segment, and what they see of it."""

    rows: slice
    """The tokens, among all of them times the group."""
    own: slice
    """The same, counted from the beginning of the block."""
    columns: slice
    """The positions of the seen tokens in their rows."""
    keys: slice
    """The seen tokens in the sequence."""


def _blocks(segments: tuple[Segment, ...], group: int, window: int | None) -> Iterator[tuple[range, int, list[_Place]]]:
    """Yield the tokens of each block, the positions that they see, and its places."""
    length = segments[-1].start + segments[-1].length
    widest = max(segment.depth + segment.length for segment in segments)
    count = math.ceil(length / max(1, SCORES // (group * widest)))
    size = math.ceil(length / count)
    ends, positions = ends_of(segments), _positions(segments)
    for first in range(0, length, size):
        last = min(first + size, length)
        places = []
        for segment, end in zip(segments, ends, strict=True):
            start, stop = max(first, segment.start), min(last, end)
            if start >= stop:
                continue
            # the first of the segment's tokens that one of these sees, and the one after the last
            begin, seen = 0, min(segment.length, stop - segment.start)
            if window is not None:
                begin = max(0, int(positions[start:stop].min()) - window + 1 - segment.depth)
            if begin < seen:
                rows = slice(start * group, stop * group)
                own = slice((start - first) * group, (stop - first) * group)
                columns = slice(segment.depth + begin, segment.depth + seen)
                places.append(_Place(rows, own, columns, slice(segment.start + begin, segment.start + seen)))
        yield range(first, last), max(place.columns.stop for place in places), places


def _positions(segments: tuple[Segment, ...]) -> Tensor:
    """The position of each token in its row, shape (L,)."""
    return torch.cat([torch.arange(each.depth, each.depth + each.length) for each in segments])


def _mask(segments: tuple[Segment, ...], rows: range, width: int, window: int | None, like: Tensor) -> Tensor:
    """-inf where a token does not see a position, else 0, shape (rows, width)."""
    own, seen = _positions(segments)[rows.start : rows.stop, None], torch.arange(width)
    hidden = seen > own
    if window is not None:
        hidden |= seen <= own - window
    return like.new_zeros(len(rows), width).masked_fill_(hidden, -torch.inf)


def _weights(queries: Tensor, keys: Tensor, places: list[_Place], mask: Tensor, scale: float, rounded: bool) -> Tensor:
    """The attention weights of a block's tokens, by position, shape (rows * group, width)."""
    group = places[-1].own.stop // len(mask)
    scores = mask.repeat_interleave(group, 0)
    for place in places:
        _add_product(scores[place.own, place.columns], queries[place.rows], keys[place.keys].t(), rounded, scale)
    return scores.softmax(-1)


def _add_product(into: Tensor, a: Tensor, b: Tensor, rounded: bool, scale: float = 1.0) -> None:
    """Add `scale * a @ b` in float32; the factors of a large product may be rounded to bfloat16."""
    if a.numel() * b.shape[1] < LARGE or into.dtype is not torch.float32:
        into.addmm_(a, b, alpha=scale)
    elif rounded:
        with rounded_factors():
            into.addmm_(a, b, alpha=scale)
    else:
        into.add_(matmul_onednn(a, b), alpha=scale)

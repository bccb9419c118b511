"""Computes the shared prefix of rows only once.

The rollouts of a group share their first prompt and often their first turns. Computed separately, a prompt of 440
tokens costs more in each of the eight rows than the 310 tokens that are trained. Here the rows of a micro-batch become
a trie: one sequence of segments. A segment holds tokens that the same rows share. It attends to the segments before it
in those rows and, causally, to itself. Every token keeps its position in its row, so log-probs and gradients are those
of separate rows up to rounding (Tree Training, arXiv:2511.00413, does the same for GPUs).

A rollout of several conversations is a row of several chains, and each chain is packed like a row.

Leaves out sliding windows and capped scores; a row may hold any number of turns.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sql_agent.cpu_products import product

SCORES = 2**18
"""Scores that exist at a time: 1 MiB in float32, which a core's cache holds."""
SMALL = 2**24
"""Multiplications of queries and keys below which torch's attention is faster: it is one call."""


@dataclass(frozen=True)
class Segment:
    """Tokens that the same rows share."""

    start: int
    """Start of the segment in the packed sequence."""
    length: int
    depth: int
    """Position of its first token in its rows."""
    ancestors: tuple[int, ...]
    """Numbers of the segments that precede it in its rows, the first one first."""

    @functools.cached_property
    def mask(self) -> torch.Tensor:
        """Shape (length, depth + length): all before the segment, then causal within it."""
        return torch.ones(self.length, self.depth + self.length, dtype=torch.bool).tril(self.depth)


@dataclass(frozen=True)
class PackedRows:
    """Rows as one sequence that contains each shared prefix once."""

    input_ids: torch.Tensor
    """Shape (L,)."""
    position_ids: torch.Tensor
    """Shape (L,): the position of each token in its rows."""
    segments: tuple[Segment, ...]
    places: tuple[torch.Tensor, ...]
    """For each row, the indices of its tokens in the packed sequence; shape (length of the row,)."""


def pack_rows(rows: Sequence[list[int]]) -> PackedRows:
    """Pack rows of token ids so that each shared prefix is computed once.

    Args:
        rows: token ids, each row with at least one.
    Raises:
        ValueError: a row is empty.
    """
    if not all(len(row) for row in rows):
        raise ValueError("a row without tokens cannot be packed")
    ids: list[int] = []
    positions: list[int] = []
    segments: list[Segment] = []
    places: list[list[int]] = [[] for _ in rows]
    # members, the depth at which they split from the others, their ancestors
    branches: list[tuple[list[int], int, tuple[int, ...]]] = [(list(range(len(rows))), 0, ())]
    while branches:
        members, depth, ancestors = branches.pop()
        shared = shared_beginning([rows[m][depth:] for m in members])
        if shared:
            segment = Segment(len(ids), len(shared), depth, ancestors)
            for m in members:
                places[m] += range(segment.start, segment.start + segment.length)
            ancestors = (*ancestors, len(segments))
            segments.append(segment)
            ids += shared
            positions += range(depth, depth + len(shared))
        depth += len(shared)
        by_next_token: dict[int, list[int]] = {}
        for m in members:
            if len(rows[m]) > depth:
                by_next_token.setdefault(rows[m][depth], []).append(m)
        branches += [(parting, depth, ancestors) for parting in reversed(by_next_token.values())]
    return PackedRows(
        torch.tensor(ids), torch.tensor(positions), tuple(segments), tuple(torch.tensor(place) for place in places)
    )


def pack_chains(rows: Sequence[Sequence[list[int]]]) -> PackedRows:
    """Pack rows of several chains each, as if every chain were a row.

    Args:
        rows: the token ids of each row's chains.
    Returns:
        The packed rows; `places` has one entry per row, with the indices of its chains one after another.
    """
    packed = pack_rows([chain for row in rows for chain in row])
    places = iter(packed.places)
    return replace(packed, places=tuple(torch.cat([next(places) for _ in row]) for row in rows))


def shared_beginning(rows: Sequence[list[int]]) -> list[int]:
    first, last = min(rows), max(rows)  # in sorted order, all rows share the common prefix of these two
    end = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:end]


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
        sliding_window: of the layer, in tokens; the longest row has to fit into it.
        softcap: of the layer; has to be None.
    Returns:
        Shape (1, L, heads, D), as transformers' attention functions return it, and no weights.
    Raises:
        NotImplementedError: the layer needs something other than full causal attention.
    """
    check_full_causal(module, segments, sliding_window, softcap)
    if torch.is_autocast_enabled(query.device.type):  # as torch's attention does; rotary embeddings made them float32
        query, key, value = (each.to(torch.get_autocast_dtype(query.device.type)) for each in (query, key, value))
    lengths = [segment.length for segment in segments]
    queries, keys, values = query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2)
    grouped = query.shape[1] != key.shape[1]
    attended = []
    for number, segment in enumerate(segments):
        seen = [*segment.ancestors, number]
        states = [
            torch.cat([each[s] for s in seen], 2) if segment.ancestors else each[number] for each in (keys, values)
        ]
        if not dropout and queries[number].numel() * (segment.depth + segment.length) >= SMALL:
            scale = query.shape[-1] ** -0.5 if scaling is None else scaling
            with torch.autocast(query.device.type, enabled=False):
                whole = LastTokensAttention.apply(queries[number][0], states[0][0], states[1][0], scale)
            attended.append(whole[None])
            continue
        mask = segment.mask if segment.ancestors else None
        attended.append(
            scaled_dot_product_attention(
                queries[number],
                *states,
                attn_mask=mask,
                dropout_p=dropout,
                is_causal=mask is None,
                scale=scaling,
                enable_gqa=grouped,
            )
        )
    return torch.cat(attended, 2).transpose(1, 2).contiguous(), None


class LastTokensAttention(torch.autograd.Function):
    """Causal attention of the last N of M tokens: `apply(query, key, value, scale)`, shape (heads, N, E).

    torch's kernel for CPUs (`_scaled_dot_product_flash_attention_for_cpu`) multiplies small blocks by MKL, and takes
    three to four times as long on an AMD EPYC. Here the scores and their gradients are float32 and all other products
    in the dtype of `query`, as there. Scores are computed twice and never kept.

    Args:
        query: shape (heads, N, D).
        key: shape (kv_heads, M, D); heads is a multiple of kv_heads.
        value: shape (kv_heads, M, E).
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.scale = scale
        attended = query.new_empty(*query.shape[:2], value.shape[-1])
        for heads, rows, head, seen in _blocks(query, key):
            queries, keys, values = query[heads, rows], key[head, :seen], value[head, :seen]
            weights = _weights(queries, keys, scale).to(value.dtype)
            attended[heads, rows] = product(weights, values).view(*queries.shape[:2], -1)
        return attended

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value = ctx.saved_tensors
        exact = torch.promote_types(torch.float32, query.dtype)
        to_query = torch.empty_like(query)
        to_key, to_value = (torch.zeros_like(each, dtype=exact) for each in (key, value))
        for heads, rows, head, seen in _blocks(query, key):
            queries, keys, values = query[heads, rows], key[head, :seen], value[head, :seen]
            above = gradient[heads, rows].reshape(-1, value.shape[-1])
            weights = _weights(queries, keys, ctx.scale)
            to_value[head, :seen] += product(weights.to(value.dtype).t(), above)
            to_weights = product(above.to(exact), values.to(exact).t())
            to_scores = (
                torch.ops.aten._softmax_backward_data(to_weights, weights, -1, exact).mul_(ctx.scale).to(query.dtype)
            )
            to_query[heads, rows] = product(to_scores, keys).view_as(queries)
            to_key[head, :seen] += product(to_scores.t(), queries.reshape(-1, queries.shape[-1]))
        return to_query, to_key.to(key.dtype), to_value.to(value.dtype), None


def _blocks(query: Tensor, key: Tensor) -> Iterator[tuple[slice, slice, int, int]]:
    """Yield the heads and rows of blocks of queries, the head of their keys, and how many tokens the last row sees."""
    group, rows, before = len(query) // len(key), query.shape[1], key.shape[1] - query.shape[1]
    at_a_time = max(1, SCORES // (group * key.shape[1]))
    for head in range(len(key)):
        for start in range(0, rows, at_a_time):
            end = min(start + at_a_time, rows)
            yield slice(head * group, (head + 1) * group), slice(start, end), head, before + end


def _weights(queries: Tensor, keys: Tensor, scale: float) -> Tensor:
    """What each of the last R tokens gives to each of M, shape (group * R, M).

    Args:
        queries: shape (group, R, D).
        keys: shape (M, D).
    """
    exact = torch.promote_types(torch.float32, queries.dtype)
    group, rows, width = queries.shape
    scores = product(queries.reshape(-1, width).to(exact) * scale, keys.to(exact).t())
    later = torch.full((rows, rows), -torch.inf, dtype=exact).triu(1)
    scores.view(group, rows, -1)[..., -rows:] += later
    return scores.softmax(-1)


def check_full_causal(
    module: torch.nn.Module, segments: tuple[Segment, ...], sliding_window: int | None, softcap: float | None
) -> None:
    """Check that a layer's attention is that of packed rows; the arguments are those of `shared_prefix_attention`.

    Raises:
        NotImplementedError: the layer caps its scores, or has a window that is shorter than a row.
    """
    longest = max(segment.depth + segment.length for segment in segments)
    if softcap is not None or (sliding_window is not None and sliding_window < longest):
        raise NotImplementedError(
            f"{type(module).__name__} has softcap={softcap} and sliding_window={sliding_window}, and rows have up to "
            f"{longest} tokens; rows that are computed together support neither a cap nor a shorter window: train on a "
            "GPU without shared_prompts, or lower data.max_prompt_tokens and data.max_response_tokens"
        )

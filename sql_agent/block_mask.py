"""Computes the attention of packed rows at once, by torch's flex_attention under a block mask.

`sql_agent.shared_prefix` calls torch's attention once per segment, which costs a GPU a launch for each and a mask in
full. Here the whole packed sequence is one call: a kernel that torch compiles leaves out the blocks of 128 x 128 tokens
in which nobody sees anybody. On a CPU the same operation runs unfused and keeps the scores of all pairs of tokens, so
it is slow there, for checks only. Leaves out dropout and capped scores.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from sql_agent.packed_rows import Segment, ends_of
from sql_agent.shared_prefix import check_not_capped


def block_mask(segments: tuple[Segment, ...], device: torch.device | str | int, window: int | None = None) -> BlockMask:
    """Make the mask under which each token sees the tokens before it in its rows, and itself.

    Args:
        segments: of `pack_rows` or `pack_chains`.
        device: of the queries.
        window: how many tokens of its row a token sees, itself counted; None: all before it.
    """
    lengths = torch.tensor([segment.length for segment in segments])
    seen_until = torch.tensor(ends_of(segments)).repeat_interleave(lengths).to(device)
    positions = torch.cat([torch.arange(each.depth, each.depth + each.length) for each in segments]).to(device)

    def sees(_row: Any, _head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        behind = (key <= query) & (query < seen_until[key])
        return behind if window is None else behind & (positions[query] - positions[key] < window)

    return create_block_mask(sees, None, None, len(seen_until), len(seen_until), device=device)


# the layers of a forward and a backward pass ask for one mask; what was asked for longer ago is not needed again
_in_window = functools.lru_cache(maxsize=1)(block_mask)


def flex_shared_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: BlockMask,
    dropout: float = 0.0,
    scaling: float | None = None,
    *,
    segments: tuple[Segment, ...],
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute what `sql_agent.shared_prefix.shared_prefix_attention` does, with the same arguments but for the mask.

    Args:
        attention_mask: of `block_mask`, without a window.
    Raises:
        NotImplementedError: the layer caps its scores, or drops attention weights.
    """
    check_not_capped(module, softcap)
    if sliding_window is not None and sliding_window < max(each.depth + each.length for each in segments):
        attention_mask = _in_window(segments, query.device, sliding_window)
    if dropout:
        raise NotImplementedError(
            f"{type(module).__name__} drops attention weights (attention_dropout={dropout}), which flex_attention "
            "cannot: set attention_dropout to 0 in the model's config.json, or leave shared_prompts out"
        )
    if query.device.type != "cpu":
        from transformers.integrations.flex_attention import flex_attention_forward

        return flex_attention_forward(module, query, key, value, attention_mask, scaling)
    # torch's function refuses gradients on a CPU, since it has no kernel for them there; the operation that it calls
    # has them in its unfused form
    from torch._higher_order_ops.flex_attention import flex_attention

    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    attended, *_others = flex_attention(query, key, value, _unchanged, attention_mask.as_tuple(), scale, {})
    return attended.transpose(1, 2).contiguous(), None


def _unchanged(score: torch.Tensor, _row: Any, _head: Any, _query: Any, _key: Any) -> torch.Tensor:
    return score

"""Attention over rows that lie side by side without padding, for a CPU.

verl packs rows that way when it removes padding, which upstream leaves to flash-attention's varlen kernels. With "sdpa"
transformers builds one mask over all rows: right, and quadratic in their sum. Here each row attends to itself alone.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

NAME = "sdpa"
"""Takes the place of transformers' own in verl's processes. verl writes the name into every checkpoint's config, where
one that only these processes know would keep everybody else from loading it."""


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    *,
    position_ids: torch.Tensor,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention of each row to itself.

    Args:
        module: the attention layer; not used.
        query: shape (1, heads, L, D), rows one after another.
        key: shape (1, kv_heads, L, D); heads is a multiple of kv_heads.
        value: as `key`.
        attention_mask: None; rows are told apart by their positions.
        scaling: of the products; None: 1 / sqrt(D).
        position_ids: shape (1, L); every 0 begins a row.
        sliding_window: of the layer, in tokens; rows have to fit into it.
        softcap: of the layer; has to be None.
    Returns:
        Shape (1, L, heads, D), as transformers' attention functions return it, and no weights.
    Raises:
        ValueError: more than one sequence of rows.
        NotImplementedError: the layer asks for something else than full causal attention.
    """
    if query.shape[0] != 1:
        raise ValueError(f"rows have to follow one another in one sequence; got a batch of {query.shape[0]}")
    if softcap is not None or (sliding_window is not None and sliding_window < int(position_ids.max()) + 1):
        raise NotImplementedError(
            f"{type(module).__name__} caps scores or looks back {sliding_window} tokens only, which packed_attention "
            "leaves out; train this model on a GPU, or rows that fit into its window"
        )
    starts = (position_ids[0] == 0).nonzero().flatten().tolist()
    lengths = [end - start for start, end in zip(starts, [*starts[1:], position_ids.shape[1]], strict=True)]
    rows = zip(query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2), strict=True)
    grouped = query.shape[1] != key.shape[1]
    attended = [scaled_dot_product_attention(*row, is_causal=True, scale=scaling, enable_gqa=grouped) for row in rows]
    return torch.cat(attended, 2).transpose(1, 2).contiguous(), None


def _attend(module: ModuleType) -> None:
    module.AttentionInterface.register(NAME, packed_attention)


def _leave_out_mask(module: ModuleType) -> None:
    module.AttentionMaskInterface.register(NAME, lambda *_args, **_kwargs: None)

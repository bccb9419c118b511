"""Resets the state of recurrent layers at the beginning of each chain of a row.

Position ids keep the chains of a row apart in attention (`sql_agent.source.batch`). For recurrent layers (Qwen3.5's
gated delta net), verl passes the ends of the rows of a micro-batch (`cu_seqlens`, workers/engine/fsdp/
transformer_impl.py, `prepare_model_inputs`), and a state is carried to the end of a row. So a rollout's second
conversation would begin with the state of the first.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch


def chain_ends(positions: torch.Tensor, row_ends: torch.Tensor) -> torch.Tensor:
    """The ends of the chains of a micro-batch, in the form of verl's `cu_seqlens`.

    Args:
        positions: position ids of the tokens of all rows, one row after another, shape (L,); 0 where a chain begins.
        row_ends: 0, then the end of each row, then the end of the padding if verl pads.
    Returns:
        0, then the end of each chain, then the end of the padding if there is one.
    """
    return torch.cat([(positions == 0).nonzero().flatten().to(row_ends), row_ends[row_ends >= len(positions)]])


def _end_states(module: ModuleType) -> None:
    upstream = module.FSDPEngineWithLMHead.prepare_model_inputs

    @functools.wraps(upstream)
    def prepare_model_inputs(self: Any, micro_batch: Any) -> Any:
        inputs, others = upstream(self, micro_batch)
        if "cu_seqlens" in inputs:
            ends = chain_ends(micro_batch["position_ids"].values(), inputs["cu_seqlens"])
            inputs |= {"cu_seqlens": ends, "cu_seqlens_cpu": ends.cpu()}
        return inputs, others

    module.FSDPEngineWithLMHead.prepare_model_inputs = prepare_model_inputs  # type: ignore[attr-defined]

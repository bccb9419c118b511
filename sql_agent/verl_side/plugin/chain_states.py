"""Lets layers that carry a state from token to token begin anew with each chain of a row.

Attention is parted by positions (`sql_agent.rollouts.batch`). Models with other layers beside it (Qwen3.5's gated delta
net) are told by verl where each row of a micro-batch ends (`cu_seqlens`, workers/engine/fsdp/transformer_impl.py,
`prepare_model_inputs`), and a state goes on up to there: a rollout's second conversation would begin with what the
first one left. Leaves out the CPU, where such models are refused (`cpu_engine`).
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch


def chain_ends(positions: torch.Tensor, row_ends: torch.Tensor) -> torch.Tensor:
    """Where the chains of a micro-batch end, as verl says where its rows do.

    Args:
        positions: of the tokens of all rows, one row after another, shape (L,); 0 where a chain begins.
        row_ends: 0, then where each row ends; where verl pads, the end of the padding comes last.
    Returns:
        0, then where each chain ends, then the padding's end if there is one.
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

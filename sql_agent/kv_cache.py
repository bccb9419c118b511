"""How much KV cache a sampler on a CPU is given: what its rollouts can use, and no more than the setting.

vLLM takes the block that was free for longest, so in time it writes to every block that it has, and all of them are
resident. On a GPU its share of the card decides (`engine.gpu_memory_utilization`).
"""

from __future__ import annotations

from math import ceil

from sql_agent.model_shape import ModelShape
from sql_agent.settings.train import TrainConfig

GIB = 2**30
BLOCK = 32
"""Tokens of a block. What a prompt begins with is found again in whole blocks. vLLM takes blocks of 128 tokens on a
CPU, in which a first prompt of 68 has no whole one; it wants a multiple of 32 there, and takes 16 on a GPU."""
# Longest rows for each one that is played: what a rollout in flight has computed stays until its next turn, and what a
# group has in common until its last rollout, though others that ended have left their blocks behind.
KEPT = 2


def kv_cache_bytes(cfg: TrainConfig, shape: ModelShape | None, number_bytes: int) -> int:
    """Bytes of the KV cache of each vLLM on a CPU.

    It holds `KEPT` longest rows for each request that vLLM batches and for each rollout in flight, so that none waits
    for the blocks of another.

    Args:
        shape: None: the model's is not known.
        number_bytes: of a key's or value's number.
    """
    most = cfg.engine.kv_cache_gib * GIB
    if shape is None:
        return most
    context = cfg.data.prompt_tokens + cfg.data.max_response_tokens
    rows = KEPT * max(cfg.engine.max_num_seqs, cfg.rollouts_at_once)
    blocks = rows * ceil(context / BLOCK) + 1  # vLLM keeps one that holds nothing
    return min(most, blocks * BLOCK * shape.cached_numbers * number_bytes)

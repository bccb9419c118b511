"""The dimensions of a model and how many weights each part of it has, from its config.json.

Only models built like Llama and Qwen are known (`KNOWN_TYPES`); `agentgrpo.model_kinds` counts the weights of any model
from its files. Here too: how much KV cache a sampler on a CPU is given. Importing this module is instant.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from sql_agent.settings.local import AdapterConfig
from sql_agent.settings.main_job import EngineConfig

KNOWN_TYPES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class ModelShape:
    """The dimensions of a model, from its config.json."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    positions: int
    tied: bool
    """Whether the output layer is the embedding."""
    biases: tuple[str, ...] = ()
    """Linear layers with a bias."""
    head_norms: bool = False
    """Whether queries and keys are normalised, as in Qwen3."""

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """The number of inputs and outputs of each linear layer in one transformer layer."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q_proj": (self.hidden, queries),
            "k_proj": (self.hidden, keys),
            "v_proj": (self.hidden, keys),
            "o_proj": (queries, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }

    @property
    def linear_parameters(self) -> int:
        """The number of parameters that 4-bit loading quantises: the matrices of all layers."""
        return self.layers * sum(inputs * outputs for inputs, outputs in self.linears.values())

    @property
    def parameters(self) -> int:
        biases = sum(self.linears[name][1] for name in self.biases)
        norms = 2 * self.hidden + 2 * self.head_dim * self.head_norms
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        return self.linear_parameters + self.layers * (biases + norms) + embeddings + self.hidden

    @property
    def cached_numbers(self) -> int:
        """The keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def shared_by(self, gpus: int) -> bool:
        """Whether vLLM can share one model server among so many (`sql_agent.model_check.check_tensor_parallel`)."""
        keys = not max(self.kv_heads, gpus) % min(self.kv_heads, gpus)
        return keys and not (self.heads % gpus or self.intermediate % gpus)

    def adapted(self, adapter: AdapterConfig) -> list[str]:
        """The linear layers that get an adapter."""
        wanted = adapter.target_modules
        if isinstance(wanted, str):
            wanted = tuple(self.linears) if wanted == "all-linear" else (wanted,)
        return [name for name in self.linears if any(name.endswith(one) for one in wanted)]

    def adapter_parameters(self, adapter: AdapterConfig) -> int:
        return self.layers * adapter.rank * sum(sum(self.linears[name]) for name in self.adapted(adapter))


def shape_of(config: dict[str, Any]) -> ModelShape:
    """The dimensions that a config names.

    Args:
        config: the contents of config.json.
    Raises:
        ValueError: the model is of another kind.
    """
    kind = config.get("model_type")
    if kind not in KNOWN_TYPES:
        raise ValueError(f"memory is not estimated for model type {kind}, only for {', '.join(KNOWN_TYPES)}")
    attention = ("q_proj", "k_proj", "v_proj")
    biases = attention if kind == "qwen2" else (*attention, "o_proj") if config.get("attention_bias") else ()
    if config.get("mlp_bias"):
        biases = (*biases, "gate_proj", "up_proj", "down_proj")
    heads = config["num_attention_heads"]
    return ModelShape(
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        vocab=config["vocab_size"],
        positions=config["max_position_embeddings"],
        tied=bool(config.get("tie_word_embeddings")),
        biases=biases,
        head_norms=kind == "qwen3",
    )


GIB = 2**30
# vLLM takes the block that was free for longest, so in time it writes to every block that it has, and all of them are
# resident. On a GPU its share of the card decides (`engine.gpu_memory_utilization`).
BLOCK = 32
"""Tokens of a block. What a prompt begins with is found again in whole blocks. vLLM takes blocks of 128 tokens on a
CPU, in which a first prompt of 68 has no whole one; it wants a multiple of 32 there, and takes 16 on a GPU."""
# Longest rows for each one that is played: what a rollout in flight has computed stays until its next turn, and what a
# group has in common until its last rollout, though others that ended have left their blocks behind.
KEPT = 2


def kv_cache_bytes(
    engine: EngineConfig, row_tokens: int, rollouts_at_once: int, shape: ModelShape | None, number_bytes: int
) -> int:
    """Bytes of the KV cache of each vLLM on a CPU: what its rollouts can use, and no more than the setting.

    It holds `KEPT` longest rows for each request that vLLM batches and for each rollout in flight, so that none waits
    for the blocks of another.

    Args:
        row_tokens: of the longest row.
        shape: None: the model's is not known.
        number_bytes: of a key's or value's number.
    """
    most = engine.kv_cache_gib * GIB
    if shape is None:
        return most
    rows = KEPT * max(engine.max_num_seqs, rollouts_at_once)
    blocks = rows * ceil(row_tokens / BLOCK) + 1  # vLLM keeps one that holds nothing
    return min(most, blocks * BLOCK * shape.cached_numbers * number_bytes)

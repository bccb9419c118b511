"""The dimensions of a model and how many weights each part of it has, from its config.json.

Only models built like Llama and Qwen are known (`KNOWN_TYPES`); `agentgrpo.model_kinds` counts the weights of any model
from its files. Importing this module is instant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sql_agent.settings.local import AdapterConfig

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
        raise ValueError(f"models of type {kind!r} are not known here, only {', '.join(KNOWN_TYPES)}")
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

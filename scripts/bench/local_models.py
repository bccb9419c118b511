"""Models of the local training benchmark: random Qwen2, Qwen3 and Llama of a given size, made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SIZES: dict[str, dict[str, Any]] = {
    "1M": {"model_type": "qwen3", "hidden_size": 128, "layers": 4, "heads": 4, "kv_heads": 2, "vocab_size": 1024},
    "60M": {"model_type": "qwen2", "hidden_size": 512, "layers": 16, "heads": 8, "kv_heads": 2, "vocab_size": 32000},
    "135M": {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "layers": 30,
        "heads": 9,
        "kv_heads": 3,
        "vocab_size": 49152,
    },
    "250M": {"model_type": "qwen3", "hidden_size": 1024, "layers": 16, "heads": 16, "kv_heads": 8, "vocab_size": 32000},
}
"""By name: about so many parameters, the output layer tied to the embedding. 135M is SmolLM2's shape."""

SURENESS = 12.0
"""Factor of all logits, whose standard deviation is 0.3 to 0.6 without it."""


def config_of(size: str) -> dict[str, Any]:
    """The contents of its config.json."""
    own = SIZES[size]
    return {
        "model_type": own["model_type"],
        "hidden_size": own["hidden_size"],
        "intermediate_size": own.get("intermediate_size", 3 * own["hidden_size"]),
        "num_hidden_layers": own["layers"],
        "num_attention_heads": own["heads"],
        "num_key_value_heads": own["kv_heads"],
        "head_dim": own["hidden_size"] // own["heads"],
        "vocab_size": own["vocab_size"],
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    }


def random_model(size: str, *, seed: int = 0) -> Any:
    """A causal LM in float32; the same for the same seed.

    Its guesses are as sure as a trained model's: a flat distribution over all tokens would make top-p work harder.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config_of(size)), trust_remote_code=False)
    torch.nn.init.constant_(model.model.norm.weight, SURENESS)
    return model


def save_random_model(folder: Path, size: str, tokenizer: Path) -> Path:
    """Write such a model with the tokenizer of another, whose ids are fewer."""
    from transformers import AutoTokenizer

    random_model(size).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False).save_pretrained(folder)
    return folder

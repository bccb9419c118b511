"""Makes a model with random weights: `python -m bench.parts.random_model SHAPE TOKENIZER_FOLDER OUTPUT`.

Its sizes are those of Qwen2.5, so that time and memory are a real model's. It samples only tokens that its tokenizer
knows, which is the small policy's, and learns nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

# hidden size, layers, heads, heads of keys, intermediate size, whether the output layer shares the embeddings
SHAPES = {
    "tiny": (64, 2, 2, 1, 128, True),
    "0.5B": (896, 24, 14, 2, 4864, True),
    "1.5B": (1536, 28, 12, 2, 8960, True),
    "3B": (2048, 36, 16, 2, 11008, True),
    "7B": (3584, 28, 28, 4, 18944, False),
}
VOCABULARY = 151_936
FAR = 4.0
"""Factor in the last norm of the one hidden value by which tokens of the tokenizer get higher logits than others."""


def random_model(shape: str, tokenizer: Any, device: str) -> Any:
    """Make the model in bfloat16.

    Args:
        shape: a key of `SHAPES`.
        device: where the numbers are drawn.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    hidden, layers, heads, kv_heads, intermediate, tied = SHAPES[shape]
    config = AutoConfig.for_model(
        "qwen2",
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=intermediate,
        tie_word_embeddings=tied,
        max_position_embeddings=8192,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    with torch.device(device), torch.no_grad():
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, trust_remote_code=False)
        # the first hidden value is 1 in every layer, and tells the tokenizer's tokens from the others
        for layer in model.model.layers:
            for last in (layer.self_attn.o_proj, layer.mlp.down_proj):
                last.weight.div_((2 * layers) ** 0.5)
                last.weight[0] = 0
        model.model.norm.weight[0] = FAR
        for weights in (model.get_input_embeddings().weight, model.get_output_embeddings().weight):
            weights[:, 0] = -1
            weights[: len(tokenizer), 0] = 1
    return model


def main(shape: str, tokenizer_folder: str, output: str) -> None:
    import torch
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(tokenizer_folder, trust_remote_code=False)
    model = random_model(shape, tokenizer, "cuda" if torch.cuda.is_available() else "cpu")
    model.save_pretrained(Path(output))
    tokenizer.save_pretrained(output)
    print(f"{sum(weight.numel() for weight in model.parameters()):,} weights in {output}")


if __name__ == "__main__":
    main(*sys.argv[1:])

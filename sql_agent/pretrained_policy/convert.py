"""Converts a GGUF file to a Hugging Face folder in float32 that every command here takes as a model.

The weights are the file's, dequantised. Settings that the file has wrong or not at all are added: the token that ends a
reply, the padding token, and a chat template with tools.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from tokenizers import decoders, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils.logging import disable_progress_bar

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def convert_gguf(gguf: Path, folder: Path) -> None:
    disable_progress_bar()
    tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, trust_remote_code=False)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, trust_remote_code=False
    )
    # tokenizer.ggml.pre is smollm: digits one by one, then GPT-2's pieces; transformers leaves the first part out
    pieces = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(pieces)
    tokenizer.backend_tokenizer.decoder = decoders.ByteLevel()
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = START, END, PAD  # the file: replies end with START
    tokenizer.clean_up_tokenization_spaces = False  # decoding returns exactly the sampled text, blanks included
    tokenizer.padding_side = "left"
    tokenizer.model_max_length = model.config.max_position_embeddings
    bos, eos, pad = tokenizer.convert_tokens_to_ids([START, END, PAD])
    ids = {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad}
    model.config.update(ids)
    model.generation_config = GenerationConfig(**ids)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    shutil.copyfile(CHAT_TEMPLATE, folder / CHAT_TEMPLATE.name)

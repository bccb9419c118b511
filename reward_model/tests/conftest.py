"""What several test modules stand on: a language model of one layer, pairs with a rule, an adapter.

pytest reads this file wherever it is started, so torch and transformers are imported by what needs them.
"""

import json
import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from agentgrpo.chat.messages import Message
from reward_model.datatypes import RECORD, Preference
from reward_model.preferences import write_preferences

MAX_LENGTH = 64


def user(text: str) -> Message:
    return Message(role="user", content=text)


def assistant(text: str) -> Message:
    return Message(role="assistant", content=text)


def counting_pairs(count: int) -> list[Preference]:
    """`count` pairs of `count` prompts: the next number is right, the number itself is wrong."""
    return [
        Preference(
            prompt=(user(f"Which number comes after {n}?"),),
            chosen=(assistant(f"{n + 1}"),),
            rejected=(assistant(f"{n}"),),
        )
        for n in range(count)
    ]


def make_base(folder: Path, dtype: str = "float32", vocab_size: int | None = None) -> Path:
    """An untrained Qwen3 of one layer, 20,000 weights, with the small policy's tokenizer and ChatML template.

    Args:
        vocab_size: embeddings, where there shall be more than the tokenizer has tokens.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from sql_agent.tiny_policy.tokenizer import build_tokenizer

    tokenizer = build_tokenizer(["Which number comes after 41?"])
    config = Qwen3Config(
        vocab_size=vocab_size or len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        dtype=dtype,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        Qwen3ForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_adapter(folder: Path, base: Path, data: Path) -> Path:
    """LoRA of rank 4, alpha 8, with drawn weights instead of trained ones, and the record that training writes."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from agentgrpo.weights import weights_sha256

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype=torch.float32)
        lora = LoraConfig(
            r=4,
            lora_alpha=8,
            target_modules="all-linear",
            modules_to_save=["score"],
            task_type="SEQ_CLS",
            init_lora_weights=False,
        )
        get_peft_model(model, lora).save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    record = {
        "base": {"path": str(base), "sha256": weights_sha256(base)},
        "dataset": {"path": str(data)},
        "max_length": MAX_LENGTH,
    }
    (folder / RECORD).write_text(json.dumps(record))
    return folder


@pytest.fixture(scope="session")
def base(tmp_path_factory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def pairs(tmp_path_factory) -> Path:
    """A file of 24 pairs."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    write_preferences(counting_pairs(24), path)
    return path


@pytest.fixture(scope="session")
def adapter(tmp_path_factory, base, pairs) -> Path:
    return make_adapter(tmp_path_factory.mktemp("adapter"), base, pairs)

"""Makes the input of the scoring benchmark: a reward model, and conversations like those of the SQL agent."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LAYERS, HIDDEN, HEAD_DIM = 6, 256, 64
MAX_POSITIONS = 4096
VOCAB_SIZE = 2000
# The number of answers to one task, as in a group of GRPO.
GROUP = 8


def make_reward_model(folder: Path, *, layers: int = LAYERS, hidden: int = HIDDEN, seed: int = 0) -> Path:
    """Write a random Qwen3 sequence classifier with the small policy's chat template, the same for the same seed."""
    import torch
    from transformers import Qwen3Config, Qwen3ForSequenceClassification

    tokenizer = _tokenizer(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // HEAD_DIM,
        num_key_value_heads=max(1, hidden // HEAD_DIM // 2),
        head_dim=HEAD_DIM,
        max_position_embeddings=MAX_POSITIONS,
        pad_token_id=tokenizer.pad_token_id,
    )
    config.num_labels = 1
    torch.manual_seed(seed)
    Qwen3ForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer(seed: int) -> Any:
    # Train a byte-level BPE on tasks and their rules: 3 to 4 characters per token, as with large models. The small
    # policy's tokenizer would not do, because whole sentences of the rules are single tokens in it.
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from dbbench_adapter.generator import generate_tasks
    from dbbench_adapter.protocols import fc
    from sql_agent.tiny_policy.tokenizer import CHAT_TEMPLATE, END, PAD, START

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    said = (message["content"] for task in generate_tasks(200, seed=seed) for message in fc.messages(task)[:2])
    tokenizer.train_from_iterator(said, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def conversations(count: int, *, shared: bool, seed: int = 0) -> Iterator[list[dict[str, Any]]]:
    """Yield rollouts on generated tasks: rules, question, a statement, its result, the answer; no two are equal.

    Args:
        shared: whether each task has `GROUP` rollouts, one after the other, under the same rules. With False each
            rollout has its own task and rules (the same rules with their words reordered), so that no prefix is shared.
    """
    from dbbench_adapter.generator import generate_tasks
    from dbbench_adapter.protocols import fc

    rng = random.Random(seed)
    tasks = generate_tasks(count // GROUP + 1 if shared else count, seed=seed)
    for number in range(count):
        task = tasks[number // GROUP if shared else number]
        rules, question = fc.messages(task)[:2]
        if not shared:
            words = rules["content"].split(" ")
            rng.shuffle(words)
            rules = {**rules, "content": " ".join(words)}
        table = task.tables[0]
        names = [column.name for column in table.columns]
        limit = f"{rng.choice(names)}` > {rng.randrange(1000)}.{rng.randrange(1000)}"
        statement = f"SELECT `{'`, `'.join(rng.sample(names, 2))}` FROM `{table.name}` WHERE `{limit}"
        rows = [row[:2] for row in rng.choices(table.rows, k=rng.randint(1, 3))]
        call = {"name": "execute_sql", "arguments": json.dumps({"query": statement})}
        yield [
            rules,
            question,
            {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": call}]},
            {"role": "tool", "content": str(rows), "tool_call_id": "1"},
            {"role": "assistant", "content": f"The answer is {rows[0][0]}."},
        ]

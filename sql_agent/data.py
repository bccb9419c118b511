"""Tasks of a run: where they come from and which ones fit; `dbbench_adapter.export` writes the files verl reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.load import load_tasks
from dbbench_adapter.protocols import PROTOCOLS, ProtocolName
from dbbench_adapter.splits import split_by_table
from dbbench_adapter.types import Task
from sql_agent.config import DataConfig
from sql_agent.model_check import chat_template, render, special_tokens


@dataclass(frozen=True)
class Split:
    train: list[Task]
    val: list[Task]
    too_long: int = 0
    """Tasks left out because their first prompt is longer than data.max_prompt_tokens."""


def load_split(cfg: DataConfig, seed: int) -> Split:
    """Read or generate the tasks; no table is in both halves.

    Raises:
        dbbench_adapter.load.TaskFileError: a file is missing or a row does not parse.
    """
    if cfg.train_file is None:
        train = generate_tasks(cfg.generate, seed=seed, split="train")
        val = load_tasks(cfg.val_file) if cfg.val_file else generate_tasks(cfg.val_limit, seed=seed, split="held_out")
    elif cfg.val_file is None:
        train, val = split_by_table(load_tasks(cfg.train_file), cfg.held_out_fraction, seed)
    else:
        train, val = load_tasks(cfg.train_file), load_tasks(cfg.val_file)
    return Split(train, val[: cfg.val_limit])


def fitting(split: Split, prompt_tokens: Callable[[Task], int], limit: int) -> Split:
    """Leave out tasks whose first prompt is longer than `limit` tokens, and count them.

    Raises:
        ValueError: nothing is left to train or to validate on.
    """
    train, val = ([t for t in tasks if prompt_tokens(t) <= limit] for tasks in (split.train, split.val))
    too_long = len(split.train) + len(split.val) - len(train) - len(val)
    if not train or not val:
        raise ValueError(
            f"no {'training' if not train else 'held-out'} task has a first prompt of at most "
            f"data.max_prompt_tokens={limit} tokens; raise it"
        )
    return Split(train, val, too_long)


class PromptTokenizer:
    """Counts the tokens of a task's first prompt; reads the model's folder without torch, which is 10 s of imports."""

    def __init__(self, model: Path, protocol: ProtocolName) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._template, self._special = chat_template(model) or "", special_tokens(model)
        self._protocol = PROTOCOLS[protocol]

    def prompt_tokens(self, task: Task) -> int:
        prompt = render(self._protocol.messages(task), self._protocol.tools, self._template, self._special)
        return len(self._tokenizer.encode(prompt, add_special_tokens=False).ids)

    @property
    def pad_id(self) -> int:
        """Of the padding token, or of the end-of-sequence token where there is none; padding is masked everywhere."""
        for name in ("pad_token", "eos_token"):
            token = self._special.get(name)
            if token is not None:
                return self._tokenizer.token_to_id(token)
        return 0

"""Which tasks of a run fit, by the length of their first prompt; where they come from is their environment's affair."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sql_agent.environments.base import Environment, Split
from sql_agent.model_check import render, special_tokens


def fitting(split: Split, prompt_tokens: Callable[[Any], int], limit: int) -> Split:
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
    """Counts the tokens of a task's first prompt; reads the model's folder without torch, which is 10 s of imports.

    Args:
        template: the chat template of the run.
    """

    def __init__(self, model: Path, environment: Environment, template: str) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._template, self._special = template, special_tokens(model)
        self._environment = environment

    def prompt_tokens(self, task: Any) -> int:
        prompt = render(self._environment.messages(task), self._environment.tools, self._template, self._special)
        return len(self._tokenizer.encode(prompt, add_special_tokens=False).ids)

    @property
    def pad_id(self) -> int:
        """Of the padding token, or of the end-of-sequence token where there is none; padding is masked everywhere."""
        for name in ("pad_token", "eos_token"):
            token = self._special.get(name)
            if token is not None:
                return self._tokenizer.token_to_id(token)
        return 0

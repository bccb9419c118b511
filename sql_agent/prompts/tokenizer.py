"""Makes the tokens of first prompts from a model's folder, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dbbench_adapter.protocols import Message
from sql_agent.environments.base import Environment
from sql_agent.model_check import render, special_tokens, with_objects


class PromptTokenizer:
    """Makes the tokens of a task's first prompt, and counts those of its solution.

    It reads the model's folder without torch, whose import takes 10 s.

    Args:
        template: the chat template of the run.
    """

    def __init__(self, model: Path, environment: Environment, template: str) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._template, self._special = template, special_tokens(model)
        self._environment = environment

    def prompt_ids(self, task: Any) -> list[int]:
        return self._ids(self._environment.messages(task), prompt=True)

    def prompt_tokens(self, task: Any) -> int:
        return len(self.prompt_ids(task))

    def _ids(self, messages: Sequence[Message], *, prompt: bool) -> list[int]:
        text = render(messages, self._environment.tools, self._template, self._special, prompt=prompt)
        # a template may write a line break after the token that ends a reply, which is never sampled
        return self._tokenizer.encode(text if prompt else text.rstrip("\n"), add_special_tokens=False).ids

    def reply_tokens(self, task: Any) -> list[int]:
        """Return the number of tokens of each reply of the solution, end token included; [] if none is known."""
        first, replies = self._environment.messages(task), self._environment.reference_replies(task)
        before = self.prompt_tokens(task)
        return [len(self._ids([*first, with_objects(reply)], prompt=False)) - before for reply in replies]

    @property
    def pad_id(self) -> int:
        """Return the id of the padding token, or else of the end-of-sequence token; padding is masked everywhere."""
        for name in ("pad_token", "eos_token"):
            token = self._special.get(name)
            if token is not None:
                return self._tokenizer.token_to_id(token)
        return 0

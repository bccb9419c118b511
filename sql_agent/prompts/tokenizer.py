from __future__ import annotations

from pathlib import Path
from typing import Any

from agentgrpo.chat.template import ChatTemplate, for_template
from sql_agent.environments.base import Taskset
from sql_agent.model_check import special_tokens


class PromptTokenizer:
    """The model's folder is read without torch, whose import takes 10 s.

    Args:
        template: the chat template of the run.
    """

    def __init__(self, model: Path, environment: Taskset, template: str) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._special, self._environment = special_tokens(model), environment
        tools = list(environment.tools) or None
        self._template = ChatTemplate(template, tools, self._special, self._encode, str(model))

    def prompt_ids(self, task: Any) -> list[int]:
        return self._template.first_prompt(self._environment.messages(task))

    def prompt_tokens(self, task: Any) -> int:
        return len(self.prompt_ids(task))

    def reply_tokens(self, task: Any) -> list[int]:
        """Tokens of each reply of the solution, end token included; [] if none is known."""
        first, replies = self._environment.messages(task), self._environment.reference_replies(task)
        before = self.prompt_tokens(task)
        # a template may write a line break after the token that ends a reply, which is never sampled
        written = [self._template.write([*first, for_template(reply)]).rstrip() for reply in replies]
        return [len(self._encode(text)) - before for text in written]

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    @property
    def pad_id(self) -> int:
        # Padding is masked everywhere.
        for name in ("pad_token", "eos_token"):
            token = self._special.get(name)
            if token is not None:
                return self._tokenizer.token_to_id(token)
        return 0

"""Tokens of first prompts, by the model's own files or by vLLM's `/tokenize`, which renders as its chat does."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import httpx

from agentgrpo.chat.template import ChatTemplate, for_template
from sql_agent.environments.base import Environment, Taskset
from sql_agent.model_check import special_tokens
from sql_agent.model_servers.deadline_client import DeadlineClient, listed_models, served_as
from sql_agent.prompts.fit import PromptLimit, choose_limit, limit_within

TIMEOUT_S = 60.0


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

    def text_tokens(self, text: str) -> int:
        return len(self._encode(text))

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


class ServedTokenizer:
    """
    Args:
        base_url: the server's address, up to `/v1`.
        model: the name under which it serves the model.
        client: open as long as tokens are made.
    """

    def __init__(self, base_url: str, model: str, client: DeadlineClient, environment: Environment) -> None:
        self._url, self._model, self._environment = base_url.rstrip("/").removesuffix("/v1"), model, environment
        self._client = client
        self._ids = functools.lru_cache(maxsize=4096)(self._ask)

    def prompt_ids(self, task: Any) -> list[int]:
        """Raises httpx.HTTPError: the server has no `/tokenize`, or none like vLLM's, or refuses the prompt."""
        return self._ids(json.dumps(self._environment.messages(task)))

    def prompt_tokens(self, task: Any) -> int:
        return len(self.prompt_ids(task))

    def _ask(self, messages: str) -> list[int]:
        tools = {"tools": self._environment.tools} if self._environment.tools else {}
        asked = {"model": self._model, "messages": json.loads(messages), "add_generation_prompt": True, **tools}
        answer = self._client.post(f"{self._url}/tokenize", asked, timeout_s=TIMEOUT_S)
        answer.raise_for_status()
        tokens = _json(answer).get("tokens")
        if not isinstance(tokens, list):
            raise httpx.DecodingError(f"{answer.url} answers no tokens")
        return tokens

    def limit(self, given: int | None, flag: str, *, reply_tokens: int) -> PromptLimit | None:
        """None if the server does not say how long its context is.

        A model that the server reads from a folder of this machine has the limit that other commands give it, unless
        the server was started with a context that does not hold it.

        Args:
            reply_tokens: the longest reply, which has to fit behind the prompt.
        Raises:
            ValueError: the context has no room for a prompt as long as `given`.
            httpx.HTTPError: the server lists no models.
        """
        answer = self._client.get(f"{self._url}/v1/models", timeout_s=TIMEOUT_S)
        answer.raise_for_status()
        listed = listed_models(_json(answer))
        served = listed.get(served_as(self._model, listed) or "", {})
        context, root = served.get("max_model_len"), Path(str(served.get("root") or ""))
        if not isinstance(context, int):
            return None
        limit = limit_within(context, self._model, given, flag)
        if given is None and (root / "config.json").is_file():
            limit = choose_limit(root, None, flag)
        if limit.tokens is not None and limit.tokens <= max(context - reply_tokens, given or 0):
            return limit
        why = f"the context that {self._model} is served with, {context:,} tokens, less {reply_tokens:,} for a reply"
        return PromptLimit(context - reply_tokens, why, flag)


def _json(answer: httpx.Response) -> dict[str, Any]:
    """An empty object for any other JSON.

    Raises:
        httpx.DecodingError: it is no JSON, as of a server that answers every address with a page.
    """
    try:
        said = answer.json()
    except ValueError:
        raise httpx.DecodingError(f"{answer.url} answers no JSON") from None
    return said if isinstance(said, dict) else {}

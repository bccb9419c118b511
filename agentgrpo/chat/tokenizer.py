"""Loads a model's tokenizer and checks it: a vocabulary, a chat template that ends, a padding token."""

from __future__ import annotations

import contextlib
import hashlib
import re
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from agentgrpo.chat.template import ChatTemplate
from agentgrpo.hub import ModelError
from agentgrpo.limited_fork import LimitError, forked
from agentgrpo.weights import FETCH, in_a_line

UNUSED_TOKEN = re.compile(r"pad|reserved|unused|extra|placeholder", re.IGNORECASE)


def load_tokenizer(path: Path, chat_template_path: Path | None = None) -> PreTrainedTokenizerBase:
    """The padding token is one that no conversation ends with.

    Args:
        chat_template_path: a Jinja file, or a folder whose tokenizer has the template; replaces the model's own.
    Raises:
        ModelError: the folder, the tokenizer, the template or such a token is missing.
    """
    if not path.is_dir():
        raise ModelError(f"model folder {path} does not exist; give a Hugging Face folder, {FETCH}")
    tokenizer = _tokenizer(path)
    if chat_template_path:
        tokenizer.chat_template = _template(chat_template_path)
    if not tokenizer.chat_template:
        raise ModelError(
            f"{path} has no chat template, so a conversation cannot be rendered; give one with "
            "--chat-template-path FILE.jinja, or with the folder of a model that has the format you want"
        )
    if fault := endless_template(tokenizer):
        raise ModelError(f"{fault} with --chat-template-path FILE.jinja")
    tokenizer.pad_token = choose_pad_token(tokenizer)
    return tokenizer


def read_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """Raises OSError, ValueError: the folder has no tokenizer, or only a config.json, which has no vocabulary."""
    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    if set(tokenizer("a").input_ids) <= set(tokenizer.all_special_ids):
        raise ValueError("none of its files holds a vocabulary")
    return tokenizer


def _tokenizer(path: Path) -> PreTrainedTokenizerBase:
    try:
        return read_tokenizer(path)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} has no tokenizer that can be read ({error}); {FETCH} whole") from None


def _template(path: Path) -> object:
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ModelError(f"--chat-template-path {path} is not a text, expected a Jinja template") from None
    if not path.is_dir():
        raise ModelError(f"--chat-template-path {path} does not exist; name a Jinja file or a model folder")
    template = _tokenizer(path).chat_template
    if not template:
        raise ModelError(f"--chat-template-path {path} has no chat template either; name a model that has one")
    return template


def endless_template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """What is wrong with a template that does not end on a short conversation, or that kills the process; None if it
    ends. An error counts as an end; it is reported where the template is used.
    """
    conversation = [{"role": "user", "content": "yes"}, {"role": "assistant", "content": "42."}]

    def render() -> None:
        with contextlib.suppress(Exception):
            ChatTemplate.of(tokenizer).render(conversation)

    try:
        forked(render)
    except LimitError as error:
        where = tokenizer.name_or_path
        return f"the chat template of {where} does not end: a short conversation {error}; give a template that does"
    return None


def choose_pad_token(tokenizer: Any) -> str:
    """The tokenizer's own padding token, otherwise an unused token, otherwise the end-of-sequence token.

    transformers' head reads the last token that is not padding, and vLLM's reads the last token. They agree only if no
    conversation ends with the padding token, so a token that ends one is not chosen.

    Raises:
        ModelError: every candidate ends conversations, or the chat template cannot render one or writes nothing.
    """
    endings = set()
    for word in ("yes", "42."):
        messages = [{"role": "user", "content": word}, {"role": "assistant", "content": word}]
        try:
            ids = ChatTemplate.of(tokenizer).ids(messages)
        except Exception as error:  # a template is a program: it may raise anything
            raise ModelError(
                f"the chat template cannot render a question and its answer ({in_a_line(error)}); give one that can "
                "with --chat-template-path FILE.jinja"
            ) from None
        if not ids:
            raise ModelError(
                "the chat template writes nothing for a question and its answer; give one that does with "
                "--chat-template-path FILE.jinja"
            )
        endings.add(ids[-1])
    named = [*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()]
    unused = [token for token in named if UNUSED_TOKEN.search(token)]
    for candidate in (tokenizer.pad_token, tokenizer.unk_token, *unused, tokenizer.eos_token):
        if candidate and tokenizer.convert_tokens_to_ids(str(candidate)) not in endings:
            return str(candidate)
    raise ModelError(
        f"no token of the vocabulary can be the padding: conversations end with {tokenizer.decode(sorted(endings))!r}, "
        "which must not be it; add a token to the tokenizer, or end the chat template with a line break"
    )


def tokenizer_sha256(tokenizer: Any) -> str:
    read = f"{tokenizer.backend_tokenizer.to_str()}\0{tokenizer.chat_template}\0{tokenizer.pad_token}"
    return hashlib.sha256(read.encode()).hexdigest()

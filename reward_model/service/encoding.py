"""Turns the body of a request into token ids. Runs in the tokenising thread."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agentgrpo.chat.messages import Message
from reward_model.datatypes import EncodedConversation
from reward_model.service.schemas import (
    ChatItem,
    ChatPair,
    TextItem,
    TextPair,
    VllmChat,
    VllmInput,
    VllmOptions,
    VllmPairs,
)
from reward_model.service.strict_json import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_model.scorer import Scorer

Item = TextItem | ChatItem | TextPair | ChatPair | VllmChat | VllmInput | VllmPairs


def num_conversations(body: Item | Sequence[Item]) -> int:
    match body:
        case TextPair() | ChatPair():
            return 2
        case VllmInput():
            return len(body.inputs())
        case VllmPairs():
            return len(body.pairs())
        case TextItem() | ChatItem() | VllmChat():
            return 1
    return sum(map(num_conversations, body))


def encode(scorer: Scorer, body: Item | Sequence[Item]) -> list[EncodedConversation]:
    """The conversations of a body, in order; the chosen side of a pair comes first.

    Raises:
        UnreadableError: the tokenizer or the chat template cannot take a text.
    """
    match body:
        case TextItem():
            return [_chat(scorer, "prompt", _exchange(body.prompt, body.response), None)]
        case ChatItem():
            return [_chat(scorer, "messages", body.messages, body.tools)]
        case TextPair():
            sides = (_exchange(body.prompt, body.chosen), _exchange(body.prompt, body.rejected))
            return [_chat(scorer, "prompt", side, None) for side in sides]
        case ChatPair():
            return [_chat(scorer, "prompt", (*body.prompt, *side), body.tools) for side in (body.chosen, body.rejected)]
        case VllmChat():
            cut_here = body.truncate_prompt_tokens is not None
            limit = sys.maxsize if cut_here else scorer.max_length
            encoded = _chat(scorer, "messages", body.messages, body.chat_template_kwargs.tools, limit)
            return [cut(encoded.ids, scorer, body) if cut_here else encoded]
        case VllmInput():
            return [cut(_ids(scorer, each, body.add_special_tokens), scorer, body) for each in body.inputs()]
        case VllmPairs():
            return [_text_pair(scorer, first, second, body) for first, second in body.pairs()]
    return [encoded for each in body for encoded in encode(scorer, each)]


def cut(ids: tuple[int, ...], scorer: Scorer, options: VllmOptions) -> EncodedConversation:
    # Without `truncate_prompt_tokens` the last tokens are kept, as many as the model's limit allows.
    keep, side = options.truncate_prompt_tokens, options.truncation_side or scorer.tokenizer.truncation_side
    if keep is None:
        keep, side = scorer.max_length, "left"
    elif keep == -1:
        keep = scorer.max_length
    if not 0 < keep <= scorer.max_length:
        raise UnreadableError("truncate_prompt_tokens", f"expected 1 to {scorer.max_length}, or -1 for that")
    return EncodedConversation(ids[-keep:] if side == "left" else ids[:keep], truncated=len(ids) > keep)


def _text_pair(scorer: Scorer, first: str, second: str, options: VllmOptions) -> EncodedConversation:
    # As vLLM's cross-encoder route without `--chat-template`: one call of the tokenizer with two texts.
    if not getattr(scorer.model.config, "use_sep_token", True):
        return cut(_ids(scorer, first + second, True), scorer, options)
    with _errors_of("text_2"):
        ids = tuple(scorer.tokenizer(text=first, text_pair=second)["input_ids"])
    encoded = cut(ids, scorer, options)
    if not encoded.truncated or options.truncate_prompt_tokens is None or options.truncation_side is not None:
        return encoded
    # Without a side to cut, vLLM leaves the choice to the tokenizer, which shortens the longer text.
    cut_by_tokenizer = scorer.tokenizer(text=first, text_pair=second, truncation=True, max_length=len(encoded.ids))
    return EncodedConversation(tuple(cut_by_tokenizer["input_ids"]), truncated=True)


def _ids(scorer: Scorer, given: str | list[int], special: bool) -> tuple[int, ...]:
    if isinstance(given, str):
        with _errors_of("input"):
            return tuple(scorer.tokenizer(given, add_special_tokens=special)["input_ids"])
    last = scorer.model.config.get_text_config().vocab_size - 1
    if max(given) > last:
        raise UnreadableError("input", f"a token id above {last}, the model's last")
    return tuple(given)


def _exchange(prompt: str, response: str) -> tuple[Message, ...]:
    return (Message(role="user", content=prompt), Message(role="assistant", content=response))


def _chat(
    scorer: Scorer, field: str, messages: tuple[Message, ...], tools: str | None, max_length: int | None = None
) -> EncodedConversation:
    with _errors_of(field):
        return scorer.encode(messages, tools, max_length=max_length)


@contextmanager
def _errors_of(field: str) -> Iterator[None]:
    """Raise UnreadableError with the type of an error only: templates raise any error, and its message may contain
    parts of the texts.
    """
    try:
        yield
    except Exception as error:  # a template is a program: it may raise anything
        kind = type(error).__name__
        raise UnreadableError(field, f"the model's tokenizer or chat template cannot take this ({kind})") from None

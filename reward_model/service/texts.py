"""From a request's form to token ids. Runs in the tokenising thread."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from core.messages import Message
from reward_model.datatypes import Encoded
from reward_model.scorer import Scorer, encode_conversation
from reward_model.service.schemas import (
    ChatItem,
    ChatPair,
    TextItem,
    TextPair,
    UnreadableError,
    VllmChat,
    VllmInput,
    VllmOptions,
    VllmPairs,
)

T = TypeVar("T")


def item(scorer: Scorer, said: TextItem | ChatItem) -> Encoded:
    if isinstance(said, TextItem):
        return _chat(scorer, "prompt", _exchange(said.prompt, said.response), None)
    return _chat(scorer, "messages", said.messages, said.tools)


def pair(scorer: Scorer, said: TextPair | ChatPair) -> list[Encoded]:
    """Chosen, rejected."""
    if isinstance(said, TextPair):
        return [_chat(scorer, "prompt", _exchange(said.prompt, side), None) for side in (said.chosen, said.rejected)]
    return [_chat(scorer, "prompt", (*said.prompt, *side), said.tools) for side in (said.chosen, said.rejected)]


def vllm_chat(scorer: Scorer, said: VllmChat) -> list[Encoded]:
    tools = said.chat_template_kwargs.tools
    if said.truncate_prompt_tokens is None:
        return [_chat(scorer, "messages", said.messages, tools)]
    whole = _refused(
        "messages",
        lambda: encode_conversation(scorer.tokenizer, said.messages, tools=tools, max_length=sys.maxsize),
    )
    return [cut(whole.ids, scorer, said)]


def vllm_input(scorer: Scorer, said: VllmInput) -> list[Encoded]:
    given = said.input if isinstance(said.input, list) else [said.input]
    if given and isinstance(given[0], int):
        given = [given]
    return [cut(_ids(scorer, each, said.add_special_tokens), scorer, said) for each in given]


def vllm_pairs(scorer: Scorer, said: VllmPairs) -> list[Encoded]:
    """As vLLM's cross-encoder route without `--chat-template`: one call of the tokenizer on the two texts."""
    if not getattr(scorer.model.config, "use_sep_token", True):
        return [cut(_ids(scorer, first + second, True), scorer, said) for first, second in said.pairs()]
    return [_pair(scorer, first, second, said) for first, second in said.pairs()]


def _pair(scorer: Scorer, first: str, second: str, options: VllmOptions) -> Encoded:
    ids = _refused("text_2", lambda: tuple(scorer.tokenizer(text=first, text_pair=second)["input_ids"]))
    encoded = cut(ids, scorer, options)
    if not encoded.truncated or options.truncate_prompt_tokens is None or options.truncation_side is not None:
        return encoded
    # Asked to cut but not where, vLLM leaves it to the tokenizer, which shortens the longer text.
    cut_by_tokenizer = scorer.tokenizer(text=first, text_pair=second, truncation=True, max_length=len(encoded.ids))
    return Encoded(tuple(cut_by_tokenizer["input_ids"]), truncated=True)


def cut(ids: tuple[int, ...], scorer: Scorer, options: VllmOptions) -> Encoded:
    """Apply `truncate_prompt_tokens`, or the model's limit from the left.

    Raises:
        UnreadableError: it is 0 or above the model's limit.
    """
    keep, side = options.truncate_prompt_tokens, options.truncation_side or scorer.tokenizer.truncation_side
    if keep is None:
        keep, side = scorer.max_length, "left"
    elif keep == -1:
        keep = scorer.max_length
    if not 0 < keep <= scorer.max_length:
        raise UnreadableError("truncate_prompt_tokens", f"expected 1 to {scorer.max_length}, or -1 for that")
    return Encoded(ids[-keep:] if side == "left" else ids[:keep], truncated=len(ids) > keep)


def _ids(scorer: Scorer, given: object, special: bool) -> tuple[int, ...]:
    if isinstance(given, str):
        return _refused("input", lambda: tuple(scorer.tokenizer(given, add_special_tokens=special)["input_ids"]))
    ids = tuple(given)  # type: ignore[arg-type]
    known = scorer.model.config.get_text_config().vocab_size
    if max(ids) >= known:
        raise UnreadableError("input", f"a token id above {known - 1}, the model's last")
    return ids


def _exchange(prompt: str, response: str) -> tuple[Message, ...]:
    return (Message(role="user", content=prompt), Message(role="assistant", content=response))


def _chat(scorer: Scorer, field: str, messages: tuple[Message, ...], tools: str | None) -> Encoded:
    return _refused(field, lambda: scorer.encode(messages, tools))


def _refused(field: str, encode: Callable[[], T]) -> T:
    """What `encode` returns. Templates raise anything, with parts of the texts in the message: its type is said only.

    Raises:
        UnreadableError: it failed.
    """
    try:
        return encode()
    except UnreadableError:
        raise
    except Exception as error:
        kind = type(error).__name__
        raise UnreadableError(field, f"the model's tokenizer or chat template cannot take this ({kind})") from None

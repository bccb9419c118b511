"""Turns pairs of conversations into tokens for DPO, with a mask over what the policy said in them.

A pair's log-prob ratio is that of the tokens which the policy samples. Tool results and the template's headers between
two replies come from elsewhere, so they are context here; TRL's own `DPOTrainer` scores every token after the prompt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from agentgrpo.chat.messages import Message
from agentgrpo.chat.replies import Encoded, encode_conversation
from agentgrpo.chat.template import NOT_TRAINED, ChatTemplateError
from agentgrpo.checks import UsageError
from reward_model.datatypes import Preference, place_of


@dataclass(frozen=True)
class EncodedPair:
    """Both sides, each a whole conversation with a mask over the replies that follow the prompt."""

    chosen: Encoded
    rejected: Encoded

    @property
    def longer(self) -> int:
        return max(len(self.chosen.ids), len(self.rejected.ids))


def encode_pairs(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[Preference], name: str, *, max_length: int | None
) -> list[EncodedPair]:
    """Encode the pairs in order, except those with a side of more than `max_length` tokens, if there is a limit.

    Args:
        name: the source of the rows in error messages.
    Raises:
        ChatTemplateError: the template cannot be used for training, or refuses a row, which is named.
        UsageError: all pairs are too long.
    """
    pairs = [_encode_pair(tokenizer, row, place_of(row, name)) for row in rows]
    fitting = [pair for pair in pairs if max_length is None or pair.longer <= max_length]
    if pairs and not fitting:
        raise UsageError(
            f"all {len(pairs)} pairs of {name} are longer than --max-length {max_length}; the shortest has "
            f"{min(pair.longer for pair in pairs)} tokens: raise --max-length, or take a model with a longer context"
        )
    return fitting


def _encode_pair(tokenizer: PreTrainedTokenizerBase, row: Preference, where: str) -> EncodedPair:
    tools = json.loads(row.tools) if row.tools else []
    prompt = [_as_prompt(message) for message in row.prompt]
    try:
        sides = [
            encode_conversation(tokenizer, [*prompt, *(message.to_dict() for message in side)], tools)
            for side in (row.chosen, row.rejected)
        ]
    except ChatTemplateError as error:
        raise ChatTemplateError(f"{where}: {error}") from None
    return EncodedPair(*sides)


def _as_prompt(message: Message) -> dict:
    """A message of the prompt; replies in it, such as worked examples, are not the policy's."""
    return message.to_dict() | ({NOT_TRAINED: 0} if message.role == "assistant" else {})


def calls_without_tools(rows: Sequence[Preference]) -> int:
    """Count the pairs that call tools and name none, so that their prompts differ from those of the agent."""
    return sum(
        row.tools is None and any(message.tool_calls for side in (row.chosen, row.rejected) for message in side)
        for row in rows
    )


def digest(pairs: Sequence[EncodedPair]) -> str:
    """The sha256 of the tokens and masks, in order."""
    whole = hashlib.sha256()
    for pair in pairs:
        whole.update(json.dumps([[side.ids, side.mask] for side in (pair.chosen, pair.rejected)]).encode())
    return whole.hexdigest()

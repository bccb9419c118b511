"""Turns conversations into tokens with a mask over the trained replies, for fine-tuning and for the small policy.

A conversation is cut where generation would begin and end, so the trained tokens are those that will be sampled. TRL's
own `assistant_only_loss` is not used: it needs `{% generation %}` marks, which it can add to the templates of only some
families; it tokenises the whole text at once, so that a token may span prompt and reply; and it has no `weight`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from dbbench_adapter.protocols import Message
from sql_agent.local.conversation import ChatTemplateError, render, with_object

NOT_TRAINED = "weight"
"""A message's field, OpenAI's name in fine-tuning files; 0 on assistant messages that belong to a prompt."""
REMEDY = "leave such rows out or give another --chat-template-path"


@dataclass(frozen=True)
class Encoded:
    """Holds a conversation in tokens, up to the end of its last reply."""

    ids: list[int]
    mask: list[int]
    """1 on the tokens of replies, their end tokens included; as long as `ids`."""

    @property
    def labels(self) -> list[int]:
        """Return the labels for transformers and TRL, -100 on tokens that are not trained."""
        return [token if said else -100 for token, said in zip(self.ids, self.mask, strict=True)]


def is_imitated(message: Message) -> bool:
    return message["role"] == "assistant" and message.get(NOT_TRAINED) != 0


def encode_conversation(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()
) -> Encoded:
    """Cut a conversation where generation begins and ends: it is rendered up to each reply and after it.

    Up to the first reply the ids are exactly `apply_chat_template(messages[:k], tools=tools,
    add_generation_prompt=True)`; no token spans prompt and reply. Text after the last reply is not encoded.

    Args:
        messages: in chat-completions form; assistant messages with `weight` 0 belong to the prompt.
    Raises:
        ChatTemplateError: the template refuses the conversation, renders earlier messages differently once later ones
            follow, or does not end a reply with a special token.
        ValueError: there is no assistant message to imitate.
    """
    plain = [_for_template(message) for message in messages]
    ids: list[int] = []
    mask: list[int] = []
    written = end_of_turn = ""
    for turn, message in enumerate(messages):
        if not is_imitated(message):
            continue
        before = render(tokenizer, plain[:turn], tools, add_generation_prompt=True, remedy=REMEDY)
        after = render(tokenizer, plain[: turn + 1], tools, remedy=REMEDY)
        if not before.startswith(written) or not after.startswith(before):
            raise ChatTemplateError(
                f"the chat template of {tokenizer.name_or_path} does not preserve prefixes: what it wrote before "
                "reads otherwise once a message follows, so no reply can be trained as it will be sampled; give one "
                "that does with --chat-template-path (TRL's folder chat_templates has *_training.jinja for many models)"
            )
        reply = after[len(before) :].rstrip()
        reply_ids = tokenizer.encode(reply, add_special_tokens=False)
        if not reply_ids or tokenizer.decode(reply_ids[-1:], skip_special_tokens=True):
            raise ChatTemplateError(
                f"the chat template of {tokenizer.name_or_path} ends a reply with {reply[-20:]!r}, expected a special "
                "token: a policy could not learn to stop; give a template that writes one with --chat-template-path"
            )
        # encoded together with the previous turn's end token, as the engine does; that token is already in `ids`
        between = tokenizer.encode(end_of_turn + before[len(written) :], add_special_tokens=False)
        prompt_ids = between[1:] if written else between
        ids += prompt_ids + reply_ids
        mask += [0] * len(prompt_ids) + [1] * len(reply_ids)
        written, end_of_turn = before + reply, str(tokenizer.convert_ids_to_tokens(reply_ids[-1]))
    if not ids:
        raise ValueError("no assistant message to imitate")
    return Encoded(ids, mask)


def _for_template(message: Message) -> Message:
    """Return the message as templates expect it: arguments as an object, and missing content as an empty string."""
    said = {key: value for key, value in message.items() if key != NOT_TRAINED}
    said["content"] = said.get("content") or ""
    if calls := said.get("tool_calls"):
        said["tool_calls"] = [with_object(call) for call in calls]
    return said

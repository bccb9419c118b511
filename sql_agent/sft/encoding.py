"""Conversations in tokens, with a mask over what the policy has to say: for fine-tuning and for the small policy.

A conversation is cut where generation would begin and end, so what is trained is what will be sampled. TRL's own
`assistant_only_loss` is not used: it needs `{% generation %}` marks, which it can add to the templates of some families
only, tokenises the whole text at once, so that a token may span prompt and reply, and knows no `weight`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from dbbench_adapter.protocols import Message
from sql_agent.local.conversation import ChatTemplateError, render, with_object

NOT_TRAINED = "weight"
"""A message's field, 0 on what an assistant says inside a prompt: OpenAI's name for it in fine-tuning files."""
REMEDY = "leave such rows out or give another --chat_template_path"


@dataclass(frozen=True)
class Encoded:
    """A conversation in tokens, up to the end of its last reply."""

    ids: list[int]
    mask: list[int]
    """1 on the tokens that the policy has to say, the token that ends a reply included; as long as `ids`."""

    @property
    def labels(self) -> list[int]:
        """As transformers and TRL take them: -100 where nothing is learnt."""
        return [token if said else -100 for token, said in zip(self.ids, self.mask, strict=True)]


def is_imitated(message: Message) -> bool:
    return message["role"] == "assistant" and message.get(NOT_TRAINED) != 0


def encode_conversation(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()
) -> Encoded:
    """Cut a conversation where generation begins and ends: it is rendered up to each reply and after it.

    Up to the first reply the ids are exactly `apply_chat_template(messages[:k], tools=tools,
    add_generation_prompt=True)`; no token spans prompt and reply. What follows the last reply is not encoded.

    Args:
        messages: in chat-completions form; assistant messages with `weight` 0 belong to the prompt.
    Raises:
        ChatTemplateError: the template refuses the conversation, writes earlier messages otherwise once later ones
            follow, or ends a reply with no special token.
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
                "that does with --chat_template_path (TRL's folder chat_templates has *_training.jinja for many models)"
            )
        reply = after[len(before) :].rstrip()
        reply_ids = tokenizer.encode(reply, add_special_tokens=False)
        if not reply_ids or tokenizer.decode(reply_ids[-1:], skip_special_tokens=True):
            raise ChatTemplateError(
                f"the chat template of {tokenizer.name_or_path} ends a reply with {reply[-20:]!r}, expected a special "
                "token: a policy could not learn to stop; give a template that writes one with --chat_template_path"
            )
        # encoded together with the end of the turn before it, as the engine reads it; that token is in `ids` already
        between = tokenizer.encode(end_of_turn + before[len(written) :], add_special_tokens=False)
        prompt_ids = between[1:] if written else between
        ids += prompt_ids + reply_ids
        mask += [0] * len(prompt_ids) + [1] * len(reply_ids)
        written, end_of_turn = before + reply, str(tokenizer.convert_ids_to_tokens(reply_ids[-1]))
    if not ids:
        raise ValueError("no assistant message to imitate")
    return Encoded(ids, mask)


def _for_template(message: Message) -> Message:
    """Arguments as an object, and no content as an empty one."""
    said = {key: value for key, value in message.items() if key != NOT_TRAINED}
    said["content"] = said.get("content") or ""
    if calls := said.get("tool_calls"):
        said["tool_calls"] = [with_object(call) for call in calls]
    return said

"""Where replies begin and end in token ids: those of a rollout, and those that fine-tuning imitates.

A reply that was sampled keeps its ids. The text after it (tool results, the next generation prompt) is cut out of the
rendered template and appended, so a rollout of many turns is one sequence and nothing sampled is tokenised again. A
reply to imitate is cut where generation would begin and end, so the trained tokens are those that will be sampled. Both
ask for a template that does not rewrite what it wrote; `agentgrpo.chat.continuation` works without.

TRL's own `assistant_only_loss` is not used: it needs `{% generation %}` marks, which it can add to the templates of
only some families; it tokenises the whole text at once, so that a token may span prompt and reply; and it has no
`weight`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase
from trl.chat_template_utils import add_response_schema, parse_response, qwen3_schema

from agentgrpo.chat.calls import arguments_of, call, numbered_id
from agentgrpo.chat.template import (
    NOT_TRAINED,
    OTHER_TEMPLATE,
    ChatTemplate,
    ChatTemplateError,
    Message,
    for_template,
    says,
    training_template,
)
from agentgrpo.json_text import JsonObject

log = logging.getLogger(__name__)

PROBE_CALL = call("probe", {"query": "SELECT 'a b'"})


def ids_behind(template: ChatTemplate, written: str, end: str, text: str) -> list[int] | None:
    """Ids of what `text` adds to `written`; None if the template now writes the earlier part otherwise.

    They are encoded together with the token that ends the written part, as the engine does, and returned without it.

    Args:
        written: the text up to that token; empty at the beginning of a conversation.
        end: that token.
    """
    if not text.startswith(written):
        return None
    ids = template.encode(end + text[len(written) :])
    return ids[1:] if end else ids


# Sampled replies ------------------------------------------------------------------------------------------------------


class Conversation:
    """
    Args:
        tools: tools of each prompt, in chat-completions form; none for plain-text protocols.
    Raises:
        ChatTemplateError: there is no template; or it renders earlier messages differently once later ones follow, and
        TRL has no prefix-preserving version of it; or it writes tool calls in a form that cannot be parsed.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, tools: Sequence[JsonObject] = ()) -> None:
        self._tokenizer, self._tools = tokenizer, list(tools) or None
        if tokenizer.eos_token is None:
            raise ChatTemplateError(
                f"the tokenizer of {tokenizer.name_or_path} has no eos_token, so the end of a reply is not known; "
                "write the template's end of a turn into its tokenizer_config.json"
            )
        self._eos, self.eos_id = str(tokenizer.eos_token), int(tokenizer.eos_token_id)  # pyright: ignore[reportArgumentType]
        if not tokenizer.chat_template:
            raise ChatTemplateError(
                f"{tokenizer.name_or_path} has no chat template; take an instruct model, or write chat_template.jinja "
                "into its folder"
            )
        try:
            self._template = ChatTemplate.of(tokenizer, self._tools)
        except ValueError as error:
            raise ChatTemplateError(f"{tokenizer.name_or_path}: {error}") from None
        tokenizer.chat_template = self._template.text  # TRL knows templates by their text; it is saved with the adapter
        try:
            add_response_schema(tokenizer)
        except ValueError:  # TRL does not know the template; Hermes' form of calls is the most common one
            tokenizer.response_schema = qwen3_schema
        try:
            self._check()
        except ChatTemplateError:
            # Qwen3's template, for example, drops the reasoning of earlier turns; TRL has versions that keep it
            preserving = training_template(self._template.text)
            if preserving is None:
                raise
            log.warning(
                "the chat template of %s rewrites earlier turns; TRL's version of it for training, which does not, is "
                "used and saved with the adapter",
                tokenizer.name_or_path,
            )
            tokenizer.chat_template = preserving
            self._template = ChatTemplate.of(tokenizer, self._tools)
            self._check()

    def first_prompt(self, messages: Sequence[Message]) -> list[int]:
        return self._template.first_prompt(messages)

    def after_reply(self, first: Sequence[Message], reply: Message, answers: Sequence[Message]) -> list[int]:
        """Ids between a reply's end token and the next reply.

        Args:
            reply: the result of `read_reply`; only the names and arguments of its calls matter.
            answers: the episode's answers.
        """
        calls = reply.get("tool_calls")
        said = {"content": "", "tool_calls": calls} if calls else {"content": "-"}
        before = [*first, for_template({"role": "assistant", **said})]
        written = self._template.write(before).rstrip()
        whole = self._template.write([*before, *answers], prompt=True)
        ids = ids_behind(self._template, written, self._eos, whole) if written.endswith(self._eos) else None
        if ids is None:
            raise ChatTemplateError(
                f"the chat template of {self._tokenizer.name_or_path} does not preserve prefixes: earlier messages "
                f"render otherwise once later ones follow, or a turn does not end with {self._eos}; a rollout cannot "
                "be trained as one sequence. Take a template that renders each message by itself"
            )
        return ids

    def read_reply(self, ids: Sequence[int]) -> Message:
        """Calls that cannot be parsed stay text, as with vLLM's Hermes parser. `content` is without the end token."""
        ids = [*ids]
        text = self._tokenizer.decode(ids[:-1] if ids and ids[-1] == self.eos_id else ids)
        found = self._calls(ids) if self._tools and ids else None
        said = [each["function"] for each in found or ()]
        made = [
            call(each["name"], arguments_of(each.get("arguments", {})), numbered_id(place))
            for place, each in enumerate(said)
        ]
        return {"role": "assistant", "content": text, **({"tool_calls": made} if made else {})}

    def _calls(self, ids: list[int]) -> list[dict[str, Any]] | None:
        try:
            return parse_response(self._tokenizer, ids).get("tool_calls")
        except RecursionError:  # brackets nested a thousand deep are text and not a call
            return None

    def _check(self) -> None:
        first: list[Message] = [{"role": "system", "content": "probe"}, {"role": "user", "content": "probe"}]
        self.after_reply(first, {}, [{"role": "user", "content": "probe"}])
        if not self._tools:
            return
        called = for_template({"role": "assistant", "tool_calls": [PROBE_CALL]})
        prompt = self._template.write(first, prompt=True)
        written = self._template.write([*first, called]).removeprefix(prompt).rstrip()
        read = [each["function"] for each in self.read_reply(self._template.encode(written)).get("tool_calls", ())]
        if read != [PROBE_CALL["function"]]:
            raise ChatTemplateError(
                f"the chat template of {self._tokenizer.name_or_path} writes tool calls in a form that is not read "
                "here (known: Hermes' and those of TRL); use --protocol text, which needs no tool calls"
            )
        self.after_reply(first, called, [{"role": "tool", "tool_call_id": numbered_id(0), "content": "probe"}])


# Replies to imitate ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EncodedReplies:
    ids: list[int]
    mask: list[int]
    """1 on the tokens of replies, their end tokens included; as long as `ids`."""

    @property
    def labels(self) -> list[int]:
        """Labels for transformers and TRL: -100 on tokens that are not trained."""
        return [token if said else -100 for token, said in zip(self.ids, self.mask, strict=True)]


def is_imitated(message: Message) -> bool:
    return message["role"] == "assistant" and message.get(NOT_TRAINED) != 0


def encode_conversation(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Sequence[JsonObject] = ()
) -> EncodedReplies:
    """Cut a conversation where generation begins and ends: it is rendered up to each reply and after it.

    Up to the first reply the ids are exactly `apply_chat_template(messages[:k], tools=tools,
    add_generation_prompt=True)`; no token spans prompt and reply. Text after the last reply is not encoded.

    Args:
        messages: in chat-completions form; assistant messages with `weight` 0 belong to the prompt.
    Raises:
        ChatTemplateError: the template refuses the conversation, renders earlier messages differently once later ones
            follow, leaves out calls or reasoning, or does not end a reply with a special token.
        ValueError: there is no assistant message to imitate.
    """
    template = ChatTemplate.of(tokenizer, list(tools) or None)
    template.check_calls(messages)
    plain = [for_template(message) for message in messages]
    ids: list[int] = []
    mask: list[int] = []
    written = end_of_turn = ""
    for turn, message in enumerate(messages):
        if not is_imitated(message):
            continue
        before = template.write(plain[:turn], prompt=True, remedy=OTHER_TEMPLATE)
        after = template.write(plain[: turn + 1], remedy=OTHER_TEMPLATE)
        prompt_ids = ids_behind(template, written, end_of_turn, before)
        if prompt_ids is None or not after.startswith(before):
            raise ChatTemplateError(
                f"the chat template of {tokenizer.name_or_path} does not preserve prefixes: what it wrote before "
                "reads otherwise once a message follows, so no reply can be trained as it will be sampled; give one "
                "that does with --chat-template-path (TRL's folder chat_templates has *_training.jinja for many models)"
            )
        thought, marked, _ = plain[turn]["content"].rpartition("</think>")
        if marked and not says(after, thought):
            raise ChatTemplateError(
                f"the chat template of {tokenizer.name_or_path} leaves out the reasoning of replies (before </think>), "
                f"which will be sampled all the same; take the reasoning out of the rows, {OTHER_TEMPLATE}"
            )
        reply = after[len(before) :].rstrip()
        reply_ids = template.encode(reply)
        if not reply_ids or tokenizer.decode(reply_ids[-1:], skip_special_tokens=True):
            raise ChatTemplateError(
                f"the chat template of {tokenizer.name_or_path} ends a reply with {reply[-20:]!r}, expected a special "
                "token: a policy could not learn to stop; give a template that writes one with --chat-template-path"
            )
        ids += prompt_ids + reply_ids
        mask += [0] * len(prompt_ids) + [1] * len(reply_ids)
        written, end_of_turn = before + reply, str(tokenizer.convert_ids_to_tokens(reply_ids[-1]))
    if not ids:
        raise ValueError("no assistant message to imitate")
    return EncodedReplies(ids, mask)

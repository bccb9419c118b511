"""Builds conversations in token ids: the first prompt, the ids after a reply, and the tool calls inside a reply.

A reply keeps the ids that were sampled. The text after it (tool results, the next generation prompt) is cut out of the
rendered template and appended, so a rollout of many turns is one sequence and nothing sampled is tokenised again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase
from trl.chat_template_utils import add_response_schema, get_training_chat_template, parse_response, qwen3_schema

from dbbench_adapter.protocols import Message

log = logging.getLogger(__name__)

PROBE_CALL = {"type": "function", "function": {"name": "probe", "arguments": {"query": "SELECT 'a b'"}}}


class ChatTemplateError(ValueError):
    """Says that the model's chat template cannot be used for training, with the reason and what to do."""


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    tools: Sequence[dict[str, Any]],
    *,
    add_generation_prompt: bool = False,
    remedy: str = "write one that can into chat_template.jinja of its folder",
) -> str:
    """Render messages with the chat template.

    Raises:
        ChatTemplateError: the template raised an error; the message ends with `remedy`.
    """
    try:
        text: Any = tokenizer.apply_chat_template(
            list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=add_generation_prompt
        )
    except Exception as error:  # a template is a program: it may raise anything
        raise ChatTemplateError(
            f"the chat template of {tokenizer.name_or_path} refuses the conversation ({type(error).__name__}: "
            f"{error}); {remedy}"
        ) from error
    return text


def first_prompt(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Sequence[dict[str, Any]]
) -> list[int]:
    """Return the tokens of a first prompt, up to where the first reply begins."""
    text = render(tokenizer, messages, tools, add_generation_prompt=True)
    # verbose would warn of indexing errors where a prompt exceeds the context, before it is shortened
    return tokenizer.encode(text, add_special_tokens=False, verbose=False)


class Conversation:
    """Writes prompts and reads replies with a tokenizer's chat template.

    Args:
        tools: tools of each prompt, in chat-completions form; none for plain-text protocols.
    Raises:
        ChatTemplateError: there is no template; or it renders earlier messages differently once later ones follow, and
            TRL has no prefix-preserving version of it; or it writes tool calls in a form that cannot be parsed.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, tools: Sequence[dict[str, Any]] = ()) -> None:
        self._tokenizer, self._tools = tokenizer, tools
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
        if isinstance(tokenizer.chat_template, dict):
            try:  # TRL knows templates by their text, and the run's own is saved with the adapter
                tokenizer.chat_template = tokenizer.get_chat_template(tools=list(tools) or None)
            except ValueError as error:
                raise ChatTemplateError(f"{tokenizer.name_or_path}: {error}") from None
        try:
            add_response_schema(tokenizer)
        except ValueError:  # TRL does not know the template; Hermes' form of calls is the most common one
            tokenizer.response_schema = qwen3_schema
        try:
            self._check()
        except ChatTemplateError:
            # Qwen3's template, for example, drops the reasoning of earlier turns; TRL has versions that keep it
            preserving = _for_training(tokenizer)
            if preserving is None:
                raise
            log.warning(
                "the chat template of %s rewrites earlier turns; TRL's version of it for training, which does not, is "
                "used and saved with the adapter",
                tokenizer.name_or_path,
            )
            tokenizer.chat_template = preserving
            self._check()

    def first_prompt(self, messages: Sequence[Message]) -> list[int]:
        return first_prompt(self._tokenizer, messages, self._tools)

    def after_reply(self, first: Sequence[Message], reply: Message, answers: Sequence[Message]) -> list[int]:
        """Return the ids between a reply's end token and the next reply.

        Args:
            first: the messages of the first prompt.
            reply: the result of `read_reply`; only the names and arguments of its calls matter.
            answers: the episode's answers.
        """
        said: Message = {"role": "assistant", "content": "-" if not reply.get("tool_calls") else ""}
        if reply.get("tool_calls"):
            said["tool_calls"] = [with_object(call) for call in reply["tool_calls"]]
        return self._tokenizer.encode(self._eos + self._between([*first, said], answers), add_special_tokens=False)[1:]

    def read_reply(self, ids: Sequence[int]) -> Message:
        """Return the assistant message of a reply; unparsable calls stay text, as with vLLM's Hermes parser.

        Returns:
            `content` as it was sampled, without the end token; and `tool_calls` with arguments as JSON text, if there
            are calls and tools were offered.
        """
        ids = [*ids]
        text = self._tokenizer.decode(ids[:-1] if ids and ids[-1] == self.eos_id else ids)
        calls = self._calls(ids) if self._tools and ids else None
        if not calls:
            return {"role": "assistant", "content": text}
        return {
            "role": "assistant",
            "content": text,
            "tool_calls": [
                {"id": f"call_{place}", "type": "function", "function": _as_text(call["function"])}
                for place, call in enumerate(calls)
            ],
        }

    def _calls(self, ids: list[int]) -> list[dict[str, Any]] | None:
        try:
            return parse_response(self._tokenizer, ids).get("tool_calls")
        except RecursionError:  # brackets nested a thousand deep are text and not a call
            return None

    def _between(self, before: Sequence[Message], answers: Sequence[Message]) -> str:
        """Return the text from the last end token of `before` to the beginning of the next reply, with `answers`."""
        earlier = render(self._tokenizer, before, self._tools)
        whole = render(self._tokenizer, [*before, *answers], self._tools, add_generation_prompt=True)
        end = earlier.rfind(self._eos) + len(self._eos)
        if end < len(self._eos) or whole[:end] != earlier[:end]:
            raise ChatTemplateError(
                f"the chat template of {self._tokenizer.name_or_path} does not preserve prefixes: earlier messages "
                f"render otherwise once later ones follow, or a turn does not end with {self._eos}; a rollout cannot "
                "be trained as one sequence. Take a template that renders each message by itself"
            )
        return whole[end:]

    def _check(self) -> None:
        first: list[Message] = [{"role": "system", "content": "probe"}, {"role": "user", "content": "probe"}]
        self._between([*first, {"role": "assistant", "content": "-"}], [{"role": "user", "content": "probe"}])
        if not self._tools:
            return
        called: Message = {"role": "assistant", "content": "", "tool_calls": [PROBE_CALL]}
        self._between([*first, called], [{"role": "tool", "content": "probe"}])
        prompt = render(self._tokenizer, first, self._tools, add_generation_prompt=True)
        written = render(self._tokenizer, [*first, called], self._tools).removeprefix(prompt)
        ids = self._tokenizer.encode(written[: written.rfind(self._eos) + len(self._eos)], add_special_tokens=False)
        read = [call["function"] for call in self.read_reply(ids).get("tool_calls", ())]
        if read != [_as_text(PROBE_CALL["function"])]:
            raise ChatTemplateError(
                f"the chat template of {self._tokenizer.name_or_path} writes tool calls in a form that is not read "
                "here (known: Hermes' and those of TRL); use --protocol text, which needs no tool calls"
            )


def _for_training(tokenizer: PreTrainedTokenizerBase) -> str | None:
    try:
        return get_training_chat_template(tokenizer)
    except ValueError:
        return None


def _as_text(function: dict[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"name": function["name"], "arguments": text}


def with_object(call: dict[str, Any]) -> dict[str, Any]:
    """Return the call with its arguments as an object, as templates expect (vLLM's chat endpoints do the same).

    Arguments that are not a JSON object stay text.
    """
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, TypeError):
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call

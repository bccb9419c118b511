"""The chat template of a model, and its tokenizer.

Rollouts, local training, fine-tuning and the reward model all render here, so that a conversation has the same tokens
in each of them. vLLM's chat server renders by itself, with the same renderer of transformers. Importing this module is
instant; a rendering imports transformers (2 s, without torch).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgrpo.chat.calls import numbered_id
from agentgrpo.json_text import parse_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# A message in chat-completions form.
Message = dict[str, Any]
# A message's field, OpenAI's name in fine-tuning files; 0 on assistant messages that belong to a prompt.
NOT_TRAINED = "weight"
OTHER_TEMPLATE = "leave such rows out or give another --chat-template-path"
REMEDY = "write one that can into chat_template.jinja of its folder"


# A conversation with a call, and its parts as they are found again in what a template writes.
_ASKED = {"id": numbered_id(0), "type": "function"}
_ASKED |= {"function": {"name": "execute_sql", "arguments": {"query": "SELECT probe_call"}}}
CALLING: list[Message] = [
    {"role": "user", "content": "probe_user"},
    {"role": "assistant", "content": "", "tool_calls": [_ASKED]},
    {"role": "tool", "tool_call_id": _ASKED["id"], "name": "execute_sql", "content": "probe_result"},
]
CALLING_PARTS = {
    "probe_user": "the user's message",
    "SELECT probe_call": "the arguments of tool calls",
    "probe_result": "tool results",
}


class ChatTemplateError(ValueError):
    """The model's chat template cannot be used for training, with the reason and what to do."""


def render(
    template: str,
    messages: Sequence[Message],
    tools: list[Any] | None = None,
    *,
    special: Mapping[str, Any] | None = None,
    prompt: bool = False,
) -> str:
    """Render a conversation; with `prompt`, up to where the next reply begins.

    Args:
        special: what the template may use beside the conversation, e.g. `bos_token`.
    Raises:
        Exception: a template is a program and may raise anything.
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    (text,), _ = render_jinja_template(
        [list(messages)], tools, chat_template=template, add_generation_prompt=prompt, **special or {}
    )
    return text


@dataclass(frozen=True)
class ChatTemplate:
    text: str
    tools: list[Any] | None
    """Tools of each prompt, in chat-completions form; None where none are offered."""
    special: Mapping[str, Any]
    encode: Callable[[str], list[int]]
    """The ids of a rendered text, without special tokens of the tokenizer's own."""
    name: str
    """The model's folder, for error messages."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, tools: list[Any] | None = None) -> ChatTemplate:
        """Take a tokenizer's template, that for tools if it has several.

        Raises:
            ValueError: it has none for such prompts.
        """

        def encode(text: str) -> list[int]:
            # verbose would warn of indexing errors where a prompt exceeds the context, before it is shortened
            return tokenizer.encode(text, add_special_tokens=False, verbose=False)

        text = tokenizer.get_chat_template(tools=tools)  # pyright: ignore[reportArgumentType]
        return cls(text, tools, tokenizer.special_tokens_map, encode, tokenizer.name_or_path)

    def render(self, messages: Sequence[Message], *, prompt: bool = False) -> str:
        return render(self.text, messages, self.tools, special=self.special, prompt=prompt)

    def ids(self, messages: Sequence[Message], *, prompt: bool = False) -> list[int]:
        return self.encode(self.render(messages, prompt=prompt))

    def write(self, messages: Sequence[Message], *, prompt: bool = False, remedy: str = REMEDY) -> str:
        """Raises ChatTemplateError: the template raised an error; the message ends with `remedy`."""
        try:
            return self.render(messages, prompt=prompt)
        except Exception as error:  # a template is a program: it may raise anything
            raise ChatTemplateError(
                f"the chat template of {self.name} refuses the conversation ({type(error).__name__}: {error}); {remedy}"
            ) from error

    def check_calls(self, messages: Sequence[Message]) -> None:
        """Check that a conversation's calls are written: what a template leaves out is neither learnt nor compared.

        A conversation without calls passes.

        Raises:
            ChatTemplateError: they are not.
        """
        if not any(message.get("tool_calls") for message in messages):
            return
        written = self.write(CALLING, prompt=True, remedy=OTHER_TEMPLATE)
        if missing := [part for mark, part in CALLING_PARTS.items() if mark not in written]:
            raise ChatTemplateError(f"the chat template of {self.name} leaves out {missing[0]}; {OTHER_TEMPLATE}")

    def first_prompt(self, messages: Sequence[Message]) -> list[int]:
        """The ids of a first prompt, up to where the first reply begins.

        Raises:
            ChatTemplateError: see `write`.
        """
        return self.encode(self.write(messages, prompt=True))


def says(written: str, part: str) -> bool:
    # templates change the white space around thoughts and replies
    return "".join(part.split()) in "".join(written.split())


def for_template(message: Message) -> Message:
    # A missing content becomes a text and arguments become objects, as vLLM's chat endpoints do it.
    said = {name: value for name, value in message.items() if name != NOT_TRAINED}
    said["content"] = said.get("content") or ""
    if calls := said.get("tool_calls"):
        said["tool_calls"] = [_with_object(call) for call in calls]
    return said


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = parse_json(function["arguments"])
    except (ValueError, TypeError):
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


def training_template(template: str) -> str | None:
    """TRL's version of a chat template, which does not rewrite earlier turns; None if it has none.

    The same as `trl.chat_template_utils.get_training_chat_template`, whose import takes seconds.
    """
    spec = importlib.util.find_spec("trl")
    folder = Path(spec.origin).parent / "chat_templates" if spec and spec.origin else Path()
    for file in sorted(folder.glob("*_training.jinja")):
        original = file.with_name(file.name.replace("_training", ""))
        if original.is_file() and original.read_text(encoding="utf-8") == template:
            return file.read_text(encoding="utf-8")
    return None

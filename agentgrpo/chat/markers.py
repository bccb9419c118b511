"""The marks of chat templates inside a text that is to be one message.

Such a text has been rendered already. A template would render it once more, as one message that holds a whole
conversation, and the tokenizer of its family makes control tokens of it: a reply with `<|im_end|>` in it teaches to end
there. So a message with one is refused. Tags that a model writes itself, as in `<think>` or `<tool_call>`, are text.
Anthropic's transcripts (`\n\nHuman:`) have a reader of their own among the forms of pairs.
"""

from __future__ import annotations

import re

from agentgrpo.chat.messages import Message

_MARKERS = (
    r"<\|[A-Za-z][A-Za-z0-9_]{0,40}\|>",  # ChatML, Llama 3, Phi, GLM, gpt-oss, Granite, Cohere
    r"<｜[^｜<>\n]{1,40}｜>",  # DeepSeek
    r"</?(?:start|end)_of_turn>|<(?:bos|eos)>",  # Gemma
    r"\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\]|<</?SYS>>",  # Llama 2, Mistral
    r"\n\n(?:Human|Assistant):",  # Anthropic's transcripts
    r"(?<=\n)### (?:Response|Assistant):|\A### (?:Instruction|Human|User):",  # Alpaca, Vicuna 0
    r"(?:\A|\s)USER: (?=.*\sASSISTANT:)",  # Vicuna
)
_MARKER = re.compile("|".join(_MARKERS), re.DOTALL)
# The end token of Llama 2 and Mistral; with `<s>` before it, it is HTML.
_LAST = re.compile(r"</s>\s*\Z")
_TAG = r"<(image|video|audio)>"
# Where a processor of LLaVA, LLaMA-Factory, ms-swift or Gemma 3 puts an image; elsewhere it is HTML.
_MEDIUM = re.compile(
    r"<(image|video|audio)[ _]?\d+>|<(start_of_image)>"
    # before a text, as LLaVA, LLaMA-Factory and Qwen-VL have it; but not "<video> is", "<video>," and "<video><source>"
    rf"|\A\s*{_TAG}(?![ \t]+[a-z]|\s*(?:[,.;:!?)/&|]|\Z|</?(?!(?:image|video|audio)>)))"
    # as the last line behind a text, perhaps with more tags
    rf"|(?<=\S)[ \t]*\n\s*{_TAG}(?=(?:\s*<(?:image|video|audio)>){{0,15}}\s*\Z)"
    # alone on a line between texts, as rows with several images have it; the other two are elements of HTML
    r"|\n[ \t]*<(image)>[ \t]*(?=\n)"
)


def marker_in(text: str) -> str | None:
    found = _MARKER.search(text) or (None if "<s>" in text.removeprefix("<s>") else _LAST.search(text))
    return found and found.group().strip()


def medium_in(text: str) -> str | None:
    found = _MEDIUM.search(text)
    name = found and next(filter(None, found.groups()))
    return None if found is None or f"</{name}>" in text else found.group().strip()


def why_rendered(message: Message) -> str | None:
    # A tool's result is left alone: it may hold any text.
    if message.role == "tool":
        return None
    if (medium := medium_in(message.content)) is not None:
        return why_no_medium(medium)
    marker = marker_in(message.content)
    return marker and (
        f"holds {marker!r}, a mark of a chat format, which the model's template would write once more; give the "
        "conversation as messages with roles, or remove the mark"
    )


def why_no_medium(marker: str) -> str:
    return f"holds {marker!r}, the place of an image or of sound, and only texts are read; leave the row out"

"""Builds the small policy's tokenizer: byte-level BPE with tokens for whole pieces of the prompt.

Letters, digits, white space and punctuation never share a token, so that a word has the same pieces everywhere and can
be copied. Text that all conversations share (the rules, the prefixes of the user message, the JSON around a tool call)
has one token per piece. These are plain added tokens, so decoding returns their text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentgrpo.chat import template
from agentgrpo.chat.template import Message
from dbbench_adapter.datatypes import Gold, Task
from dbbench_adapter.generator import NOTE
from dbbench_adapter.protocols import fc

# Bytes, merges and control tokens; the boilerplate tokens are added to these.
VOCAB_SIZE = 1000
MAX_POSITIONS = 4096
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
PAD_ID, START_ID, END_ID = range(3)
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
CHAT_TEMPLATE = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8")
_WORDS_DIGITS_SPACES_SIGNS = r"\p{L}+|\p{N}|\s|[^\p{L}\p{N}\s]"
_HOLE = "\N{REPLACEMENT CHARACTER}"


def build_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Train the merges on these texts and add the conversations' boilerplate; equal texts give an equal tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_WORDS_DIGITS_SPACES_SIGNS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (*MARKS, *boilerplate())])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def boilerplate() -> list[str]:
    """Every text of three characters or more that conversations share, longest first.

    It renders conversations whose variable parts are holes, so it follows the protocol's wording automatically.
    """
    rendered = []
    for note, evidence, answers in itertools.product(["", _HOLE.join(("", *NOTE, ""))], ["", _HOLE], range(3)):
        task = Task(id="", question=_HOLE, kind="other", tables=(), gold=Gold(), table_note=note, evidence=evidence)
        rendered.append(render_chat(conversation(task, _HOLE, _HOLE, [_HOLE] * answers)))
    pieces = re.split("|".join(map(re.escape, (_HOLE, START, END, *MARKS))), "".join(rendered))
    return sorted({piece for piece in pieces if len(piece) > 2}, key=lambda piece: (-len(piece), piece))


def conversation(task: Task, query: str, result: str, answers: Sequence[str]) -> list[Message]:
    return [
        *fc.messages(task),
        _call("execute_sql", {"query": query}),
        {"role": "tool", "content": result},
        _call("commit_final_answer", {"answers": list(answers)}),
    ]


def render_chat(messages: Sequence[Message]) -> str:
    return template.render(CHAT_TEMPLATE, messages)


def _call(name: str, arguments: dict[str, Any]) -> Message:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}


def task_texts(tasks: Iterable[Task]) -> Iterable[str]:
    """Texts without boilerplate, to train the merges on."""
    for task in tasks:
        yield from (task.question, task.table_note, task.gold.sql or "", *(task.gold.answers or ()))

"""Says what a column of a user's file may be by its name, so that nothing that a person meant is passed over.

A reader knows the columns that it reads. Of the others, one with the name of a prompt and a text that is nowhere in
what was read is an error of the file, or of the reader's guess.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from agentgrpo.json_text import parse_json

PROMPT_WORDS = frozenset((
    "prompt", "question", "query", "input", "inputs", "context", "history", "instruction", "system", "message",
    "conversation", "dialog", "dialogue", "chat", "turn", "user", "human", "request", "problem", "utterance",
    "document", "passage", "article", "post", "background", "scenario", "persona", "knowledge", "evidence", "hint",
    "preamble", "developer", "interaction",
))  # fmt: skip
"""A column whose name has one of these words, or its plural, may hold a part of the prompt."""
NO_PROMPT_WORDS = frozenset((
    "id", "ids", "uid", "uuid", "guid", "hash", "sha", "sha256", "md5", "digest", "length", "len", "chars",
    "characters", "token", "tokens", "toks", "tokenized", "count", "num", "number", "score", "scores", "rating",
    "ratings", "reward", "type", "kind", "format", "source", "src", "origin", "lang", "language", "locale", "index",
    "idx", "key", "dataset", "subset", "split", "category", "categories", "topic", "tag", "tags", "label", "labels",
    "level", "difficulty", "model", "engine", "name", "names", "version", "url", "link", "path", "file", "filename",
    "date", "time", "timestamp", "created", "template", "embedding", "embeddings", "cost", "usage", "quality",
    "toxicity", "status", "cluster", "perplexity", "domain", "is", "has", "complexity",
))  # fmt: skip
"""A column whose name has one of these words is about the prompt, or about the row."""


def words(name: str) -> frozenset[str]:
    """Return the words of a column's name in lower case: `userInput_2` has user, input and 2."""
    return frozenset(word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name))


def plain_name(name: str) -> str:
    """Return the name without case and separators, so that `loss_mask`, `lossMask` and `Loss-Mask` are one."""
    return re.sub(r"[\W_]+", "", name).lower()


def looks_like_prompt(name: str) -> bool:
    found = words(name)
    single = found | {word.removesuffix("s") for word in found} | {plain_name(name)}
    return not single.isdisjoint(PROMPT_WORDS) and found.isdisjoint(NO_PROMPT_WORDS)


def unread_prompt(
    row: dict[str, Any], read: Collection[str | None], prompt: Sequence[str], replies: Sequence[str] = ()
) -> str | None:
    """Return the first column that looks like a prompt and holds a text that was not read; None if there is none.

    Args:
        read: the columns that were read.
        prompt: the texts of the prompt that was read. A column with one text has to stand there.
        replies: the other texts that were read. A column of messages may hold these too.
    """
    for name, value in row.items():
        if name in read or not looks_like_prompt(name):
            continue
        value = _unpacked(value)
        known = [" ".join(text.split()) for text in (prompt if isinstance(value, str) else [*prompt, *replies])]
        if any(not any(text in each for each in known) for text in _texts(value)):
            return name
    return None


_NO_CONTENT = {"role", "from", "type", "name", "id", "tool_call_id"}


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a value that have a letter or digit, with single blanks."""
    if isinstance(value, str):
        text = " ".join(value.split())
        if re.search(r"\w", text):
            yield text
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            if name not in _NO_CONTENT:
                yield from _texts(each)


def _unpacked(value: Any) -> Any:
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        return parse_json(value)
    except ValueError:
        return value

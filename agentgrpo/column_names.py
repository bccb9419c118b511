"""What a column of a user's file may be by its name, so that nothing that a person meant is passed over.

A reader knows the columns that it reads. Of the others, one with the name of a prompt and a text that is nowhere in
what was read is an error of the file, or of the reader's guess.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from agentgrpo.json_text import parse_json

# A column whose name has one of these words, or its plural, may hold a part of the prompt.
PROMPT_WORDS = frozenset((
    "prompt", "question", "query", "input", "inputs", "context", "history", "instruction", "system", "message",
    "conversation", "dialog", "dialogue", "chat", "turn", "user", "human", "request", "problem", "utterance",
    "document", "passage", "article", "post", "background", "scenario", "persona", "knowledge", "evidence", "hint",
    "preamble", "developer", "interaction", "previous", "prev", "prior", "preceding", "earlier",
))  # fmt: skip
# A column whose name has one of these words is about the prompt, or about the row.
NO_PROMPT_WORDS = frozenset((
    "id", "ids", "uid", "uuid", "guid", "hash", "sha", "sha256", "md5", "digest", "length", "len", "chars",
    "characters", "token", "tokens", "toks", "tokenized", "count", "num", "number", "score", "scores", "rating",
    "ratings", "reward", "type", "kind", "format", "source", "src", "origin", "lang", "language", "locale", "index",
    "idx", "key", "dataset", "subset", "split", "category", "categories", "topic", "tag", "tags", "label", "labels",
    "level", "difficulty", "model", "engine", "name", "names", "version", "url", "link", "path", "file", "filename",
    "date", "time", "timestamp", "created", "template", "embedding", "embeddings", "cost", "usage", "quality",
    "toxicity", "status", "cluster", "perplexity", "domain", "is", "has", "complexity",
))  # fmt: skip
PREFIX_WORDS = frozenset(("prefix", "prefill", "prefilled", "initial", "partial", "unfinished"))
# A column whose name has a word of both sets, or one of the first alone, may hold the beginning of a reply.
REPLY_WORDS = frozenset((
    "assistant", "answer", "response", "reply", "completion", "output", "generation", "solution", "reason", "reasoning",
    "step", "steps", "thought", "thoughts", "thinking", "cot", "chosen", "rejected", "target", "text",
))  # fmt: skip
# A column whose name has one of these words may hold schemas of tools, or calls.
TOOL_WORDS = frozenset(("tool", "tools", "function", "functions", "api", "apis", "plugin", "plugins"))
MEDIA_WORDS = frozenset((
    "image", "images", "img", "imgs", "picture", "pictures", "photo", "photos", "pixel", "pixels", "video", "videos",
    "audio", "audios", "sound", "sounds",
))  # fmt: skip
# A column with one of `MEDIA_WORDS` holds images or sound, or says where they are, unless it has one of these too.
ABOUT_MEDIA = frozenset((
    "id", "ids", "has", "is", "count", "num", "number", "width", "height", "caption", "captions", "description", "alt",
    "size", "type", "format", "tokens",
))  # fmt: skip


TOOLS = "tools or their calls"


class UnreadPart(NamedTuple):
    column: str
    what: str
    """What it looks like, such as `TOOLS`."""
    remedy: str | None
    """What to do with the column; None: its text belongs into the columns that are read."""


def words(name: str) -> frozenset[str]:
    return frozenset(word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name))


def plain_name(name: str) -> str:
    """`loss_mask`, `lossMask` and `Loss-Mask` are one name."""
    return re.sub(r"[\W_]+", "", name).lower()


def looks_like_prompt(name: str, also: frozenset[str] = frozenset()) -> bool:
    """
    Args:
        also: words of such names beside `PROMPT_WORDS`.
    """
    found = words(name)
    single = found | {word.removesuffix("s") for word in found} | {plain_name(name)}
    return not single.isdisjoint(PROMPT_WORDS | also) and found.isdisjoint(NO_PROMPT_WORDS)


def unread_prompt(
    row: dict[str, Any],
    read: Collection[str | None],
    prompt: Sequence[str],
    replies: Sequence[str] = (),
    also: frozenset[str] = frozenset(),
) -> str | None:
    """First column that looks like a prompt and holds a text that was not read.

    Args:
        read: the columns that were read.
        prompt: the texts of the prompt that was read. A column with one text has to stand there.
        replies: the other texts that were read. A column of messages may hold these too.
        also: words of such names beside `PROMPT_WORDS`.
    """
    for name, value in row.items():
        if name in read or not looks_like_prompt(name, also):
            continue
        value = _unpacked(value)
        known = [" ".join(text.split()) for text in (prompt if isinstance(value, str) else [*prompt, *replies])]
        if any(_is_nowhere(text, known) for text in _texts(value)):
            return name
    return None


def unread_part(
    row: dict[str, Any], read: Collection[str | None], prompt: Sequence[str], replies: Sequence[str] = ()
) -> UnreadPart | None:
    """First column that holds a part of a conversation that was not read.

    Args:
        read: the columns that were read.
        prompt: the texts of the prompt that was read.
        replies: the other texts that were read.
    """
    texts = [" ".join(text.split()) for text in (*prompt, *replies)]
    for name, value in row.items():
        if name in read:
            continue
        if holds_media(name, value):
            return UnreadPart(name, "images or sound", "only texts are learnt, so leave the row out")
        if any(_is_nowhere(tool, texts) for tool in _tools(name, value)):
            return UnreadPart(name, TOOLS, "rename it to tools, and write calls into the messages")
        if _looks_like_prefix(name) and any(_is_nowhere(text, texts) for text in _texts(value)):
            return UnreadPart(name, "the beginning of a reply", None)
    column = unread_prompt(row, read, prompt, replies)
    return None if column is None else UnreadPart(column, "a part of the prompt", None)


def holds_media(name: str, value: Any) -> bool:
    # A flag or a count is no medium, as in `sound: true`; nor are the empty places that `datasets` fills in.
    found = words(name)
    return not found.isdisjoint(MEDIA_WORDS) and found.isdisjoint(ABOUT_MEDIA) and _is_medium(value)


def _is_medium(value: Any, *, inside: bool = False) -> bool:
    if isinstance(value, list | dict):
        return any(_is_medium(each, inside=True) for each in (value.values() if isinstance(value, dict) else value))
    if isinstance(value, str | bytes):
        return bool(value.strip())
    return inside and isinstance(value, int | float) and not isinstance(value, bool)  # a sample, a pixel or an id


def _looks_like_prefix(name: str) -> bool:
    found = words(name)
    named = found <= PREFIX_WORDS or not (found.isdisjoint(PREFIX_WORDS) or found.isdisjoint(REPLY_WORDS))
    return bool(found) and named and found.isdisjoint(NO_PROMPT_WORDS)


def _tools(name: str, value: Any) -> Iterator[str]:
    found = words(name)
    value = [] if found.isdisjoint(TOOL_WORDS) or "choice" in found else _unpacked(value)
    if not isinstance(value, list | dict):
        return
    for key, tool in value.items() if isinstance(value, dict) else ((None, each) for each in value):
        if isinstance(tool, dict):
            function = tool.get("function")
            held = function if isinstance(function, dict) else tool
            yield str(held.get("name") or key or held)


def _is_nowhere(text: str, known: Sequence[str]) -> bool:
    return not any(text in each for each in known)


_NO_CONTENT = {"role", "from", "type", "name", "id", "tool_call_id"}


def _texts(value: Any) -> Iterator[str]:
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

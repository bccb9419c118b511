"""Chooses what of a conversation is sent back to a model server, and reads why a server refused it. Pure.

An assistant's message is sent with the fields that OpenAI's requests have, and with the reasoning that the server wrote
itself, because some chat templates and servers need it in the turns after a tool call. A server that refuses one of
these is asked once more without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentgrpo.json_text import parse_json

Json = dict[str, Any]

REFUSED = (400, 422)
"""Statuses of a request that a server will not take in this form."""
CONTEXT_FULL = "context_length_exceeded"
"""OpenAI's code of the error for a conversation that is longer than the model's context."""
TOO_LARGE = "request_too_large"
"""Code of the error of our own servers for a request that they do not read (`model_address.request_limits`), and the
reason under which its rollout is lost."""
MESSAGE_FIELDS = ("role", "content", "name", "tool_calls", "function_call", "refusal", "audio")
REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")
OPTIONAL_FIELDS = (*REASONING_FIELDS, "refusal", "name")
CALL_FIELDS = ("id", "type", "function")
CALL_EXTRA = "extra_content"
"""What Gemini's servers write beside a call, its thought's signature, and want back."""


def sendable(messages: Sequence[Any], refused: frozenset[str] = frozenset()) -> list[Any]:
    """Return a conversation as it is sent: messages of the assistant only with fields that a server may know.

    Args:
        refused: fields that the server does not take; a refused `content` is an empty text instead of null.
    """
    return [
        _returned(message, refused) if isinstance(message, dict) and message.get("role") == "assistant" else message
        for message in messages
    ]


def refused_fields(words: str, messages: Sequence[Any], refused: frozenset[str]) -> frozenset[str]:
    """Return the fields without which a refused conversation is to be sent once more.

    Args:
        words: the server's answer. Of the fields that may be left out it names some; if none, all of them are.
        refused: fields that were left out already.
    Returns:
        The fields; none if nothing can be left out.
    """
    sent = [m for m in sendable(messages, refused) if isinstance(m, dict) and m.get("role") == "assistant"]
    there = {name for message in sent for name in OPTIONAL_FIELDS if name in message}
    there |= {"content" for message in sent if message["content"] is None}
    there |= {CALL_EXTRA for message in sent for call in message.get("tool_calls", ()) if CALL_EXTRA in call}
    named = {name for name in there if re.search(rf"(?<!\w){name}(?!\w)", words)}
    return frozenset(named or there)


def _returned(message: Json, refused: frozenset[str]) -> Json:
    fields = [name for name in (*MESSAGE_FIELDS, *REASONING_FIELDS) if name not in refused - {"content"}]
    kept = {name: value for name, value in message.items() if name in fields and value not in (None, [])}
    if isinstance(calls := kept.get("tool_calls"), list):
        of_call = CALL_FIELDS if CALL_EXTRA in refused else (*CALL_FIELDS, CALL_EXTRA)
        kept["tool_calls"] = [
            {name: value for name, value in call.items() if name in of_call} if isinstance(call, dict) else call
            for call in calls
        ]
    nothing = "" if "content" in refused or "tool_calls" not in kept else None
    return {"role": "assistant", "content": nothing, **kept}


_OVERFLOWS = re.compile(
    # vLLM, SGLang, OpenAI, DeepSeek, llama.cpp, MiniMax; Mistral, LM Studio: "... context length"
    r"context[ _-]?(length|window|size|limit)"
    # Anthropic, Bedrock, Fireworks: "prompt is too long"; TensorRT-LLM, xAI, Zhipu: "prompt length exceeds maximum"
    r"|\b(prompt|inputs?|request|conversation|sequence)\b[^.]{0,80}\b(too (long|large)|longer than|larger than|exceed)"
    r"|max(imum)?[ _](prompt|input|model|sequence|seq)[ _]len"
    # Gemini, Kimi, Cohere: "exceeds the maximum number of tokens", "model token limit", "too many tokens"
    r"|exceed[^.]{0,60}\btokens?\b|too many (\w+ )?tokens"
    # TGI: "`inputs` must have less than 4095 tokens", "`inputs` tokens + `max_new_tokens` must be <= 4096"
    r"|must have less than \d+ tokens|tokens`? \+ `?max_new_tokens"
    # DashScope
    r"|range of input length",
    re.IGNORECASE,
)
_QUOTA = re.compile(r"rate.?limit|per[ _](minute|day|hour)|quota|\bTPM\b", re.IGNORECASE)
_OTHER_LIMIT = re.compile(r"tool_call|string_above_max_length|string too long|tokens`? must be less", re.IGNORECASE)
"""It finds limits of one field of the request, an id or `max_tokens` itself, as Groq says it."""


def is_overflow(status: int, words: str) -> bool:
    """Return whether a server refused a conversation because it is longer than the model's context.

    Args:
        status: llama.cpp answers 500 where the context is full in the middle of a reply.
        words: the server's answer. One that names a quota is not about the context.
    """
    if status not in (*REFUSED, 413, 500) or _QUOTA.search(words):
        return False
    return status == 413 or CONTEXT_FULL in words or bool(_OVERFLOWS.search(words) and not _OTHER_LIMIT.search(words))


def is_too_large(body: bytes) -> bool:
    """Return whether one of our own servers refused to read a request, which says nothing about the context."""
    try:
        said = parse_json(body)
    except ValueError:
        return False
    error = said.get("error") if isinstance(said, dict) else None
    return isinstance(error, dict) and error.get("code") == TOO_LARGE


def words_of(body: bytes) -> str:
    """Return the sentence in a server's answer of an error; the whole text if it is in no known place."""
    text = body.decode("utf-8", "replace")
    try:
        said = parse_json(text)
    except ValueError:
        return text
    while isinstance(said, Mapping):
        inner = next((said[name] for name in ("error", "message", "detail") if said.get(name)), None)
        if inner is None:
            return text
        said = inner
    return said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)

"""Chooses what of a conversation is sent back to a model server, and what is left out after a refusal. Pure.

An assistant's message is sent with the fields that OpenAI's requests have, and with the reasoning that the server wrote
itself, because some chat templates and servers need it in the turns after a tool call. A server that refuses one of
these is asked once more without it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]

MESSAGE_FIELDS = ("role", "content", "name", "tool_calls", "function_call", "refusal", "audio")
REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")
OPTIONAL_FIELDS = (*REASONING_FIELDS, "refusal", "name")
CALL_FIELDS = ("id", "type", "function")
# What Gemini's servers write beside a call, its thought's signature, and want back.
CALL_EXTRA = "extra_content"
# Stands among the refused fields for the content of messages with calls. Servers of Mistral's models refuse both in one
# message.
CONTENT_BESIDE_CALLS = "content beside tool_calls"
_NOT_BOTH = re.compile(
    r"content\b.{0,40}\btool_?\s?calls?\b.{0,40}\b(both|together|same time|at once)"
    r"|\bboth\b.{0,40}\bcontent\b.{0,20}\btool_?\s?calls?\b|\bboth\b.{0,40}\btool_?\s?calls?\b.{0,20}\bcontent\b",
    re.IGNORECASE | re.DOTALL,
)


def sendable(messages: Sequence[Any], refused: frozenset[str] = frozenset()) -> list[Any]:
    """Messages of the assistant have only fields that a server may know.

    Args:
        refused: fields that the server does not take; a refused `content` is an empty text instead of null, and
        `CONTENT_BESIDE_CALLS` leaves the content of a message with calls out.
    """
    return [
        _returned(message, refused) if isinstance(message, dict) and message.get("role") == "assistant" else message
        for message in messages
    ]


def refused_fields(words: str, messages: Sequence[Any], refused: frozenset[str]) -> frozenset[str]:
    """Fields without which a refused conversation is to be sent once more; none if nothing can be left out.

    Args:
        words: the server's answer. Of the fields that may be left out it names some; if none, all of them are.
        refused: fields that were left out already.
    """
    sent = [m for m in sendable(messages, refused) if isinstance(m, dict) and m.get("role") == "assistant"]
    if _NOT_BOTH.search(words) and any("content" in m and "tool_calls" in m for m in sent):
        return frozenset({CONTENT_BESIDE_CALLS} - refused)
    there = {name for message in sent for name in OPTIONAL_FIELDS if name in message}
    there |= {"content" for message in sent if message.get("content", "") is None}
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
    if "tool_calls" in kept and CONTENT_BESIDE_CALLS in refused:
        return {name: value for name, value in kept.items() if name != "content"}
    nothing = "" if "content" in refused or "tool_calls" not in kept else None
    return {"role": "assistant", "content": nothing, **kept}

"""What the calls of one rollout said, as one conversation that people can read. Pure.

An agent of the user's own is known by its requests alone. Each repeats the conversation so far, and several agents of a
rollout repeat parts of each other's. The log keeps every message once, in the order in which it was first sent or
sampled. Leaves out the token ids, which are in the spans of the calls.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]


@dataclass
class CallLog:
    messages: list[Message] = field(default_factory=list)
    calls: int = 0
    """Calls that were answered with a reply."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    failure: str | None = None
    """Why the newest call got no reply, where the model server or the way to it was the cause."""

    def add(self, sent: Sequence[Mapping[str, Any]], response: Mapping[str, Any]) -> None:
        """
        Args:
            sent: the messages of a request.
            response: its chat completion.
        """
        known = Counter(map(_key, self.messages))
        for message in sent:
            key = _key(message)
            if known[key]:
                known[key] -= 1
            else:
                self.messages.append(dict(message))
        self.messages.append(_said(response["choices"][0]["message"]))
        self.calls += 1
        self.failure = None
        usage = response.get("usage") or {}
        self.prompt_tokens += usage.get("prompt_tokens") or 0
        self.completion_tokens += usage.get("completion_tokens") or 0


def _said(reply: Mapping[str, Any]) -> Message:
    """A reply without its empty fields."""
    return {"role": "assistant", "content": None} | {k: v for k, v in reply.items() if v not in (None, [], "")}


def _key(message: Mapping[str, Any]) -> str:
    """What a message says; a client may reorder its fields, leave out empty ones and write arguments anew."""
    calls = [call.get("function") or {} for call in message.get("tool_calls") or () if isinstance(call, dict)]
    said = [[call.get("name"), _parsed(call.get("arguments"))] for call in calls]
    where = message.get("tool_call_id")
    return json.dumps([message.get("role"), _text(message.get("content")), where, said], sort_keys=True, default=str)


def _parsed(arguments: Any) -> Any:
    try:
        return json.loads(arguments)
    except (TypeError, ValueError, RecursionError):
        return arguments


def _text(content: Any) -> Any:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content or ""

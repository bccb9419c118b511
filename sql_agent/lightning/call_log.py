"""What the calls of one rollout said, as conversations that people can read. Pure.

An agent of the user's own is known by its requests alone. A request that repeats a whole conversation goes on with it;
any other begins one of its own. Leaves out the token ids, which are in the spans of the calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]


@dataclass
class CallLog:
    calls: int = 0
    """Calls that were answered with a reply."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    refused: str | None = None
    """The newest answer that says that a request cannot be served as it is."""
    _conversations: list[list[Message]] = field(default_factory=list)
    _said: list[tuple[int, int]] = field(default_factory=list)
    """Conversation, and place in it, of each reply."""
    _failures: dict[str, str] = field(default_factory=dict)
    """Why a request got no reply, by what it said."""

    def add(self, sent: Sequence[Mapping[str, Any]], response: Mapping[str, Any]) -> None:
        """
        Args:
            sent: the messages of a request.
            response: its chat completion.
        """
        keys = [_key(message) for message in sent]
        self._failures.pop(json.dumps(keys), None)
        number = self._repeated_by(keys)
        if number is None:
            number = len(self._conversations)
            self._conversations.append([])
        conversation = self._conversations[number]
        conversation += [dict(message) for message in sent[len(conversation) :]]
        self._said.append((number, len(conversation)))
        conversation.append(_reply(response["choices"][0]["message"]))
        self.calls += 1
        usage = response.get("usage") or {}
        self.prompt_tokens += usage.get("prompt_tokens") or 0
        self.completion_tokens += usage.get("completion_tokens") or 0

    def fail(self, sent: Sequence[Mapping[str, Any]], why: str) -> None:
        """Remember a request that the machine did not answer, until the same one is answered."""
        self._failures[json.dumps([_key(message) for message in sent])] = why

    def to_dict(self) -> dict[str, Any]:
        """`messages`, all conversations one after another, `replies`, the places of the model's among them, in the
        order of the calls, and `failure`: why a request that was never answered was not; None where each was."""
        starts = [sum(map(len, self._conversations[:number])) for number in range(len(self._conversations))]
        return {
            "messages": [message for conversation in self._conversations for message in conversation],
            "replies": [starts[number] + place for number, place in self._said],
            "calls": self.calls,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "refused": self.refused,
            "failure": next(iter(self._failures.values()), None),
        }

    def _repeated_by(self, keys: Sequence[str]) -> int | None:
        """The longest conversation that a request begins with."""
        found = [
            number
            for number, conversation in enumerate(self._conversations)
            if len(conversation) <= len(keys) and [_key(m) for m in conversation] == list(keys[: len(conversation)])
        ]
        return max(found, key=lambda number: len(self._conversations[number]), default=None)


def _reply(message: Mapping[str, Any]) -> Message:
    """A reply without its empty fields."""
    return {"role": "assistant", "content": None} | {k: v for k, v in message.items() if v not in (None, [], "")}


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

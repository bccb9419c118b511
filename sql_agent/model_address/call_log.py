"""The calls of a user's own agent: what is asked of the model server, and a rollout's calls as people read them. Pure.

All that is known of a user's own agent are its requests. A request that repeats a whole conversation continues it; any
other request begins a new one.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from agentgrpo.json_text import JsonObject
from sql_agent.model_address.signed_address import RolloutSampling

Message = dict[str, Any]
# Number of attempts to remember, about 2 MiB; runners have far fewer in flight.
KEPT = 8192


class LoggedCalls(TypedDict, total=False):
    messages: list[Message]
    """All conversations one after another."""
    replies: list[int]
    """The indices of the model's replies in `messages`, in the order of the calls."""
    calls: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    refused: str | None
    unread: int
    failure: str | None
    """Why some request was never answered; None if every request was."""


@dataclass
class CallLog:
    calls: int = 0
    """Calls that were answered with a reply."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    refused: str | None = None
    """The newest answer that refused a request as invalid (a 4xx status)."""
    unread: int = 0
    """Calls in which the model wrote a tool call that its server could not parse."""
    _conversations: list[list[Message]] = field(default_factory=list)
    _said: list[tuple[int, int]] = field(default_factory=list)
    """For each reply, the conversation and the place in it."""
    _failures: dict[str, str] = field(default_factory=dict)
    """Why a request got no reply, by the request's messages."""

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
        self.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        self.completion_tokens += usage.get("completion_tokens") or 0

    def fail(self, sent: Sequence[JsonObject], why: str) -> None:
        # It is remembered until the same request is answered.
        self._failures[json.dumps([_key(message) for message in sent])] = why

    def to_dict(self) -> LoggedCalls:
        starts = [sum(map(len, self._conversations[:number])) for number in range(len(self._conversations))]
        return {
            "messages": [message for conversation in self._conversations for message in conversation],
            "replies": [starts[number] + place for number, place in self._said],
            "calls": self.calls,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "refused": self.refused,
            "unread": self.unread,
            "failure": next(iter(self._failures.values()), None),
        }

    def _repeated_by(self, keys: Sequence[str]) -> int | None:
        # The longest conversation that the request begins with is the one it continues.
        found = [
            number
            for number, conversation in enumerate(self._conversations)
            if len(conversation) <= len(keys) and [_key(m) for m in conversation] == list(keys[: len(conversation)])
        ]
        return max(found, key=lambda number: len(self._conversations[number]), default=None)


def _reply(message: JsonObject) -> Message:
    return {"role": "assistant", "content": None} | {k: v for k, v in message.items() if v not in (None, [], "")}


def _key(message: Mapping[str, Any]) -> str:
    # Clients may reorder fields, leave out empty ones and re-serialise arguments.
    calls = [call.get("function") or {} for call in message.get("tool_calls") or () if isinstance(call, dict)]
    said = [[call.get("name"), _sorted(call.get("arguments"))] for call in calls]
    where = message.get("tool_call_id")
    return json.dumps([message.get("role"), _text(message.get("content")), where, said], sort_keys=True, default=str)


def _sorted(arguments: Any) -> object:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)  # both fail on deep brackets, at depths of their own
    except (TypeError, ValueError, RecursionError):
        return arguments


def _text(content: object) -> object:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content or ""


class CallCounter:
    """
    Args:
        kept: attempts to remember; an attempt is forgotten once this many others have called after its last call.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        # Number of calls of each attempt; the attempt that called last is at the end.
        self._calls: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def next(self, rollout_id: str, attempt_id: str) -> int:
        number = self._calls.pop((rollout_id, attempt_id), 0) + 1
        self._calls[rollout_id, attempt_id] = number
        if len(self._calls) > self._kept:
            del self._calls[next(iter(self._calls))]
        return number


# Fields of a request that the agent decides, beside its tools; the run decides how the policy samples.
ASKED = ("messages", "parallel_tool_calls", "stop", "chat_template_kwargs", "stream", "stream_options")


def policy_request(request: dict[str, Any], sampling: RolloutSampling, sequence_id: int) -> dict[str, Any]:
    """The request to the model server for a call of a user's own agent.

    The agent's temperature, top_p and penalties are dropped, because the update assumes that every token was sampled
    from the policy at the run's temperature. Constraints on the sampler (`response_format`, strict tools, a forced
    tool) are dropped too, because the policy would not have sampled such tokens itself. The model's name is replaced,
    so that sub-agents need not know it.

    Args:
        request: one that `RequestLimits.check` takes.
    Raises:
        ValueError: the call asks for several replies.
    """
    if request.get("n") not in (None, 1):
        raise ValueError(f"n is {request['n']}; ask for one reply a call, each is trained as a turn of its own")
    limits = [request.get(name) for name in ("max_tokens", "max_completion_tokens")]
    limits = [limit for limit in limits if isinstance(limit, int) and limit > 0]
    tools = (
        {} if request.get("tool_choice") == "none" or not request.get("tools") else {"tools": _loose(request["tools"])}
    )
    return (
        {name: request[name] for name in ASKED if request.get(name) is not None}
        | tools
        | {
            "model": sampling.model,
            "temperature": sampling.temperature,
            "max_tokens": min([sampling.max_tokens, *limits]),
            # each call has its own seed: with one seed for all, every turn would draw the same random numbers
            **({} if sampling.seed is None else {"seed": (sampling.seed + 0x9E3779B1 * sequence_id) % 2**31}),
            # the server tells two rollouts apart by it that have the same text in different tokens
            "user": sampling.attempt_id,
        }
    )


def _loose(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    # `strict` would let a grammar constrain the arguments that the policy writes.
    return [
        {**tool, "function": {k: v for k, v in (tool.get("function") or {}).items() if k != "strict"}} for tool in tools
    ]


async def stream_of(answer: dict[str, Any], *, usage: bool) -> AsyncIterator[str]:
    """The whole reply is in one event.

    Args:
        usage: True adds a last event with the number of tokens (`stream_options.include_usage`).
    """
    (choice, *_), head = answer["choices"], {"id": answer["id"], "object": "chat.completion.chunk"}
    head |= {"created": answer.get("created", 0), "model": answer.get("model", "")}
    reply = {name: value for name, value in choice["message"].items() if value is not None}
    reply["tool_calls"] = [{"index": i, **call} for i, call in enumerate(reply.get("tool_calls") or [])] or None
    chunks = [
        {"index": 0, "delta": {k: v for k, v in reply.items() if v is not None}, "finish_reason": None},
        {"index": 0, "delta": {}, "finish_reason": choice.get("finish_reason")},
    ]
    for chunk in chunks:
        yield f"data: {json.dumps({**head, 'choices': [chunk]})}\n\n"
    if usage:
        yield f"data: {json.dumps({**head, 'choices': [], 'usage': answer.get('usage')})}\n\n"
    yield "data: [DONE]\n\n"

"""Turns a call of a user's own agent into a request to the model server, and the answer into a stream. Pure."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from sql_agent.model_address.signed_address import RolloutSampling

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

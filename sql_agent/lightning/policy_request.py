"""What the model server is asked for a call of an agent of the user's own, and its answer as a stream. Pure."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from sql_agent.lightning.signed_address import RolloutSampling

ASKED = ("messages", "parallel_tool_calls", "stop", "chat_template_kwargs", "stream", "stream_options")
"""Fields of a request that are the agent's own, beside its tools; how the policy samples is the run's."""


def policy_request(request: dict[str, Any], sampling: RolloutSampling, sequence_id: int) -> dict[str, Any]:
    """What the model server is asked for a call of an agent of the user's own.

    Temperature, top_p and penalties are not the agent's: the update takes every sample for one of the policy at the
    run's temperature. Nor is what constrains the sampler to a grammar (`response_format`, strict tools, a forced tool),
    whose samples the policy would not have made. The name of the model is not either, so that agents within the agent
    need not know it.

    Raises:
        ValueError: it asks for several replies, or holds no messages.
    """
    if request.get("n") not in (None, 1):
        raise ValueError(f"n is {request['n']}; ask for one reply a call, each is trained as a turn of its own")
    if not isinstance(request.get("messages"), list):
        raise ValueError("it holds no messages; expected a chat completion")
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
            # each call has a seed of its own: one seed for all would draw the same numbers in every turn
            **({} if sampling.seed is None else {"seed": (sampling.seed + 0x9E3779B1 * sequence_id) % 2**31}),
            # tells two rollouts apart that say the same words in other tokens
            "user": sampling.attempt_id,
        }
    )


def _loose(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tools whose arguments are as the policy writes them."""
    return [
        {**tool, "function": {k: v for k, v in (tool.get("function") or {}).items() if k != "strict"}} for tool in tools
    ]


async def stream_of(answer: dict[str, Any], *, usage: bool) -> AsyncIterator[str]:
    """A chat completion as the events of a stream, its whole reply in one.

    Args:
        usage: whether a last event names the number of tokens (`stream_options.include_usage`).
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

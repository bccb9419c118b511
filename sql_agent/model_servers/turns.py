"""What training needs of a reply, token ids and log-probs, as attributes of the span of its call (`turn_of`). Pure.

Lists are JSON there. Number by number they would cost the agent's client, the store and the trainer more than the rest
of a call, and agent-lightning's `LlmProxyTraceToTriplet` reads either form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentgrpo.json_text import JsonObject
from sql_agent.model_servers.replies import Json

# Field of a chat completion that has the attributes, in place of the ids and log-probs themselves.
TURN = "agentgrpo_turn"
# Attribute of a turn's span: the name of the agent that made the call.
AGENT = "agentgrpo.agent"
# Attribute of a turn's span: the train step whose weights it was sampled with, where the model server says so.
WEIGHTS = "agentgrpo.weights"
# Attribute of a turn's span: how often new weights ended the call before it was answered.
ASKED_AGAIN = "agentgrpo.asked_again"


def turn_of(answer: Mapping[str, Any], *, agent: str | None = None, asked_again: int = 0) -> Json:
    """The attributes of the span of a model call.

    Args:
        answer: one of vLLM's chat completions; the ids are empty if the server gave none.
        agent: name of the agent that made the call, where it is known.
        asked_again: how often new weights ended the call before.
    """
    weights = answer.get("system_fingerprint") or ""  # as `sql_agent.verl_side.plugin.exact_prompts` sets it
    choice = answer["choices"][0]
    log_probs = (choice.get("logprobs") or {}).get("content") or []
    return {
        "gen_ai.response.id": answer["id"],
        "gen_ai.response.finish_reason": choice.get("finish_reason") or "",
        "prompt_token_ids": json.dumps(answer.get("prompt_token_ids") or []),
        "response_token_ids": json.dumps(choice.get("token_ids") or []),
        "response_log_probs": json.dumps([token["logprob"] for token in log_probs]),
        "agentgrpo.has_tool_calls": bool(choice["message"].get("tool_calls")),
        **({} if agent is None else {AGENT: agent}),
        **({WEIGHTS: int(weights)} if weights.isdecimal() else {}),
        **({ASKED_AGAIN: asked_again} if asked_again else {}),
    }


def without_tokens(answer: Mapping[str, Any]) -> Json:
    """For an agent that did not ask for ids and log-probs; parsing them costs time (ms)."""
    choices = [{**choice, "logprobs": None, "token_ids": None} for choice in answer["choices"]]
    return {**answer, "choices": choices, "prompt_token_ids": None, "prompt_logprobs": None}


def with_turn(answer: JsonObject, *, asked_again: int = 0) -> Json:
    """For a caller that asked for ids and log-probs, and writes the span itself."""
    if TURN in answer:  # the LLM proxy did it
        return dict(answer)
    return {**without_tokens(answer), TURN: turn_of(answer, asked_again=asked_again)}

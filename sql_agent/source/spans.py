"""Reads a rollout's model calls and its outcome from spans, which `sql_agent.lightning.transport` fetches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from sql_agent.credit.row import Turn
from sql_agent.source.datatypes import RolloutOutcome

TURN_SPAN = "litellm_request"
"""Span of one model call; agent-lightning's `LlmProxyTraceToTriplet` reads the same name and attributes."""
AGENT = "agentgrpo.agent"
"""Attribute of a turn's span: the name of the agent that made the call."""
WEIGHTS = "agentgrpo.weights"
"""Attribute of a turn's span: the train step whose weights it was sampled with, where the model server says so."""
ASKED_AGAIN = "agentgrpo.asked_again"
"""Attribute of a turn's span: how often new weights ended the call before."""
OUTCOME = "agentgrpo.outcome"
"""Attribute of the reward span the runner writes last: a `RolloutOutcome` as JSON text."""


class UntrainableCallError(ValueError):
    """Says what the model server left out of a call, without which the rollout cannot be trained on."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """`no_token_ids` or `no_log_probs`, under which the rollout is lost."""


class SpanLike(Protocol):
    name: str
    sequence_id: int
    attributes: dict[str, Any]


def turn_attributes(response: dict[str, Any]) -> dict[str, Any]:
    """Return the span attributes of one of vLLM's chat completions; the ids are empty if the server gave none."""
    choice = response["choices"][0]
    log_probs = (choice.get("logprobs") or {}).get("content") or []
    return {
        "gen_ai.response.id": response["id"],
        "gen_ai.response.finish_reason": choice.get("finish_reason") or "",
        "prompt_token_ids": response.get("prompt_token_ids") or [],
        "response_token_ids": choice.get("token_ids") or [],
        "response_log_probs": [token["logprob"] for token in log_probs],
        "agentgrpo.has_tool_calls": bool(choice["message"].get("tool_calls")),
        **({WEIGHTS: int(weights)} if (weights := response.get("system_fingerprint") or "").isdecimal() else {}),
    }


def read_turns(spans: Sequence[SpanLike], *, one_conversation: bool = True) -> list[Turn]:
    """Return the model calls of one attempt, ordered by sequence id; other spans are ignored.

    A call that the client repeated has a span for each try, and the client used the last reply. An agent of several
    conversations may ask the same twice on purpose, so all its calls are kept.

    Raises:
        UntrainableCallError: a model call came back without token ids, or not with one log-probability for each.
    """
    turns = []
    for span in sorted((s for s in spans if s.name == TURN_SPAN), key=lambda s: s.sequence_id):
        prompt_ids, sampled_ids = (span.attributes.get(k) or () for k in ("prompt_token_ids", "response_token_ids"))
        if not prompt_ids or not sampled_ids:
            what = "a model call came back without token ids; the server needs return_token_ids"
            raise UntrainableCallError("no_token_ids", what)
        log_probs = tuple(span.attributes.get("response_log_probs") or ())
        if len(log_probs) != len(sampled_ids):
            what = f"a model call came back with {len(log_probs)} log-probabilities for {len(sampled_ids)} sampled ids"
            raise UntrainableCallError("no_log_probs", f"{what}; the server needs logprobs")
        if one_conversation and turns and turns[-1].prompt_ids == tuple(prompt_ids):
            turns.pop()
        turns.append(
            Turn(
                tuple(prompt_ids),
                tuple(sampled_ids),
                log_probs,
                bool(span.attributes.get("agentgrpo.has_tool_calls", False)),
                span.attributes.get(AGENT),
                span.attributes.get(WEIGHTS),
                span.attributes.get(ASKED_AGAIN, 0),
            )
        )
    return turns


def read_outcome(spans: Sequence[SpanLike]) -> RolloutOutcome | None:
    """Return what the runner reported; None if it has not reported yet."""
    for span in spans:
        if OUTCOME in span.attributes:
            return RolloutOutcome.from_json(span.attributes[OUTCOME])
    return None


def all_there(turns: Sequence[Turn], outcome: RolloutOutcome) -> bool:
    """Return whether `turns` begin with the replies that the agent got.

    If the agent's last request was sent twice, the span of the reply that it used may be missing. The number of turns
    is right then, but the number of tokens is not, so both are compared.
    """
    expected = outcome.record
    sampled = sum(len(turn.sampled_ids) for turn in turns[: expected.num_turns])
    return len(turns) >= expected.num_turns and sampled == expected.completion_tokens

"""Turns the spans of one rollout into one training row. Pure functions.

Every token id is the engine's own; nothing is tokenised again. Leaves out how spans are fetched (`manager`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from sql_agent.rollouts.datatypes import BreakCause, RolloutOutcome, Trajectory, Turn

TURN_SPAN = "litellm_request"
"""Span of one model call; agent-lightning's `LlmProxyTraceToTriplet` reads the same name and attributes."""
OUTCOME = "agentgrpo.outcome"
"""Attribute of the reward span the runner writes last: a `RolloutOutcome` as JSON text."""


class SpanLike(Protocol):
    name: str
    sequence_id: int
    attributes: dict[str, Any]


def turn_attributes(response: dict[str, Any]) -> dict[str, Any]:
    """Span attributes of one chat completion as vLLM answers it; the ids are empty where the server gave none."""
    choice = response["choices"][0]
    log_probs = (choice.get("logprobs") or {}).get("content") or []
    return {
        "gen_ai.response.id": response["id"],
        "gen_ai.response.finish_reason": choice.get("finish_reason") or "",
        "prompt_token_ids": response.get("prompt_token_ids") or [],
        "response_token_ids": choice.get("token_ids") or [],
        "response_log_probs": [token["logprob"] for token in log_probs],
        "agentgrpo.has_tool_calls": bool(choice["message"].get("tool_calls")),
    }


def read_turns(spans: Sequence[SpanLike]) -> list[Turn]:
    """The model calls of one attempt, ordered by sequence id; other spans are ignored.

    A call that the client repeated left a span each time; the client used the reply of the last one.

    Raises:
        ValueError: a model call came back without token ids, so nothing of this rollout can be trained on.
    """
    turns = []
    for span in sorted((s for s in spans if s.name == TURN_SPAN), key=lambda s: s.sequence_id):
        prompt_ids, sampled_ids = (span.attributes.get(k) or () for k in ("prompt_token_ids", "response_token_ids"))
        if not prompt_ids or not sampled_ids:
            raise ValueError("a model call came back without token ids; the server needs return_token_ids")
        if turns and turns[-1].prompt_ids == tuple(prompt_ids):
            turns.pop()
        turns.append(
            Turn(
                tuple(prompt_ids),
                tuple(sampled_ids),
                tuple(span.attributes.get("response_log_probs") or ()),
                str(span.attributes.get("gen_ai.response.finish_reason", "")),
                bool(span.attributes.get("agentgrpo.has_tool_calls", False)),
            )
        )
    return turns


def read_outcome(spans: Sequence[SpanLike]) -> RolloutOutcome | None:
    """What the runner reported; None if it has not reported yet."""
    for span in spans:
        if OUTCOME in span.attributes:
            return RolloutOutcome.from_json(span.attributes[OUTCOME])
    return None


def all_there(turns: Sequence[Turn], outcome: RolloutOutcome) -> bool:
    """Whether `turns` begin with the replies that the agent got.

    If the agent's last request was sent twice, the span of the reply that it used may be the missing one: the number of
    turns is right then, but the number of tokens is not.
    """
    expected = outcome.record
    sampled = sum(len(turn.sampled_ids) for turn in turns[: expected.num_turns])
    return len(turns) >= expected.num_turns and sampled == expected.completion_tokens


def stitch(turns: Sequence[Turn], *, max_response_tokens: int) -> Trajectory:
    """Join the turns of a rollout into its longest exact chain.

    Turn k + 1's prompt has to begin with turn k's prompt and sampled ids; what follows them (tool results, the
    template's own tokens) is masked. The chain ends at the first turn whose prompt does not; the cause is named.

    Args:
        turns: at least one, in order.
        max_response_tokens: longest response, T; a turn that would exceed it ends the chain as a break would, so that
            no turn is trained in part.
    Raises:
        ValueError: no turns.
    """
    if not turns:
        raise ValueError("a rollout without turns has nothing to stitch")
    prompt = turns[0].prompt_ids
    seen: tuple[int, ...] = prompt
    response: list[int] = []
    mask: list[int] = []
    log_probs: list[float] = []
    cause: BreakCause | None = None
    used = 0
    for turn in turns:
        if turn.prompt_ids[: len(seen)] != seen:
            cause = break_cause(turns[used - 1], turn)
            break
        between = turn.prompt_ids[len(seen) :]
        if len(response) + len(between) + len(turn.sampled_ids) > max_response_tokens:
            break
        response += [*between, *turn.sampled_ids]
        mask += [0] * len(between) + [1] * len(turn.sampled_ids)
        log_probs += [0.0] * len(between) + list(turn.log_probs or [0.0] * len(turn.sampled_ids))
        seen = turn.prompt_ids + turn.sampled_ids
        used += 1
    return Trajectory(
        prompt, tuple(response), tuple(mask), tuple(log_probs), used, cause, dropped_turns=len(turns) - used
    )


def break_cause(before: Turn, after: Turn) -> BreakCause:
    """Why `after` does not begin with `before`'s prompt and sampled ids.

    `template`: the earlier prompt itself changed (a template that rewrites history, for example drops reasoning).
    `tool_call_rendering`: the prompt is intact; the reply held a tool call, which was rendered differently.
    `tokenisation`: the prompt is intact and the reply was plain text, so its text was tokenised differently.
    """
    if after.prompt_ids[: len(before.prompt_ids)] != before.prompt_ids:
        return "template"
    return "tool_call_rendering" if before.has_tool_calls else "tokenisation"

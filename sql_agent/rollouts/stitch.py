"""Turns the spans of one rollout into one training row. Pure functions.

Every token id is the engine's own; nothing is tokenised again. The turns of a rollout may form several conversations,
because of a handoff, an agent as a tool, a reset of the context, or parallel calls. Each becomes a chain, and the row
holds the chains one after another. Leaves out how spans are fetched (`manager`) and how chains are kept apart in the
row (`batch`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sql_agent.rollouts.datatypes import BreakCause, RolloutOutcome, Trajectory, Turn

TURN_SPAN = "litellm_request"
"""Span of one model call; agent-lightning's `LlmProxyTraceToTriplet` reads the same name and attributes."""
AGENT = "agentgrpo.agent"
"""Attribute of a turn's span: the name of the agent that made the call."""
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
                str(span.attributes.get("gen_ai.response.finish_reason", "")),
                bool(span.attributes.get("agentgrpo.has_tool_calls", False)),
                span.attributes.get(AGENT),
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


@dataclass
class _Chain:
    """Collects turns in which each prompt continues the token ids of the turn before."""

    prompt: tuple[int, ...]
    seen: tuple[int, ...]
    """Prompt and sampled ids of the newest turn, whether it is in the row or not."""
    response: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    turns: int = 0
    """Turns that are in the row."""
    full: bool = False
    """Whether a turn was dropped; the turns that continue it are dropped as well."""

    def add(self, turn: Turn, *, trained: bool) -> None:
        between = turn.prompt_ids[len(self.seen) :]
        self.response += [*between, *turn.sampled_ids]
        self.mask += [0] * len(between) + [int(trained)] * len(turn.sampled_ids)
        self.turns += 1
        self.log_probs += [0.0] * len(between)
        self.log_probs += turn.log_probs if trained else [0.0] * len(turn.sampled_ids)


def stitch(
    turns: Sequence[Turn],
    *,
    max_response_tokens: int,
    max_row_tokens: int | None = None,
    one_conversation: bool = True,
    agents: Collection[str] = (),
) -> Trajectory:
    """Join the turns of a rollout into chains, and the chains into one row.

    A turn's prompt may begin with the ids of a chain, prompts and sampled ones; the turn belongs to the longest such
    chain. The rest of its prompt (tool results, the template's own tokens) is masked. A turn without such a chain
    begins a new one, with its whole prompt masked. So each sampled id is trained once, even if two turns continue the
    same turn: the second one repeats the history as its prompt.

    Args:
        turns: at least one, in order.
        max_response_tokens: limit of a chain after its first prompt. A turn that would exceed it is dropped, and so
            is every turn that continues it, so that no turn is trained in part.
        max_row_tokens: limit of the whole row, all prompts included; a turn that would exceed it is dropped likewise.
            None: no limit. A row of one chain is limited by `max_response_tokens` alone.
        one_conversation: True: every prompt should continue the turn before, and one that does not is a break.
            False: it is a break only if a reply was rendered differently while the prompt before it is intact.
        agents: names of the agents whose turns are trained; tokens of other agents are masked. Empty: all agents.
    Returns:
        The row; chains are in the order of their first turns, and chains without a trained token are left out.
    Raises:
        ValueError: no turns.
    """
    if not turns:
        raise ValueError("a rollout without turns has nothing to stitch")
    owners = _owners(turns)
    wanted = {owner for owner, turn in zip(owners, turns, strict=True) if not agents or turn.agent in agents}
    chains: dict[int, _Chain] = {}
    row_tokens = dropped = 0
    for turn, owner in zip(turns, owners, strict=True):
        if wanted and owner not in wanted:
            continue
        more = 0 if owner in chains else len(turn.prompt_ids)
        chain = chains.setdefault(owner, _Chain(turn.prompt_ids, turn.prompt_ids))
        length = len(turn.prompt_ids) - len(chain.seen) + len(turn.sampled_ids)
        row_is_full = max_row_tokens is not None and len(chains) > 1 and row_tokens + more + length > max_row_tokens
        chain.full = chain.full or row_is_full or len(chain.response) + length > max_response_tokens
        if not chain.full:
            chain.add(turn, trained=not agents or turn.agent in agents)
            row_tokens += more + length
        else:
            dropped += 1
        chain.seen = turn.prompt_ids + turn.sampled_ids
    cause = prefix_break(turns, one_conversation=one_conversation)
    trained = [chain for chain in chains.values() if any(chain.mask)]
    return _row(trained or [next(iter(chains.values()))], dropped, cause)


def _owners(turns: Sequence[Turn]) -> list[int]:
    """Return for each turn the number of its chain, which is the number of the chain's first turn."""
    seen: dict[int, tuple[int, ...]] = {}
    owners = []
    for number, turn in enumerate(turns):
        going_on = [first for first, ids in seen.items() if _begins_with(turn.prompt_ids, ids)]
        owner = max(going_on, key=lambda first: len(seen[first]), default=number)
        seen[owner] = turn.prompt_ids + turn.sampled_ids
        owners.append(owner)
    return owners


def _row(chains: Sequence[_Chain], dropped: int, cause: BreakCause | None) -> Trajectory:
    first, *others = chains
    response, mask, log_probs, starts = [*first.response], [*first.mask], [*first.log_probs], []
    for chain in others:
        starts.append(len(response))
        response += [*chain.prompt, *chain.response]
        mask += [0] * len(chain.prompt) + chain.mask
        log_probs += [0.0] * len(chain.prompt) + chain.log_probs
    used = sum(chain.turns for chain in chains)
    return Trajectory(first.prompt, tuple(response), tuple(mask), tuple(log_probs), used, cause, dropped, tuple(starts))


def _begins_with(ids: tuple[int, ...], beginning: tuple[int, ...]) -> bool:
    return ids[: len(beginning)] == beginning


def prefix_break(turns: Sequence[Turn], *, one_conversation: bool) -> BreakCause | None:
    """Return why a prompt does not continue the ids of the turn before, for the first such prompt; None if all do.

    Args:
        turns: in order.
        one_conversation: False: a prompt is compared with the turns whose prompt is its longest prefix. A prompt
            that begins with no earlier prompt is a new conversation and no break.
    """
    for number, turn in enumerate(turns):
        before = turns[max(number - 1, 0) : number] if one_conversation else _same_prompt_before(turns[:number], turn)
        if before and not any(_begins_with(turn.prompt_ids, t.prompt_ids + t.sampled_ids) for t in before):
            return break_cause(before[-1], turn)
    return None


def _same_prompt_before(earlier: Sequence[Turn], turn: Turn) -> list[Turn]:
    """Return the earlier turns whose prompt is the longest proper prefix of `turn`'s prompt."""
    prompts = {t.prompt_ids for t in earlier if len(t.prompt_ids) < len(turn.prompt_ids)}
    longest = max((p for p in prompts if _begins_with(turn.prompt_ids, p)), key=len, default=None)
    return [t for t in earlier if t.prompt_ids == longest]


def break_cause(before: Turn, after: Turn) -> BreakCause:
    """Return why `after` does not begin with `before`'s prompt and sampled ids.

    `template`: the earlier prompt itself changed (a template that rewrites history, for example drops reasoning).
    `tool_call_rendering`: the prompt is intact; the reply held a tool call, which was rendered differently.
    `tokenisation`: the prompt is intact and the reply was plain text, so its text was tokenised differently.
    """
    if after.prompt_ids[: len(before.prompt_ids)] != before.prompt_ids:
        return "template"
    return "tool_call_rendering" if before.has_tool_calls else "tokenisation"

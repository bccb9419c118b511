"""What is trained of one rollout: the model's calls (`Turn`), and the one sequence that they become (`Row`). Pure.

Every token id is the engine's own; nothing is tokenised again. The turns of a rollout may form several conversations,
because of a handoff, an agent as a tool, a reset of the context, or parallel calls. Each becomes a chain, and the row
holds the chains one after another (`stitch`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

BreakCause = Literal["template", "tool_call_rendering", "tokenisation"]


@dataclass(frozen=True)
class Turn:
    """One model call in the engine's own token ids."""

    prompt_ids: tuple[int, ...]
    sampled_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    """The engine's log-probs of the sampled ids, in nats; as long as `sampled_ids`."""
    has_tool_calls: bool = False
    agent: str | None = None
    """Name of the agent that made the call, where it is known."""
    weights: int | None = None
    """The train step whose weights it was sampled with, where the model server says so."""
    asked_again: int = 0
    """Times that new weights ended the call before it was answered."""


@dataclass(frozen=True)
class Row:
    """One rollout as one sequence of L tokens: its chains of turns, one after another.

    A chain is a conversation in which each prompt continues the token ids of the turn before. A rollout of one
    conversation has one chain.

    Raises:
        ValueError: fields with one entry per token differ in length.
    """

    ids: tuple[int, ...]
    """Shape (L,): prompts, what was sampled, tool results, and the template's own tokens."""
    sampled: tuple[int, ...]
    """Shape (L,): 1 where the policy sampled and is trained, 0 elsewhere."""
    log_probs: tuple[float, ...]
    """Shape (L,): the engine's log-probs in nats; 0.0 where `sampled` is 0."""
    prompt_tokens: int
    """Length of the first prompt of the first chain; everything after it is verl's response."""
    num_turns: int
    """Turns that are in the row."""
    prefix_break: BreakCause | None = None
    """Why a prompt did not continue the ids of the turn before, at the first break; None if every prompt did."""
    dropped_turns: int = 0
    """Turns that are not in the row because it is full."""
    turn_ends: tuple[int, ...] = ()
    """For each turn in the row, the number of the row's tokens up to its end; () if the turns belong to several
    conversations, because then any turn may be missing in the row."""
    starts: tuple[int, ...] = ()
    """Where the prompts of further chains begin in `ids`. No chain attends to an earlier one."""
    credit: tuple[float, ...] | None = None
    """Shape (L,): the advantage of each sampled token, 0.0 elsewhere; None before an estimator has seen the group."""

    def __post_init__(self) -> None:
        lengths = {len(each) for each in (self.ids, self.sampled, self.log_probs, self.credit) if each is not None}
        if len(lengths) > 1:
            raise ValueError(f"a row needs one id, mask, log-prob and advantage per token, got {sorted(lengths)}")

    @property
    def response_tokens(self) -> int:
        return len(self.ids) - self.prompt_tokens

    @property
    def num_chains(self) -> int:
        return len(self.starts) + bool(self.response_tokens)

    def credited(self, advantages: Sequence[float]) -> Row:
        """The row with an advantage at each sampled token.

        Args:
            advantages: one per turn of the row, in order, or one for all its tokens.
        """
        ends = self.turn_ends[:-1] if len(advantages) > 1 else ()
        places = (advantages[bisect_right(ends, place)] for place in range(len(self.ids)))
        return replace(self, credit=tuple(a if here else 0.0 for a, here in zip(places, self.sampled, strict=True)))


@dataclass
class _Chain:
    """Turns in which each prompt continues the token ids of the turn before."""

    prompt_tokens: int
    seen: tuple[int, ...] = ()
    """Prompt and sampled ids of the newest turn, whether it is in the row or not."""
    ids: list[int] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    turns: int = 0
    """Turns that are in the row."""
    full: bool = False
    """Whether a turn was dropped; the turns that continue it are dropped as well."""

    def add(self, ids: Sequence[int], log_probs: Sequence[float] | None = None) -> None:
        # Tokens without log-probs are not trained.
        self.ids += ids
        self.sampled += [int(log_probs is not None)] * len(ids)
        self.log_probs += [0.0] * len(ids) if log_probs is None else log_probs


def stitch(
    turns: Sequence[Turn],
    *,
    max_response_tokens: int,
    max_row_tokens: int | None = None,
    one_conversation: bool = True,
    agents: Collection[str] = (),
) -> Row:
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
        if owner not in chains:
            chains[owner] = _Chain(len(turn.prompt_ids), turn.prompt_ids)
            chains[owner].add(turn.prompt_ids)
        chain = chains[owner]
        length = len(turn.prompt_ids) - len(chain.seen) + len(turn.sampled_ids)
        row_is_full = max_row_tokens is not None and len(chains) > 1 and row_tokens + more + length > max_row_tokens
        chain.full = chain.full or row_is_full or len(chain.ids) + length > chain.prompt_tokens + max_response_tokens
        if not chain.full:
            chain.add(turn.prompt_ids[len(chain.seen) :])
            chain.add(turn.sampled_ids, turn.log_probs if not agents or turn.agent in agents else None)
            chain.turns += 1
            row_tokens += more + length
        else:
            dropped += 1
        chain.seen = turn.prompt_ids + turn.sampled_ids
    cause = prefix_break(turns, one_conversation=one_conversation)
    trained = [chain for chain in chains.values() if any(chain.sampled)]
    row = _row(trained or [next(iter(chains.values()))], dropped, cause)
    if prefix_break(turns, one_conversation=True):
        return row
    # in one conversation only the last turns may be missing, and each prompt holds all that came before
    ends = tuple(len(turn.prompt_ids) + len(turn.sampled_ids) for turn in turns[: row.num_turns])
    return replace(row, turn_ends=ends)


def _owners(turns: Sequence[Turn]) -> list[int]:
    """For each turn the number of its chain, which is the number of the chain's first turn."""
    seen: dict[int, tuple[int, ...]] = {}
    owners = []
    for number, turn in enumerate(turns):
        going_on = [first for first, ids in seen.items() if _begins_with(turn.prompt_ids, ids)]
        owner = max(going_on, key=lambda first: len(seen[first]), default=number)
        seen[owner] = turn.prompt_ids + turn.sampled_ids
        owners.append(owner)
    return owners


def _row(chains: Sequence[_Chain], dropped: int, cause: BreakCause | None) -> Row:
    ids, sampled, log_probs, starts = list[int](), list[int](), list[float](), list[int]()
    for chain in chains:
        starts.append(len(ids))
        ids += chain.ids
        sampled += chain.sampled
        log_probs += chain.log_probs
    return Row(
        tuple(ids),
        tuple(sampled),
        tuple(log_probs),
        prompt_tokens=chains[0].prompt_tokens,
        num_turns=sum(chain.turns for chain in chains),
        prefix_break=cause,
        dropped_turns=dropped,
        starts=tuple(starts[1:]),
    )


def _begins_with(ids: tuple[int, ...], beginning: tuple[int, ...]) -> bool:
    return ids[: len(beginning)] == beginning


def prefix_break(turns: Sequence[Turn], *, one_conversation: bool) -> BreakCause | None:
    """Why a prompt does not continue the ids of the turn before, for the first such prompt; None if all do.

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
    """The earlier turns whose prompt is the longest proper prefix of `turn`'s prompt."""
    prompts = {t.prompt_ids for t in earlier if len(t.prompt_ids) < len(turn.prompt_ids)}
    longest = max((p for p in prompts if _begins_with(turn.prompt_ids, p)), key=len, default=None)
    return [t for t in earlier if t.prompt_ids == longest]


def break_cause(before: Turn, after: Turn) -> BreakCause:
    """Why `after` does not begin with `before`'s prompt and sampled ids.

    `template`: the earlier prompt itself changed (a template that rewrites history, for example drops reasoning).
    `tool_call_rendering`: the prompt is intact; the reply held a tool call, which was rendered differently.
    `tokenisation`: the prompt is intact and the reply was plain text, so its text was tokenised differently.
    """
    if after.prompt_ids[: len(before.prompt_ids)] != before.prompt_ids:
        return "template"
    return "tool_call_rendering" if before.has_tool_calls else "tokenisation"

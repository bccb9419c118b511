"""What is trained of one rollout: the model's calls (`Turn`), and the one sequence that they become (`Row`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
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

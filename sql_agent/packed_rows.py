"""Packs rows so that their shared prefix is computed only once.

The rollouts of a group share their first prompt and often their first turns. Computed separately, a prompt of 440
tokens costs more in each of the eight rows than the 310 tokens that are trained. Here the rows of a micro-batch become
a trie: one sequence of segments. A segment holds tokens that the same rows share. It attends to the segments before it
in those rows and, causally, to itself. Every token keeps its position in its row, so log-probs and gradients are those
of separate rows up to rounding (Tree Training, arXiv:2511.00413, does the same for GPUs).

A rollout of several conversations is a row of several chains, and each chain is packed like a row.

A row may hold any number of turns. Leaves out the attention (`sql_agent.shared_prefix`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class Segment:
    """Tokens that the same rows share."""

    start: int
    """Start of the segment in the packed sequence."""
    length: int
    depth: int
    """Position of its first token in its rows."""
    ancestors: tuple[int, ...]
    """Numbers of the segments that precede it in its rows, the first one first."""

    @functools.cached_property
    def mask(self) -> torch.Tensor:
        """Shape (length, depth + length): all before the segment, then causal within it."""
        return torch.ones(self.length, self.depth + self.length, dtype=torch.bool).tril(self.depth)


@dataclass(frozen=True)
class PackedRows:
    """Rows as one sequence that contains each shared prefix once."""

    input_ids: torch.Tensor
    """Shape (L,)."""
    position_ids: torch.Tensor
    """Shape (L,): the position of each token in its rows."""
    segments: tuple[Segment, ...]
    places: tuple[torch.Tensor, ...]
    """For each row, the indices of its tokens in the packed sequence; shape (length of the row,)."""


def ends_of(segments: Sequence[Segment]) -> list[int]:
    """Where, in the packed sequence, the tokens end that see each segment: its own, and those of segments behind it.

    Segments stand in depth-first order, so these follow one another without a gap.
    """
    ends = [0] * len(segments)
    for number, segment in enumerate(segments):
        for seen in (*segment.ancestors, number):
            ends[seen] = segment.start + segment.length
    return ends


def pack_rows(rows: Sequence[list[int]]) -> PackedRows:
    """Pack rows of token ids so that each shared prefix is computed once.

    Args:
        rows: token ids, each row with at least one.
    Raises:
        ValueError: a row is empty.
    """
    if not all(len(row) for row in rows):
        raise ValueError("a row without tokens cannot be packed")
    ids: list[int] = []
    positions: list[int] = []
    segments: list[Segment] = []
    places: list[list[int]] = [[] for _ in rows]
    # members, the depth at which they split from the others, their ancestors
    branches: list[tuple[list[int], int, tuple[int, ...]]] = [(list(range(len(rows))), 0, ())]
    while branches:
        members, depth, ancestors = branches.pop()
        shared = shared_beginning([rows[m][depth:] for m in members])
        if shared:
            segment = Segment(len(ids), len(shared), depth, ancestors)
            for m in members:
                places[m] += range(segment.start, segment.start + segment.length)
            ancestors = (*ancestors, len(segments))
            segments.append(segment)
            ids += shared
            positions += range(depth, depth + len(shared))
        depth += len(shared)
        by_next_token: dict[int, list[int]] = {}
        for m in members:
            if len(rows[m]) > depth:
                by_next_token.setdefault(rows[m][depth], []).append(m)
        branches += [(parting, depth, ancestors) for parting in reversed(by_next_token.values())]
    return PackedRows(
        torch.tensor(ids), torch.tensor(positions), tuple(segments), tuple(torch.tensor(place) for place in places)
    )


def pack_chains(rows: Sequence[Sequence[list[int]]]) -> PackedRows:
    """Pack rows of several chains each, as if every chain were a row.

    Args:
        rows: the token ids of each row's chains.
    Returns:
        The packed rows; `places` has one entry per row, with the indices of its chains one after another.
    """
    packed = pack_rows([chain for row in rows for chain in row])
    places = iter(packed.places)
    return replace(packed, places=tuple(torch.cat([next(places) for _ in row]) for row in rows))


def shared_beginning(rows: Sequence[list[int]]) -> list[int]:
    first, last = min(rows), max(rows)  # in sorted order, all rows share the common prefix of these two
    end = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:end]

"""Which tokens of a round are computed once: pure planning over token ids, no model.

Conversations about one task begin alike: the system message, the question, often the first turns. Sorted, those that
share most stand beside each other, and the shared beginnings form a tree; each of its nodes is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Ids = Sequence[int]


@dataclass
class Node:
    """Tokens `start:end` of every row below, computed once; then what is left of `rows`, and the children."""

    start: int
    end: int
    rows: list[int] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)


def plan_shared(rows: Sequence[Ids], limits: Sequence[int], min_saved: int) -> Node:
    """Arrange rows as a tree of shared beginnings.

    Args:
        rows: token ids, sorted, no two equal.
        limits: per row how many of its tokens may be shared; the rest, which holds the token that is scored, may not.
        min_saved: tokens that a node has to save to be worth its own forward pass.
    Returns:
        The root, which shares nothing itself.
    """
    shared = [_common(a, b, min(m, n)) for a, b, m, n in zip(rows, rows[1:], limits, limits[1:], strict=False)]
    root = Node(0, 0)
    waiting = [(0, len(rows), root)]
    while waiting:
        first, end, node = waiting.pop()
        if end - first == 1:
            node.rows.append(first)
            continue
        cut = min(range(first, end - 1), key=shared.__getitem__)
        if (shared[cut] - node.end) * (end - first - 1) >= min_saved:
            child = Node(node.end, shared[cut])
            node.children.append(child)
            node = child
        waiting += [(first, cut + 1, node), (cut + 1, end, node)]
    return root


def plan_padded(lengths: Sequence[int], max_tokens: int, max_waste: int) -> list[list[int]]:
    """Rows of similar length together: index lists, longest first.

    Args:
        max_tokens: of one batch, padding included; a longer row goes alone.
        max_waste: padding of one batch, in tokens.
    """
    batches: list[list[int]] = []
    waste = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        longest = lengths[batches[-1][0]] if batches else 0
        waste += longest - lengths[row]
        if not batches or waste > max_waste or longest * (len(batches[-1]) + 1) > max_tokens:
            batches.append([])
            waste = 0
        batches[-1].append(row)
    return batches


def _common(a: Ids, b: Ids, limit: int) -> int:
    """How many leading tokens are equal, `limit` at most; halving compares slices in C."""
    low, high = 0, min(len(a), len(b), limit)
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low

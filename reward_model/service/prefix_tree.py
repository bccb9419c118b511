"""Plans which tokens of a batch are computed once. It works on token ids alone, without a model.

Conversations about one task begin alike: with the system message, the question, often the first turns. After sorting,
those that share most are neighbours, and their common prefixes form a tree, of which each node is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Ids = Sequence[int]


@dataclass
class PrefixNode:
    """The tokens `start:end`, which all rows below have in common, then the rest of `rows`, and the children."""

    start: int
    end: int
    rows: list[int] = field(default_factory=list)
    children: list[PrefixNode] = field(default_factory=list)

    def all_rows(self) -> list[int]:
        return self.rows + [row for child in self.children for row in child.all_rows()]


def build_prefix_tree(rows: Sequence[Ids], limits: Sequence[int], min_saved: int) -> PrefixNode:
    """Arrange rows as a tree of common prefixes.

    Args:
        rows: token ids, sorted, no two equal.
        limits: the number of tokens of each row that may be shared; the scored token must not be among them.
        min_saved: the number of tokens that a node has to save to be worth its own forward pass.
    Returns:
        The root, which shares nothing itself.
    """
    shared = [_common(a, b, min(m, n)) for a, b, m, n in zip(rows, rows[1:], limits, limits[1:], strict=False)]
    root = PrefixNode(0, 0)
    waiting = [(0, len(rows), root)]
    while waiting:
        first, end, node = waiting.pop()
        if end - first == 1:
            node.rows.append(first)
            continue
        cut = min(range(first, end - 1), key=shared.__getitem__)
        if (shared[cut] - node.end) * (end - first - 1) >= min_saved:
            child = PrefixNode(node.end, shared[cut])
            node.children.append(child)
            node = child
        waiting += [(first, cut + 1, node), (cut + 1, end, node)]
    return root


def make_micro_batches(lengths: Sequence[int], max_tokens: int, max_padding: int) -> list[list[int]]:
    """Indices of rows of similar length, the longest rows first.

    `agentgrpo.micro_batches` limits memory alone; here padding is limited too, since it takes time.

    Args:
        max_tokens: the tokens of one micro-batch, padding included; a longer row goes alone.
        max_padding: the padding of one micro-batch, in tokens.
    """
    batches: list[list[int]] = []
    padding = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        longest = lengths[batches[-1][0]] if batches else 0
        padding += longest - lengths[row]
        if not batches or padding > max_padding or longest * (len(batches[-1]) + 1) > max_tokens:
            batches.append([])
            padding = 0
        batches[-1].append(row)
    return batches


def _common(a: Ids, b: Ids, limit: int) -> int:
    # A binary search, because comparing slices is fast.
    low, high = 0, min(len(a), len(b), limit)
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low

"""A batch cut into forward and backward passes of bounded size; the losses of the parts add up to the batch's."""

from __future__ import annotations

from collections.abc import Sequence

ON_CPU, ON_GPU = 1024, 4096
"""Tokens of a pass where nothing else is asked for. On a CPU rows gain nothing from each other's company."""


def micro_batch_tokens(asked: int | None, device: str) -> int:
    """
    Args:
        device: cpu or cuda.
    """
    return asked or (ON_CPU if device == "cpu" else ON_GPU)


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices, shortest first, cut so that padded to its longest no part has more tokens; one index at least.

    Args:
        lengths: tokens of each row, or of a group of rows that stays together.
    """
    parts: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if parts and (len(parts[-1]) + 1) * lengths[i] <= max_tokens:
            parts[-1].append(i)
        else:
            parts.append([i])
    return parts

"""A batch cut into forward and backward passes of bounded size; the losses of the parts add up to the batch's."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

ON_CPU, ON_GPU = 1024, 4096
"""Tokens of a pass where nothing else is asked for. On a CPU rows of hundreds of tokens gain nothing by company."""


def micro_batch_tokens(asked: int | None, device: str) -> int:
    """
    Args:
        device: cpu or cuda.
    """
    return asked or (ON_CPU if device == "cpu" else ON_GPU)


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices, cut so that padded to its longest no part has more tokens; one index at least.

    The longest come first: in a heap a shorter row's tensors fit where a longer one's were, not the other way round.

    Args:
        lengths: tokens of each row, or of a group of rows that stays together.
    """
    parts: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if parts and (len(parts[-1]) + 1) * lengths[i] <= max_tokens:
            parts[-1].append(i)
        else:
            parts.append([i])
    return parts[::-1]


def return_freed_memory() -> None:
    """Have glibc give the free pages of its heap back to the system.

    After each micro-batch, which else leaves holes between what lives on: ten updates of 135 M weights held 6.1 GiB
    when the heap was trimmed after each update, 5.4 after each micro-batch, at the same speed.
    `sql_agent.local.memory.give_back_freed_memory` holds less and was a quarter slower. Elsewhere (musl, macOS)
    nothing is done.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextmanager
def recomputed(model: Any, *, when: bool) -> Iterator[None]:
    """Inside, `model` computes activations twice instead of keeping them: a third slower, a fraction of the memory.

    For a single row longer than a micro-batch may be, so that no row's length sets the peak. A model that does so
    always, or cannot, stays as it is.
    """
    if not when or model.is_gradient_checkpointing or not model.supports_gradient_checkpointing:
        yield
        return
    model.gradient_checkpointing_enable({"use_reentrant": False})
    try:
        yield
    finally:
        model.gradient_checkpointing_disable()

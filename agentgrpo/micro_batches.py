"""Cuts a batch into forward and backward passes of limited size; their losses add up to the loss of the batch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

# Default number of tokens in a pass. On a CPU, rows of hundreds of tokens are not faster in a batch.
ON_CPU, ON_GPU = 1024, 4096


# The default on a CPU where rows that begin alike share what they have in common: the prompt of a question about a
# database takes some 900 tokens, so 1,024 would leave a row alone with it.
ON_CPU_SHARED = 2048


def micro_batch_tokens(asked: int | None, device: str, on_cpu: int = ON_CPU) -> int:
    """
    Args:
        device: cpu or cuda.
    """
    return asked or (on_cpu if device == "cpu" else ON_GPU)


def pass_for_rows(longest: int, device: str, holds: Callable[[int], bool], on_cpu: int = ON_CPU) -> int:
    """The tokens of a pass where none are asked for, so that the longest row is not computed twice.

    On a CPU three sizes are tried, the largest first: the longest row with room for what other rows add to it, that row
    alone, and twice the default, so that few batches compute a shared beginning in two passes. Where memory holds none
    of them it is the device's default, and longer rows are computed twice.

    Args:
        longest: tokens of the longest row.
        holds: whether memory holds a pass of so many tokens.
    """
    usual = micro_batch_tokens(None, device, on_cpu)
    wanted = (longest, longest + ON_CPU, 2 * usual) if device == "cpu" else (longest,)
    return next((tokens for tokens in sorted(wanted, reverse=True) if tokens > usual and holds(tokens)), usual)


def short_pass(tokens: int, longest: int, given: bool) -> str | None:
    """A line about rows that are longer than a pass; None if there are none.

    Args:
        given: whether the user asked for `tokens`.
    """
    if longest <= tokens:
        return None
    why = f"--micro-batch-tokens {tokens} is" if given else f"memory holds passes of {tokens:,} tokens, which is"
    return (
        f"{why} shorter than the longest row, {longest:,} tokens: such rows share nothing with others and are computed "
        f"twice, which takes several times as long; give --micro-batch-tokens {longest + ON_CPU}, which takes memory"
    )


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Groups of indices with at most `max_tokens` tokens each, padding included, but at least one index each.

    The longest rows come first, because the tensors of a shorter row fit into the memory of a longer one.

    Args:
        lengths: the tokens of each row, or of each group of rows that stays together.
    """
    parts: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if parts and (len(parts[-1]) + 1) * lengths[i] <= max_tokens:
            parts[-1].append(i)
        else:
            parts.append([i])
    return parts[::-1]


def return_freed_memory() -> None:
    """Make glibc return the free pages of its heap to the system.

    It is called after each micro-batch, because freed tensors leave holes in the heap: ten updates of 135 M weights
    held 6.1 GiB when the heap was trimmed after each update, and 5.4 GiB after each micro-batch, at the same speed.
    `sql_agent.local.memory.give_back_freed_memory` holds less and was a quarter slower. On other systems (musl, macOS)
    it does nothing.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextmanager
def recomputed(model: Any, *, when: bool) -> Iterator[None]:
    """Compute activations twice inside the block instead of keeping them: a third slower, with less memory.

    It is for a single row that is longer than a micro-batch may be, so that this row does not set the peak of memory. A
    model that always recomputes, or that cannot, stays as it is.
    """
    if not when or model.is_gradient_checkpointing or not model.supports_gradient_checkpointing:
        yield
        return
    model.gradient_checkpointing_enable({"use_reentrant": False})
    try:
        yield
    finally:
        model.gradient_checkpointing_disable()

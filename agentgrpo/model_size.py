"""Sizes of a model by the headers of its safetensors. Importing this module is instant."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

# Parts of the names of matrices that an adapter on all linear layers leaves out: embeddings and the output layer.
NOT_ADAPTED = ("embed", "lm_head", "wte", "wpe")


def count_weights(folder: Path) -> int | None:
    return sum(math.prod(shape) for _, shape in _shapes(folder)) or None


def count_adapter_weights(folder: Path, rank: int) -> int | None:
    """About how many weights a new LoRA adapter on all linear layers has: rank x (rows + columns) of each.

    Args:
        folder: the base model's; None is returned if it has no safetensors.
    """
    layers = [shape for name, shape in _shapes(folder) if len(shape) == 2 and not any(n in name for n in NOT_ADAPTED)]
    return rank * sum(map(sum, layers)) or None


def _shapes(folder: Path) -> Iterator[tuple[str, list[int]]]:
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="numpy") as tensors:
            for name in tensors.keys():  # noqa: SIM118  no mapping
                yield name, tensors.get_slice(name).get_shape()

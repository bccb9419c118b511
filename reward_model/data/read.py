"""Pairs to train on, in any form that `agentgrpo reward convert` reads, and those that are held out."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from agentgrpo.chat.conversations import RowError
from agentgrpo.checks import UsageError
from reward_model.data.files import raw_rows
from reward_model.data.preferences import PreferenceFileError
from reward_model.data.shapes import Converter
from reward_model.datatypes import Preference, prompt_key


def read_any_form(path: Path) -> tuple[list[Preference], Counter[str]]:
    """Unlike in a conversion, a row that is no pair is an error.

    Returns:
        The pairs, and what was changed to read them, by name.
    Raises:
        PreferenceFileError: the file cannot be read, holds no row, or has a row that is no pair, which is named.
    """
    converter = Converter()
    rows = []
    for number, value in raw_rows(path, converter.changes):
        try:
            if isinstance(value, RowError):
                raise value
            rows.append(converter(value, {}))
        except RowError as problem:
            raise PreferenceFileError(
                f"{path}, row {number}, {problem}; agentgrpo reward convert leaves such rows out and lists them"
            ) from None
    if not rows:
        raise PreferenceFileError(f"{path} holds no row; give a file of pairs")
    return rows, +converter.changes


def split_by_prompt(
    rows: Sequence[Preference], fraction: float, *, seed: int
) -> tuple[list[Preference], list[Preference]]:
    """Hold out whole prompts, drawn by hash, until `fraction` of the pairs is reached; both parts keep the order.

    Raises:
        UsageError: the fraction is not in [0, 1), or nothing would be left to train on.
    """
    if not 0 <= fraction < 1:
        raise UsageError(f"--held-out-fraction is {fraction}, expected 0 or more and less than 1")
    keys = [prompt_key(row) for row in rows]
    sizes: dict[str, int] = {}
    for key in keys:
        sizes[key] = sizes.get(key, 0) + 1
    chosen: set[str] = set()
    for key in sorted(sizes, key=lambda key: hashlib.sha256(f"{seed}\0{key}".encode()).digest()):
        if sum(sizes[key] for key in chosen) >= fraction * len(rows):
            break
        chosen.add(key)
    train = [row for row, key in zip(rows, keys, strict=True) if key not in chosen]
    if not train:
        raise UsageError(
            f"all {len(rows)} pairs have one prompt, so none can be held out; "
            "give a file of held-out pairs or --held-out-fraction 0"
        )
    return train, [row for row, key in zip(rows, keys, strict=True) if key in chosen]

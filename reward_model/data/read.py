"""Files of pairs in any form that `agentgrpo reward convert` reads, and which of their pairs are held out."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentgrpo.chat.conversations import RowError
from agentgrpo.checks import UsageError
from agentgrpo.file_kinds import is_parquet
from agentgrpo.row_files import read_rows
from reward_model.data.preferences import PreferenceFileError
from reward_model.data.shapes import FORMS, Converter, form_of
from reward_model.datatypes import Preference, prompt_key

# The number of a row, from 1 (its line in JSON Lines), with its JSON value or its `RowError`.
Numbered = tuple[int, Any]


def raw_rows(path: Path, changes: Counter[str]) -> Iterator[Numbered]:
    """
    Args:
        changes: counts what was ignored to read the file, such as NaN, extra commas, a byte-order mark.
    Raises:
        PreferenceFileError: the file is missing, or it is none of the three kinds.
    """
    rows = read_rows(path, changes, is_row=_has_form)
    parquet = is_parquet(path)
    return ((row.number, _of_parquet(row.value, changes) if parquet else row.value) for row in rows)


def _has_form(row: dict[str, Any]) -> bool:
    try:
        return form_of(row) in FORMS
    except RowError:
        return False


def _of_parquet(row: dict[str, Any], changes: Counter[str]) -> dict[str, Any]:
    return {name: _plain(value, changes) for name, value in row.items()}


def _plain(value: Any, changes: Counter[str]) -> Any:
    # parquet gives every object the fields of all, as nulls.
    if isinstance(value, dict):
        return {name: _plain(held, changes) for name, held in value.items() if held is not None}
    if isinstance(value, list):
        return [_plain(held, changes) for held in value]
    if isinstance(value, float) and not math.isfinite(value):
        changes["NaN or Infinity read as null"] += 1
        return None
    return value


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

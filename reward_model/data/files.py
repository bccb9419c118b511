from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentgrpo.chat.conversations import RowError
from agentgrpo.file_kinds import RowFileError, is_parquet
from agentgrpo.row_files import Row, read_rows
from reward_model.data.preferences import PreferenceFileError
from reward_model.data.shapes import FORMS, form_of

# The number of a row, from 1 (its line in JSON Lines), with its JSON value or its `RowError`.
Numbered = tuple[int, Any]


def raw_rows(path: Path, changes: Counter[str]) -> Iterator[Numbered]:
    """
    Args:
        changes: counts what was ignored to read the file, such as NaN, extra commas, a byte-order mark.
    Raises:
        PreferenceFileError: the file is missing, or it is none of the three kinds.
    """
    try:
        rows = read_rows(path, changes, is_row=_has_form)
    except RowFileError as error:
        raise PreferenceFileError(str(error)) from None
    return _numbered(rows, changes, parquet=is_parquet(path))


def _numbered(rows: Iterator[Row], changes: Counter[str], *, parquet: bool) -> Iterator[Numbered]:
    try:
        for row in rows:
            yield row.number, _of_parquet(row.value, changes) if parquet else row.value
    except RowFileError as error:
        raise PreferenceFileError(str(error)) from None


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

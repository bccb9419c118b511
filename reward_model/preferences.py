"""Files of preferences: JSON Lines in TRL's conversational form, or any form that `agentgrpo reward convert` reads, and
which of their pairs are held out.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import math
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentgrpo.chat.conversations import RowError
from agentgrpo.checks import UsageError
from agentgrpo.columns import parse_columns
from agentgrpo.json_text import JsonObject
from agentgrpo.outputs import written
from agentgrpo.printed_commands import agentgrpo_command
from agentgrpo.row_files import RowFileError, check_kind, is_parquet, iter_rows
from reward_model.datatypes import Preference, prompt_key
from reward_model.pair_forms import Converter

# `datasets.load_dataset("json")` infers the types from the first 10 MiB and fails on fields that come later.
_FIRST_LOOK_BYTES = 8_000_000


# A file of preferences cannot be used; the message names file, row and field, and says what to do.
PreferenceFileError = RowFileError


def read_preferences(path: Path) -> list[Preference]:
    """Row 1 is the first line.

    Raises:
        PreferenceFileError: the file is missing or empty, or a row is not a preference.
    """
    rows = []
    for number, line in numbered_lines(path):
        try:
            row = Preference.model_validate_json(line)
        except ValidationError as error:
            raise PreferenceFileError(
                f"{path}, row {number}, {describe_row_faults(error)[0]}; agentgrpo reward convert converts other "
                f"forms, `{agentgrpo_command('reward validate', path)}` lists every fault"
            ) from None
        if (fault := row.rendered_part) is not None:
            raise PreferenceFileError(f"{path}, row {number}, {fault[0]}: {fault[1]}")
        rows.append(row)
    return rows


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers from 1.

    Raises:
        PreferenceFileError: the file is missing, is no text, or holds no such line.
    """
    if not path.is_file():
        raise PreferenceFileError(f"{path} does not exist; agentgrpo reward convert makes such files")
    check_kind(path)
    empty = True
    with path.open("rb") as lines:
        for number, marked in enumerate(lines, 1):
            if (line := marked.removeprefix(codecs.BOM_UTF8)).strip():
                empty = False
                yield number, line
    if empty:
        raise PreferenceFileError(f"{path} holds no row; name a file that agentgrpo reward convert wrote")


def describe_row_faults(error: ValidationError) -> list[str]:
    """`field: reason` for every fault of a row."""
    return [f"{'.'.join(map(str, fault['loc'])) or 'row'}: {fault['msg']}" for fault in error.errors()]


def write_preferences(rows: Iterable[Preference], path: Path) -> int:
    """The file appears, complete, once the last row is written.

    Without rows no file is made, and an earlier file is removed. A row with fields that no row of the first 8 MB has is
    moved to the front, so that `datasets` sees them; the other rows keep their order.
    """
    count = 0
    fields: set[Any] = set()
    head: list[str] = []
    with written(path) as whole, written(path.with_name(f"{path.name}.body")) as body:
        with body.open("w", encoding="utf-8", newline="\n") as out:
            for row in rows:
                plain = row.to_dict()
                line = json.dumps(plain, ensure_ascii=False) + "\n"
                new = _fields(plain) - fields
                fields |= new
                if new and out.tell() > _FIRST_LOOK_BYTES:
                    head.append(line)
                else:
                    out.write(line)
                count += 1
        if head:
            with whole.open("wb") as out, body.open("rb") as rest:
                out.writelines(line.encode() for line in head)
                shutil.copyfileobj(rest, out)
            body.unlink()
        elif count:
            body.replace(whole)
        else:
            body.unlink()
            path.unlink(missing_ok=True)
    return count


def _fields(plain: dict[str, Any]) -> set[Any]:
    messages = {(side, *message) for side in ("prompt", "chosen", "rejected") for message in plain[side]}
    for side in ("prompt", "chosen", "rejected"):
        for message in plain[side]:
            for call in message.get("tool_calls", ()):
                messages |= {(side, *shape) for shape in _shapes(call["function"]["arguments"])}
    values = {("metadata", key, type(value)) for key, value in plain.get("metadata", {}).items()}
    return {*plain, *messages, *values}


def _shapes(value: Any) -> set[tuple[Any, ...]]:
    if isinstance(value, dict):
        return {(dict,)} | {(name, *rest) for name, held in value.items() for rest in _shapes(held)}
    if isinstance(value, list):
        return {(list,)} | {("", *rest) for held in value for rest in _shapes(held)}
    return {(type(value),)}


# Any form -------------------------------------------------------------------------------------------------------------


# The number of a row, from 1 (its line in JSON Lines), with its JSON value or its `RowError`.
Numbered = tuple[int, Any]


def raw_rows(path: Path, changes: Counter[str]) -> Iterator[Numbered]:
    """
    Args:
        changes: counts what was ignored to read the file, such as NaN, extra commas, a byte-order mark.
    Raises:
        PreferenceFileError: the file is missing, or it is none of the three kinds.
    """
    rows = iter_rows(path, changes)
    parquet = is_parquet(path)
    return ((row.number, _of_parquet(row.value, changes) if parquet else row.value) for row in rows)


def _of_parquet(row: JsonObject, changes: Counter[str]) -> dict[str, object]:
    return {name: _plain(value, changes) for name, value in row.items()}


def _plain(value: object, changes: Counter[str]) -> object:
    # parquet gives every object the fields of all, as nulls.
    if isinstance(value, dict):
        return {name: _plain(held, changes) for name, held in value.items() if held is not None}
    if isinstance(value, list):
        return [_plain(held, changes) for held in value]
    if isinstance(value, float) and not math.isfinite(value):
        changes["NaN or Infinity read as null"] += 1
        return None
    return value


def read_any_form(path: Path, columns: str | None = None) -> tuple[list[Preference], Counter[str]]:
    """Unlike in a conversion, a row that is no pair is an error.

    Args:
        columns: the user's names of the columns (`parse_columns`).
    Returns:
        The pairs, and what was changed to read them, by name.
    Raises:
        PreferenceFileError: the file cannot be read, holds no row, or has a row that is no pair, which is named.
    """
    converter = Converter(columns=parse_columns(columns))
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

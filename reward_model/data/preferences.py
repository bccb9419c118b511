"""JSON Lines files of preferences in TRL's conversational form."""

from __future__ import annotations

import codecs
import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentgrpo.file_kinds import RowFileError, check_kind
from agentgrpo.outputs import written
from agentgrpo.printed_commands import agentgrpo_command
from reward_model.datatypes import Preference

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
                f"{path}, row {number}, {describe_faults(error)[0]}; agentgrpo reward convert converts other "
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


def describe_faults(error: ValidationError) -> list[str]:
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

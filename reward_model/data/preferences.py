"""Files of preferences in TRL's conversational form, JSONL: reading and writing, row by row."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from core.outputs import written
from reward_model.datatypes import Preference

_FIRST_LOOK_BYTES = 8_000_000
"""`datasets.load_dataset("json")` takes the types from the first 10 MiB and fails on fields that come later."""


class PreferenceFileError(ValueError):
    """A file of preferences cannot be used; the message names file, row, field and what to do."""


def read_preferences(path: Path) -> list[Preference]:
    """Read a converted file; row 1 is its first line.

    Raises:
        PreferenceFileError: the file is missing or empty, or a row is not a preference.
    """
    if not path.is_file():
        raise PreferenceFileError(f"{path} does not exist; reward_model/convert_dpo_format.py makes such files")
    with path.open("rb") as lines:
        rows = [parse_row(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise PreferenceFileError(f"{path} holds no row")
    return rows


def parse_row(line: str | bytes, path: Path, number: int) -> Preference:
    """Read one line.

    Raises:
        PreferenceFileError: it is no JSON, or its first field at fault, named.
    """
    try:
        return Preference.model_validate_json(line)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"])) or "row"
        raise PreferenceFileError(
            f"{path}, row {number}, {field}: {problem['msg']}; "
            "reward_model/convert_dpo_format.py converts other forms, python -m reward_model.validate lists every fault"
        ) from None


def check_output(path: Path, flag: str, *, overwrite: bool) -> None:
    """Find out before the work whether a file can be written; its folder is made.

    Args:
        flag: what the user named the output with, e.g. `--output`.
    Raises:
        PreferenceFileError: it is there already and `overwrite` is not given, it is a folder, it cannot be written.
    """
    if path.is_dir():
        raise PreferenceFileError(f"{path} is a folder, expected a file to write; name another {flag}")
    if path.exists() and not overwrite:
        raise PreferenceFileError(f"{path} is there already; give --overwrite or another {flag}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):  # tried out: rights do not tell, root may write anywhere
            pass
    except OSError as error:
        raise PreferenceFileError(f"{path} cannot be written ({error.strerror}); name another {flag}") from None


def write_preferences(rows: Iterable[Preference], path: Path) -> int:
    """Write one row a line and return their number; the file appears, whole, once the last row is written.

    Without rows no file is made, and an earlier one is removed. A row that has fields which no row of the first 8 MB
    has is put in front, so that `datasets` knows of them from the start; the others keep their order.
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
    """Every field that a row shows, with what it is a field of."""
    messages = {(side, *message) for side in ("prompt", "chosen", "rejected") for message in plain[side]}
    values = {("metadata", key, type(value)) for key, value in plain.get("metadata", {}).items()}
    return {*plain, *messages, *values}

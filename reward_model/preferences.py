"""Files of preferences in TRL's conversational form, JSONL: reading and writing, row by row."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from reward_model.types import Preference


class PreferenceFileError(ValueError):
    """A file of preferences cannot be used; the message names file, row, field and what to do."""


def read_preferences(path: Path) -> list[Preference]:
    """Read a converted file; row 1 is its first line.

    Raises:
        PreferenceFileError: the file is missing or empty, or a row is not a preference.
    """
    if not path.is_file():
        raise PreferenceFileError(f"{path} does not exist; reward_model/convert_dpo_format.py makes such files")
    with path.open(encoding="utf-8") as lines:
        rows = [parse_row(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise PreferenceFileError(f"{path} holds no row")
    return rows


def parse_row(line: str, path: Path, number: int) -> Preference:
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


def write_preferences(rows: Iterable[Preference], path: Path) -> int:
    """Write one row a line and return their number."""
    count = 0
    with path.open("w", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(row.to_dict(), ensure_ascii=False) + "\n")
            count += 1
    return count

"""Reads the subjects of generated tables: a `Theme` names the table, its rows in English, and the columns to draw from.

The subjects themselves are in `themes.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from dbbench_adapter.generate.data_files import read_data
from dbbench_adapter.generate.values import Field, make_field

Split = Literal["train", "held_out"]


@dataclass(frozen=True)
class Theme:
    table: str
    row: str
    """The name of one row, in the singular and without article: `delivery route`."""
    rows: str
    """The plural of `row`."""
    fields: tuple[Field, ...]


def _read_themes(split: Split) -> list[Theme]:
    return [
        Theme(
            entry["table"],
            entry["row"],
            entry.get("plural", f"{entry['row']}s"),
            tuple(make_field(**column) for column in entry["columns"]),
        )
        for entry in read_data("themes")[split]
    ]


THEMES: Mapping[Split, Sequence[Theme]] = {split: _read_themes(split) for split in get_args(Split)}

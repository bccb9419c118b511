"""What a generated table may be about: a `Theme` names the table, its rows in English, and the columns to draw from."""

from __future__ import annotations

from dataclasses import dataclass

from dbbench_adapter.generate.values import Field


@dataclass(frozen=True)
class Theme:
    """One subject: at least a key, two categories and an amount, from which each table draws its columns."""

    table: str
    row: str
    """What one row is, in the singular and without article: `delivery route`."""
    fields: tuple[Field, ...]
    plural: str = ""
    """Of `row` where adding an s is wrong."""

    @property
    def rows(self) -> str:
        return self.plural or f"{self.row}s"

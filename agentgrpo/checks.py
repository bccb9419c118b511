"""What a check finds, and the error of a command that cannot start. Imports only the standard library."""

from __future__ import annotations

from dataclasses import dataclass


class UsageError(ValueError):
    """Something is wrong that the user can correct; the message says how."""


@dataclass(frozen=True)
class Problem:
    what: str
    remedy: str
    blocks: bool = True
    """False if a run can start anyway."""

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"

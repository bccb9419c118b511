"""Defines the record of a word problem, and reads the number of an answer. Importing this module is instant."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter

Split = Literal["train", "test"]

_NUMBER = (
    r"(?P<sign>-\s?\$?|\$\s?-?)?"
    r"(?P<digits>(?>[0-9]{1,3}(?:,[0-9]{3})++(?![0-9])|[0-9]++)(?:\.[0-9]++)?|\.[0-9]++)"
    r"(?![0-9]|[.,:][0-9]|[eE][-+]?[0-9]|\s*[*/^=×÷]|\s*[-+]\s*[0-9$])"  # 1/2, 3+4, 1e5, 5:30, 1,00 are not 1, 3, 5
)
_FINAL = re.compile(rf"[^\S\n]*{_NUMBER}")


@dataclass(frozen=True)
class WordProblem:
    """Holds one question. Its answer and its solution never enter a prompt or a tool result."""

    id: str
    question: str
    answer: str
    """The final number as digits, such as `72`, `-3` or `2.50`."""
    solution: str | None = None
    """Solution in GSM8K's form: sentences with `<<48/2=24>>` at each calculation, and a last line `#### 72`."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # a misspelt key stops the load

    def __post_init__(self) -> None:
        if not re.fullmatch(r"-?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)", self.answer):
            raise ValueError(f"the answer of problem {self.id!r} is {self.answer[:40]!r}, expected digits such as 72")

    @property
    def kind(self) -> str:
        return "gsm8k"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; `from_dict` is the inverse."""
        return _PROBLEM.dump_python(self, mode="json")

    @staticmethod
    def from_dict(fields: dict[str, Any]) -> WordProblem:
        return _PROBLEM.validate_python(fields)


_PROBLEM: TypeAdapter[WordProblem] = TypeAdapter(WordProblem)


def final_number(text: str) -> Decimal | None:
    """Return the number directly after the last `####`, on the same line; None if there is none.

    A dollar sign in front, commas between thousands and words after it (`$1,000 in all`) are ignored. A calculation or
    a fraction is not a number.
    """
    _, mark, rest = text.rpartition("####")
    found = _FINAL.match(rest) if mark else None
    if found is None:
        return None
    digits = found["digits"].replace(",", "")
    return Decimal(f"-{digits}" if "-" in (found["sign"] or "") else digits)


def in_split(key: str, split: Split, held_out_fraction: float) -> bool:
    """Return whether a problem belongs to that split; only its `key` decides."""
    digest = hashlib.sha256(key.encode()).digest()
    return (int.from_bytes(digest[:8], "big") < held_out_fraction * 2**64) == (split == "test")

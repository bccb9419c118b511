"""A new judge needs a module with a `judge(end: EndState) -> Score`, and its name and a line here."""

from __future__ import annotations

from typing import Literal

from dbbench_adapter.judges import fc, lab, strict, text
from dbbench_adapter.judges.base import Answers, EndState, Judge, NoReferenceError

__all__ = ["JUDGES", "Answers", "EndState", "Judge", "JudgeName", "NoReferenceError"]

JudgeName = Literal["strict", "text", "fc", "lab"]

JUDGES: dict[JudgeName, Judge] = {
    "text": text.judge,
    "fc": fc.judge,
    "lab": lab.judge,
    "strict": strict.judge,
}

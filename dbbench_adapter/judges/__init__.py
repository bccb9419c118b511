"""Judges by name. Adding one is a module with a `judge(end: EndState) -> Score` and a line here."""

from __future__ import annotations

from dbbench_adapter.judges import fc, strict
from dbbench_adapter.judges.base import Answers, EndState, Judge, NoReferenceError

__all__ = ["JUDGES", "Answers", "EndState", "Judge", "NoReferenceError"]

JUDGES: dict[str, Judge] = {
    "fc": fc.judge,
    "strict": strict.judge,
}

"""The judge of AgentBench's function-calling version, quirk by quirk, for scores that compare with its numbers.

The quirks are kept on purpose (FACTS 7.3 and 8): `0`, `none`, empty text, nan and infinity are one value; commas vanish
from words; rows of several columns vanish, so that an empty answer is right for them; text lists ignore duplicates;
a text in brackets is read as a Python literal. Unlike there, nothing an agent wrote is ever run as code: a text that
only running would understand is cut at its commas, as there a text that does not run is.
"""

from __future__ import annotations

import re

from dbbench_adapter.judges.base import Answers, EndState, NoReferenceError
from dbbench_adapter.literals import parse_literal
from dbbench_adapter.types import Gold, Score

TOLERANCE = 0.01
_ZEROS = frozenset({"none", "null", "undefined", "nan", "inf", "infinity", "-inf", "-infinity", ""})


def judge(end: EndState) -> Score:
    """1 or 0; nothing committed is 0.

    Returns:
        `Score(None, ...)` where the file has no gold that this judge could use.
    Source:
        AgentBench `src/server/tasks/dbbench/task.py` and `result_processor.py`, commit 578c5e9.
    """
    if not end.committed:
        return Score(0.0, "not_committed")
    if end.task.changes_state:
        return _judge_state(end)
    labels = _labels(end.task.gold)
    if not labels:
        return Score(None, "no_gold")
    same = any(same_answers(end.answers, label) for label in labels)
    return Score(1.0, "match") if same else Score(0.0, "wrong_answer")


def same_answers(given: Answers, label: Answers) -> bool:
    """Whether an answer matches a label after both are cleaned (FACTS 7.3)."""
    ours, theirs = clean(given), clean(label)
    if ours is None or theirs is None:
        return False
    ours_numbers, theirs_numbers = _numbers(ours), _numbers(theirs)
    if ours_numbers is not None and theirs_numbers is not None:
        return _paired(ours_numbers, theirs_numbers)
    return ours == theirs if len(ours) == len(theirs) == 1 else set(ours) == set(theirs)


def clean(answers: Answers) -> list[str] | None:
    """One side of a comparison as a list of plain texts; None for a text like `[1], [2]`, which matches nothing."""
    if answers is None:
        return ["0"]
    if isinstance(answers, str):
        return _clean_text(answers)
    return [_clean_item(item) for item in answers]


def _clean_text(text: str) -> list[str] | None:
    stripped = text.strip()
    if not (stripped.startswith("[") and stripped.endswith("]")):
        return [_clean_item(stripped)]
    try:
        items = parse_literal(stripped)
    except ValueError:
        lone = re.fullmatch(r"\[+\(([^(]*),\)\]+", text)
        return [_clean_item(part) for part in ([lone[1]] if lone else _cut_at_commas(stripped[1:-1]))]
    if not isinstance(items, list):
        return None
    if text == stripped and all(isinstance(item, tuple) for item in items):
        return [_clean_item(item) for item in items if len(item) == 1]
    return [_clean_item(item) for item in items]


def _cut_at_commas(text: str) -> list[str]:
    parts, inside = [""], False
    for char in text:
        if char in "\"'":
            inside = not inside
        elif char == "," and not inside:
            parts.append("")
        else:
            parts[-1] += char
    return [part for part in parts if part]


def _clean_item(item: object) -> str:
    if isinstance(item, tuple) and len(item) == 1:
        item = item[0]
    value = str(item).strip().strip("'\"").strip()
    if value.endswith("%"):
        return value[:-1].strip()
    if not value.startswith("[") and not value.endswith("]"):
        value = value.replace(",", "")
    return "0" if value.lower() in _ZEROS else value


def _numbers(values: list[str]) -> list[float] | None:
    try:
        return [float(value) for value in values]
    except ValueError:
        return None


def _paired(ours: list[float], theirs: list[float]) -> bool:
    """Greedy: each of ours takes the first of theirs that is close, whatever is left for the next."""
    left = list(theirs)
    for number in ours:
        close = next((i for i, other in enumerate(left) if abs(number - other) <= TOLERANCE), None)
        if close is None:
            return False
        del left[close]
    return not left


def _labels(gold: Gold) -> list[Answers]:
    """The label as AgentBench's files have it; for rows of other files, values or printed rows."""
    if gold.answers is not None:
        return [list(gold.answers)]
    if gold.label_text is not None:
        return [gold.label_text]
    if gold.rows is None:
        return []
    return [[row[0] if len(row) == 1 else repr(row) for row in gold.rows], [repr(row) for row in gold.rows]]


def _judge_state(end: EndState) -> Score:
    try:
        expected = end.task.gold.table_hash or end.reference_hash()
    except NoReferenceError:
        return Score(None, "reference_failed")
    found = end.table_hash()
    same = found is not None and clean(found) == clean(expected)
    return Score(1.0, "match") if same else Score(0.0, "wrong_state")

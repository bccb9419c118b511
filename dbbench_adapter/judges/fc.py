"""Judges as AgentBench's function-calling version does, with all its quirks, so that scores compare with its numbers.

`0`, `none`, empty text, nan and infinity are one value. Commas are removed from words. Rows of several columns are
dropped, so that an empty answer is right for them. Lists of texts ignore duplicates. A text in brackets is read as a
Python literal. The original runs such a text as code. Here nothing is run; a text that is no literal is split at its
commas, as the original splits a text that does not run.
"""

from __future__ import annotations

from dbbench_adapter.datatypes import Score
from dbbench_adapter.judges.base import Answers, EndState, judge_state, labels, verdict
from dbbench_adapter.tasks.literals import parse_literal

TOLERANCE = 0.01
_ZEROS = frozenset({"none", "null", "undefined", "nan", "inf", "infinity", "-inf", "-infinity", ""})


def judge(end: EndState) -> Score:
    """An episode without a committed answer gets 0; `Score(None, ...)` if the file has no gold that this judge can use.

    Source:
        AgentBench `src/server/tasks/dbbench/task.py` and `result_processor.py`, commit 578c5e9.
    """
    if not end.committed:
        return Score(0.0, "not_committed")
    if end.task.changes_state:
        return judge_state(end)
    gold = end.task.gold
    expected = [gold.label_text] if gold.label_text is not None else labels(gold)
    if not expected:
        return Score(None, "no_gold")
    return verdict(any(same_answers(end.answers, label) for label in expected))


def same_answers(given: object, label: Answers) -> bool:
    """Whether an answer, any JSON value, matches a label after both are cleaned."""
    try:
        ours, theirs = clean(given), clean(label)
    except ValueError:  # the number is too large to print
        return False
    if ours is None or theirs is None:
        return False
    ours_numbers, theirs_numbers = _numbers(ours), _numbers(theirs)
    if ours_numbers is not None and theirs_numbers is not None:
        return _paired(ours_numbers, theirs_numbers)
    return ours == theirs if len(ours) == len(theirs) == 1 else set(ours) == set(theirs)


def clean(answers: object) -> list[str] | None:
    """One side of a comparison as plain texts; None for a text like `[1], [2]`, which matches nothing."""
    if answers is None:
        return ["0"]
    if isinstance(answers, str):
        return _clean_text(answers)
    return [_clean_item(item) for item in (answers if isinstance(answers, list | tuple) else [answers])]


def _clean_text(text: str) -> list[str] | None:
    if text.startswith("[") and text.endswith("]") and (values := _driver_values(text)) is not None:
        return [_clean_item(value) for value in values]
    stripped = text.strip()
    if not (stripped.startswith("[") and stripped.endswith("]")):
        return [_clean_item(stripped)]
    try:
        items = parse_literal(stripped)
        return [_clean_item(item) for item in items] if isinstance(items, list) else None
    except ValueError:
        return [_clean_item(part) for part in _cut_at_commas(stripped[1:-1])]


def _driver_values(text: str) -> list[object] | None:
    # The values of a printed driver result: those of its one-column rows, or of one row that is no literal.
    try:
        items = parse_literal(text)
    except ValueError:
        items = None
    if isinstance(items, list) and all(isinstance(item, tuple) for item in items):
        return [item for item in items if len(item) == 1]
    inner = text.strip("[]")
    lone_row = inner.startswith("(") and inner.endswith(",)") and inner.count("(") == 1
    return [inner[1:-2]] if lone_row else None


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
    """Whether the numbers pair one to one, if each of ours takes the first close one of theirs that is left."""
    left = list(theirs)
    for number in ours:
        close = next((i for i, other in enumerate(left) if abs(number - other) <= TOLERANCE), None)
        if close is None:
            return False
        del left[close]
    return not left

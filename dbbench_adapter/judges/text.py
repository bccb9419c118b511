"""The judge of AgentBench's text version, quirk by quirk, for scores that compare with its numbers.

The quirks are kept on purpose (FACTS 7.2 and 8): the answer line is read as a Python literal, a bare word keeps the
blank before it and so fails, a quoted word without brackets falls into its letters, number literals never equal labels
of several values. The state counts whatever the episode's status. Nothing an agent wrote is ever run as code: a call or
a name makes the line what it is where the original cannot run it, one text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dbbench_adapter.datatypes import Score
from dbbench_adapter.judges.base import EndState, judge_state, labels
from dbbench_adapter.tasks.literals import parse_literal


def judge(end: EndState) -> Score:
    """1 or 0; an answer that was never given counts as an empty line.

    Returns:
        `Score(None, ...)` where the file has no gold that this judge could use.
    Source:
        AgentBench branch v0.2, `src/server/tasks/dbbench/__init__.py`.
    """
    if end.task.changes_state:
        return judge_state(end)
    expected = labels(end.task.gold)
    if not expected:
        return Score(None, "no_gold")
    line = end.answers if isinstance(end.answers, str) else repr(end.answers) if end.answers else ""
    same = any(same_answers(line, label) for label in expected)
    return Score(1.0, "match") if same else Score(0.0, "wrong_answer")


def same_answers(line: str, label: Sequence[Any]) -> bool:
    """Whether what follows `Final Answer:` on its line, leading blank included, matches the label (FACTS 7.2)."""
    given = _listed(line)
    if len(given) == len(label) == 1:
        try:
            return float(given[0]) == float(label[0])
        except (ValueError, TypeError):
            return bool(given[0] == label[0])
        except OverflowError:  # where the original breaks off the whole evaluation
            return False
    try:
        return set(given) == set(label)
    except TypeError:  # a list in the list
        return False


def _listed(line: str) -> list[Any]:
    try:
        return list(parse_literal(line))
    except (ValueError, TypeError):
        return [line]

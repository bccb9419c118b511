"""Judges as AgentBench's text version does, with all its quirks, so that scores compare with its numbers.

The answer line is read as a Python literal. A bare word keeps the blank before it and so fails. A quoted word without
brackets is split into its letters. Number literals never equal labels of several values. The state of the tables counts
whatever the episode's status is. Nothing that an agent wrote is run as code: a line with a call or a name is one text,
as in the original if such a line does not run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dbbench_adapter.datatypes import Score
from dbbench_adapter.judges.base import EndState, judge_state, labels, verdict
from dbbench_adapter.tasks.literals import parse_literal


def judge(end: EndState) -> Score:
    """A missing answer counts as an empty line; `Score(None, ...)` if the file has no gold that this judge can use.

    Source:
        AgentBench branch v0.2, `src/server/tasks/dbbench/__init__.py`.
    """
    if end.task.changes_state:
        return judge_state(end)
    expected = labels(end.task.gold)
    if not expected:
        return Score(None, "no_gold")
    line = end.answers if isinstance(end.answers, str) else repr(end.answers) if end.answers else ""
    return verdict(any(same_answers(line, label) for label in expected))


def same_answers(line: str, label: Sequence[Any]) -> bool:
    """Whether the text after `Final Answer:` on its line, leading blank included, matches the label."""
    given = _listed(line)
    if len(given) == len(label) == 1:
        try:
            return float(given[0]) == float(label[0])
        except (ValueError, TypeError):
            return bool(given[0] == label[0])
        except OverflowError:  # the original stops the whole evaluation here
            return False
    try:
        return set(given) == set(label)
    except TypeError:  # the list contains a list
        return False


def _listed(line: str) -> list[Any]:
    try:
        return list(parse_literal(line))
    except (ValueError, TypeError):
        return [line]

"""What a judge sees of an episode's end, and what a judge is. Leaves out the verdicts themselves: one module each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dbbench_adapter.backends import Snapshot
from dbbench_adapter.datatypes import Gold, Score, Task

Answers = list[Any] | str | None
"""What an agent committed, as it came: a list of values, one text, or null."""


class NoReferenceError(RuntimeError):
    """There is no reference statement that runs here, so that nobody can say what a right end state is."""


class EndState(Protocol):
    """The end of an episode. Whatever a judge asks for is read then; nothing is read that it does not ask for."""

    @property
    def task(self) -> Task: ...
    @property
    def committed(self) -> bool: ...
    @property
    def answers(self) -> Answers: ...

    def table_hash(self) -> str | None:
        """DB-Bench's hash of the task's tables as they are now; None when one of them is no longer there."""
        ...

    def snapshot(self) -> Snapshot:
        """Every table as it is now."""
        ...

    def reference_hash(self) -> str:
        """The hash that the reference statement leaves behind on a fresh copy.

        Raises:
            NoReferenceError: see there.
        """
        ...

    def reference_snapshot(self) -> Snapshot:
        """Every table as the reference statement leaves it behind on a fresh copy.

        Raises:
            NoReferenceError: see there.
        """
        ...


Judge = Callable[[EndState], Score]


def judge_state(end: EndState) -> Score:
    """The originals' verdict on a change: DB-Bench's hash of the task's tables against the stored one, or where none is
    stored against the one that the reference statement leaves behind.

    Returns:
        `Score(None, ...)` where there is neither.
    """
    try:
        expected = end.task.gold.table_hash or end.reference_hash()
    except NoReferenceError:
        return Score(None, "reference_failed")
    return Score(1.0, "match") if end.table_hash() == expected else Score(0.0, "wrong_state")


def labels(gold: Gold) -> list[list[Any]]:
    """The ways to write a gold answer as AgentBench's labels: as its files have them; for rows of other files, values
    or printed rows."""
    if gold.answers is not None:
        return [list(gold.answers)]
    if gold.rows is None:
        return []
    return [[row[0] if len(row) == 1 else repr(row) for row in gold.rows], [repr(row) for row in gold.rows]]

"""The end of an episode as judges see it. Each judge has a module of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dbbench_adapter.datatypes import Gold, Score, Task
from dbbench_adapter.engines import Snapshot

# The answers that an agent committed, unchanged: a list of values, one text, or null.
Answers = list[Any] | str | None


class NoReferenceError(RuntimeError):
    """No reference statement runs here, so the right end state is unknown."""


class EndState(Protocol):
    """The database is read only when a judge calls one of the methods."""

    @property
    def task(self) -> Task: ...
    @property
    def committed(self) -> bool: ...
    @property
    def answers(self) -> Answers: ...

    def table_hash(self) -> str | None:
        """DB-Bench's hash of the task's tables as they are now; None if one of them is gone."""
        ...

    def snapshot(self) -> Snapshot: ...

    def reference_hash(self) -> str:
        """Hash of a fresh copy of the tables after the reference statement.

        Raises:
            NoReferenceError: there is no reference statement, or it does not run.
        """
        ...

    def reference_snapshot(self) -> Snapshot:
        """Every table of a fresh copy after the reference statement.

        Raises:
            NoReferenceError: there is no reference statement, or it does not run.
        """
        ...


Judge = Callable[[EndState], Score]


def verdict(right: bool, otherwise: str = "wrong_answer") -> Score:
    return Score(1.0, "match") if right else Score(0.0, otherwise)


def judge_state(end: EndState) -> Score:
    """Judge a change as the original judges do: DB-Bench's hash of the task's tables has to be the stored hash.

    If none is stored, it has to be the hash after the reference statement.

    Returns:
        1 or 0; `Score(None, ...)` if there is neither.
    """
    try:
        expected = end.task.gold.table_hash or end.reference_hash()
    except NoReferenceError:
        return Score(None, "reference_failed")
    return verdict(end.table_hash() == expected, "wrong_state")


def labels(gold: Gold) -> list[list[object]]:
    """The ways to write a gold answer as a label of AgentBench.

    Its own files have one label; rows of other files can be written as values or as printed rows.
    """
    if gold.answers is not None:
        return [list(gold.answers)]
    if gold.rows is None:
        return []
    return [[row[0] if len(row) == 1 else repr(row) for row in gold.rows], [repr(row) for row in gold.rows]]

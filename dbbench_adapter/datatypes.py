"""The records that leave `dbbench_adapter`: tasks and scores, and an error. Nothing here touches a database."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import ConfigDict, TypeAdapter

Cell = str | int | float | None
SqlValue = Cell | bytes
Row = tuple[Cell, ...]
Rows = tuple[Row, ...]

# Question types judged by the end state of the tables; every other type is judged by the committed answer.
CHANGE_KINDS = frozenset({"INSERT", "UPDATE", "DELETE"})


class DatabaseError(ValueError):
    """A database of the user's cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class Column:
    name: str
    type: str = "TEXT"
    """The type declared in the file; used only if `Task.typed`."""


@dataclass(frozen=True)
class Table:
    name: str
    columns: tuple[Column, ...]
    rows: Rows

    @property
    def note(self) -> str:
        return f"The table is called {self.name} and has these headers: {', '.join(c.name for c in self.columns)}."


@dataclass(frozen=True)
class Gold:
    """The right answer. It never enters a prompt, a tool result or a span."""

    answers: tuple[str, ...] | None = None
    """Answer values as text (AgentBench labels), or None if the file has none."""
    rows: Rows | None = None
    """Typed result rows of a SELECT (LifelongAgentBench, generated tasks)."""
    label_text: str | None = None
    """The result as the driver prints it, `[('a', 1), ...]` (AgentBench train file); `rows` holds the parsed values."""
    sql: str | None = None
    """The reference statement; the gold state of a change is the state after it ran on a fresh copy."""
    table_hash: str | None = None
    """The stored hash of the changed table(s), 32 hex digits (several joined with `_`); "None" for an empty table."""


@dataclass(frozen=True)
class Task:
    """One question with its database and gold answer (DB-Bench "sample")."""

    id: str
    """Unique in its file, stable over loads: file stem and index, e.g. `standard-17`, `entry_dict-3`."""
    question: str
    kind: str
    """AgentBench question type (`other`, `counting`, ..., `INSERT`); `SELECT`/`INSERT`/... for LifelongAgentBench."""
    tables: tuple[Table, ...]
    gold: Gold
    table_note: str = ""
    """The sentence naming table and headers (AgentBench `add_description`)."""
    evidence: str = ""
    skills: tuple[str, ...] = ()
    source: Literal["agentbench", "lifelong", "generated"] = "agentbench"
    typed: bool = False
    """Whether columns have their declared types (LifelongAgentBench) or are all TEXT (AgentBench)."""
    ordered: bool = False
    """Whether the order of rows is part of the gold, because the reference orders its rows."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # a misspelt key in a task file stops the load

    @property
    def changes_state(self) -> bool:
        return self.kind in CHANGE_KINDS

    def to_dict(self) -> dict[str, object]:
        return _TASK.dump_python(self, mode="json")

    @staticmethod
    def from_dict(data: object) -> Task:
        return _TASK.validate_python(data)


@dataclass(frozen=True)
class Score:
    """A verdict. `None` is not 0: the end could not be judged, and it is left out of every mean."""

    value: float | None
    reason: str
    """`match`, `wrong_answer`, `wrong_state`, `not_committed`, `db_unavailable`, ..."""
    parts: dict[str, float] = field(default_factory=dict)


_TASK: TypeAdapter[Task] = TypeAdapter(Task)

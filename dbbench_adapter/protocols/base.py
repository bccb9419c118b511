"""What the episodes of all protocols share: one task's database, its history, and the methods for judges.

A protocol decides what the model reads first, how its replies are understood and what ends an episode. `text`, `fc` and
`lab` have a module each.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain, repeat
from typing import ClassVar, Self

from dbbench_adapter.datatypes import Score, Table, Task
from dbbench_adapter.engines import Backend, Database, Result, Snapshot, TableError
from dbbench_adapter.engines.base import STATEMENT_TIMEOUT_S, UNREADABLE
from dbbench_adapter.interaction import Episode, Message
from dbbench_adapter.judges import JUDGES, Answers, JudgeName, NoReferenceError
from dbbench_adapter.statement_clock import LEFT_OUT

_OPENS_TRANSACTION = re.compile(r"begin|start|autocommit|chain|completion_type", re.IGNORECASE)
SHOWN_CHARS = 800
TRUNCATED = "[TRUNCATED]"


class DatabaseEpisode(Episode):
    """Plays an episode over a database of its own.

    Args:
        max_rounds: the number of replies or actions of the model; the protocol says which of them count.
        statement_timeout_s: limit of one statement (`Backend.open`); all together may take `STATEMENTS_TOGETHER` times
            as long.
    Raises:
        TableError: a table of the task cannot be made, and the protocol does not go on without it.
        BackendUnavailable: the database server is gone; `answer` and `judge` raise it too.
    """

    NULL: ClassVar[str | None] = None
    """This value replaces a missing cell of a text column in the database."""
    SWALLOWS_SETUP_ERRORS: ClassVar[bool] = False
    """Whether to go on with empty tables if their rows do not fit, and without any if they cannot be made."""

    def __init__(
        self, task: Task, backend: Backend, *, max_rounds: int, statement_timeout_s: float = STATEMENT_TIMEOUT_S
    ) -> None:
        self.task, self.max_rounds = task, max_rounds
        # The model's answer, unchanged; None until there is one.
        self.answers: Answers = None
        self.replies_used = 0
        # The model's statements as it wrote them, failed ones included.
        self.sql_run: list[str] = []
        self._transaction_opened = False
        self._backend, self._timeout_s = backend, statement_timeout_s
        self._reference_state: tuple[Task, Snapshot] | None = None  # shown to a person without a second run
        self._tables = stringify_cells(task, null=self.NULL)
        self._database = self._set_up() if self.SWALLOWS_SETUP_ERRORS else self._open()

    def answer(self, reply: Message) -> Iterator[Message]:
        """Raises RuntimeError: the episode has ended."""
        self._refuse_if_done()
        self.replies_used += 1
        yield from self._answers(reply)

    @abstractmethod
    def _answers(self, reply: Message) -> Iterable[Message]: ...

    @property
    def committed(self) -> bool:
        return self.status == "completed"

    def judge(self, name: JudgeName) -> Score:
        return JUDGES[name](self)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # `EndState` declares these methods for judges

    def table_hash(self) -> str | None:
        return self._database.table_hash(self.task.tables)

    def snapshot(self) -> Snapshot:
        return self._database.snapshot()

    def reference_hash(self) -> str:
        with self._reference() as database:
            found = database.table_hash(self.task.tables)
        if found is None:
            raise NoReferenceError(f"the reference of task {self.task.id!r} leaves a table or column missing")
        return found

    def reference_snapshot(self) -> Snapshot:
        if self._reference_state is None or self._reference_state[0] is not self.task:
            with self._reference() as database:
                found = database.snapshot()
            if UNREADABLE in found.values():
                raise NoReferenceError(
                    f"the reference of task {self.task.id!r} leaves a table larger than a judge reads"
                )
            self._reference_state = self.task, found
        return self._reference_state[1]

    # protocols use these methods

    def _open(self) -> Database:
        return self._backend.open(self._tables, typed=self.task.typed, statement_timeout_s=self._timeout_s)

    def _set_up(self) -> Database:
        """Open a database with the tables, or with the tables emptied, or without any: the first that can be made."""
        emptied = tuple(replace(table, rows=()) for table in self._tables)
        for tables in (self._tables, emptied):
            self._tables = tables
            with suppress(TableError):
                return self._open()
        self._tables = ()
        return self._open()

    def _execute(self, statement: str) -> Result:
        """One of the policy's own statements."""
        result = self._database.run(statement)
        self.refused_statements += (result.error or "").endswith(LEFT_OUT)
        self._end_if_spent(self._database)
        return result

    def _commit_work(self, sql: str) -> None:
        # Commit as the originals' drivers do after each statement. A commit costs a round trip, so it starts with the
        # first statement that has a word which may open a transaction.
        self._transaction_opened = self._transaction_opened or _OPENS_TRANSACTION.search(sql) is not None
        if self._transaction_opened:
            self._database.run("COMMIT")

    def _refuse_if_done(self) -> None:
        if self.done:
            raise RuntimeError(f"task {self.task.id!r}: the episode has ended ({self.status}); no reply may follow")

    @contextmanager
    def _reference(self) -> Iterator[Database]:
        # A fresh copy of the task's database on which the reference statement has run.
        sql = self.task.gold.sql
        if sql is None:
            raise NoReferenceError(f"task {self.task.id!r} has no reference statement; add `sql` to its gold")
        with self._open() as database:
            error = database.run(sql).error
            if error is not None:
                raise NoReferenceError(f"the reference of task {self.task.id!r} does not run: {error}")
            yield database


def stringify_cells(task: Task, *, null: str | None) -> tuple[Table, ...]:
    """The tables with every cell of a text column as text; all columns are text unless the task is typed.

    Args:
        null: the value that replaces a missing cell.
    """

    def converted(table: Table) -> Table:
        texts = [not task.typed or "TEXT" in column.type.upper() for column in table.columns]
        rows = tuple(
            tuple(
                cell if type(cell) is str or not is_text else null if cell is None else str(cell)
                for cell, is_text in zip(row, chain(texts, repeat(True)), strict=False)
            )
            for row in table.rows
        )
        return replace(table, rows=rows)

    return tuple(converted(table) for table in task.tables)


def format_result(result: Result, limit: int = SHOWN_CHARS) -> str:
    """A result as the model reads it: the driver's row list, `[]` without rows, or the error.

    Args:
        limit: a text of more characters is cut there and ends in `[TRUNCATED]`.
    """
    text = result.error if result.error is not None else str(list(result.rows or ()))
    text = text.encode("utf-8", "replace").decode()  # half a surrogate pair would break the next request
    return text if len(text) <= limit else text[:limit] + TRUNCATED


def fenced_sql(reply: str) -> str | None:
    """The text of the first block that begins with the line "```sql" and ends before a line "```".

    Its lines are joined by blanks, so that a line comment hides the rest, as in the originals.
    """
    start = reply.find("```sql\n")
    end = reply.find("\n```", start + len("```sql\n"))
    return None if start < 0 or end < 0 else reply[start + len("```sql\n") : end].strip().replace("\n", " ")


def final_answer(reply: str) -> str | None:
    """The rest of the first line that begins with `Final Answer:`; the first line of a reply does not count."""
    mark = "\nFinal Answer:"
    start = reply.find(mark)
    return None if start < 0 else reply[start + len(mark) :].partition("\n")[0]


def user_messages(texts: Sequence[str]) -> list[Message]:
    return [{"role": "user", "content": text} for text in texts]


def gold_answers(task: Task) -> list[str]:
    """The gold as `answers` of commit_final_answer: the labels unchanged, or one text per gold row."""
    if task.changes_state:
        return []
    if task.gold.answers is not None:
        return list(task.gold.answers)
    return [repr(row) for row in task.gold.rows or ()]

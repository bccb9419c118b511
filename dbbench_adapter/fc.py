"""DB-Bench's function-calling protocol: the prompt, the two tools and an episode that answers their calls.

Leaves out the loop (who calls the model, how many turns it gets, what happens to a reply without a call) and the
verdicts (`dbbench_adapter.judges`). Kept from AgentBench: the order and form of the prompt's parts, the names of tools
and arguments, argument names that nobody checks, results as the driver's row list cut at 800 characters. Different:
one statement per call, and a commit that holds no answers is answered with an error where the original gives up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal

from dbbench_adapter.backends import Backend, Database, Result, Snapshot
from dbbench_adapter.backends.base import STATEMENT_TIMEOUT_S
from dbbench_adapter.judges import JUDGES, Answers, NoReferenceError
from dbbench_adapter.types import Score, Task

MAX_RESULT_CHARS = 800
TRUNCATED = "[TRUNCATED]"

RULES = """\
You answer a question about a MySQL database, or change it as asked, by calling tools. Think first, then call one:
- execute_sql runs one SQL statement and returns MySQL's raw response: rows, [] where there are none, or an error.
- commit_final_answer ends the task. Call it once you are sure: the answer has to be exactly right.
The answers are a list of strings, one for each row of the result: its value or, where it has several, the row as MySQL
printed it. After a change the tables are compared, and the answers may be anything. A reply without a call is lost."""

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "execute_sql",
            "description": "Run one SQL statement on the MySQL database and return its raw response.",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string", "description": "The SQL statement."}},
                "required": ["query"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "commit_final_answer",
            "description": "Commit the final answer and end the task.",
            "parameters": {
                "type": "object",
                "properties": {
                    "answers": {"type": "array", "items": {"type": "string"}, "description": "The answer values."}
                },
                "required": ["answers"],
                "additionalProperties": False,
            },
        },
    },
]


def messages(task: Task) -> list[dict[str, Any]]:
    """The first prompt: the rules, then evidence, table note and question. Nothing of the gold is in it."""
    parts = [
        f"Evidence about the question: {task.evidence}\n" if task.evidence else "",
        f"Additional table information about the question: {task.table_note}\n" if task.table_note else "",
        f"Question: {task.question}\n",
    ]
    return [{"role": "system", "content": RULES}, {"role": "user", "content": "".join(parts)}]


def observe(result: Result) -> str:
    """What the agent reads of a result: the driver's row list, `[]` without rows, or the error; at most 800 characters.

    A longer text is cut there and ends in `[TRUNCATED]`.
    """
    text = result.error if result.error is not None else str(list(result.rows or ()))
    text = text.encode("utf-8", "replace").decode()  # half a surrogate pair would break the next request
    return text if len(text) <= MAX_RESULT_CHARS else text[:MAX_RESULT_CHARS] + TRUNCATED


class Episode:
    """The environment's side of a rollout: one task's database and the calls made on it. For one thread at a time."""

    def __init__(self, task: Task, backend: Backend, statement_timeout_s: float) -> None:
        self.task = task
        self.committed = False
        self.answers: Answers = None
        self.malformed_calls = 0
        """Calls of unknown tools, or with arguments that do not parse or do not fit the tool."""
        self.sql_run = 0
        """Statements run, those that failed included."""
        self._backend, self._timeout_s = backend, statement_timeout_s
        self._database = backend.open(task.tables, typed=task.typed, statement_timeout_s=statement_timeout_s)

    @staticmethod
    def open(task: Task, backend: Backend, *, statement_timeout_s: float = STATEMENT_TIMEOUT_S) -> Episode:
        """An episode over a fresh database.

        Raises:
            TableError: a table of the task cannot be made.
            BackendUnavailable: the database server is gone; so do `call_tool` and `judge`.
        """
        return Episode(task, backend, statement_timeout_s)

    def call_tool(self, name: str, arguments: str) -> str:
        """Answer one tool call; everything that a model may get wrong is answered in words and counted.

        Args:
            arguments: JSON text of an object; its first value is the argument, whatever its name.
        Raises:
            RuntimeError: the answer is already committed.
        """
        if self.committed:
            raise RuntimeError(f"task {self.task.id!r}: the answer is committed; no call may follow")
        if name not in ("execute_sql", "commit_final_answer"):
            return self._malformed(f"unknown tool {name!r}; call execute_sql or commit_final_answer")
        try:
            argument = next(iter(json.loads(arguments).values()))
        except (ValueError, AttributeError, StopIteration, RecursionError):
            wanted = '{"query": "..."}' if name == "execute_sql" else '{"answers": ["..."]}'
            return self._malformed(f"the arguments do not parse; {name} takes {wanted}")
        return self._execute(argument) if name == "execute_sql" else self._commit(argument)

    def judge(self, name: Literal["fc", "strict"]) -> Score:
        """The verdict of a judge of `JUDGES` on the episode as it stands."""
        return JUDGES[name](self)

    def close(self) -> None:
        """Drop the database; calling it again does nothing."""
        self._database.close()

    def __enter__(self) -> Episode:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # EndState: what judges ask for

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
        with self._reference() as database:
            return database.snapshot()

    @contextmanager
    def _reference(self) -> Iterator[Database]:
        """A fresh copy of the task's database on which the reference statement has run."""
        sql = self.task.gold.sql
        if sql is None:
            raise NoReferenceError(f"task {self.task.id!r} has no reference statement; its gold needs `sql`")
        tables, typed = self.task.tables, self.task.typed
        with self._backend.open(tables, typed=typed, statement_timeout_s=self._timeout_s) as database:
            error = database.run(sql).error
            if error is not None:
                raise NoReferenceError(f"the reference of task {self.task.id!r} does not run: {error}")
            yield database

    def _execute(self, query: Any) -> str:
        if not isinstance(query, str):
            return self._malformed("query has to be a string")
        self.sql_run += 1
        return observe(self._database.run(query))

    def _commit(self, answers: Any) -> str:
        if not (answers is None or isinstance(answers, list | str)):
            return self._malformed("answers has to be a list of strings")
        self.committed, self.answers = True, answers
        return "Committed."

    def _malformed(self, reason: str) -> str:
        self.malformed_calls += 1
        return f"Error: {reason}."

"""Implements DB-Bench's function-calling protocol (AgentBench, branch main): two tools, and answers to their calls.

It keeps from the original: the order and form of the prompt's parts, the names of tools and arguments, argument names
that are not checked, several statements in one call of which the first result is returned, results as the driver's row
list cut at 800 characters, a commit after every call, a broken commit that ends the episode as an error. The rules say
the same in other words. Source: AgentBench `src/server/tasks/dbbench/task.py` and `interaction.py`, commit 578c5e9.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentgrpo.chat.calls import call, calls, numbered_id, tool
from dbbench_adapter.datatypes import Task
from dbbench_adapter.dialect.lexer import split_statements
from dbbench_adapter.engines import Result
from dbbench_adapter.interaction import CallingEpisode, MalformedCallError, Message, read_arguments
from dbbench_adapter.protocols.base import DatabaseEpisode, format_result, gold_answers, user_messages

# The limit of replies, as configured by AgentBench.
MAX_ROUNDS = 15
ASK_FOR_A_CALL = "No tool call was found in your reply. Call execute_sql, or commit_final_answer to finish."

RULES = """\
You answer a question about a MySQL database, or change it as asked, by calling tools. Think first, then call one:
- execute_sql runs one SQL statement and returns MySQL's raw response: rows, [] where there are none, or an error.
- commit_final_answer ends the task. Call it once you are sure: the answer has to be exactly right.
The answers are a list of strings, one for each row of the result: its value or, where it has several, the row as MySQL
printed it. After a change the tables are compared, and the answers may be anything. A reply without a call is lost."""


TOOLS = [
    tool(
        "execute_sql",
        "Run one SQL statement on the MySQL database and return its raw response.",
        {"query": "The SQL statement."},
    ),
    tool(
        "commit_final_answer",
        "Commit the final answer and end the task.",
        {"answers": {"type": "array", "items": {"type": "string"}, "description": "The answer values."}},
    ),
]
TOOL_NAMES = tuple(each["function"]["name"] for each in TOOLS)


def messages(task: Task, rules: str = RULES) -> list[Message]:
    """The first prompt: the rules, then evidence, table note and question. It contains nothing of the gold."""
    parts = [
        f"Evidence about the question: {task.evidence}\n" if task.evidence else "",
        f"Additional table information about the question: {task.table_note}\n" if task.table_note else "",
        f"Question: {task.question}\n",
    ]
    return [{"role": "system", "content": rules}, {"role": "user", "content": "".join(parts)}]


class FcEpisode(DatabaseEpisode, CallingEpisode):
    NULL = "None"

    def _answers(self, reply: Message) -> Iterator[Message]:
        yield from CallingEpisode.answer(self, reply)
        if not self.done and self.replies_used == self.max_rounds:
            self.status = "task limit reached"

    def _answer_call(self, name: str, arguments: object) -> str:
        """A commit ends the episode, as `task error` if its answer is no list or text. No model reads its result.

        Args:
            arguments: the JSON text of an object; its first value is the argument, whatever its name.
        Raises:
            MalformedCallError: see `CallingEpisode`.
            RuntimeError: the episode has ended.
        """
        self._refuse_if_done()
        values = read_arguments(name, arguments)
        if name not in ("execute_sql", "commit_final_answer"):
            raise MalformedCallError(f"unknown tool {name!r}; call execute_sql or commit_final_answer")
        argument = next(iter(values.values()), _NOTHING) if isinstance(values, dict) else _NOTHING
        return self._answer_query(argument) if name == "execute_sql" else self._commit(argument)

    def without_call(self, reply: str) -> list[Message]:
        """Ask for a call."""
        return user_messages([ASK_FOR_A_CALL])

    def _answer_query(self, query: object) -> str:
        if not query:  # the driver answers an empty statement like this
            return format_result(Result())
        if not isinstance(query, str):
            raise MalformedCallError('execute_sql takes {"query": "..."}')
        self.sql_run.append(query)
        return format_result(self._run(query))

    def _run(self, query: str) -> Result:
        # Run all statements up to the first that fails. The driver fetches the first result, or the error of the second
        # statement if that one fails.
        statements = split_statements(query) or [query]
        results: list[Result] = []
        for statement in statements:
            results.append(self._execute(statement))
            if results[-1].error is not None or self.done:
                break
        if len(statements) > 1:
            self._database.new_session()  # the driver loses its connection over results that nobody fetched
        else:
            self._commit_work(query)
        return results[1] if len(results) > 1 and results[1].error is not None else results[0]

    def _commit(self, answers: Any) -> str:
        if answers is _NOTHING or (answers and not isinstance(answers, list | str)):
            self.status = "task error"
            raise MalformedCallError('commit_final_answer takes {"answers": ["..."]}')
        self.status, self.answers = "completed", answers
        return "Committed."


_NOTHING = object()


def solution(task: Task) -> list[Message]:
    commit = calls(call("commit_final_answer", {"answers": gold_answers(task)}, numbered_id(1)))
    if task.gold.sql is None:
        return [commit]
    return [calls(call("execute_sql", {"query": task.gold.sql}, numbered_id(0))), commit]

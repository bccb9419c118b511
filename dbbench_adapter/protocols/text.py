"""Implements DB-Bench's text protocol (AgentBench v0.2): operations and answers are patterns in free text.

It keeps from the original: the order of messages, the patterns and their gaps, 15 statements and one more reply, a
fresh session per statement, results cut at 800 characters, a block of several statements that is lost, the trimmed
history. The rules say the same in other words. Source: AgentBench branch v0.2, `src/server/tasks/dbbench/__init__.py`,
`Interaction.py` and `src/server/task.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from dbbench_adapter.datatypes import Task
from dbbench_adapter.dialect.lexer import split_statements
from dbbench_adapter.engines import Result
from dbbench_adapter.interaction import Message
from dbbench_adapter.protocols.base import (
    DatabaseEpisode,
    fenced_sql,
    final_answer,
    format_result,
    gold_answers,
    user_messages,
)

# The limit of statements. After the last one, one more reply is read, which can only answer.
MAX_ROUNDS = 15
OUT_OF_SYNC = "Commands out of sync; you can't run this command now"
MAX_HISTORY_SEGMENTS = 3500
_DATA_DEFINITION = ("ALTER", "CREATE", "DROP", "RENAME", "TRUNCATE")

HOW_TO_ACT = """\
You answer a question about a MySQL database, or change it as asked, by writing SQL. In every reply explain the problem
and your thoughts first; then either operate or answer. To operate, write exactly:
Action: Operation
```sql
SELECT * FROM table WHERE condition;
```
The block holds one SQL statement on one line and no comment. Only the first block of a reply is run, and you get
"""
RULES = f"""\
{HOW_TO_ACT}MySQL's raw response. Once you are sure, answer in exactly this form:
Action: Answer
Final Answer: ["ANSWER1", "ANSWER2", ...]
The answer has to be exactly right. If you were asked to change the database, then the tables are compared and the
answer may be anything. A reply that fits neither form fails at once."""


MARKS = ("Action: Operation", "```sql", "Action: Answer", "Final Answer:")


def messages(task: Task, rules: str = RULES) -> list[Message]:
    """The first prompt. It contains nothing of the gold."""
    return [
        {"role": "user", "content": rules},
        {"role": "assistant", "content": "Ok."},
        {"role": "user", "content": f"{task.question}\n{task.table_note}"},
    ]


def trimmed(history: Sequence[Message]) -> list[Message]:
    """The history as the model reads it: the first message, and as many of the newest as 3,500 segments allow.

    A segment is a run of up to 7 letters, or any other character except a blank or a line break.

    Args:
        history: an odd number of messages, user and assistant by turns.
    """
    first, later = history[0], list(history[1:])
    used, kept = segments(first["content"]), 0
    for message in reversed(later):
        used += segments(message["content"])
        if used >= MAX_HISTORY_SEGMENTS:
            break
        kept += 1
    newest = later[len(later) - kept :]
    if newest and newest[0]["role"] == "user":  # messages of user and assistant still have to alternate
        newest = newest[1:]
    omitted = len(later) - len(newest)
    notice = f"\n\n[NOTICE: {omitted} earlier messages are left out.]" if omitted else ""
    return [{**first, "content": first["content"] + notice}, *newest]


def segments(text: str) -> int:
    """The original's measure of length, which replaces tokens."""
    count = letters = 0
    for char in text:
        if char.isalpha():
            count += letters % 7 == 0
            letters += 1
        else:
            letters = 0
            count += char not in " \n"
    return count


class TextEpisode(DatabaseEpisode):
    # A `content` of None is no text.

    SWALLOWS_SETUP_ERRORS = True

    def _answers(self, reply: Message) -> list[Message]:
        text = reply["content"]
        if text is None:  # the original fails on a reply without text, but reads the first one as an empty text
            if self.sql_run:
                self.status = "unknown"
                return []
            text = ""
        if _action(text) == "Operation" and len(self.sql_run) < self.max_rounds:
            return self._operate(fenced_sql(text))
        return self._conclude(final_answer(text))

    def _operate(self, sql: str | None) -> list[Message]:
        if sql is None:
            self.malformed_calls += 1
            self.status = "agent validation failed"
            return []
        self.sql_run.append(sql)
        return user_messages([format_result(self._run(sql))])

    def _conclude(self, answer: str | None) -> list[Message]:
        self.answers = answer
        if not answer and len(self.sql_run) >= self.max_rounds:
            self.status = "task limit reached"
        elif answer is None:
            self.malformed_calls += 1
            self.status = "agent validation failed"
        else:
            self.status = "completed"
        return []

    def _run(self, sql: str) -> Result:
        # Run one statement in a session of its own. The driver cannot fetch several statements; it keeps nothing of
        # them except a first statement that commits itself.
        if not sql:
            return Result()
        statements = split_statements(sql) or [sql]
        several = len(statements) > 1
        rolled_back = several and not statements[0].upper().startswith(_DATA_DEFINITION)
        if rolled_back:
            self._database.run("BEGIN")
        result = self._execute(statements[0])
        if rolled_back:
            self._database.run("ROLLBACK")
        self._database.new_session()
        return Result(error=OUT_OF_SYNC) if several and result.error is None else result


def _action(reply: str) -> str | None:
    """The text from the first `Action: ` to the end of its line; None if that is the last line."""
    start = reply.find("Action: ")
    end = reply.find("\n", start)
    return None if start < 0 or end < 0 else reply[start + len("Action: ") : end]


def solution(task: Task) -> list[Message]:
    return written_solution(task, json.dumps(gold_answers(task)))


def written_solution(task: Task, answers: str) -> list[Message]:
    replies = [f"Action: Answer\nFinal Answer: {answers}"]
    if task.gold.sql is not None:
        sql = task.gold.sql.replace("\n", " ")
        replies.insert(0, f"Action: Operation\n```sql\n{sql}\n```")
    return [{"role": "assistant", "content": f"I work on it.\n{reply}"} for reply in replies]

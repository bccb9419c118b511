"""Implements LifelongAgentBench's protocol: the text protocol's patterns read more freely, three rounds, whole results.

It keeps from the original: the order of messages, the patterns, the round limit that counts every reply, statements
split at every semicolon, a fresh session per reply, results that are cut only where no model could read them. The rules
say the same in other words.
Cells with semicolons or backslashes break or change on their way into the original's tables; this is left out, since
its data hold none. Source: LifelongAgentBench `src/tasks/instance/db_bench/task.py` and `container.py`.
"""

from __future__ import annotations

from typing import Literal

from dbbench_adapter.datatypes import Task
from dbbench_adapter.interaction import Message
from dbbench_adapter.protocols.base import DatabaseEpisode, fenced_sql, final_answer, format_result, user_messages
from dbbench_adapter.protocols.text import HOW_TO_ACT, written_solution

MAX_ROUNDS = 3
# The original never cuts a result (the longest of a reference has 1,583 characters). No context holds more than this,
# so the reply after it ends the rollout either way, and a few tokens of the policy's cannot fill the memory of others.
MAX_SHOWN_CHARS = 1_000_000

RULES = f"""\
{HOW_TO_ACT}MySQL's raw response: a list of rows such as [('a', 1), ('b', 2)] for a SELECT, [] for a change.
Once you are sure, answer in exactly this form:
Action: Answer
Final Answer: [(ANSWER1, ANSWER2), ...]
The answer is the list of rows; their order and the order of their columns have to be right. If you were asked to change
the database, then the tables are compared and the answer may be anything. You have at most 3 replies, and a reply that
fits neither form fails at once."""


def messages(task: Task, rules: str = RULES) -> list[Message]:
    """The first prompt. It contains nothing of the gold."""
    return [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": rules},
        {"role": "assistant", "content": "OK."},
        {"role": "user", "content": f"{task.question}\n{task.table_note}"},
    ]


class LabEpisode(DatabaseEpisode):
    NULL = "None"
    SWALLOWS_SETUP_ERRORS = True

    def _answers(self, reply: Message) -> list[Message]:
        text = reply["content"]
        action = parse_action(text)
        content = {"Operation": fenced_sql, "Answer": final_answer}[action](text) if action else None
        if content is None:
            self.malformed_calls += 1
            self.status = "agent_validation_failed"
            return []
        if action == "Answer":
            self.answers = content.strip()
            self.status = "completed" if self._readable() else "task_environment_error"
            return []
        self.sql_run.append(content)
        observation = user_messages([self._run(content)])
        if not self.done and self.replies_used == self.max_rounds:
            self.status = "task_limit_reached" if self._readable() else "task_environment_error"
        return observation

    def _run(self, sql: str) -> str:
        text = ""
        for statement in filter(None, map(str.strip, sql.split(";"))):
            result = self._execute(statement)
            text = format_result(result, MAX_SHOWN_CHARS)
            self._commit_work(statement)
            if result.error is not None or self.done:
                break
        self._database.new_session()
        return text

    def _readable(self) -> bool:
        # Whether the original could read its answer; for a change that is the hash of the table.
        return not self.task.changes_state or self.table_hash() is not None


def parse_action(reply: str) -> Literal["Operation", "Answer"] | None:
    """The first action that the reply names, at any place."""
    operation, answer = reply.find("Action: Operation"), reply.find("Action: Answer")
    if operation < 0 and answer < 0:
        return None
    return "Operation" if answer < 0 or 0 <= operation < answer else "Answer"


def solution(task: Task) -> list[Message]:
    return written_solution(task, str(list(task.gold.rows or [(answer,) for answer in task.gold.answers or ()])))

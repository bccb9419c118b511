"""The replies of a perfect agent on a DB-Bench task: its reference statement, if there is one, and the gold answer."""

from __future__ import annotations

import json

from agentgrpo.chat.calls import call, calls
from dbbench_adapter.datatypes import Task
from dbbench_adapter.protocols import ProtocolName
from dbbench_adapter.protocols.base import Message


def solution(task: Task, protocol: ProtocolName = "fc") -> list[Message]:
    return _called_solution(task) if protocol == "fc" else _written_solution(task, protocol)


def _written_solution(task: Task, protocol: ProtocolName) -> list[Message]:
    rows = list(task.gold.rows or [(answer,) for answer in task.gold.answers or ()])
    answers = str(rows) if protocol == "lab" else json.dumps(gold_answers(task))
    replies = [f"Action: Answer\nFinal Answer: {answers}"]
    if task.gold.sql is not None:
        sql = task.gold.sql.replace("\n", " ")
        replies.insert(0, f"Action: Operation\n```sql\n{sql}\n```")
    return [{"role": "assistant", "content": f"I work on it.\n{reply}"} for reply in replies]


def _called_solution(task: Task) -> list[Message]:
    commit = calls(call("commit_final_answer", {"answers": gold_answers(task)}, "call_commit"))
    if task.gold.sql is None:
        return [commit]
    return [calls(call("execute_sql", {"query": task.gold.sql}, "call_sql")), commit]


def gold_answers(task: Task) -> list[str]:
    """The gold as `answers` of commit_final_answer: the labels unchanged, or one text per gold row."""
    if task.changes_state:
        return []
    if task.gold.answers is not None:
        return list(task.gold.answers)
    return [repr(row) for row in task.gold.rows or ()]

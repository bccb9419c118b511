"""How an agent answers medical questions: its rules, its one tool, and the episode that keeps them."""

from __future__ import annotations

import json
from typing import Any

from dbbench_adapter.protocols import Message, Status
from sql_agent.medical.database import ReadOnlyDatabase, shown
from sql_agent.medical.datatypes import Question, Schema

MAX_ROUNDS = 8
"""Replies, the answer included."""
TOOL_NAME = "query_database_by_sql"
RULES = f"""\
You answer questions about drugs and diseases from a read-only SQLite database. Call {TOOL_NAME} with one SELECT \
statement; it returns columns and rows as JSON. A reply without a call is your answer and ends the task: say what the \
database says, in the language of the question, and no more than that.
Tables:
"""
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": "Run one SELECT statement and return its rows.",
        "parameters": {
            "type": "object",
            "properties": {"sql": {"type": "string", "description": "The SELECT statement."}},
            "required": ["sql"],
            "additionalProperties": False,
        },
    },
}


def messages(question: Question, schema: Schema) -> list[Message]:
    """The first prompt: rules, tables and columns, then the question. Nothing of its answer is in it."""
    tables = "\n".join(f"{table}({', '.join(columns)})" for table, columns in schema.items())
    return [{"role": "system", "content": RULES + tables}, {"role": "user", "content": question.question}]


class MedicalEpisode:
    """Calls of the tool until a reply without one, which is the answer."""

    def __init__(self, database: ReadOnlyDatabase, max_rounds: int) -> None:
        self.max_rounds = max_rounds
        self.malformed_calls = 0
        self.status: Status = "running"
        self._database = database

    @property
    def done(self) -> bool:
        return self.status != "running"

    def call_tool(self, name: str, arguments: Any) -> str:
        if name != TOOL_NAME:
            return self._malformed(f"unknown tool {name!r}; call {TOOL_NAME}")
        try:
            values = json.loads(arguments)
        except (ValueError, TypeError, RecursionError):
            return self._malformed(f"the arguments of {name} do not parse; they are a JSON object")
        sql = values.get("sql") if isinstance(values, dict) else None
        if not isinstance(sql, str) or not sql.strip():
            return self._malformed(f'{name} takes {{"sql": "..."}}')
        return shown(self._database.run(sql))

    def without_call(self, _reply: str) -> list[Message]:
        self.status = "completed"
        return []

    def close(self) -> None:
        self._database.close()

    def _malformed(self, reason: str) -> str:
        self.malformed_calls += 1
        return f"Error: {reason}."

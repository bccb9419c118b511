"""Defines the rules, the tool and the episode of an agent that answers medical questions."""

from __future__ import annotations

from dbbench_adapter.protocols import Message
from examples.medical.database import MedicalDatabase, format_result
from examples.medical.datatypes import Question, Schema
from sql_agent.environments.episode import OneToolEpisode, tool

MAX_ROUNDS = 8
"""Number of replies, the answer included."""
TOOL_NAME = "query_database_by_sql"
RULES = f"""\
You answer questions about drugs and diseases from a read-only SQLite database. Call {TOOL_NAME} with one SELECT \
statement; it returns columns and rows as JSON. A reply without a call is your answer and ends the task: say what the \
database says, in the language of the question, and no more than that.
Tables:
"""
TOOL = tool(TOOL_NAME, "Run one SELECT statement and return its rows.", {"sql": "The SELECT statement."})


def messages(question: Question, schema: Schema) -> list[Message]:
    """Return the first prompt: rules, tables and columns, then the question, without anything of its answer."""
    tables = "\n".join(f"{table}({', '.join(columns)})" for table, columns in schema.items())
    return [{"role": "system", "content": RULES + tables}, {"role": "user", "content": question.question}]


class MedicalEpisode(OneToolEpisode):
    tool_name, argument, example = TOOL_NAME, "sql", "..."

    def __init__(self, database: MedicalDatabase, max_rounds: int) -> None:
        super().__init__(max_rounds)
        self._database = database

    def use_tool(self, value: str) -> str:
        return format_result(self._database.run(value)) if value.strip() else self.wrong_argument()

    def close(self) -> None:
        self._database.close()

"""Questions about databases. Importing this module is instant."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from pydantic import ConfigDict, TypeAdapter

from agentgrpo.json_text import JsonObject
from dbbench_adapter.datatypes import Rows
from sql_agent.text_to_sql.schema import LinkedTables


@dataclass(frozen=True)
class Question:
    """One question with the reference query, or else with the rows of the answer."""

    id: str
    """Unique in its file and stable over loads: file stem and number of the line or row, `dev-17`."""
    question: str
    db_id: str
    """Id of the database that the question is about."""
    query: str | None = None
    """The reference, in the database's own SQL. It never enters a prompt, a tool result or a span."""
    answer: Rows | None = None
    """The rows of the answer, if there is no reference."""
    evidence: str = ""
    """Background knowledge for the question (BIRD); part of the prompt."""
    kind: str = "answer"
    """BIRD's difficulty, or what the reference consists of (`load.kind_of`)."""
    changes: bool = False
    """Whether the reference changes data, so that the rows that it leaves behind are judged."""
    schema_chars: int | None = None
    """Characters to which the schema in the prompt is cut; None: it is whole."""
    tables: LinkedTables | None = None
    """What the prompt shows of the database; None: every table."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    @property
    def shown(self) -> str:
        return f"{self.id} ({textwrap.shorten(self.question, 80)})"

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values; `from_dict` is the inverse."""
        return _QUESTION.dump_python(self, mode="json")

    @staticmethod
    def from_dict(fields: JsonObject) -> Question:
        return _QUESTION.validate_python(fields)


_QUESTION: TypeAdapter[Question] = TypeAdapter(Question)

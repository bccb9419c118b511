"""Offers medical question answering as an environment without a judge; the reward model's score is the reward.

It is a subclass of `base.Environment` and not of `ToolEnvironment`, because a run gives it settings (the database, the
time limit of a statement), it may have to make the database before the run, and its episodes share the tables' columns,
which are in every prompt, and a watchdog. A database out of reach is played again, where an own tool's error is not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from agentgrpo.chat.calls import tool
from agentgrpo.machine import HOME
from dbbench_adapter.datatypes import Score
from dbbench_adapter.engines.sqlite.sandbox import Watchdog
from dbbench_adapter.interaction import CallingEpisode, MalformedCallError, Message, read_arguments
from sql_agent.environments.base import Environment, Split
from sql_agent.medical.database import MedicalDatabase, check_questions, format_result, missing, read_schema
from sql_agent.medical.datatypes import Question, Schema, read_questions
from sql_agent.medical.questions import Half, in_half, make_questions
from sql_agent.medical.words import make_database
from sql_agent.rewards import NO_JUDGE
from sql_agent.settings.groups import AgentConfig, DataConfig, EnvironmentSettings

INVENTED = HOME / "data" / "medical" / "medical.db"
MAX_ROUNDS = 8
TOOL_NAME = "query_database_by_sql"
RULES = f"""\
You answer questions about drugs and diseases from a read-only SQLite database. Call {TOOL_NAME} with one SELECT \
statement; it returns columns and rows as JSON. A reply without a call is your answer and ends the task: say what the \
database says, in the language of the question, and no more than that.
Tables:
"""
TOOL = tool(TOOL_NAME, "Run one SELECT statement and return its rows.", {"sql": "The SELECT statement."})


def messages(question: Question, schema: Schema) -> list[Message]:
    # The prompt holds nothing of the answer.
    tables = "\n".join(f"{table}({', '.join(columns)})" for table, columns in schema.items())
    return [{"role": "system", "content": RULES + tables}, {"role": "user", "content": question.question}]


class MedicalEpisode(CallingEpisode):
    def __init__(self, database: MedicalDatabase) -> None:
        self._database = database

    def _answer_call(self, name: str, arguments: Any) -> str:
        if name != TOOL_NAME:
            raise MalformedCallError(f"unknown tool {name!r}; call {TOOL_NAME}")
        values = read_arguments(name, arguments)
        sql = values.get("sql") if isinstance(values, dict) else None
        if not isinstance(sql, str) or not sql.strip():
            raise MalformedCallError(f'{TOOL_NAME} takes {{"sql": "..."}}')
        result = self._database.run(sql)
        self._end_if_spent(self._database)
        return format_result(result)

    def close(self) -> None:
        self._database.close()


class Medical(Environment):
    """
    Args:
        database: SQLite file; None: a database of invented entries, which `prepare` makes.
    """

    name: ClassVar[str] = "medical"
    judged: ClassVar[bool] = False

    def __init__(self, database: Path | None) -> None:
        self._database, self._may_make = database or INVENTED, database is None
        self._watchdog = Watchdog()
        self.tools = [TOOL]

    @classmethod
    def from_settings(cls, settings: EnvironmentSettings) -> Self:
        if isinstance(settings.database, str):
            raise ValueError(f"env.type=medical reads a SQLite file; got {settings.database}")
        return cls(settings.database)

    @cached_property
    def schema(self) -> Schema:
        return read_schema(self._database)

    def messages(self, task: Question) -> list[Message]:
        return messages(task, self.schema)

    def open(self, task: Question, limits: AgentConfig) -> MedicalEpisode:
        timeout_s = limits.statement_timeout_s
        database = MedicalDatabase(self._database, self.schema, self._watchdog, statement_timeout_s=timeout_s)
        return MedicalEpisode(database)

    def judge(self, episode: MedicalEpisode) -> Score:
        return Score(None, NO_JUDGE)

    def max_replies(self, limits: AgentConfig) -> int:
        return limits.max_turns or MAX_ROUNDS

    @property
    def prepared(self) -> bool:
        return not self._may_make or self._database.exists()

    def prepare(self, say: Callable[[str], None]) -> None:
        if not self.prepared:
            say(f"no env.database given: making one of invented entries, {self._database}")
            make_database(self._database)
        if lacking := missing(self.schema):
            say(f"{self._database} lacks {', '.join(lacking)}; nothing is asked about them")

    def read_split(self, data: DataConfig, seed: int) -> Split:
        """Load or make the questions; no entry is in both halves, unless the user's own two files share entries."""
        fraction = data.held_out_fraction
        if data.train_file is None:
            train = self._made(data.generate, "train", fraction, seed)
            val = (
                read_questions(data.val_file)
                if data.val_file
                else self._made(data.val_limit, "held_out", fraction, seed)
            )
        elif data.val_file is None:
            questions = read_questions(data.train_file)
            train = [q for q in questions if in_half(q.entry, "train", fraction)]
            val = [q for q in questions if in_half(q.entry, "held_out", fraction)]
        else:
            train, val = read_questions(data.train_file), read_questions(data.val_file)
        check_questions([*train, *val], self._database, self.schema)
        return Split(train, val)

    def _made(self, count: int, half: Half, fraction: float, seed: int) -> list[Question]:
        return make_questions(self._database, self.schema, count, half=half, held_out_fraction=fraction, seed=seed)

    def read_tasks(self, file: Path) -> list[Question]:
        return read_questions(file)

    def task(self, fields: dict[str, Any]) -> Question:
        return Question.from_dict(fields)

    def __enter__(self) -> Self:
        self._watchdog.ensure_alive()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._watchdog.stop()

"""Defines the rules, the tools and the episode of an agent that answers a question with a query."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from agentgrpo.chat.calls import call, calls, numbered_id, tool
from agentgrpo.json_text import JsonObject
from agentgrpo.spelling import did_you_mean
from dbbench_adapter.engines import Result
from dbbench_adapter.engines.base import json_cell
from dbbench_adapter.engines.engine import Changes, ChangingSession, Engine, Session, TableInfo
from dbbench_adapter.interaction import CallingEpisode, MalformedCallError, Message, read_arguments
from sql_agent.text_to_sql.datatypes import Question
from sql_agent.text_to_sql.load import is_sql
from sql_agent.text_to_sql.schema import describe_table

MAX_ROUNDS = 8
MAX_SHOWN_ROWS = 20
# Longest result that the policy reads.
MAX_SHOWN_CHARS = 1_000
# Bytes of a text that is no UTF-8, and half pairs of a policy's own.
_SURROGATES = re.compile(r"[\uD800-\uDFFF]")
RULES = """\
Answer the question with one {engine} query that returns only what is asked for. execute_sql shows the rows of a \
query; submit_sql hands in the answer and ends the task.
"""
RULES_OF_CHANGES = """\
Change the data of a {engine} database as you are asked, and nothing else: the rows of all tables are compared. \
execute_sql runs a SELECT, INSERT, UPDATE or DELETE statement; submit_sql runs the last one and ends the task.
"""


_SQL: dict[str, JsonObject] = {"sql": {"type": "string"}}
TOOLS = [
    tool("execute_sql", "Run a statement and show its rows.", _SQL),
    tool("submit_sql", "Hand in the last statement.", _SQL),
]


TOOL_NAMES = tuple(each["function"]["name"] for each in TOOLS)


def messages(question: Question, schema: str, engine: str, instructions: str) -> list[Message]:
    """The schema comes first, so that all questions about a database share a prefix.

    Args:
        instructions: how to act in a task that is answered by a query; one that changes data has rules of its own.
    """
    evidence = f"\n{question.evidence}" if question.evidence else ""
    rules = RULES_OF_CHANGES.format(engine=engine).strip() if question.changes else instructions
    return [
        {"role": "system", "content": f"{rules}\n\n{schema}"},
        {"role": "user", "content": question.question + evidence},
    ]


def solution_calls(question: Question, engine: Engine) -> list[Message]:
    # Of several statements the last one is handed in.
    query = question.query or ""
    *first, last = engine.statements(query) if question.changes else [query]
    asked = [*(("execute_sql", sql) for sql in first), ("submit_sql", last)]
    return [calls(call(name, {"sql": sql}, numbered_id(number))) for number, (name, sql) in enumerate(asked)]


class TextToSqlEpisode(CallingEpisode):
    """Plays an episode in which a reply without a call ends it without an answer.

    Args:
        database: a `ChangingSession` if the task changes data; what is submitted is run there.
        tables: those that DESCRIBE shows.
        submission_timeout_s: limit of what is submitted (`Backend.open`).
    """

    def __init__(
        self,
        question: Question,
        database: Session,
        tables: Sequence[TableInfo],
        *,
        submission_timeout_s: float,
    ) -> None:
        self.question, self.database = question, database
        self._tables = {table.name.lower(): table for table in tables}
        self._submission_timeout_s = submission_timeout_s
        self.submitted: str | None = None
        # What the database said about `submitted`; of a query after the judge has run it.
        self.result: Result | None = None
        # What the episode has changed, after it was judged.
        self.changes: Changes | None = None

    def _answer_call(self, name: str, arguments: object) -> str:
        if name not in ("execute_sql", "submit_sql"):
            raise MalformedCallError(f"unknown tool {name!r}; call execute_sql or submit_sql")
        values = read_arguments(name, arguments)
        sql = values.get("sql") if isinstance(values, dict) else None
        if not isinstance(sql, str) or not sql.strip():
            raise MalformedCallError(f'{name} takes {{"sql": "SELECT ..."}}')
        sql = unfenced(sql)
        if name == "execute_sql":
            if (table := described_name(sql)) is not None and (shown := self._describe(table)) is not None:
                return shown
            result = self.database.run(sql)
            self._end_if_spent(self.database)
            return format_rows(result)
        self.submitted, self.status = sql, "completed"
        if isinstance(self.database, ChangingSession):
            self.database.statement_timeout_s = self._submission_timeout_s
        elif self.question.query is not None or self.question.answer:
            return ""
        self.result = self.database.run(sql)
        return format_rows(self.result)  # of a typed question a person reads the rows

    def _describe(self, name: str) -> str | None:
        """None for what the database itself may know, such as DESCRIBE with a query."""
        if (table := self._tables.get(name.lower())) is not None:
            return _cut(describe_table(table))
        if len(name.split()) > 1:
            return None
        names = [each.name for each in self._tables.values()]
        return f"Error: there is no table {name[:64]}{did_you_mean(name[:64], names)}"

    def close(self) -> None:
        self.database.close()


_QUOTES = {'"': '"', "'": "'", "`": "`", "[": "]"}


def described_name(sql: str) -> str | None:
    """The name behind DESCRIBE, without quotes; None for another statement."""
    verb, _, name = sql.strip().rstrip("; \n\t").partition(" ")
    name = name.strip()
    if verb.lower() not in ("describe", "desc") or not name:
        return None
    if name[:6].lower() == "table ":
        name = name[6:].strip()
    name = name.removeprefix("main.")
    if (end := _QUOTES.get(name[0])) is not None and name.endswith(end) and len(name) > 2:
        name = name[1:-1].replace(2 * end, end)
    return name


_FENCED = re.compile(
    r"(?P<before>.*?)^[ \t]*```(?:[ \t]*(?:\w*sql\w*|mariadb)\b)?(?P<sql>.*?)(?:```(?P<behind>.*))?",
    re.DOTALL | re.IGNORECASE | re.MULTILINE,
)
_COMMENT = re.compile(r"\s*(--|/\*)")
_BEGINNING = re.compile(
    r"\s*(?:explain\s+(?:query\s+plan\s+)?)?(?P<rest>\(*\s*(?:select|with|values|insert|update|delete|replace)\b.*)",
    re.IGNORECASE | re.DOTALL,
)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|--[^\n]*|/\*.*?\*/", re.DOTALL)
# An apostrophe inside a word opens no text of SQL.
_OPEN = re.compile(r"(?<!\w)['\"]|/\*")
_SENTENCE_END = re.compile(r"[:.!?]\s*\Z")


def unfenced(sql: str) -> str:
    """The statement in the one code fence of a Markdown text, which models write out of habit.

    A sentence before or behind the fence is dropped. A text that begins as a statement is one, whatever stands in it.
    """
    fenced = _FENCED.fullmatch(sql)
    if not fenced or sql.count("```") > 2 or not fenced["sql"].strip() or _is_statement(fenced["before"]):
        return sql
    return fenced["sql"].strip()


def _is_statement(before: str) -> bool:
    # Whether the text before a fence is SQL, and not a sentence that begins like it ("With this query:"). SQL is also
    # what ends inside a quoted text or a comment, since the fence stands in that then.
    begun = _BEGINNING.match(before)
    if begun is None or _OPEN.search(_QUOTED.sub("", before)):
        return begun is not None or _COMMENT.match(before) is not None
    return _SENTENCE_END.search(before) is None and is_sql(begun["rest"])


def format_rows(result: Result) -> str:
    # Rows that are cut off are counted.
    if result.error is not None:
        text = f"Error: {result.error}"
    else:
        rows = result.rows or ()
        shown = [json.dumps([json_cell(cell) for cell in row], ensure_ascii=False) for row in rows[:MAX_SHOWN_ROWS]]
        more = [f"... {len(rows) - len(shown)} more rows"] if len(rows) > len(shown) else []
        text = "\n".join([json.dumps(result.columns, ensure_ascii=False), *shown, *more])
    text = _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text)  # they would break the next request
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "[TRUNCATED]"

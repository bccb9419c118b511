"""Questions about a user's own databases, judged by the result of the submitted query.

A task whose reference changes data is judged by what the agent has left behind in its view of the file.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from types import TracebackType
from typing import ClassVar, NamedTuple, Self

from agentgrpo.json_text import JsonObject
from dbbench_adapter.datatypes import Row, Rows, Score
from dbbench_adapter.engines import BackendUnavailable, Result, known_places, open_databases
from dbbench_adapter.engines.engine import MAX_RESULT_ROWS, Changes, ChangingSession, format_unreadable
from dbbench_adapter.protocols import Message
from sql_agent.comparison import Comparison, Excerpt
from sql_agent.datatypes import LIKENESS
from sql_agent.environments.base import Environment, LeftOut, Split, digest
from sql_agent.settings.groups import AgentConfig, DataConfig, EnvironmentSettings, SchemaForm
from sql_agent.text_to_sql.datatypes import Question
from sql_agent.text_to_sql.episode import (
    MAX_ROUNDS,
    RULES,
    TOOL_NAMES,
    TOOLS,
    TextToSqlEpisode,
    messages,
    solution_calls,
)
from sql_agent.text_to_sql.hardness import hardness
from sql_agent.text_to_sql.judges import (
    EVALUATED_DIALECT,
    EXECUTION_JUDGES,
    UNDECODABLE,
    ExecutionJudge,
    as_run,
    left_by_one,
    likeness,
    order_counts,
    same_result,
    same_state,
    undecodable,
)
from sql_agent.text_to_sql.linking import SchemaLinker, column_values
from sql_agent.text_to_sql.load import named_in, read_questions, split_questions
from sql_agent.text_to_sql.nondeterministic import nondeterministic_part
from sql_agent.text_to_sql.other_names import renamed_copies
from sql_agent.text_to_sql.schema import LinkedTables, Rendered, lengths, render_schema
from sql_agent.text_to_sql.shown_names import as_shown
from sql_agent.text_to_sql.ties import probes, ranked, ranks

# Seconds that a reference or a submitted query may take, longer than other statements; for `bird` both together.
JUDGED_S = 30.0
# Seconds for the values of one column, which a linked schema looks up.
LINKED_S = 2.0
# Questions without a usable reference that are printed.
SHOWN = 5
PROGRESS_S = 10.0


class _ReferenceFailedError(Exception):
    """Why a reference failed. A cache keeps no exception, so the next try may succeed with more memory or time."""


class _Reference(NamedTuple):
    rows: Rows
    seconds: float
    """How long it took."""


class TextToSql(Environment):
    """
    Args:
        place: a path or an address, in one of the forms that the engines name (`Engine.places`).
        columns: the user's names of the columns of questions (`agentgrpo.columns.parse_columns`).
        form: how prompts show a database.
    Raises:
        DatabaseError: there is no such database.
        ValueError: the judge does not compare results of such a database.
    """

    name: ClassVar[str] = "text2sql"

    def __init__(
        self,
        place: Path | str,
        judge: ExecutionJudge = "strict",
        columns: str | None = None,
        form: SchemaForm = "compact",
    ) -> None:
        self.databases, self._columns = open_databases(place), columns
        self._engine = self.databases.engine
        if self._engine.dialect != EVALUATED_DIALECT and judge != "strict":
            raise ValueError(
                f"the judge {judge} compares as an evaluator that runs SQLite; with {self._engine.name} the judge is "
                "strict"
            )
        self._judge: ExecutionJudge = judge
        self._form: SchemaForm = form
        self.tools = TOOLS
        self.instructions, self.marks = RULES.format(engine=self._engine.name).strip(), TOOL_NAMES
        self._rendered = lru_cache(maxsize=1024)(self._render)  # questions about one database share their schema
        self._linker = lru_cache(maxsize=None)(self._make_linker)
        self._reference = lru_cache(maxsize=256)(self._run_reference)  # a group's rollouts share a reference
        self._reference_ranks = lru_cache(maxsize=256)(self._run_ranks)
        self._reference_changes = lru_cache(maxsize=16)(self._run_change)
        self._explained = lru_cache(maxsize=256)(self.databases.explained)

    @classmethod
    def from_settings(cls, settings: EnvironmentSettings) -> Self:
        if settings.database is None:
            raise ValueError(f"env.type=text2sql needs a database: --database {known_places()}")
        if settings.protocol != "fc":
            raise ValueError(f"env.type=text2sql acts by tool calls, agent.protocol=fc; got {settings.protocol}")
        judge = EXECUTION_JUDGES.get(settings.judge)
        if judge is None:
            known = ", ".join(EXECUTION_JUDGES)
            raise ValueError(f"the judge of env.type=text2sql is one of {known}; got {settings.judge}")
        return cls(settings.database, judge, settings.columns, settings.schema_form)

    def messages(self, task: Question) -> list[Message]:
        return messages(task, self.schema_text(task), self._engine.name, self.instructions)

    def schema_text(self, task: Question) -> str:
        return self._rendered(task.db_id, task.schema_chars, task.tables).text

    def _render(self, db_id: str, chars: int | None, linked: LinkedTables | None) -> Rendered:
        return render_schema(self.databases.schema(db_id), chars, form=self._form, linked=linked)

    def _link(self, questions: Sequence[Question]) -> list[Question]:
        """Choose what the prompt of each shows; the choice stays with the question, so that it is made once."""
        if self._form != "linked":
            return list(questions)
        return [replace(each, tables=self._linker(each.db_id).link(each.question, each.evidence)) for each in questions]

    def _make_linker(self, db_id: str) -> SchemaLinker:
        tables = self.databases.schema(db_id)
        with closing(self.databases.open(db_id, statement_timeout_s=LINKED_S)) as session:
            return SchemaLinker(tables, column_values(tables, session))

    def shorter(self, task: Question) -> list[Question]:
        tables = self.databases.schema(task.db_id)
        found = lengths(tables, form=self._form, linked=task.tables)
        return [replace(task, schema_chars=chars) for chars in found]

    def left_out(self, task: Question) -> LeftOut | None:
        cut = self._rendered(task.db_id, task.schema_chars, task.tables)
        if task.schema_chars is None or cut.is_whole:
            return None
        columns = tuple(f"{table}.{column}" for table, column in cut.columns)
        parts = {"columns": columns, "all columns of the tables": cut.tables}
        named = tuple((kind, names) for kind, names in parts.items() if names)
        return LeftOut(f"the schema of {task.db_id}", (*(() if cut.values else (("example values", ()),)), *named))

    def missed(self, task: Question) -> tuple[str, ...]:
        cut = self._rendered(task.db_id, task.schema_chars, task.tables)
        if cut.is_whole or task.query is None:
            return ()
        schema = self.databases.schema(task.db_id)
        gone = [*cut.columns]
        gone += [(table.name, column.name) for table in schema if table.name in cut.tables for column in table.columns]
        return named_in(task.query, gone, self._engine)

    def open(self, task: Question, limits: AgentConfig) -> TextToSqlEpisode:
        open_one = self.databases.open_view if task.changes else self.databases.open
        database = open_one(task.db_id, statement_timeout_s=limits.statement_timeout_s)
        tables = self.databases.schema(task.db_id)
        return TextToSqlEpisode(task, database, tables, submission_timeout_s=JUDGED_S)

    def judge(self, episode: TextToSqlEpisode) -> Score:
        """Compare the results of the submitted query and the reference, or what both have left behind.

        Returns:
            1 with the reason `match`; 0 with `wrong_result`, `sql_error`, `too_many_rows` or `no_answer`, in a task
            that changes data `wrong_state` or `no_change`; None with `reference_failed`, for which references are
            checked before a run.
        """
        if isinstance(episode.database, ChangingSession):
            episode.changes = episode.database.changes()
            return self._judge_changes(episode.question, episode.changes)
        question, submitted = episode.question, episode.submitted
        if submitted is None:  # an empty prediction to BIRD's evaluator, which is right where no row is
            empty = self._judge == "bird" and self.expected(question) == ()
            return Score(1.0, "match") if empty else Score(0.0, "no_answer")
        episode.result = given = self._run(question.db_id, self._as_run(submitted), self._seconds_left(question))
        if given.error is not None:
            return Score(0.0, "sql_error")
        if len(given.rows or ()) > MAX_RESULT_ROWS:
            return Score(0.0, "too_many_rows")
        expected = self.expected(question)
        if expected is None:
            return Score(None, "reference_failed")
        right = self._is_right(question, given.rows or (), expected)
        if right:
            return Score(1.0, "match")
        return Score(0.0, "wrong_result", {LIKENESS: likeness(given.rows or (), expected)})

    def _is_right(self, question: Question, given: Rows, expected: Rows) -> bool:
        same = partial(same_result, self._judge, given, expected, engine=self._engine)
        right = same(question.query)
        if right or self._judge != "strict" or question.query is None or not same(None):
            return right
        return same(question.query, ranks=self._reference_ranks(question.db_id, self._as_run(question.query)))

    def _as_run(self, query: str) -> str:
        return as_run(self._judge, query, self._engine)

    def _seconds_left(self, question: Question) -> float:
        # In BIRD's evaluator a submitted query shares the time with the reference.
        if self._judge != "bird" or question.query is None:
            return JUDGED_S
        try:
            return max(JUDGED_S - self._reference(question.db_id, question.query).seconds, 0.0)
        except _ReferenceFailedError:
            return JUDGED_S

    def comparison(self, episode: TextToSqlEpisode) -> Comparison:
        """What was compared; a reference whose rows the judge did not need is run here, once for all rollouts.

        Of a submitted query that failed, or of a missing one, there are no rows.
        """
        question, result = episode.question, episode.result
        ordered = not question.changes and order_counts(self._judge, question.query, self._engine)
        expected, returned = self._compared_rows(episode)
        return Comparison(
            submitted=episode.submitted,
            reference=question.query,
            expected=None if expected is None else Excerpt.of(expected, ordered=ordered),
            returned=None if returned is None else Excerpt.of(returned, ordered=ordered),
            error=result.error if result else None,
            ordered=ordered,
            state=question.changes,
        )

    def _compared_rows(self, episode: TextToSqlEpisode) -> tuple[Sequence[Row] | None, Sequence[Row] | None]:
        question, result = episode.question, episode.result
        with suppress(BackendUnavailable):
            if not question.changes:
                return self.expected(question), result.rows if result else None
            if (expected := self.expected_changes(question)) is not None and episode.changes is not None:
                return left_by_one(expected, episode.changes)
        return None, None

    def _judge_changes(self, question: Question, given: Changes) -> Score:
        expected = self.expected_changes(question)
        if expected is None:
            return Score(None, "reference_failed")
        if same_state(given, expected):
            return Score(1.0, "match")
        return Score(0.0, "wrong_state" if given else "no_change")

    def expected(self, question: Question) -> Rows | None:
        """The rows of the answer; None if the reference cannot be run or gives too many."""
        if question.query is None:
            return question.answer
        try:
            return self._reference(question.db_id, self._as_run(question.query)).rows
        except _ReferenceFailedError:
            return None

    def expected_changes(self, question: Question) -> Changes | None:
        """What the reference of a task that changes data does; None if it cannot be run or changes too much."""
        try:
            return self._reference_changes(question.db_id, question.query or "")
        except _ReferenceFailedError:
            return None

    def reference_fault(self, question: Question) -> str | None:
        """None if the reference can be used to judge."""
        try:
            if question.changes:
                self._reference_changes(question.db_id, question.query or "")
            else:
                self._reference(question.db_id, self._as_run(question.query or "SELECT 1"))
        except _ReferenceFailedError as fault:
            return self._explained(str(fault), question.db_id, question.query or "")
        return None

    def finds_nothing(self, question: Question) -> bool:
        """Whether the reference gives no row or changes nothing; False if it cannot be run."""
        expected = self.expected_changes(question) if question.changes else self.expected(question)
        return expected is not None and not expected

    def _run_reference(self, db_id: str, query: str) -> _Reference:
        self._refuse_nondeterministic(query)
        result, seconds = self._run_timed(db_id, query)
        if result.error is not None:
            raise _ReferenceFailedError(result.error)
        if len(result.rows or ()) > MAX_RESULT_ROWS:
            raise _ReferenceFailedError(f"more than {MAX_RESULT_ROWS} rows")
        return _Reference(result.rows or (), seconds)

    def _run_ranks(self, db_id: str, query: str) -> list[int] | None:
        # None if it cannot be said which rows are tied.
        asked = probes(query, self._engine)
        columns = {name for name, probe in asked.items() if self._run(db_id, probe).error is None}
        numbered = ranked(query, self._engine, columns)
        rows = self._run(db_id, numbered).rows if numbered is not None else None
        return None if rows is None else ranks(rows, self._reference(db_id, query).rows)

    def _refuse_nondeterministic(self, query: str) -> None:
        if (part := nondeterministic_part(query, self._engine)) is not None:
            raise _ReferenceFailedError(f"{part} makes its result depend on the time or on chance")

    def _run_change(self, db_id: str, query: str) -> Changes:
        self._refuse_nondeterministic(query)
        with closing(self.databases.open_view(db_id, statement_timeout_s=JUDGED_S)) as database:
            for statement in self._engine.statements(query):
                if (error := database.run(statement).error) is not None:
                    raise _ReferenceFailedError(error)
            return database.changes()

    def _run(self, db_id: str, query: str, seconds: float | None = None) -> Result:
        return self._run_timed(db_id, query, seconds)[0]

    def _run_timed(self, db_id: str, query: str, seconds: float | None = None) -> tuple[Result, float]:
        with closing(
            self.databases.open(db_id, statement_timeout_s=JUDGED_S if seconds is None else seconds)
        ) as database:
            result = database.run(query)
        if self._judge == "bird" and undecodable(result.rows or ()):
            result = Result(error=UNDECODABLE)
        return result, database.used_s

    def max_replies(self, limits: AgentConfig) -> int:
        return limits.max_turns or MAX_ROUNDS

    def check_episodes(self) -> None:
        self.databases.check()

    def read_split(self, data: DataConfig, seed: int) -> Split:
        """Load the questions, and leave out those whose reference fails.

        Training questions with an empty answer are left out too, because every query that finds nothing would be
        right, and so are those whose reference changes nothing.
        Without `data.val_file`, some of the training questions are held out.
        """
        if data.train_file is None:
            raise ValueError("env.type=text2sql needs questions to train on: --train-file FILE, JSON or JSONL")
        train = self._read(data.train_file)
        if data.val_file is not None:
            val = self._read(data.val_file)
        else:
            train, val = split_questions(train, data.held_out_fraction)
        left_out = Counter[str]()
        self._say_unreadable({question.db_id for question in (*train, *val)})
        kept = self._usable(train, left_out, train=True), self._usable(val, left_out, train=False)
        return Split(self._link(kept[0]), self._link(kept[1]), left_out=left_out)

    def _say_unreadable(self, db_ids: set[str]) -> None:
        for db_id in sorted(db_ids):
            if unreadable := self.databases.unreadable(db_id):
                print(f"left out of {db_id}: {format_unreadable(unreadable)}", flush=True)

    def _usable(self, questions: Sequence[Question], left_out: Counter[str], *, train: bool) -> list[Question]:
        kept, unusable, next_line = [], [], time.monotonic() + PROGRESS_S
        empty = 0
        for number, question in enumerate(questions):
            expected = self.expected_changes(question) if question.changes else self.expected(question)
            if expected is None:
                left_out["reference_failed"] += 1
                unusable.append(f"{question.shown}: {self.reference_fault(question)}")
            elif train and not expected:
                left_out["changes_nothing" if question.changes else "empty_answer"] += 1
                unusable.append(
                    f"{question.shown}: {'it changes nothing' if question.changes else 'no row answers it'}"
                )
            else:
                kept.append(question)
                empty += not expected
            if time.monotonic() > next_line:
                print(f"running the references: {number + 1} of {len(questions)}", flush=True)
                next_line += PROGRESS_S
        if empty:
            print(
                f"held out, although no row answers or nothing changes: {empty}; every query that finds nothing is "
                "right there",
                flush=True,
            )
        for line in unusable[:SHOWN]:
            print(f"left out: {line}", flush=True)
        if len(unusable) > SHOWN:
            print(f"left out: {len(unusable) - SHOWN} more", flush=True)
        return kept

    def fingerprint(self, task: Question) -> str:
        """The digits of the tables, by their names and columns, and of the question.

        The name of the database does not count, since a copy of its file has another; nor do case and blanks of the
        question.
        """
        tables = [
            [table.name, *(column.name for column in table.columns)] for table in self.databases.schema(task.db_id)
        ]
        return digest([tables, " ".join(task.question.casefold().split())])

    def read_tasks(self, file: Path) -> list[Question]:
        return self._link(self._read(file))

    def _read(self, file: Path) -> list[Question]:
        """Spider's verdict goes with Spider's classes of queries."""
        questions = read_questions(file, self.databases, self._columns)
        if self._judge != "spider":
            return questions
        return [replace(each, kind=hardness(each.query or "") or each.kind) for each in questions]

    def row(self, task: Question) -> dict[str, object]:
        solution = {"answer": task.answer} if task.query is None else {"query": task.query}
        kind = {"difficulty": task.kind}
        return {"db_id": task.db_id, "question": task.question, **solution, "evidence": task.evidence, **kind}

    def reference_replies(self, task: Question) -> list[Message]:
        if task.query is None:
            return []
        if not task.changes:
            task = replace(task, query=as_shown(task.query, self.databases.schema(task.db_id), self._engine))
        return solution_calls(task, self._engine)

    def renamed_copies(
        self, conversations: Sequence[tuple[str, list[Message]]], *, together: int, draw: random.Random
    ) -> list[list[Message]]:
        """The conversations again under other names; see `sql_agent.text_to_sql.other_names`."""
        schema_of, form = self.databases.schema, self._form
        return renamed_copies(conversations, schema_of, self._engine, form=form, together=together, draw=draw)

    def typed(self, id: str, question: str, like: Question | None) -> Question:
        """The question about the only database, or else about the one of the task that was asked last."""
        ids = self.databases.ids
        if like is None and len(ids) > 1:
            raise ValueError(
                f"there are {len(ids)} databases; ask a task first, :task N, which chooses one, or give the file of one"
            )
        return self._link([Question(id, question, like.db_id if like else ids[0], answer=())])[0]

    def task(self, fields: JsonObject) -> Question:
        return Question.from_dict(fields)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.databases.close()

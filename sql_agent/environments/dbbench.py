"""Offers DB-Bench's tasks: `dbbench_adapter` as an environment."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from dbbench_adapter.datatypes import Row, Score, Task
from dbbench_adapter.engines import Backend, BackendUnavailable, check_backend, check_spec, open_backend
from dbbench_adapter.export import verl_rows
from dbbench_adapter.generator import DRAFTS, generate_tasks, task_stream
from dbbench_adapter.generator import Split as HalfName
from dbbench_adapter.judges import JUDGES, JudgeName, NoReferenceError
from dbbench_adapter.protocols import PROTOCOLS, DatabaseEpisode, Message, ProtocolName, open_episode, solution
from dbbench_adapter.splits import split_by_table
from dbbench_adapter.tasks.load import load_tasks
from dbbench_adapter.tasks.single_skill import skills_of
from sql_agent.comparison import Comparison, Excerpt, only_in
from sql_agent.environments.base import Environment, Split, digest
from sql_agent.settings.groups import SPLIT_SEED, AgentConfig, DataConfig, EnvironmentSettings


class DbBench(Environment):
    """Plays DB-Bench's tasks.

    Args:
        backend: gives episodes their databases; an open one, or a spec for `open_backend`, opened on entry.
    Raises:
        ValueError: that spec names no backend.
    """

    name: ClassVar[str] = "dbbench"

    def __init__(self, judge: JudgeName, protocol: ProtocolName = "fc", backend: Backend | str = "sqlite") -> None:
        if isinstance(backend, str):
            check_spec(backend)
        self._judge: JudgeName = judge
        self._name: ProtocolName = protocol
        self._protocol, self._backend = PROTOCOLS[protocol], backend
        self.tools = self._protocol.tools
        self.instructions, self.marks = self._protocol.rules, self._protocol.marks
        self._opened = ExitStack()

    @classmethod
    def from_settings(cls, settings: EnvironmentSettings) -> Self:
        if settings.judge not in JUDGES:
            raise ValueError(f"the judge of env.type=dbbench is one of {', '.join(JUDGES)}; got {settings.judge}")
        return cls(settings.judge, settings.protocol, settings.backend)

    def messages(self, task: Task) -> list[Message]:
        return self._protocol.messages(task, self.instructions)

    def history(self, messages: Sequence[Message]) -> list[Message]:
        return self._protocol.history(messages)

    def open(self, task: Task, limits: AgentConfig) -> DatabaseEpisode:
        if isinstance(self._backend, str):
            raise RuntimeError(
                "this DbBench has no open backend; enter it (`with environment:`) before it opens episodes"
            )
        timeout_s = limits.statement_timeout_s
        return open_episode(task, self._backend, self._name, max_rounds=limits.max_turns, statement_timeout_s=timeout_s)

    def judge(self, episode: DatabaseEpisode) -> Score:
        return episode.judge(self._judge)

    def comparison(self, episode: DatabaseEpisode) -> Comparison:
        """Reference and answers, or the difference of the tables where the judge, `strict`, has read them."""
        task, gold = episode.task, episode.task.gold
        if task.changes_state:
            expected, returned = self._tables_compared(episode)
        else:
            labels = None if gold.answers is None else [(label,) for label in gold.answers]
            expected = labels if gold.rows is None else gold.rows
            returned = None if episode.answers is None else _answer_rows(episode.answers)
        return Comparison(
            submitted=episode.sql_run[-1] if episode.sql_run else None,
            reference=gold.sql,
            expected=None if expected is None else Excerpt.of(expected),
            returned=None if returned is None else Excerpt.of(returned),
            ordered=task.ordered and self._judge == "strict",
            state=task.changes_state,
        )

    def _tables_compared(self, episode: DatabaseEpisode) -> tuple[list[Row] | None, list[Row] | None]:
        """The rows that only the reference leaves behind, and those that only the agent does."""
        if self._judge == "strict" and episode.committed:
            with suppress(BackendUnavailable, NoReferenceError):
                found, expected = (
                    {name: table.rows for name, table in state.items()}
                    for state in (episode.snapshot(), episode.reference_snapshot())
                )
                return only_in(expected, found), only_in(found, expected)
        return None, None

    def max_replies(self, limits: AgentConfig) -> int:
        return self._protocol.max_replies(limits.max_turns or self._protocol.max_rounds)

    def check_episodes(self) -> None:
        if isinstance(self._backend, str):
            check_backend(self._backend)

    def read_split(self, data: DataConfig, seed: int) -> Split:
        """Load or generate the tasks; no table is in both halves.

        Raises:
            ValueError: a file is missing or has no task of `data.skills`, or generated tasks never show them.
        """
        if data.train_file is None:
            train, file = generated(data.generate, "train", data.skills, seed), data.val_file
            val = load_tasks(file) if file else generated(data.val_limit, "held_out", data.skills, seed)
        elif data.val_file is None:
            train, val = split_by_table(load_tasks(data.train_file), data.held_out_fraction, SPLIT_SEED)
        else:
            train, val = load_tasks(data.train_file), load_tasks(data.val_file)
        return Split(of_skills(train, data.skills), of_skills(val, data.skills))

    def fingerprint(self, task: Task) -> str:
        return fingerprint_of(task)

    def read_tasks(self, file: Path) -> list[Task]:
        return load_tasks(file)

    def reference_replies(self, task: Task) -> list[Message]:
        return solution(task, self._name)

    def task(self, fields: dict[str, Any]) -> Task:
        return Task.from_dict(fields)

    def verl_rows(self, tasks: Sequence[Task]) -> list[dict[str, Any]]:
        return verl_rows(tasks, self.messages)

    def __enter__(self) -> Self:
        if isinstance(self._backend, str):
            self._backend = self._opened.enter_context(open_backend(self._backend))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._opened.close()


def fingerprint_of(task: Task) -> str:
    # of question and tables, so that the same question of another file is the same task
    fields = task.to_dict()
    return digest([fields[name] for name in ("question", "table_note", "tables")])


def _answer_rows(answers: Any) -> list[Sequence[Any]]:
    # an answer that is no list, a text for example, is one row
    items = answers if isinstance(answers, list) else [answers]
    return [item if isinstance(item, list) else (item,) for item in items]


def generated(n: int, split: HalfName, skills: Sequence[str], seed: int) -> list[Task]:
    """The first `n` generated tasks that show one of `skills`; tasks of any kind if `skills` is empty."""
    of_skills(generate_tasks(len(DRAFTS), seed=seed, split=split), skills)  # raises for skills that no kind shows
    shown = (task for task in task_stream(seed=seed, split=split) if not skills or skills_of(task) & set(skills))
    return list(itertools.islice(shown, n))


def of_skills(tasks: Sequence[Task], skills: Sequence[str]) -> list[Task]:
    """All tasks if `skills` is empty.

    Raises:
        ValueError: no task shows one of `skills`; the message lists the known ones.
    """
    kept = [task for task in tasks if not skills or skills_of(task) & set(skills)]
    if tasks and not kept:
        known = sorted({skill for task in tasks for skill in skills_of(task)})
        raise ValueError(f"no task shows {' or '.join(skills)} (data.skills); these tasks show {', '.join(known)}")
    return kept

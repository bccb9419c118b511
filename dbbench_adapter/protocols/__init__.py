"""A new protocol needs a module and a line here."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentgrpo.chat.calls import call, calls, numbered_id
from dbbench_adapter.datatypes import Task
from dbbench_adapter.engines import Backend
from dbbench_adapter.engines.base import STATEMENT_TIMEOUT_S
from dbbench_adapter.interaction import Message
from dbbench_adapter.protocols import fc, lab, text
from dbbench_adapter.protocols.base import DatabaseEpisode

__all__ = [
    "PROTOCOLS",
    "DatabaseEpisode",
    "Message",
    "Protocol",
    "ProtocolName",
    "gold_answers",
    "open_episode",
    "solution",
]

ProtocolName = Literal["text", "fc", "lab"]


@dataclass(frozen=True)
class Protocol:
    messages: Callable[..., list[Message]]
    """The first prompt of a task; a second argument replaces `rules` in it."""
    rules: str
    """How to act, in the first prompt."""
    marks: tuple[str, ...]
    """Words that any rules have to hold, since no reply can be right without them."""
    episode: type[DatabaseEpisode]
    max_rounds: int
    """The limit in the original's configuration."""
    tools: list[dict[str, Any]]
    """Tools of the model, in chat-completions form; none if it writes its actions as text."""
    solution: Callable[[Task], list[Message]]
    """The replies of a perfect agent."""
    max_replies: Callable[[int], int] = lambda max_rounds: max_rounds
    """The number of replies that `max_rounds` rounds may take."""
    history: Callable[[Sequence[Message]], list[Message]] = list
    """The part of the conversation that the model reads."""


def gold_answers(task: Task) -> list[str]:
    """The gold as `answers` of commit_final_answer: the labels unchanged, or one text per gold row."""
    if task.changes_state:
        return []
    if task.gold.answers is not None:
        return list(task.gold.answers)
    return [repr(row) for row in task.gold.rows or ()]


def _written(task: Task, answers: str) -> list[Message]:
    replies = [f"Action: Answer\nFinal Answer: {answers}"]
    if task.gold.sql is not None:
        sql = task.gold.sql.replace("\n", " ")
        replies.insert(0, f"Action: Operation\n```sql\n{sql}\n```")
    return [{"role": "assistant", "content": f"I work on it.\n{reply}"} for reply in replies]


def _text_solution(task: Task) -> list[Message]:
    return _written(task, json.dumps(gold_answers(task)))


def _lab_solution(task: Task) -> list[Message]:
    return _written(task, str(list(task.gold.rows or [(answer,) for answer in task.gold.answers or ()])))


def _called_solution(task: Task) -> list[Message]:
    commit = calls(call("commit_final_answer", {"answers": gold_answers(task)}, numbered_id(1)))
    if task.gold.sql is None:
        return [commit]
    return [calls(call("execute_sql", {"query": task.gold.sql}, numbered_id(0))), commit]


PROTOCOLS: dict[ProtocolName, Protocol] = {
    "text": Protocol(
        text.messages,
        text.RULES,
        text.MARKS,
        text.TextEpisode,
        text.MAX_ROUNDS,
        [],
        _text_solution,
        lambda rounds: rounds + 1,
        text.trimmed,
    ),
    "fc": Protocol(fc.messages, fc.RULES, fc.TOOL_NAMES, fc.FcEpisode, fc.MAX_ROUNDS, fc.TOOLS, _called_solution),
    "lab": Protocol(lab.messages, lab.RULES, text.MARKS, lab.LabEpisode, lab.MAX_ROUNDS, [], _lab_solution),
}


def open_episode(
    task: Task,
    backend: Backend,
    protocol: ProtocolName = "fc",
    *,
    max_rounds: int | None = None,
    statement_timeout_s: float = STATEMENT_TIMEOUT_S,
) -> DatabaseEpisode:
    """Open an episode over a fresh database, as a context manager that drops it.

    Args:
        max_rounds: None takes the protocol's own limit.
        statement_timeout_s: limit of one statement (`Backend.open`).
    Raises:
        TableError, BackendUnavailable: see `DatabaseEpisode`.
    """
    found = PROTOCOLS[protocol]
    return found.episode(
        task, backend, max_rounds=max_rounds or found.max_rounds, statement_timeout_s=statement_timeout_s
    )


def solution(task: Task, protocol: ProtocolName = "fc") -> list[Message]:
    """The replies of a perfect agent: the reference statement, if there is one, and the gold answer."""
    return PROTOCOLS[protocol].solution(task)

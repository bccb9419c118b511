"""A new protocol needs a module, and its name and a line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dbbench_adapter.datatypes import Task
from dbbench_adapter.engines import Backend
from dbbench_adapter.engines.base import STATEMENT_TIMEOUT_S
from dbbench_adapter.interaction import Message
from dbbench_adapter.judges import JudgeName
from dbbench_adapter.protocols import fc, lab, text
from dbbench_adapter.protocols.base import DatabaseEpisode, gold_answers

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
    judge: JudgeName
    """The original's own; for a new protocol `strict`."""
    max_replies: Callable[[int], int] = lambda max_rounds: max_rounds
    """The number of replies that `max_rounds` rounds may take."""
    history: Callable[[Sequence[Message]], list[Message]] = list
    """The part of the conversation that the model reads."""


PROTOCOLS: dict[ProtocolName, Protocol] = {
    "text": Protocol(
        text.messages,
        text.RULES,
        text.MARKS,
        text.TextEpisode,
        text.MAX_ROUNDS,
        [],
        text.solution,
        "text",
        lambda rounds: rounds + 1,
        text.trimmed,
    ),
    "fc": Protocol(fc.messages, fc.RULES, fc.TOOL_NAMES, fc.FcEpisode, fc.MAX_ROUNDS, fc.TOOLS, fc.solution, "fc"),
    "lab": Protocol(lab.messages, lab.RULES, text.MARKS, lab.LabEpisode, lab.MAX_ROUNDS, [], lab.solution, "lab"),
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

"""Oracle episodes to learn from: the reference statement, what the database answers, and the answer that it shows.

Made from generated train tasks on SQLite, through the same episode that the policy will meet, and cut into ids with a
mask over what the policy itself has to say.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from transformers import PreTrainedTokenizerFast

from dbbench_adapter.backends import Backend
from dbbench_adapter.datatypes import Task
from dbbench_adapter.protocols.base import format_result
from sql_agent.tiny_policy.tokenizer import END, START, Message, conversation, render

POOL = 16
"""Batches that are sorted by length together, so that little of a batch is padding."""
_REPLY = re.compile(f"(?<={re.escape(START)}assistant\n).*?{re.escape(END)}", re.DOTALL)


@dataclass(frozen=True)
class Example:
    """One conversation in tokens."""

    ids: list[int]
    is_reply: list[bool]
    """True where the policy speaks, the closing END of a reply included."""


def oracle_conversation(task: Task, backend: Backend) -> list[Message]:
    """A rollout that is right: run the reference, then commit each value as the result shows it (none for a change).

    Raises:
        ValueError: the task has no reference statement.
    """
    if task.gold.sql is None:
        raise ValueError(f"task {task.id!r} has no reference statement; expected a generated task")
    with backend.open(task.tables, typed=task.typed) as database:
        result = database.run(task.gold.sql)
    answers = [] if task.changes_state else [str(row[0]) for row in result.rows or ()]
    return conversation(task, task.gold.sql, format_result(result), answers)


def encode(tokenizer: PreTrainedTokenizerFast, messages: list[Message]) -> Example:
    """Cut where a reply begins and ends, as the engine does, so that no token spans prompt and reply."""
    text, ids, is_reply, end = render(messages), [], [], 0
    for reply in _REPLY.finditer(text):
        for piece, of_policy in ((text[end : reply.start()], False), (reply[0], True)):
            piece_ids = tokenizer.encode(piece, add_special_tokens=False)
            ids += piece_ids
            is_reply += [of_policy] * len(piece_ids)
        end = reply.end()
    return Example(ids, is_reply)


def batches(examples: Iterable[Example], *, batch_size: int, seed: int) -> Iterator[list[Example]]:
    """Batches of examples of like length, in random order within each pool of `POOL` batches."""
    rng, stream = random.Random(seed), iter(examples)
    while pool := list(islice(stream, POOL * batch_size)):
        pool.sort(key=lambda example: len(example.ids))
        cut = [pool[start : start + batch_size] for start in range(0, len(pool), batch_size)]
        yield from rng.sample(cut, len(cut))

"""Oracle episodes to learn from: the reference statement, what the database answers, and the answer that it shows.

They are made from generated train tasks on SQLite, through the same episode that the policy will meet. Leaves out the
tokens (`sql_agent.sft.encoding`).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import islice

from dbbench_adapter.backends import Backend
from dbbench_adapter.datatypes import Task
from dbbench_adapter.protocols.base import format_result
from sql_agent.sft.encoding import Encoded
from sql_agent.tiny_policy.tokenizer import Message, conversation

POOL = 16
"""Batches that are sorted by length together, so that little of a batch is padding."""


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


def batches(examples: Iterable[Encoded], *, batch_size: int, seed: int) -> Iterator[list[Encoded]]:
    """Batches of examples of like length, in random order within each pool of `POOL` batches."""
    rng, stream = random.Random(seed), iter(examples)
    while pool := list(islice(stream, POOL * batch_size)):
        pool.sort(key=lambda example: len(example.ids))
        cut = [pool[start : start + batch_size] for start in range(0, len(pool), batch_size)]
        yield from rng.sample(cut, len(cut))

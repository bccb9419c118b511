"""Oracle episodes to train on: the reference statement, the database's result, and the answer in it.

They come from generated train tasks on SQLite, with the same messages that the policy will meet.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import islice

from transformers import PreTrainedTokenizerBase

from agentgrpo.chat.replies import EncodedReplies, encode_conversation
from dbbench_adapter.datatypes import Task
from dbbench_adapter.engines import Backend, open_backend
from dbbench_adapter.protocols.base import format_result
from sql_agent.tiny_policy.tokenizer import Message, conversation

# Number of batches whose examples are sorted by length together, so that batches have little padding.
POOL = 16


def oracle_conversation(task: Task, backend: Backend) -> list[Message]:
    """A correct rollout: it runs the reference, then commits the result's values (none for a change).

    Raises:
        ValueError: the task has no reference statement.
    """
    if task.gold.sql is None:
        raise ValueError(f"task {task.id!r} has no reference statement; expected a generated task")
    with backend.open(task.tables, typed=task.typed) as database:
        result = database.run(task.gold.sql)
    answers = [] if task.changes_state else [str(row[0]) for row in result.rows or ()]
    return conversation(task, task.gold.sql, format_result(result), answers)


def encoded_tasks(tokenizer: PreTrainedTokenizerBase, tasks: Iterable[Task]) -> Iterator[EncodedReplies]:
    with open_backend("sqlite") as backend:
        for task in tasks:
            yield encode_conversation(tokenizer, oracle_conversation(task, backend))


def batches(examples: Iterable[EncodedReplies], *, batch_size: int, seed: int) -> Iterator[list[EncodedReplies]]:
    """Yield batches of examples of similar length, in random order within each pool of `POOL` batches."""
    rng, stream = random.Random(seed), iter(examples)
    while pool := list(islice(stream, POOL * batch_size)):
        pool.sort(key=lambda example: len(example.ids))
        cut = [pool[start : start + batch_size] for start in range(0, len(pool), batch_size)]
        yield from rng.sample(cut, len(cut))

"""Rewords generated tasks in the style of real task files, so that a policy trained on them can handle both.

The generator writes names in backticks and no unneeded words. People write compound names, quote values and add
sentences around the question. The task stays the same: same rows, same answers, and the same reference except for the
names.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace

from dbbench_adapter.datatypes import Column, Table, Task
from dbbench_adapter.generator import TRAIN_WORDS

NOTES = (
    "The table is called {name} and has these headers: {headers}.",
    "The name of this table is {name}, and the headers of this table are {headers}.",
)
MAX_ASIDE_WORDS = 30


def reworded(task: Task, rng: random.Random) -> Task:
    """The task with compound names, another table note, and meaningless words around the question.

    Args:
        task: a generated task with one table.
        rng: decides independently on every part.
    """
    table = task.tables[0]
    names = {old: _compound(old, rng) for old in (table.name, *(column.name for column in table.columns))}
    columns = tuple(Column(names[column.name], column.type) for column in table.columns)
    sql = re.sub(r"`(\w+)`", lambda name: f"`{names[name[1]]}`", task.gold.sql or "")
    headers = rng.choice((", ", ",")).join(column.name for column in columns)
    return replace(
        task,
        question=_question(task, names, rng),
        tables=(Table(names[table.name], columns, table.rows),),
        table_note=rng.choice(NOTES).format(name=names[table.name], headers=headers),
        gold=replace(task.gold, sql=sql),
    )


def sorted_wrongly(task: Task) -> Task:
    # A reference that sorts upwards where it should sort downwards is wrong.
    return replace(task, gold=replace(task.gold, sql=(task.gold.sql or "").replace(" DESC ", " ASC ")))


def _compound(name: str, rng: random.Random) -> str:
    return f"{name}_{rng.choice(TRAIN_WORDS)}" if rng.random() < 0.5 else name


def _question(task: Task, names: dict[str, str], rng: random.Random) -> str:
    spoken = rng.random() < 0.5  # "order date" for order_date
    question = re.sub(
        r"`(\w+)`", lambda name: names[name[1]].replace("_", " ") if spoken else names[name[1]], task.question
    )
    if rng.random() < 0.5:
        for value in set(re.findall(r"'(\w+)'", task.gold.sql or "")):
            question = re.sub(rf"\b{value}\b", f"'{value}'", question)
    before, after = (_aside(rng) for _ in range(2))
    return f"{before} {question} {after}".strip()


def _aside(rng: random.Random) -> str:
    words = rng.choices(TRAIN_WORDS, k=rng.randint(1, MAX_ASIDE_WORDS))
    return f"{' '.join(words).capitalize()}." if rng.random() < 0.5 else ""

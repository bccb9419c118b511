"""Make SQL tasks of our own: seeded, checked by running their reference, never repeated.

Eight plain kinds over one small table: select-where, count, max/min, sum/avg, order-limit, insert, update and delete.
The reference runs on SQLite before a task is let out, and what would be a bad task is drawn again: a change that
changes nothing, an answer that is empty, long, tied or rounded, a question asked before. Leaves out joins, groups,
sub-queries, NULLs and comparisons over text.

    python -m dbbench_adapter.generator --n 512 --seed 0 --split train --output data/train.jsonl
"""

from __future__ import annotations

from core.commands import execute, starting

if __name__ == "__main__":
    starting()

import argparse
import itertools
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dbbench_adapter.datatypes import CHANGE_KINDS, Cell, Column, Gold, Row, Rows, Table, Task
from dbbench_adapter.generate.phrasebook import (
    COMPARISONS,
    EXTREMES,
    HELD_OUT_WORDS,
    PHRASINGS,
    SUMMARIES,
    TRAIN_WORDS,
    pseudo_word,
)
from dbbench_adapter.tasks.load import write_tasks

Split = Literal["train", "held_out"]
NOTE = ("The table ", " has the columns ")
"""The fixed parts of `Task.table_note`; the small policy's tokenizer knows them as wholes."""
MAX_ANSWERS = 4
PSEUDO_WORD_SHARE = 0.7  # of train words; measured to be what a small policy needs to copy words it has never seen
_SQL_WORDS = frozenset(
    {"add", "as", "by", "desc", "do", "end", "for", "if", "in", "is", "no", "of", "on", "or", "set", "to"}
)


@dataclass(frozen=True)
class Draft:
    """A question and its reference statement, not yet run."""

    kind: str
    question: str
    sql: str
    skills: tuple[str, ...]
    ranked_by: Column | None = None
    """Where the first of an order is asked for: the column that must have a clear first and last."""


def generate_tasks(n: int, *, seed: int, split: Split = "train") -> list[Task]:
    """The first `n` tasks of `task_stream`: every eight in a row hold each kind once.

    Raises:
        ValueError: `n` is below 1, or `split` is unknown.
    """
    if n < 1:
        raise ValueError(f"{n} tasks asked for, expected 1 or more")
    return list(itertools.islice(task_stream(seed=seed, split=split), n))


def task_stream(*, seed: int, split: Split = "train") -> Iterator[Task]:
    """Tasks without end, the same ones for the same seed and split.

    Args:
        split: `held_out` uses words, and so table and column names, that `train` never uses.
    Raises:
        ValueError: `split` is unknown.
    """
    if split not in ("train", "held_out"):
        raise ValueError(f"unknown split {split!r}, expected train or held_out")
    rng = random.Random(f"{split} {seed}")
    seen: set[tuple[str, str]] = set()
    for index in itertools.count():
        if index % len(DRAFTS) == 0:
            kinds = rng.sample(sorted(DRAFTS), len(DRAFTS))
        while True:
            table, spare = _table(rng, split)
            draft = DRAFTS[kinds[index % len(DRAFTS)]](rng, table, spare)
            gold, prompt = checked_gold(table, draft), (draft.question, _note(table))
            if gold is not None and prompt not in seen:
                break
        seen.add(prompt)
        yield Task(
            id=f"generated-{split}-{seed}-{index}",
            question=draft.question,
            kind=draft.kind,
            tables=(table,),
            gold=gold,
            table_note=prompt[1],
            skills=draft.skills,
            source="generated",
            typed=True,
            ordered=draft.ranked_by is not None,
        )


def checked_gold(table: Table, draft: Draft) -> Gold | None:
    """Run the reference on SQLite and read off the gold; None where it would make a bad task.

    Raises:
        sqlite3.Error: the reference does not run; the fault is in this module.
    """
    with closing(sqlite3.connect(":memory:")) as connection:
        columns = ", ".join(f"`{column.name}` {column.type}" for column in table.columns)
        connection.execute(f"CREATE TABLE `{table.name}` ({columns})")
        marks = ", ".join("?" * len(table.columns))
        connection.executemany(f"INSERT INTO `{table.name}` VALUES ({marks})", table.rows)
        rows: Rows = tuple(connection.execute(draft.sql).fetchall())
        after: list[Row] = connection.execute(f"SELECT * FROM `{table.name}`").fetchall()
    if draft.kind in CHANGE_KINDS:
        return Gold(sql=draft.sql) if sorted(map(str, after)) != sorted(map(str, table.rows)) else None
    if not 1 <= len(rows) <= MAX_ANSWERS or rows == ((0,),) or _rounded(rows):
        return None
    if draft.ranked_by is not None and _tied(table, draft.ranked_by):
        return None
    return Gold(answers=tuple(str(_plain(row[0])) for row in rows), rows=rows, sql=draft.sql)


def _rounded(rows: Rows) -> bool:
    """Whether MySQL, which gives averages four decimals, would answer something else."""
    return any(isinstance(cell, float) and cell != round(cell, 4) for row in rows for cell in row)


def _tied(table: Table, column: Column) -> bool:
    """Whether several rows share the highest or the lowest number."""
    numbers = [row[table.columns.index(column)] for row in table.rows]
    ordered = sorted(number for number in numbers if isinstance(number, int))
    return ordered[0] == ordered[1] or ordered[-1] == ordered[-2]


def _plain(cell: Cell) -> Cell:
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell


# Tables and words -----------------------------------------------------------------------------------------------------


def _table(rng: random.Random, split: Split) -> tuple[Table, Row]:
    """A table and one more row that it does not hold, for changes to take their new values from.

    3-5 columns, at least one INT and one TEXT; 4-12 rows, whose cells repeat so that conditions match several.
    """
    num_columns, num_rows = rng.randint(3, 5), rng.randint(4, 12)
    name, *headers = _distinct_words(rng, split, num_columns + 1)
    types = ["INT", "TEXT", *(rng.choice(["INT", "TEXT"]) for _ in range(num_columns - 2))]
    rng.shuffle(types)
    num_cells = {"INT": num_rows, "TEXT": max(2, num_rows * 2 // 3)}
    pools = [[_cell(rng, split, column_type) for _ in range(num_cells[column_type])] for column_type in types]
    rows = tuple(tuple(rng.choice(pool) for pool in pools) for _ in range(num_rows))
    columns = tuple(Column(*pair) for pair in zip(headers, types, strict=True))
    return Table(name, columns, rows), tuple(_cell(rng, split, column_type) for column_type in types)


def _cell(rng: random.Random, split: Split, column_type: str) -> str | int:
    if column_type == "TEXT":
        return _word(rng, split)
    return rng.randint(1, 99) if rng.random() < 0.5 else rng.randint(100, 999)


def _distinct_words(rng: random.Random, split: Split, n: int) -> list[str]:
    words: dict[str, None] = {}
    while len(words) < n:
        words[_word(rng, split)] = None
    return list(words)


def _word(rng: random.Random, split: Split) -> str:
    if split == "held_out":
        return rng.choice(HELD_OUT_WORDS)
    if rng.random() >= PSEUDO_WORD_SHARE:
        return rng.choice(TRAIN_WORDS)
    word = pseudo_word(rng)
    return word if word not in HELD_OUT_WORDS and word not in _SQL_WORDS else _word(rng, split)


def _note(table: Table) -> str:
    before_name, before_columns = NOTE
    return f"{before_name}`{table.name}`{before_columns}{', '.join(f'`{column.name}`' for column in table.columns)}."


# The eight kinds ------------------------------------------------------------------------------------------------------


def _select(rng: random.Random, table: Table, spare: Row) -> Draft:
    column, other = rng.sample(table.columns, 2)
    words, sql = _condition(rng, table, other)
    question = _phrase(rng, "select", column=f"`{column.name}`", condition=words)
    return Draft(
        "other",
        question,
        f"SELECT `{column.name}` FROM `{table.name}` WHERE {sql}",
        ("select", "where_single_condition"),
    )


def _count(rng: random.Random, table: Table, spare: Row) -> Draft:
    words, sql = _condition(rng, table, rng.choice(table.columns))
    question = _phrase(rng, "count", condition=words)
    return Draft(
        "counting", question, f"SELECT COUNT(*) FROM `{table.name}` WHERE {sql}", ("select", "where_single_condition")
    )


def _extreme(rng: random.Random, table: Table, spare: Row) -> Draft:
    word, function = rng.choice(sorted(EXTREMES.items()))
    column = rng.choice(_numbers(table))
    question = _phrase(rng, "extreme", extreme=word, column=f"`{column.name}`")
    return Draft(
        f"aggregation-{function}", question, f"SELECT {function}(`{column.name}`) FROM `{table.name}`", ("select",)
    )


def _summary(rng: random.Random, table: Table, spare: Row) -> Draft:
    word, function = rng.choice(sorted(SUMMARIES.items()))
    column = rng.choice(_numbers(table))
    question = _phrase(rng, "summary", summary=word, column=f"`{column.name}`")
    return Draft(
        f"aggregation-{function}", question, f"SELECT {function}(`{column.name}`) FROM `{table.name}`", ("select",)
    )


def _ranking(rng: random.Random, table: Table, spare: Row) -> Draft:
    word, function = rng.choice(sorted(EXTREMES.items()))
    number = rng.choice(_numbers(table))
    column = rng.choice([column for column in table.columns if column != number])
    question = _phrase(rng, "ranking", column=f"`{column.name}`", extreme=word, number=f"`{number.name}`")
    direction = "DESC" if function == "MAX" else "ASC"
    return Draft(
        "ranking",
        question,
        f"SELECT `{column.name}` FROM `{table.name}` ORDER BY `{number.name}` {direction} LIMIT 1",
        ("select", "order_by_single_column", "limit_only"),
        ranked_by=number,
    )


def _insert(rng: random.Random, table: Table, spare: Row) -> Draft:
    pairs = zip(table.columns, spare, strict=True)
    question = _phrase(rng, "insert", values=", ".join(f"`{column.name}` {cell}" for column, cell in pairs))
    names = ", ".join(f"`{column.name}`" for column in table.columns)
    values = ", ".join(_literal(cell) for cell in spare)
    return Draft("INSERT", question, f"INSERT INTO `{table.name}` ({names}) VALUES ({values})", ("insert",))


def _update(rng: random.Random, table: Table, spare: Row) -> Draft:
    column = rng.choice(table.columns)
    value = spare[table.columns.index(column)]
    words, sql = _condition(rng, table, rng.choice(table.columns))
    question = _phrase(rng, "update", column=f"`{column.name}`", value=str(value), condition=words)
    return Draft(
        "UPDATE",
        question,
        f"UPDATE `{table.name}` SET `{column.name}` = {_literal(value)} WHERE {sql}",
        ("update", "where_single_condition"),
    )


def _delete(rng: random.Random, table: Table, spare: Row) -> Draft:
    words, sql = _condition(rng, table, rng.choice(table.columns))
    question = _phrase(rng, "delete", condition=words)
    return Draft("DELETE", question, f"DELETE FROM `{table.name}` WHERE {sql}", ("delete", "where_single_condition"))


DRAFTS: dict[str, Callable[[random.Random, Table, Row], Draft]] = {
    "select": _select,
    "count": _count,
    "extreme": _extreme,
    "summary": _summary,
    "ranking": _ranking,
    "insert": _insert,
    "update": _update,
    "delete": _delete,
}


def _condition(rng: random.Random, table: Table, column: Column) -> tuple[str, str]:
    """One condition in words and in SQL, about a value of the table; text is compared for equality only."""
    value = rng.choice(table.rows)[table.columns.index(column)]
    inequality = column.type == "INT" and rng.random() < 0.4
    words = rng.choice([words for words, operator in COMPARISONS.items() if (operator != "=") == inequality])
    return f"`{column.name}` {words} {value}", f"`{column.name}` {COMPARISONS[words]} {_literal(value)}"


def _numbers(table: Table) -> list[Column]:
    return [column for column in table.columns if column.type == "INT"]


def _literal(cell: Cell) -> str:
    return f"'{cell}'" if isinstance(cell, str) else str(cell)


def _phrase(rng: random.Random, kind: str, **slots: str) -> str:
    return rng.choice(PHRASINGS[kind]).format(**slots)


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate SQL tasks, checked by running their reference statements.")
    parser.add_argument("--n", type=int, required=True, help="how many tasks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--split", choices=["train", "held_out"], default="train")
    parser.add_argument("--output", type=Path, required=True, help="JSONL, one task per line")
    args = parser.parse_args()
    tasks = generate_tasks(args.n, seed=args.seed, split=args.split)
    write_tasks(args.output, tasks)
    print(f"{len(tasks)} {args.split} tasks, seed {args.seed}: {args.output}")


if __name__ == "__main__":
    execute(main)

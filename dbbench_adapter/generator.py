"""Make plain SQL tasks: eight kinds over one small table of made-up words, which a small policy learns.

The kinds are select-where, count, max/min, sum/avg, order-limit, insert, update and delete. The reference runs on
SQLite before a task is given out. A draft that would make a bad task is drawn again: a change that changes nothing, an
answer that is empty, long, tied or rounded, a question asked before. Joins, groups, sub-queries, NULLs and comparisons
of texts by order are left out; `dbbench_adapter.generate` makes larger tasks with 22 skills.

    python -m dbbench_adapter.generator --num-tasks 512 --seed 0 --split train --output data/train.jsonl
"""

from __future__ import annotations

if __name__ == "__main__":
    from agentgrpo.commands import run_module

    run_module("dbbench_adapter.generator")

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

from agentgrpo.flags import Parser
from dbbench_adapter.datatypes import CHANGE_KINDS, Cell, Column, Gold, Row, Rows, Table, Task
from dbbench_adapter.generate.themes import Split, in_memory, literal, read_data
from dbbench_adapter.tasks.load import write_tasks

# Words, of which every fourth is held out, name tables and columns and fill text cells; sentences are the questions.
_BOOK = read_data("phrasebook")
WORDS: tuple[str, ...] = tuple(_BOOK["words"])
HELD_OUT_WORDS = WORDS[::4]
TRAIN_WORDS = tuple(word for word in WORDS if word not in set(HELD_OUT_WORDS))
PHRASINGS: Mapping[str, Sequence[str]] = _BOOK["phrasings"]
EXTREMES: Mapping[str, str] = _BOOK["extremes"]
SUMMARIES: Mapping[str, str] = _BOOK["summaries"]
COMPARISONS: Mapping[str, str] = _BOOK["comparisons"]

_ONSETS = [*"bcdfghjklmnprstvwz", "st", "tr", "pl", "br", "ch", "sh", "gr", "fl"]
_VOWELS = [*"aeiou", "ai", "ea", "ou"]
_CODAS = ["", "", "n", "r", "s", "t", "l", "m", "ck", "nd"]
# The fixed parts of `Task.table_note`; the small policy's tokenizer has a token for each.
NOTE = ("The table ", " has the columns ")
MAX_ANSWERS = 4
PSEUDO_WORD_SHARE = 0.7  # share of train words; a small policy needs so many to learn to copy words it has never seen
_SQL_WORDS = frozenset(
    {"add", "as", "by", "desc", "do", "end", "for", "if", "in", "is", "no", "of", "on", "or", "set", "to"}
)


@dataclass(frozen=True)
class TaskDraft:
    kind: str
    question: str
    sql: str
    skills: tuple[str, ...]
    ranked_by: Column | None = None
    """The question asks for the first row by this column, which must have a clear first and last value."""


def generate_tasks(n: int, *, seed: int, split: Split = "train") -> list[Task]:
    """The first `n` tasks of `task_stream`: each run of eight has every kind once.

    Raises:
        ValueError: `n` is below 1, or `split` is unknown.
    """
    if n < 1:
        raise ValueError(f"n is {n}, expected 1 or more")
    return list(itertools.islice(task_stream(seed=seed, split=split), n))


def task_stream(*, seed: int, split: Split = "train") -> Iterator[Task]:
    """Yield tasks without end, the same for the same seed and split.

    Args:
        split: `held_out` uses words, and so table and column names, that `train` never uses.
    Raises:
        ValueError: `split` is unknown.
    """
    if split not in get_args(Split):
        raise ValueError(f"unknown split {split!r}, expected {' or '.join(get_args(Split))}")
    rng = random.Random(f"{split} {seed}")
    seen: set[tuple[str, str]] = set()
    for index in itertools.count():
        if index % len(DRAFTS) == 0:
            kinds = rng.sample(sorted(DRAFTS), len(DRAFTS))
        while True:
            table, new_row = _table(rng, split)
            draft = DRAFTS[kinds[index % len(DRAFTS)]](rng, table, new_row)
            gold, prompt = gold_on_sqlite(table, draft), (draft.question, _note(table))
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


def gold_on_sqlite(table: Table, draft: TaskDraft) -> Gold | None:
    """Run the reference on SQLite and read the gold; None if it would make a bad task.

    Raises:
        sqlite3.Error: the reference does not run, which is a fault of this module.
    """
    with closing(in_memory(table)) as connection:
        rows: Rows = tuple(connection.execute(draft.sql).fetchall())
        after: list[Row] = connection.execute(f"SELECT * FROM `{table.name}`").fetchall()
    if draft.kind in CHANGE_KINDS:
        return Gold(sql=draft.sql) if sorted(map(str, after)) != sorted(map(str, table.rows)) else None
    if not 1 <= len(rows) <= MAX_ANSWERS or rows == ((0,),) or _rounded(rows):
        return None
    if draft.ranked_by is not None and _tied(table, draft.ranked_by):
        return None
    return Gold(answers=tuple(_answer(row[0]) for row in rows), rows=rows, sql=draft.sql)


def _rounded(rows: Rows) -> bool:
    # MySQL gives averages four decimals, so it would answer differently.
    return any(isinstance(cell, float) and cell != round(cell, 4) for row in rows for cell in row)


def _tied(table: Table, column: Column) -> bool:
    numbers = [row[table.columns.index(column)] for row in table.rows]
    ordered = sorted(number for number in numbers if isinstance(number, int))
    return ordered[0] == ordered[1] or ordered[-1] == ordered[-2]


def _answer(cell: Cell) -> str:
    return str(int(cell) if isinstance(cell, float) and cell.is_integer() else cell)


# Tables and words -----------------------------------------------------------------------------------------------------


def _table(rng: random.Random, split: Split) -> tuple[Table, Row]:
    """Make a table and one more row that it does not hold; changes take their new values from that row.

    The table has 3-5 columns, at least one INT and one TEXT, and 4-12 rows. Cells repeat, so conditions match several.
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


def pseudo_word(rng: random.Random) -> str:
    """Make a pronounceable word that is most likely new, from syllables or from halves of two train words.

    A policy that is warm-started on a few hundred real words learns those words; on pseudo-words it learns to copy.
    """
    if rng.random() < 0.5:
        first, second = rng.choice(TRAIN_WORDS), rng.choice(TRAIN_WORDS)
        return first[: rng.randint(2, max(2, len(first) - 2))] + second[-rng.randint(2, max(2, len(second) - 2)) :]
    syllables = rng.randint(1, 3)
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables))


def _note(table: Table) -> str:
    before_name, before_columns = NOTE
    return f"{before_name}`{table.name}`{before_columns}{', '.join(f'`{column.name}`' for column in table.columns)}."


# The eight kinds ------------------------------------------------------------------------------------------------------


def _select(rng: random.Random, table: Table, new_row: Row) -> TaskDraft:
    column, other = rng.sample(table.columns, 2)
    words, sql = _condition(rng, table, other)
    question = _question(rng, "select", column=f"`{column.name}`", condition=words)
    sql = f"SELECT `{column.name}` FROM `{table.name}` WHERE {sql}"
    return TaskDraft("other", question, sql, ("select", "where_single_condition"))


def _count(rng: random.Random, table: Table, new_row: Row) -> TaskDraft:
    words, sql = _condition(rng, table, rng.choice(table.columns))
    sql = f"SELECT COUNT(*) FROM `{table.name}` WHERE {sql}"
    return TaskDraft("counting", _question(rng, "count", condition=words), sql, ("select", "where_single_condition"))


def _aggregate(rng: random.Random, table: Table, new_row: Row, *, kind: str, functions: Mapping[str, str]) -> TaskDraft:
    word, function = rng.choice(sorted(functions.items()))
    column = rng.choice(_numbers(table))
    question = _question(rng, kind, word=word, column=f"`{column.name}`")
    sql = f"SELECT {function}(`{column.name}`) FROM `{table.name}`"
    return TaskDraft(f"aggregation-{function}", question, sql, ("select",))


def _ranking(rng: random.Random, table: Table, new_row: Row) -> TaskDraft:
    word, function = rng.choice(sorted(EXTREMES.items()))
    number = rng.choice(_numbers(table))
    column = rng.choice([column for column in table.columns if column != number])
    question = _question(rng, "ranking", column=f"`{column.name}`", word=word, number=f"`{number.name}`")
    direction = "DESC" if function == "MAX" else "ASC"
    sql = f"SELECT `{column.name}` FROM `{table.name}` ORDER BY `{number.name}` {direction} LIMIT 1"
    return TaskDraft("ranking", question, sql, ("select", "order_by_single_column", "limit_only"), ranked_by=number)


def _insert(rng: random.Random, table: Table, new_row: Row) -> TaskDraft:
    pairs = zip(table.columns, new_row, strict=True)
    question = _question(rng, "insert", values=", ".join(f"`{column.name}` {cell}" for column, cell in pairs))
    names = ", ".join(f"`{column.name}`" for column in table.columns)
    values = ", ".join(literal(cell) for cell in new_row)
    return TaskDraft("INSERT", question, f"INSERT INTO `{table.name}` ({names}) VALUES ({values})", ("insert",))


def _update(rng: random.Random, table: Table, new_row: Row) -> TaskDraft:
    column = rng.choice(table.columns)
    value = new_row[table.columns.index(column)]
    words, sql = _condition(rng, table, rng.choice(table.columns))
    question = _question(rng, "update", column=f"`{column.name}`", value=str(value), condition=words)
    sql = f"UPDATE `{table.name}` SET `{column.name}` = {literal(value)} WHERE {sql}"
    return TaskDraft("UPDATE", question, sql, ("update", "where_single_condition"))


def _delete(rng: random.Random, table: Table, new_row: Row) -> TaskDraft:
    words, sql = _condition(rng, table, rng.choice(table.columns))
    question = _question(rng, "delete", condition=words)
    return TaskDraft(
        "DELETE", question, f"DELETE FROM `{table.name}` WHERE {sql}", ("delete", "where_single_condition")
    )


DRAFTS: dict[str, Callable[[random.Random, Table, Row], TaskDraft]] = {
    "select": _select,
    "count": _count,
    "extreme": partial(_aggregate, kind="extreme", functions=EXTREMES),
    "summary": partial(_aggregate, kind="summary", functions=SUMMARIES),
    "ranking": _ranking,
    "insert": _insert,
    "update": _update,
    "delete": _delete,
}


def _condition(rng: random.Random, table: Table, column: Column) -> tuple[str, str]:
    # Texts are compared for equality only.
    value = rng.choice(table.rows)[table.columns.index(column)]
    inequality = column.type == "INT" and rng.random() < 0.4
    words = rng.choice([words for words, operator in COMPARISONS.items() if (operator != "=") == inequality])
    return f"`{column.name}` {words} {value}", f"`{column.name}` {COMPARISONS[words]} {literal(value)}"


def _numbers(table: Table) -> list[Column]:
    return [column for column in table.columns if column.type == "INT"]


def _question(rng: random.Random, kind: str, **slots: str) -> str:
    return rng.choice(PHRASINGS[kind]).format(**slots)


def main() -> None:
    parser = Parser(description="Generate SQL tasks, checked by running their reference statements.")
    parser.add_argument("--num-tasks", "--n", type=int, required=True, help="how many tasks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--split", choices=get_args(Split), default="train")
    parser.add_argument("--output", type=Path, required=True, help="JSONL, one task per line")
    args = parser.parse_args()
    tasks = generate_tasks(args.num_tasks, seed=args.seed, split=args.split)
    write_tasks(args.output, tasks)
    print(f"{len(tasks)} {args.split} tasks, seed {args.seed}: {args.output}")

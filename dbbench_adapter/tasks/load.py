"""Reads DB-Bench task files into `Task`s, and writes our own and LifelongAgentBench's entry_dict.json.

It reads AgentBench JSONL (standard, dev and the function-calling training form) and its pretty-printed list,
LifelongAgentBench `entry_dict.json` and its parquet form, and JSONL of `Task.to_dict()`. `load_tasks` stops at the
first bad row; `dbbench_adapter.validate` reports them all. `dbbench_adapter.tasks.records` reads the single row.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

from agentgrpo.chat.conversations import RowError
from agentgrpo.outputs import written
from agentgrpo.row_files import RowFileError, is_parquet, iter_rows
from agentgrpo.spelling import did_you_mean
from dbbench_adapter.datatypes import Task
from dbbench_adapter.tasks.literals import parse_literal
from dbbench_adapter.tasks.records import MAX_FOUND_CHARS, RawRecord, RecordError, RowFault, read_task

# Columns of the parquet form that hold Python-literal text.
_NESTED = ("answer_info", "table_info", "skill_list")


# A task file cannot be used; the message names file, row, field and what was expected.
TaskFileError = RowFileError


def load_tasks(path: Path) -> list[Task]:
    """Every task of a file, in file order; the form is recognised by its content.

    Args:
        path: a file, or a folder that holds one parquet file.
    Raises:
        TaskFileError: the file is missing or of no known form, or a row does not parse.
    """
    path = task_file(path)
    tasks: list[Task] = []
    seen: set[str] = set()
    for record in raw_records(path):
        try:
            if isinstance(record, RowFault):
                raise RecordError([record])
            task = read_task(record)
        except RecordError as error:
            raise TaskFileError(f"{path}, {error.faults[0]}") from None
        if task.id in seen:
            raise TaskFileError(f"{path}: id {task.id!r} occurs twice; expected one row per id, rename one of them")
        seen.add(task.id)
        tasks.append(task)
    return tasks


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    with written(path) as part:
        part.write_text("".join(json.dumps(task.to_dict(), ensure_ascii=False) + "\n" for task in tasks), "utf-8")


def refuse_repeated_ids(tasks: Iterable[Task]) -> None:
    """Refuse an id that occurs in several files; each file holds an id once.

    Raises:
        TaskFileError: an id occurs twice.
    """
    for id, count in Counter(task.id for task in tasks).most_common(1):
        if count > 1:
            raise TaskFileError(
                f"id {id!r} is in {count} rows of the inputs, expected one row per id; give each file once, and rename "
                "one of two of the same name"
            )


def task_file(path: Path) -> Path:
    """The file itself, or the one parquet file in a folder.

    Raises:
        TaskFileError: there is no such file, or there are several.
    """
    if path.is_file():
        return path
    if not path.is_dir():
        raise TaskFileError(
            f"{path}: no such file; give an AgentBench .jsonl, a LifelongAgentBench entry_dict.json or .parquet, "
            f"or a generated .jsonl{did_you_mean(path)}"
        )
    files = sorted(path.glob("*.parquet"))
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "none"
        raise TaskFileError(f"{path}: a folder, expected one .parquet file in it, found {found}; name the file")
    return files[0]


def raw_records(path: Path) -> Iterator[RawRecord | RowFault]:
    """Yield each row as it is in the file, or a fault if the row cannot be parsed.

    Raises:
        TaskFileError: the file cannot be read at all, or has no row.
    """
    records = _records(path)
    first = next(records, None)
    if first is None:
        raise TaskFileError(f"{path}: no rows; expected one task per line, or a JSON object of tasks")
    yield first
    yield from records


def _records(path: Path) -> Iterator[RawRecord | RowFault]:
    rows, parquet = iter_rows(path), is_parquet(path)
    begin = [*islice(rows, 2)]  # and no more: the first row that is no task ends the reading
    entries = begin[0].value if len(begin) == 1 else None
    if isinstance(entries, dict) and entries and all(key.isdigit() for key in entries):
        for key, value in entries.items():
            yield RawRecord(f"{path.stem}-{key}", f"record {key!r}", value, f"row {key}")
        return
    for index, row in enumerate(chain(begin, rows)):
        where = row.place if row.place.startswith("line") else f"{'row' if parquet else 'record'} {index}"
        if isinstance(fault := row.value, RowError):
            yield RowFault(where, "" if fault.field == "row" else fault.field, fault.reason)
        else:
            record = RawRecord(f"{path.stem}-{index}", where, row.value, row.place)
            yield unpacked(record) if parquet else record


def unpacked(record: RawRecord) -> RawRecord | RowFault:
    """The row with its Python-literal texts parsed; nothing is evaluated."""
    value = dict(record.value)
    for name in _NESTED:
        if isinstance(value.get(name), str):
            try:
                literal = parse_literal(value[name])
                json.dumps(literal)  # plain values only: `parse_literal` also accepts the names of builtins
            except (ValueError, TypeError) as error:
                found = repr(value[name])[:MAX_FOUND_CHARS]
                return RowFault(record.where, name, f"expected a Python literal, {error}; found {found}")
            value[name] = literal
    return replace(record, value=value)


# LifelongAgentBench's form --------------------------------------------------------------------------------------------


# No text cell of that form may hold these characters, since its judge splits answers at them.
FORBIDDEN = frozenset("'\"`\\,()[]{}")


class NotLifelongError(ValueError):
    """The form cannot hold this task."""


def entry_dict(tasks: Iterable[Task]) -> dict[str, dict[str, object]]:
    """The records by index, as text from "0" on.

    Raises:
        NotLifelongError: a task has several tables, a cell with NULL or a forbidden character, or no gold rows or hash.
    """
    return {str(index): _entry(index, task) for index, task in enumerate(tasks)}


def _entry(index: int, task: Task) -> dict[str, object]:
    if len(task.tables) != 1 or (task.gold.rows is None) == (task.gold.table_hash is None) or not task.gold.sql:
        raise NotLifelongError(
            f"task {task.id!r}: expected one table, a reference statement, and either result rows or a table hash; "
            "leave the task out"
        )
    (table,) = task.tables
    for row in table.rows:
        for cell in row:
            if cell is None or (isinstance(cell, str) and FORBIDDEN & set(cell)):
                raise NotLifelongError(
                    f"task {task.id!r}: a cell of {table.name!r} is {cell!r}, expected no NULL and none of the "
                    f"characters {''.join(sorted(FORBIDDEN))}; leave the task out"
                )
    record: dict[str, object] = {
        "sample_index": index,
        "instruction": task.question,
        "answer_info": {
            "md5": task.gold.table_hash,
            "direct": None if task.gold.rows is None else [list(row) for row in task.gold.rows],
            "sql": task.gold.sql,
        },
        "table_info": {
            "name": table.name,
            "row_list": [list(row) for row in table.rows],
            "column_info_list": [{"name": column.name, "type": column.type} for column in table.columns],
        },
        "skill_list": list(task.skills),
    }
    content = json.dumps([record[name] for name in ("instruction", "answer_info", "table_info")], ensure_ascii=False)
    digest = hashlib.sha256(content.encode()).hexdigest()
    return record | {"sql_instruction_row_list_entry_hash": int(digest[:15], 16)}

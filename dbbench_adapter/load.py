"""Read DB-Bench task files into `Task`s, write our own, and split a set by table.

Reads AgentBench JSONL (standard, dev and the function-calling training form), LifelongAgentBench `entry_dict.json` and
JSONL of `Task.to_dict()`. Leaves out LifelongAgentBench's parquet form and AgentBench records over SQLite files.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import sqlglot
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from sqlglot import exp
from sqlglot.errors import SqlglotError

from dbbench_adapter.literals import parse_rows
from dbbench_adapter.types import CHANGE_KINDS, Cell, Column, Gold, Table, Task

_HASH = re.compile(r"(None|[0-9a-f]{32})(_(None|[0-9a-f]{32}))*")
_T = TypeVar("_T")


class TaskFileError(ValueError):
    """A task file that cannot be used; the message names file, row, field and what was expected."""


def load_tasks(path: Path) -> list[Task]:
    """Every task of a file, in file order; the form is recognised by its content.

    Raises:
        TaskFileError: the file is missing, of no known form, or a row does not parse.
    """
    if not path.is_file():
        raise TaskFileError(
            f"{path}: no such file; give an AgentBench .jsonl, a LifelongAgentBench entry_dict.json "
            "or a generated .jsonl"
        )
    rows = list(_rows(path))
    if not rows:
        raise TaskFileError(f"{path}: no rows; expected one task per line, or a JSON object of tasks")
    tasks = [_reader(path, where, row)(path, where, index, row) for index, where, row in rows]
    _refuse_repeated_ids(path, tasks)
    return tasks


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Write tasks as JSONL of `Task.to_dict()`; `load_tasks` is the inverse."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(task.to_dict(), ensure_ascii=False) + "\n" for task in tasks), "utf-8")


def split_by_table(tasks: Sequence[Task], held_out_fraction: float, seed: int) -> tuple[list[Task], list[Task]]:
    """Split into (train, held out) so that no table name is in both; each part keeps the order given.

    Args:
        held_out_fraction: share of the table groups to hold out, in (0, 1); at least one group goes to either part.
        seed: the same seed, tasks and fraction give the same split.
    Raises:
        ValueError: fraction outside (0, 1), or every task shares tables with every other.
    """
    if not 0 < held_out_fraction < 1:
        raise ValueError(f"held_out_fraction is {held_out_fraction}, expected a number between 0 and 1")
    groups = _table_groups(tasks)
    names = sorted(set(groups))
    if len(names) < 2:
        raise ValueError(
            f"{len(tasks)} tasks over one group of tables cannot be split by table; give a held-out file instead"
        )
    random.Random(seed).shuffle(names)
    count = min(max(round(held_out_fraction * len(names)), 1), len(names) - 1)
    held_out = set(names[:count])
    return (
        [task for task, group in zip(tasks, groups, strict=True) if group not in held_out],
        [task for task, group in zip(tasks, groups, strict=True) if group in held_out],
    )


def _table_groups(tasks: Sequence[Task]) -> list[str]:
    """For each task one name that stands for all tables reachable from it over shared tables."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    names_of = [[table.name.casefold() for table in task.tables] or [f"no table: {task.id}"] for task in tasks]
    for names in names_of:
        for name in names[1:]:
            parent[root(name)] = root(names[0])
    return [root(names[0]) for names in names_of]


def _rows(path: Path) -> Iterator[tuple[str, str, Any]]:
    """(index, where it stands, JSON value) of each row; a JSONL file is recognised by its first line parsing alone."""
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise TaskFileError(
            f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); "
            "expected .jsonl or .json (the parquet form of LifelongAgentBench is not read, use entry_dict.json)"
        ) from None
    whole = _json_or_none(text)
    if isinstance(whole, dict) and whole and all(key.isdigit() for key in whole):
        yield from ((key, f"record {key!r}", value) for key, value in whole.items())
    elif isinstance(whole, list):
        yield from ((str(index), f"record {index}", value) for index, value in enumerate(whole))
    else:
        yield from _jsonl_rows(path, text)


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _jsonl_rows(path: Path, text: str) -> Iterator[tuple[str, str, Any]]:
    index = 0
    for number, line in enumerate(text.split("\n"), start=1):  # splitlines() would also cut at U+2028 inside a text
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise TaskFileError(
                f"{path}, line {number}: not JSON ({error}); expected one task object per line"
            ) from None
        yield str(index), f"line {number}", row
        index += 1


_Reader = Callable[[Path, str, str, Any], Task]


def _reader(path: Path, where: str, row: Any) -> _Reader:
    keys = set(row) if isinstance(row, dict) else set()
    if {"description", "type"} <= keys or {"description", "label"} <= keys:
        return _agentbench_task
    if {"instruction", "answer_info"} <= keys or {"instruction", "table_info"} <= keys:
        return _lifelong_task
    if {"question", "gold"} <= keys or {"id", "question"} <= keys:
        return _own_task
    raise TaskFileError(
        f"{path}, {where}: has {sorted(keys) or type(row).__name__}; expected an AgentBench record (description, "
        "label, type, table), a LifelongAgentBench record (instruction, answer_info, table_info) or a generated task "
        "(id, question, kind, tables, gold)"
    )


def _refuse_repeated_ids(path: Path, tasks: list[Task]) -> None:
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise TaskFileError(f"{path}: id {task.id!r} occurs twice; expected one row per id")
        seen.add(task.id)


def _validated(path: Path, where: str, parse: Callable[[Any], _T], row: Any) -> _T:
    try:
        return parse(row)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the row"
        found = repr(first["input"])
        raise TaskFileError(f"{path}, {where}, field {field}: {first['msg']}; found {found[:120]}") from None


# AgentBench -----------------------------------------------------------------------------------------------------------


class _Info(BaseModel):
    columns: list[Column]
    rows: list[tuple[Cell, ...]]


class _AgentBenchTable(BaseModel):
    table_name: str
    table_info: _Info

    def record(self) -> Table:
        return Table(self.table_name, tuple(self.table_info.columns), tuple(self.table_info.rows))


class _Query(BaseModel):
    query: str


class _AgentBenchRecord(BaseModel):
    description: str
    label: list[str] | str
    type: Annotated[list[str], Field(min_length=1, max_length=1)]
    table: _AgentBenchTable | list[_AgentBenchTable]
    add_description: str = ""
    evidence: str = ""
    answer_md5: str | list[str] | None = None
    sql: _Query | None = None
    user_sqlite: bool = False


def _agentbench_task(path: Path, where: str, index: str, row: Any) -> Task:
    record = _validated(path, where, TypeAdapter(_AgentBenchRecord).validate_python, row)
    if record.user_sqlite:
        raise TaskFileError(
            f"{path}, {where}, field user_sqlite: records over SQLite files cannot be used yet; remove the record"
        )
    tables = record.table if isinstance(record.table, list) else [record.table]
    kind = record.type[0]
    gold = _change_gold(path, where, record) if kind in CHANGE_KINDS else _answer_gold(record)
    return Task(
        id=f"{path.stem}-{index}",
        question=record.description,
        kind=kind,
        tables=tuple(table.record() for table in tables),
        gold=gold,
        table_note=record.add_description,
        evidence=record.evidence,
        source="agentbench",
        ordered=gold.rows is not None and _orders_rows(gold.sql or ""),
    )


def _answer_gold(record: _AgentBenchRecord) -> Gold:
    sql = record.sql.query if record.sql else None
    if isinstance(record.label, str):
        return Gold(rows=parse_rows(record.label), label_text=record.label, sql=sql)
    return Gold(answers=tuple(record.label), sql=sql)


def _change_gold(path: Path, where: str, record: _AgentBenchRecord) -> Gold:
    labels = [record.label] if isinstance(record.label, str) else record.label
    sql = labels[0] if labels else (record.sql.query if record.sql else None)
    stored = record.answer_md5 if isinstance(record.answer_md5, str) else (record.answer_md5 or [""])[0]
    table_hash = stored.strip("[]()").split(",")[0].strip().strip("'") or None  # the driver prints [('<hex>',)]
    if table_hash is not None and not _HASH.fullmatch(table_hash):
        raise TaskFileError(
            f"{path}, {where}, field answer_md5: expected 32 hex digits, bare or as a printed driver row; "
            f"found {stored!r}"
        )
    if sql is None and table_hash is None:
        raise TaskFileError(
            f"{path}, {where}, field label: a change needs its reference statement in label or sql.query, "
            "or a hash in answer_md5; found neither"
        )
    return Gold(sql=sql, table_hash=table_hash)


# LifelongAgentBench ---------------------------------------------------------------------------------------------------


class _AnswerInfo(BaseModel):
    sql: str
    direct: list[tuple[Cell, ...]] | None = None
    md5: Annotated[str, Field(pattern="^[0-9a-f]{32}$")] | None = None


class _LifelongTable(BaseModel):
    name: str
    column_info_list: list[Column]
    row_list: list[tuple[Cell, ...]]


class _LifelongRecord(BaseModel):
    instruction: str
    answer_info: _AnswerInfo
    table_info: _LifelongTable
    skill_list: list[str] = Field(default_factory=list)


def _lifelong_task(path: Path, where: str, index: str, row: Any) -> Task:
    record = _validated(path, where, TypeAdapter(_LifelongRecord).validate_python, row)
    answer, table = record.answer_info, record.table_info
    kind = (answer.sql.split() or [""])[0].upper()
    if kind not in CHANGE_KINDS | {"SELECT"}:
        raise TaskFileError(
            f"{path}, {where}, field answer_info.sql: expected SELECT or a change, found {answer.sql!r}"
        )
    wanted, other = ("md5", "direct") if kind in CHANGE_KINDS else ("direct", "md5")
    if getattr(answer, wanted) is None or getattr(answer, other) is not None:
        raise TaskFileError(f"{path}, {where}, field answer_info: a {kind} has {wanted} set and {other} null")
    headers = ", ".join(column.name for column in table.column_info_list)
    return Task(
        id=f"{path.stem}-{index}",
        question=record.instruction,
        kind=kind,
        tables=(Table(table.name, tuple(table.column_info_list), tuple(table.row_list)),),
        gold=Gold(rows=None if answer.direct is None else tuple(answer.direct), sql=answer.sql, table_hash=answer.md5),
        table_note=f"The table is called {table.name} and has these headers: {headers}.",
        skills=tuple(record.skill_list),
        source="lifelong",
        typed=True,
        ordered=kind == "SELECT" and _orders_rows(answer.sql),
    )


def _orders_rows(sql: str) -> bool:
    """Whether the outermost query of a statement has an ORDER BY; False for what does not parse."""
    try:
        statement = sqlglot.parse_one(sql, read="mysql")
    except SqlglotError:
        return False
    return isinstance(statement, exp.Query) and statement.args.get("order") is not None


# Our own --------------------------------------------------------------------------------------------------------------


def _own_task(path: Path, where: str, index: str, row: Any) -> Task:
    return _validated(path, where, Task.from_dict, row)

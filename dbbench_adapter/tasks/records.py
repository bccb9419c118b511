"""Reads one row of a task file as a `Task`, or names everything that is wrong with it, field by field.

There are three forms: AgentBench's (the test files, and the function-calling training form), LifelongAgentBench's, and
our own `Task.to_dict()`. `dbbench_adapter.tasks.load` reads whole files. AgentBench records over SQLite files are left
out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import sqlglot
from pydantic import BaseModel, BeforeValidator, Field, ValidationError
from pydantic_core import ErrorDetails
from sqlglot import exp
from sqlglot.errors import SqlglotError

from dbbench_adapter.datatypes import CHANGE_KINDS, Column, Gold, Row, Rows, Table, Task
from dbbench_adapter.tasks.literals import parse_rows

MAX_FOUND_CHARS = 120
_HASH = re.compile(r"(None|[0-9a-f]{32})(_(None|[0-9a-f]{32}))*")
_T = TypeVar("_T")


@dataclass(frozen=True)
class RowFault:
    where: str
    """The position of the row in its file: `line 3`, `record '7'`, `row 0`."""
    field: str
    """Dotted path below the row; empty if the row as a whole is wrong."""
    problem: str
    """It says what was expected and what was found."""

    def __str__(self) -> str:
        return f"{self.where}{', field ' + self.field if self.field else ''}: {self.problem}"


class RecordError(ValueError):
    """`faults` has at least one entry."""

    def __init__(self, faults: Sequence[RowFault]) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = tuple(faults)


@dataclass(frozen=True)
class RawRecord:
    id: str
    """The id of an AgentBench or LifelongAgentBench task: file stem and index."""
    where: str
    value: Any
    place: str
    """The row as a person counts, from 1: `line 3` of JSONL, which may have blank lines, or `row 3`."""


def record_form(record: RawRecord) -> str:
    """`agentbench`, `lifelong` or `own`, recognised by the fields.

    Raises:
        RecordError: the row has none of these forms.
    """
    keys = set(record.value) if isinstance(record.value, dict) else set()
    for form, telling in _TELLING_FIELDS.items():
        if any(fields <= keys for fields in telling):
            return form
    raise _fault(
        record,
        "",
        f"has {sorted(keys) or type(record.value).__name__}; expected an AgentBench record (description, label, type, "
        "table), a LifelongAgentBench record (instruction, answer_info, table_info) or a generated task "
        "(id, question, kind, tables, gold)",
    )


def read_task(record: RawRecord) -> Task:
    """Raises RecordError: the row is no task; the error lists every fault that was found."""
    form = record_form(record)
    task = _READERS[form](record)
    if problem := _unreturnable(task.gold.rows or ()):
        raise _fault(record, _ROWS_FIELDS[form], problem)
    return task


def _unreturnable(rows: Rows) -> str | None:
    """Why no query returns such rows, which no answer could equal; None for rows of a query."""
    for place, row in enumerate(rows):
        if not row:
            return f"row {place} has no cells; expected rows of a query, or [] for a result without rows"
        if len(row) != len(rows[0]):
            return f"row {place} has {len(row)} cells and row 0 has {len(rows[0])}; expected rows of one length"
        for cell in row:
            if isinstance(cell, float) and not math.isfinite(cell):
                return f"row {place} holds {cell}; expected a finite number, a text or null"
    return None


def _fault(record: RawRecord, field: str, problem: str) -> RecordError:
    return RecordError([RowFault(record.where, field, problem)])


def _validated(record: RawRecord, parse: Callable[[object], _T]) -> _T:
    try:
        return parse(record.value)
    except ValidationError as error:
        raise RecordError(list(_merged(record, error.errors()))) from None


def _merged(record: RawRecord, errors: Sequence[ErrorDetails]) -> Iterator[RowFault]:
    """Yield one fault per field: if a field may have several types, pydantic reports one error for each type."""
    by_field: dict[str, list[ErrorDetails]] = {}
    for error in errors:
        by_field.setdefault(_path(record.value, error), []).append(error)
    for field, same in by_field.items():
        found = "" if same[0]["type"] == "missing" else f"; found {repr(same[0]['input'])[:MAX_FOUND_CHARS]}"
        yield RowFault(record.where, field or "the row", f"{' or '.join(error['msg'] for error in same)}{found}")


def _path(value: Any, error: ErrorDetails) -> str:
    parts: list[str] = []
    for part in error["loc"]:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            if error["type"] != "missing" or part != error["loc"][-1]:
                continue
        parts.append(str(part))
    return ".".join(parts)


# AgentBench -----------------------------------------------------------------------------------------------------------


class _Info(BaseModel):
    columns: list[Column]
    rows: list[Row]


class _AgentBenchTable(BaseModel):
    table_name: str
    table_info: _Info

    def table(self) -> Table:
        return Table(self.table_name, tuple(self.table_info.columns), tuple(self.table_info.rows))


class _Query(BaseModel):
    query: str


class _AgentBenchRecord(BaseModel):
    description: str
    label: list[str] | str
    type: Annotated[list[str], Field(min_length=1, max_length=1)]
    table: Annotated[
        list[_AgentBenchTable], BeforeValidator(lambda value: value if isinstance(value, list) else [value])
    ]
    add_description: str = ""
    evidence: str = ""
    answer_md5: str | list[str] | None = None
    sql: _Query | None = None
    user_sqlite: bool = False


def _agentbench_task(record: RawRecord) -> Task:
    row = _validated(record, _AgentBenchRecord.model_validate)
    if row.user_sqlite:
        raise _fault(record, "user_sqlite", "records over SQLite files cannot be used yet; remove the record")
    kind = row.type[0]
    gold = _change_gold(record, row) if kind in CHANGE_KINDS else _answer_gold(row)
    return Task(
        id=record.id,
        question=row.description,
        kind=kind,
        tables=tuple(table.table() for table in row.table),
        gold=gold,
        table_note=row.add_description,
        evidence=row.evidence,
        source="agentbench",
        ordered=gold.rows is not None and _orders_rows(gold.sql or ""),
    )


def _answer_gold(row: _AgentBenchRecord) -> Gold:
    sql = row.sql.query if row.sql else None
    if isinstance(row.label, str):
        return Gold(rows=parse_rows(row.label), label_text=row.label, sql=sql)
    return Gold(answers=tuple(row.label), sql=sql)


def _change_gold(record: RawRecord, row: _AgentBenchRecord) -> Gold:
    labels = [row.label] if isinstance(row.label, str) else row.label
    sql = labels[0] if labels else (row.sql.query if row.sql else None)
    stored = row.answer_md5 if isinstance(row.answer_md5, str) else (row.answer_md5 or [""])[0]
    table_hash = stored.strip("[]()").split(",")[0].strip().strip("'") or None  # the driver prints [('<hex>',)]
    if table_hash is not None and not _HASH.fullmatch(table_hash):
        problem = f"expected 32 hex digits, bare or as a printed driver row; found {stored!r}"
        raise _fault(record, "answer_md5", problem)
    if sql is None and table_hash is None:
        problem = "a change needs its reference statement in label or sql.query, or a hash in answer_md5; found neither"
        raise _fault(record, "label", problem)
    return Gold(sql=sql, table_hash=table_hash)


# LifelongAgentBench ---------------------------------------------------------------------------------------------------


class _AnswerInfo(BaseModel):
    sql: str
    direct: list[Row] | None = None
    md5: Annotated[str, Field(pattern="^[0-9a-f]{32}$")] | None = None


class LifelongTable(BaseModel):
    name: str
    column_info_list: list[Column]
    row_list: list[Row]

    def table(self) -> Table:
        return Table(self.name, tuple(self.column_info_list), tuple(self.row_list))


class _LifelongRecord(BaseModel):
    instruction: str
    answer_info: _AnswerInfo
    table_info: LifelongTable
    skill_list: list[str] = Field(default_factory=list)


def _lifelong_task(record: RawRecord) -> Task:
    row = _validated(record, _LifelongRecord.model_validate)
    answer, table = row.answer_info, row.table_info.table()
    kind = first_word(answer.sql)
    if kind not in CHANGE_KINDS | {"SELECT"}:
        raise _fault(record, "answer_info.sql", f"expected SELECT or a change, found {answer.sql!r}")
    wanted, other = ("md5", "direct") if kind in CHANGE_KINDS else ("direct", "md5")
    if getattr(answer, wanted) is None or getattr(answer, other) is not None:
        raise _fault(record, "answer_info", f"a {kind} has {wanted} set and {other} null")
    return Task(
        id=record.id,
        question=row.instruction,
        kind=kind,
        tables=(table,),
        gold=Gold(rows=None if answer.direct is None else tuple(answer.direct), sql=answer.sql, table_hash=answer.md5),
        table_note=table.note,
        skills=tuple(row.skill_list),
        source="lifelong",
        typed=True,
        ordered=kind == "SELECT" and _orders_rows(answer.sql),
    )


def first_word(sql: str) -> str:
    return (sql.split() or [""])[0].upper()


def _orders_rows(sql: str) -> bool:
    """Whether the outermost query of a statement has an ORDER BY; False if it does not parse."""
    try:
        statement = sqlglot.parse_one(sql, read="mysql")
    except SqlglotError:
        return False
    return isinstance(statement, exp.Query) and statement.args.get("order") is not None


_TELLING_FIELDS: dict[str, list[set[str]]] = {
    "agentbench": [{"description", "type"}, {"description", "label"}],
    "lifelong": [{"instruction", "answer_info"}, {"instruction", "table_info"}],
    "own": [{"question", "gold"}, {"id", "question"}],
}
_ROWS_FIELDS = {"agentbench": "label", "lifelong": "answer_info.direct", "own": "gold.rows"}
_READERS: dict[str, Callable[[RawRecord], Task]] = {
    "agentbench": _agentbench_task,
    "lifelong": _lifelong_task,
    "own": lambda record: _validated(record, Task.from_dict),
}

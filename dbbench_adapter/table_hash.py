"""Hash tables as DB-Bench does: `python -m dbbench_adapter.table_hash` answers JSON lines on standard input.

In:  {"id", "variant": "text|fc|lab", "backend": "sqlite|mariadb", "tables": [TABLE, ...], "sql": [...]}
Out: {"id", "hash", "error"}; an {"id", "error"} alone for a line that cannot be read

TABLE is {"table_name", "columns": [{"name", "type"}], "rows"} for text and fc, {"name", "column_info_list", "row_list"}
for lab. The statements run one by one, also after one that fails; `error` is the first error, in the words of MySQL's
driver. `hash` is DB-Bench's hash after all of them: 32 hex digits per table, joined with `_` for several tables. As
with MySQL it is null for a single table without rows, and if a table or column no longer exists.
"""

from __future__ import annotations

if __name__ == "__main__":
    from agentgrpo.commands import run_module

    run_module("dbbench_adapter.table_hash")

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from agentgrpo.flags import described_parser
from agentgrpo.json_lines import serve_lines
from agentgrpo.json_text import JsonObject
from dbbench_adapter.datatypes import Column, Gold, Row, Table, Task
from dbbench_adapter.engines import Backend, BackendUnavailable, TableError, open_backend
from dbbench_adapter.protocols import PROTOCOLS, ProtocolName
from dbbench_adapter.protocols.base import stringify_cells
from dbbench_adapter.tasks.records import LifelongTable


class AgentBenchTable(BaseModel):
    table_name: str
    columns: list[Column]
    rows: list[Row]

    def table(self) -> Table:
        return Table(self.table_name, tuple(self.columns), tuple(self.rows))


_TableForm = TypeVar("_TableForm", AgentBenchTable, LifelongTable)


class _Case(BaseModel, Generic[_TableForm]):
    model_config = ConfigDict(extra="forbid")

    id: Any = None
    variant: ProtocolName
    backend: Literal["sqlite", "mariadb"] = "sqlite"
    tables: list[_TableForm] = Field(min_length=1)
    sql: list[str] = Field(default_factory=list)


def answer(row: JsonObject, backend: Callable[[str], Backend]) -> dict[str, object]:
    """
    Args:
        backend: a function that returns the backend of a name.
    Raises:
        ValueError: a field is missing or has another form than the variant's.
    """
    case = (_Case[LifelongTable] if row.get("variant") == "lab" else _Case[AgentBenchTable]).model_validate(row)
    tables = [table.table() for table in case.tables]
    try:
        found, error = hash_after(backend(case.backend), case.variant, tables, case.sql)
    except (TableError, BackendUnavailable) as failure:
        found, error = None, str(failure)
    return {"hash": found, "error": error}


def hash_after(
    backend: Backend, variant: ProtocolName, tables: list[Table], statements: list[str]
) -> tuple[str | None, str | None]:
    """The hash of tables after statements, and the first error among them.

    Raises:
        TableError: a table cannot be made.
        BackendUnavailable: the database server is gone.
    """
    task = Task(id="-", question="", kind="UPDATE", tables=tuple(tables), gold=Gold(), typed=variant == "lab")
    stored = stringify_cells(task, null=PROTOCOLS[variant].episode.NULL)
    with backend.open(stored, typed=task.typed) as database:
        errors = [result.error for result in map(database.run, statements) if result.error is not None]
        found = database.table_hash(stored)
    return None if found == "None" else found, errors[0] if errors else None


def main() -> None:
    described_parser("python -m dbbench_adapter.table_hash", __doc__).parse_args()
    with ExitStack() as stack:
        # a backend starts with the first case that names it
        backend = cache(lambda name: stack.enter_context(open_backend(name)))
        serve_lines(lambda row: answer(row, backend))

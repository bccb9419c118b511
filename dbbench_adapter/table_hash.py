"""Hash tables as DB-Bench does: `python -m dbbench_adapter.table_hash` answers JSON lines on standard input.

In:  {"id", "variant": "text|fc|lab", "backend": "sqlite|mariadb", "tables": [TABLE, ...], "sql": [...]}
Out: {"id", "hash", "error"}; an {"id", "error"} alone for a line that cannot be read

TABLE is {"table_name", "columns": [{"name", "type"}], "rows"} for text and fc, {"name", "column_info_list", "row_list"}
for lab. The statements run one by one, the next also after a failure; `error` is the first failure, in the words of
MySQL's driver. `hash` is that of FACTS.md 7.1 after all of them: 32 hex digits, per table joined with `_` where there
are several; null for a single table without rows, as MySQL has it, and where a table or column is gone.
"""

from __future__ import annotations

from core.commands import execute, starting

if __name__ == "__main__":
    starting()

import argparse
from contextlib import ExitStack
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from core.json_lines import serve
from dbbench_adapter.backends import Backend, BackendUnavailable, TableError, open_backend
from dbbench_adapter.datatypes import Cell, Column, Gold, Table, Task
from dbbench_adapter.protocols import PROTOCOLS, ProtocolName
from dbbench_adapter.protocols.base import as_text


class AgentBenchTable(BaseModel):
    """A table as it is given for `text` and `fc`."""

    table_name: str
    columns: list[Column]
    rows: list[tuple[Cell, ...]]

    def table(self) -> Table:
        return Table(self.table_name, tuple(self.columns), tuple(self.rows))


class LifelongTable(BaseModel):
    """A table as it is given for `lab`."""

    name: str
    column_info_list: list[Column]
    row_list: list[tuple[Cell, ...]]

    def table(self) -> Table:
        return Table(self.name, tuple(self.column_info_list), tuple(self.row_list))


class _AgentBenchCase(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: Any = None
    variant: Literal["text", "fc"]
    backend: Literal["sqlite", "mariadb"] = "sqlite"
    tables: list[AgentBenchTable] = Field(min_length=1)
    sql: list[str] = Field(default_factory=list)


class _LifelongCase(_AgentBenchCase):
    variant: Literal["lab"]  # pyright: ignore[reportIncompatibleVariableOverride]
    tables: list[LifelongTable] = Field(min_length=1)  # pyright: ignore[reportIncompatibleVariableOverride]


class _Hasher:
    """Answers cases; a backend starts with the first case that names it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._backends: dict[str, Backend] = {}

    def answer(self, row: dict[str, Any]) -> dict[str, Any]:
        """The hash that one case leaves behind.

        Raises:
            ValueError: a field is missing or has another form than the variant's.
        """
        model = _LifelongCase if row.get("variant") == "lab" else _AgentBenchCase
        case = model.model_validate(row)
        tables = [table.table() for table in case.tables]
        try:
            found, error = hash_after(self._backend(case.backend), case.variant, tables, case.sql)
        except (TableError, BackendUnavailable) as failure:
            found, error = None, str(failure)
        return {"hash": found, "error": error}

    def _backend(self, name: str) -> Backend:
        if name not in self._backends:
            self._backends[name] = self._stack.enter_context(open_backend(name))
        return self._backends[name]


def hash_after(
    backend: Backend, variant: ProtocolName, tables: list[Table], statements: list[str]
) -> tuple[str | None, str | None]:
    """The hash of tables after statements, and the first error among them.

    Raises:
        TableError: a table cannot be made.
        BackendUnavailable: the database server is gone.
    """
    task = Task(id="-", question="", kind="UPDATE", tables=tuple(tables), gold=Gold(), typed=variant == "lab")
    stored = as_text(task, null=PROTOCOLS[variant].episode.NULL)
    with backend.open(stored, typed=task.typed) as database:
        errors = [result.error for result in map(database.run, statements) if result.error is not None]
        found = database.table_hash(stored)
    return None if found == "None" else found, errors[0] if errors else None


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m dbbench_adapter.table_hash",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    with ExitStack() as stack:
        serve(_Hasher(stack).answer)


if __name__ == "__main__":
    execute(main)

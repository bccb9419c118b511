"""Writes tasks in LifelongAgentBench's form, entry_dict.json, which its code and `dbbench_adapter.tasks.load` read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from dbbench_adapter.datatypes import Task

# No text cell of that form may hold these characters, since its judge splits answers at them.
FORBIDDEN = frozenset("'\"`\\,()[]{}")


class NotLifelongError(ValueError):
    """The form cannot hold this task."""


def entry_dict(tasks: Iterable[Task]) -> dict[str, dict[str, Any]]:
    """The records by index, as text from "0" on.

    Raises:
        NotLifelongError: a task has several tables, a cell with NULL or a forbidden character, or no gold rows or hash.
    """
    return {str(index): _entry(index, task) for index, task in enumerate(tasks)}


def _entry(index: int, task: Task) -> dict[str, Any]:
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
    record = {
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

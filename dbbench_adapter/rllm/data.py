"""Writes tasks as rows of rLLM's data sets, and reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dbbench_adapter.datatypes import Task

# A row holds these fields of `Task.to_dict()` as JSON text, since lists of mixed types do not fit parquet.
_NESTED = ("tables", "gold", "skills")


def rllm_rows(tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """One row per task; `task_of` is the inverse."""
    return [
        {name: json.dumps(value) if name in _NESTED else value for name, value in task.to_dict().items()}
        for task in tasks
    ]


def task_of(row: Mapping[str, Any]) -> Task:
    """The task of a row; nested fields are JSON text or plain values.

    Raises:
        ValueError: a field is missing, unknown or of another form.
    """
    return Task.from_dict(
        {
            name: json.loads(value) if name in _NESTED and isinstance(value, str) else value
            for name, value in row.items()
        }
    )

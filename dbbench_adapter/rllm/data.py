"""Writes tasks as rows of rLLM's data sets, which rLLM's registry stores as parquet for itself and for verl."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dbbench_adapter.datatypes import Task
from dbbench_adapter.rllm.interfaces import require_rllm

_NESTED = ("tables", "gold", "skills")
"""A row holds these fields of `Task.to_dict()` as JSON text, since lists of mixed types do not fit parquet."""


def rllm_rows(tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """Return one row per task; `task_of` is the inverse."""
    return [
        {name: json.dumps(value) if name in _NESTED else value for name, value in task.to_dict().items()}
        for task in tasks
    ]


def task_of(row: Mapping[str, Any]) -> Task:
    """Return the task of a row; nested fields are JSON text or plain values.

    Raises:
        ValueError: a field is missing, unknown or of another form.
    """
    return Task.from_dict(
        {
            name: json.loads(value) if name in _NESTED and isinstance(value, str) else value
            for name, value in row.items()
        }
    )


def register_tasks(name: str, tasks: Sequence[Task], split: str) -> Any:
    """Add tasks to rLLM's registry; they replace those that it has under this name and split.

    Returns:
        The `rllm.data.Dataset`; its `get_verl_data_path()` is the parquet file that verl reads.
    Raises:
        RllmMissingError: see `require_rllm`.
    """
    require_rllm()
    from rllm.data.dataset import DatasetRegistry  # pyright: ignore[reportMissingImports]

    return DatasetRegistry.register_dataset(name, rllm_rows(tasks), split)

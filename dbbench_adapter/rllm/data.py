"""Tasks as data sets of rLLM: rows for its registry, which writes them as parquet for itself and for verl.

Leaves out what rLLM does with them; `DBBenchEnv.from_dict` reads a row back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dbbench_adapter.datatypes import Task
from dbbench_adapter.rllm.env import NESTED
from dbbench_adapter.rllm.interfaces import require_rllm


def rllm_rows(tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """`Task.to_dict()` with nested fields as JSON text: rows with lists of mixed types do not fit parquet."""
    return [
        {name: json.dumps(value) if name in NESTED else value for name, value in task.to_dict().items()}
        for task in tasks
    ]


def register_tasks(name: str, tasks: Sequence[Task], split: str) -> Any:
    """Put tasks into rLLM's registry, in place of what it holds under that name and split.

    Returns:
        The `rllm.data.Dataset`; its `get_verl_data_path()` is the parquet file verl reads.
    Raises:
        RllmMissingError: see `require_rllm`.
    """
    require_rllm()
    from rllm.data.dataset import DatasetRegistry  # pyright: ignore[reportMissingImports]

    return DatasetRegistry.register_dataset(name, rllm_rows(tasks), split)

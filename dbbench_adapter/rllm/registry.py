"""Registers tasks with rLLM, whose registry stores them as parquet for itself and for verl.

A task that nobody can judge has no reward in rLLM: its episode raises, and after three tries ends the whole step. So
such tasks are left out here, before training.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from agentgrpo.printed_commands import agentgrpo_command
from dbbench_adapter.datatypes import Task
from dbbench_adapter.rllm.data import rllm_rows
from dbbench_adapter.rllm.env import DBBenchEnv, UnjudgedError
from dbbench_adapter.rllm.interfaces import require_rllm

logger = logging.getLogger(__name__)

# A reply that ends an episode of either protocol with an answer, so that it is judged.
_ANYTHING = "I answer.\nAction: Answer\nFinal Answer: -"


def register_tasks(name: str, tasks: Sequence[Task], split: str, **env_args: Any) -> Any:
    """Add the tasks that can be judged to rLLM's registry; they replace those that it has under this name and split.

    A warning of this module's logger says how many were left out and why.

    Args:
        env_args: the settings that `DBBenchEnv` will be made with.
    Returns:
        The `rllm.data.Dataset`; its `get_verl_data_path()` is the parquet file that verl reads.
    Raises:
        RllmMissingError: see `require_rllm`.
        ValueError: none of the tasks can be judged, or there are none.
        BackendUnavailable: the database server is gone.
    """
    require_rllm()
    from rllm.data.dataset import DatasetRegistry  # pyright: ignore[reportMissingImports]

    reasons = [unjudged_reason(task, **env_args) for task in tasks]
    judged = [task for task, reason in zip(tasks, reasons, strict=True) if reason is None]
    counts = Counter(reason for reason in reasons if reason is not None)
    lost = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
    if not judged:
        raise ValueError(
            f"none of the {len(tasks)} tasks of split {split!r} can be judged ({lost or 'it has no tasks'}); "
            f"`{agentgrpo_command('tasks validate', 'FILE', '--replay', 'sqlite')}` says what is wrong with each"
        )
    if lost:
        logger.warning(
            "%d of %d tasks of split %r are left out, since nobody can judge them: %s",
            len(tasks) - len(judged),
            len(tasks),
            split,
            lost,
        )
    return DatasetRegistry.register_dataset(name, rllm_rows(judged), split)


def unjudged_reason(task: Task, **env_args: Any) -> str | None:
    """Why an episode of a task has no verdict, or None if it has one: an episode is played with any answer.

    Raises:
        BackendUnavailable: the database server is gone.
    """
    env = DBBenchEnv(task, **env_args)
    env.reset()
    try:
        status = env.step(_ANYTHING)[3]["status"]
    except UnjudgedError as error:
        return error.reason
    return None if status == "completed" else status

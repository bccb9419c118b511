"""The orders in which tasks are drawn, an epoch at a time; `SAMPLERS` (`sql_agent.names`) has a row for each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

Task = TypeVar("Task")


def shuffled(tasks: Sequence[Task], seed: int, epoch: int) -> list[Task]:
    """Every task once, in an order that depends only on the seed and the epoch."""
    return random.Random(f"{seed}/{epoch}").sample(tasks, len(tasks))


def in_order(tasks: Sequence[Task], seed: int, epoch: int) -> list[Task]:
    """Every task once, in the order of its file."""
    return list(tasks)

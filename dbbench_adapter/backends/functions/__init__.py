"""The MySQL functions that agents use and SQLite lacks, as plain functions over str, int, float and None.

`FUNCTIONS` maps a lower-case name to (number of arguments or -1, function); `AGGREGATES` likewise to a class. Without a
word to the contrary None in gives None out. Each looks at the statement's deadline, and none gives or takes more than
`MAX_VALUE_BYTES`. Leaves out JSON, spatial, encryption and user-lock functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from dbbench_adapter.backends.clock import check
from dbbench_adapter.backends.functions import dates, numbers, patterns, text
from dbbench_adapter.backends.functions.aggregates import AGGREGATES, GROUP_CONCAT_MAX_LEN
from dbbench_adapter.backends.functions.values import MAX_VALUE_BYTES, Function, collate, fold, text_of

__all__ = ["AGGREGATES", "FUNCTIONS", "GROUP_CONCAT_MAX_LEN", "MAX_VALUE_BYTES", "collate", "fold", "like", "text_of"]

like = patterns.like


def _timed(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def timed(*values: Any) -> Any:
        check()
        return function(*values)

    return timed


def _strict(function: Callable[..., Any]) -> Callable[..., Any]:
    """None in, None out."""

    @wraps(function)
    def with_nulls(*values: Any) -> Any:
        check()
        return None if None in values else function(*values)

    return with_nulls


FUNCTIONS: dict[str, Function] = {
    **{
        name: (count, _timed(function))
        for module in (text, numbers, dates)
        for name, (count, function) in module.NULLS_MATTER.items()
    },
    **{
        name: (count, _strict(function))
        for module in (text, patterns, numbers, dates)
        for name, (count, function) in module.STRICT.items()
    },
}

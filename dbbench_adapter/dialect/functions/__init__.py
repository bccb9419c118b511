"""The MySQL functions that agents use and SQLite lacks, as plain functions over str, int, float and None.

`FUNCTIONS` maps a lower-case name to (number of arguments or -1, function), `AGGREGATES` to a class instead. Each call
checks the statement's deadline. A library in C blocks other threads while it works, so a call takes at most
`MAX_VALUE_BYTES` characters in all, for which no library needs more than about 10 ms at a time. JSON, spatial,
encryption and user-lock functions are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from dbbench_adapter.datatypes import SqlValue
from dbbench_adapter.dialect.functions import dates, numeric, patterns, storing, text
from dbbench_adapter.dialect.functions.aggregates import AGGREGATES
from dbbench_adapter.dialect.functions.values import MAX_VALUE_BYTES, Function
from dbbench_adapter.statement_clock import Refused, check_deadline, count_made, kept

__all__ = ["AGGREGATES", "FUNCTIONS", "MAX_VALUE_BYTES"]

# Only longer texts count towards the limit of what a statement may make.
LONG_CHARS = 1_000
_TEXTS = (str, bytes)


def _limited(function: Callable[..., SqlValue], *, strict: bool) -> Callable[..., SqlValue]:
    """A strict function returns None if an argument is None."""

    @wraps(function)
    def limited(*values: SqlValue) -> SqlValue:
        check_deadline()
        if sum([len(value) for value in values if isinstance(value, _TEXTS)]) > MAX_VALUE_BYTES:
            raise ValueError("the arguments are too long")
        if strict and None in values:
            return None
        try:
            made = function(*values)
        except Refused as refusal:
            raise kept(refusal) from None
        if isinstance(made, str) and len(made) > LONG_CHARS:
            count_made(len(made))
        return made

    return limited


FUNCTIONS: dict[str, Function] = {
    name: (count, _limited(function, strict=strict))
    for module in (text, patterns, numeric, dates, storing)
    for strict, group in ((False, module.NULLS_MATTER), (True, module.STRICT))
    for name, (count, function) in group.items()
} | numeric.RANGES

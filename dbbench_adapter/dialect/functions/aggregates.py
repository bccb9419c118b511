"""Adds the aggregates that SQLite lacks: variances, and GROUP_CONCAT with an order of its own."""

from __future__ import annotations

import math
from typing import Any

from dbbench_adapter.clock import Refused, check, kept
from dbbench_adapter.dialect.functions.values import fold, number, sort_key, text_of

# MySQL's default, in bytes.
GROUP_CONCAT_MAX_LEN = 1024
# Each value with its keys counts 100 more. Sorting this many at once blocks other threads for some 10 ms.
_MAX_KEPT_CHARS = 2_000_000


class _Variance:
    """Welford's running variance; a subclass says what to divide by and whether to take the root."""

    ddof = 0
    root = False

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def step(self, value: Any) -> None:
        if value is None:
            return
        self.count += 1
        delta = number(value) - self.mean
        self.mean += delta / self.count
        self.squares += delta * (number(value) - self.mean)

    def finalize(self) -> float | None:
        divisor = self.count - self.ddof
        if divisor <= 0:
            return None
        return math.sqrt(self.squares / divisor) if self.root else self.squares / divisor


def _variance(*, ddof: int, root: bool) -> type[_Variance]:
    return type("_Variance", (_Variance,), {"ddof": ddof, "root": root})


class _GroupConcat:
    """mysql_group_concat(distinct, separator, directions, value, sort keys...)."""

    def __init__(self) -> None:
        self.items: list[tuple[str, tuple[Any, ...]]] = []
        self.distinct, self.separator, self.directions, self.chars = 0, ",", "", 0

    def step(self, distinct: int, separator: str, directions: str, value: Any, *keys: Any) -> None:
        check()
        self.distinct, self.separator, self.directions = distinct, separator, directions
        if value is None or (not distinct and not keys and self.chars > GROUP_CONCAT_MAX_LEN):
            return
        self.items.append((text_of(value), keys))
        self.chars += 100 + len(self.items[-1][0]) + sum(len(key) if isinstance(key, str) else 10 for key in keys)
        if self.chars > _MAX_KEPT_CHARS:
            raise MemoryError("GROUP_CONCAT over too many values")

    def finalize(self) -> str | None:
        if not self.items:
            return None
        items = (
            list({fold(item[0]): item for item in reversed(self.items)}.values())[::-1] if self.distinct else self.items
        )
        for place, direction in reversed(list(enumerate(self.directions))):
            check()
            items.sort(key=lambda item: _sort_key(item[1][place]), reverse=direction == "-")
        joined = self.separator.join(text for text, _ in items)
        return joined.encode()[:GROUP_CONCAT_MAX_LEN].decode("utf-8", "ignore")


class _OnlyRow:
    """NULL if there is no row."""

    def __init__(self) -> None:
        self.value: Any = None
        self.found = False

    def step(self, value: Any) -> None:
        if self.found:
            raise kept(Refused("1242 (21000): Subquery returns more than 1 row"))
        self.value, self.found = value, True

    def finalize(self) -> Any:
        return self.value


class _SumWhole:
    # MySQL adds whole numbers without a bound, in a DECIMAL.

    def __init__(self) -> None:
        self.total: int | None = None

    def step(self, value: Any) -> None:
        if value is not None:
            self.total = (self.total or 0) + int(value)

    def finalize(self) -> int | str | None:
        if self.total is not None and not -(2**63) <= self.total < 2**63:
            return self.beyond(self.total)
        return self.total

    def beyond(self, total: int) -> str:
        raise kept(Refused("1235 (42000): This version of MySQL doesn't yet support 'sums of 2^63 and more here'"))


class _SumDigits(_SumWhole):
    # For the result itself a text of digits can stand for a number that SQLite does not hold.

    def beyond(self, total: int) -> str:
        return str(total)


class _Any:
    """ANY from its comparisons: 1 if one is true, else NULL if one is NULL; ALL from its own, turned about."""

    wanted = True

    def __init__(self) -> None:
        self.found, self.unknown = False, False

    def step(self, fits: Any) -> None:
        check()
        self.unknown = self.unknown or fits is None
        self.found = self.found or (fits is not None and bool(fits) is self.wanted)

    def finalize(self) -> int | None:
        return int(self.wanted) if self.found else None if self.unknown else int(not self.wanted)


class _All(_Any):
    wanted = False


def _sort_key(value: Any) -> tuple[int, Any]:
    if value is None:
        return (0, 0)
    return (1, value) if isinstance(value, int | float) else (2, sort_key(text_of(value)))


AGGREGATES: dict[str, tuple[int, type]] = {
    "stddev_pop": (1, _variance(ddof=0, root=True)),
    "stddev_samp": (1, _variance(ddof=1, root=True)),
    "std": (1, _variance(ddof=0, root=True)),
    "var_pop": (1, _variance(ddof=0, root=False)),
    "var_samp": (1, _variance(ddof=1, root=False)),
    "only_row": (1, _OnlyRow),
    "sum_whole": (1, _SumWhole),
    "sum_digits": (1, _SumDigits),
    "any_is": (1, _Any),
    "all_are": (1, _All),
    "mysql_group_concat": (-1, _GroupConcat),
}

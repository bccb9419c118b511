"""Aggregates that SQLite lacks: variances and GROUP_CONCAT with its own order."""

from __future__ import annotations

import math
from typing import Any

from dbbench_adapter.backends.clock import check
from dbbench_adapter.backends.functions.values import fold, number, text_of

GROUP_CONCAT_MAX_LEN = 1024
"""Bytes; MySQL's default."""
_MAX_KEPT_CHARS = 8_000_000


class _Variance:
    """Welford's running variance; a subclass says what to divide by and whether to take the root."""

    sample = False
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
        divisor = self.count - 1 if self.sample else self.count
        if divisor <= 0:
            return None
        return math.sqrt(self.squares / divisor) if self.root else self.squares / divisor


class _VarSamp(_Variance):
    sample = True


class _StddevPop(_Variance):
    root = True


class _StddevSamp(_Variance):
    sample = True
    root = True


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
        self.chars += 100 + len(self.items[-1][0]) + sum(len(key) for key in keys if isinstance(key, str))
        if self.chars > _MAX_KEPT_CHARS:
            raise MemoryError("GROUP_CONCAT over too many values")

    def finalize(self) -> str | None:
        if not self.items:
            return None
        items = (
            list({fold(item[0]): item for item in reversed(self.items)}.values())[::-1] if self.distinct else self.items
        )
        for place, direction in reversed(list(enumerate(self.directions))):
            items.sort(key=lambda item: _sort_key(item[1][place]), reverse=direction == "-")
        joined = self.separator.join(text for text, _ in items)
        return joined.encode()[:GROUP_CONCAT_MAX_LEN].decode("utf-8", "ignore")


def _sort_key(value: Any) -> tuple[int, Any]:
    if value is None:
        return (0, 0)
    return (1, value) if isinstance(value, int | float) else (2, fold(text_of(value)))


AGGREGATES: dict[str, tuple[int, type]] = {
    "stddev_pop": (1, _StddevPop),
    "stddev_samp": (1, _StddevSamp),
    "var_pop": (1, _Variance),
    "var_samp": (1, _VarSamp),
    "mysql_group_concat": (-1, _GroupConcat),
}

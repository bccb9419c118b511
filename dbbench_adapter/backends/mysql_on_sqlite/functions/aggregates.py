"""Aggregates that SQLite lacks: variances and GROUP_CONCAT with its own order."""

from __future__ import annotations

import math
import operator
from typing import Any

from dbbench_adapter.backends.clock import check
from dbbench_adapter.backends.mysql_on_sqlite.functions.values import fold, number, sort_key, text_of, whole

GROUP_CONCAT_MAX_LEN = 1024
"""Bytes; MySQL's default."""
_MAX_KEPT_CHARS = 2_000_000
"""A value and its keys count 100 more: what sorts them in one go holds up other threads for some 10 ms."""


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


class _BitAnd:
    """Over unsigned 64 bits; what has no value counts as all ones."""

    start = 0xFFFFFFFFFFFFFFFF
    join = staticmethod(operator.and_)

    def __init__(self) -> None:
        self.bits = self.start

    def step(self, value: Any) -> None:
        if value is not None:
            self.bits = self.join(self.bits, whole(value) & 0xFFFFFFFFFFFFFFFF)

    def finalize(self) -> int:
        return self.bits if self.bits < 2**63 else -1


class _BitOr(_BitAnd):
    start = 0
    join = staticmethod(operator.or_)


class _BitXor(_BitAnd):
    start = 0
    join = staticmethod(operator.xor)


class _AnyValue:
    def __init__(self) -> None:
        self.value: Any = None
        self.found = False

    def step(self, value: Any) -> None:
        if not self.found:
            self.value, self.found = value, True

    def finalize(self) -> Any:
        return self.value


def _sort_key(value: Any) -> tuple[int, Any]:
    if value is None:
        return (0, 0)
    return (1, value) if isinstance(value, int | float) else (2, sort_key(text_of(value)))


AGGREGATES: dict[str, tuple[int, type]] = {
    "stddev_pop": (1, _StddevPop),
    "stddev_samp": (1, _StddevSamp),
    "var_pop": (1, _Variance),
    "var_samp": (1, _VarSamp),
    "std": (1, _StddevPop),
    "bit_and": (1, _BitAnd),
    "bit_or": (1, _BitOr),
    "bit_xor": (1, _BitXor),
    "any_value": (1, _AnyValue),
    "mysql_group_concat": (-1, _GroupConcat),
}

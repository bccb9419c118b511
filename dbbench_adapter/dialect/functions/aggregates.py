"""Adds the aggregates that SQLite lacks: GROUP_CONCAT with an order of its own, and the only row of a sub-query."""

from __future__ import annotations

from typing import Any

from dbbench_adapter.datatypes import SqlValue
from dbbench_adapter.dialect.functions.values import fold, sort_key, to_text
from dbbench_adapter.statement_clock import Refused, check_deadline, kept

# MySQL's default, in bytes.
GROUP_CONCAT_MAX_LEN = 1024
# Each value with its keys counts 100 more. Sorting this many at once blocks other threads for some 10 ms.
_MAX_KEPT_CHARS = 2_000_000


class _GroupConcat:
    """mysql_group_concat(distinct, separator, directions, value, sort keys...)."""

    def __init__(self) -> None:
        self.items: list[tuple[str, tuple[Any, ...]]] = []
        self.distinct, self.separator, self.directions, self.chars = 0, ",", "", 0

    def step(self, distinct: int, separator: str, directions: str, value: SqlValue, *keys: SqlValue) -> None:
        check_deadline()
        self.distinct, self.separator, self.directions = distinct, separator, directions
        if value is None or (not distinct and not keys and self.chars > GROUP_CONCAT_MAX_LEN):
            return
        self.items.append((to_text(value), keys))
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
            check_deadline()
            items.sort(key=lambda item: _sort_key(item[1][place]), reverse=direction == "-")
        joined = self.separator.join(text for text, _ in items)
        return joined.encode()[:GROUP_CONCAT_MAX_LEN].decode("utf-8", "ignore")


class _OnlyRow:
    """NULL if there is no row."""

    def __init__(self) -> None:
        self.value: Any = None
        self.found = False

    def step(self, value: SqlValue) -> None:
        if self.found:
            raise kept(Refused("1242 (21000): Subquery returns more than 1 row"))
        self.value, self.found = value, True

    def finalize(self) -> SqlValue:
        return self.value


def _sort_key(value: SqlValue) -> tuple[int, SqlValue]:
    if value is None:
        return (0, 0)
    return (1, value) if isinstance(value, int | float) else (2, sort_key(to_text(value)))


AGGREGATES: dict[str, tuple[int, type]] = {
    "only_row": (1, _OnlyRow),
    "mysql_group_concat": (-1, _GroupConcat),
}

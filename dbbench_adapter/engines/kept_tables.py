"""Keeps what an engine made of a task's tables, so that it is made once for all episodes of the task."""

from __future__ import annotations

import marshal
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from dbbench_adapter.datatypes import Table

# Of all tasks together; a table of 30 rows takes 12 KiB.
MAX_BYTES = 4 * 1024**2

T = TypeVar("T")


class KeptTables(Generic[T]):
    """What was used last, by the whole content of the tables. Any thread may call.

    Args:
        size_bytes: a function that measures what is kept.
    """

    def __init__(self, size_bytes: Callable[[T], int], *, max_bytes: int = MAX_BYTES) -> None:
        self._size_of, self._max_bytes, self.size_bytes = size_bytes, max_bytes, 0
        self._kept: OrderedDict[bytes, T] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, tables: Sequence[Table], make: Callable[[], T], *, typed: bool) -> T:
        """What is kept of these tables, or else what `make` returns; what that raises is raised."""
        key = _key(tables, typed=typed)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = make()
        size_bytes = len(key) + self._size_of(made)
        with self._lock:
            # what is too large by itself would push out everything else; another thread may have made it too
            if size_bytes <= self._max_bytes and key not in self._kept:
                self._kept[key] = made
                self.size_bytes += size_bytes
            while self.size_bytes > self._max_bytes:
                old_key, old = self._kept.popitem(last=False)
                self.size_bytes -= len(old_key) + self._size_of(old)
        return made


def _key(tables: Sequence[Table], *, typed: bool) -> bytes:
    # Unlike `==` this tells 1 from 1.0 and from True. Version 2 writes equal values alike, later ones do not.
    described = [(table.name, [(column.name, column.type) for column in table.columns], table.rows) for table in tables]
    return marshal.dumps((typed, described), 2)

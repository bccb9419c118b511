"""Gives an episode a SQLite file that it may change: its changes are in memory, and the file stays as it is.

The file is opened for reading and mapped privately (`MAP_PRIVATE`), and SQLite uses the mapping as a database in memory
(`sqlite3_deserialize`). The kernel copies a page when it is first written to; all other pages are those of the page
cache, which all episodes share. So the file has no locks and no journal, and a large one is opened in a millisecond.

Python's `sqlite3` has neither this call nor the one that tells which rows change (`sqlite3_preupdate_hook`). Both are
made through ctypes, in the library that Python's module itself uses. It does not guard against a file that is cut while
a statement reads it: the kernel then ends the process.
"""

from __future__ import annotations

import _sqlite3
import contextlib
import ctypes
import mmap
import os
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import zip_longest
from pathlib import Path

from dbbench_adapter.datatypes import Row
from dbbench_adapter.engines.base import BackendUnavailable
from dbbench_adapter.engines.engine import Change, Changes
from dbbench_adapter.engines.sqlite.foreign_schema import load_schema, table_list
from dbbench_adapter.engines.sqlite.read_only import opened

# An episode may write this much: the pages that SQLite writes are counted each time, and the file may grow by it.
MAX_WRITTEN_BYTES = 64 * 1024**2
# An episode may insert, update and delete this many rows, since a judge reads all of them.
MAX_CHANGED_ROWS = 100_000
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_CACHE_WRITE = 9  # SQLITE_DBSTATUS_CACHE_WRITE
_INSERT, _DELETE = 18, 9  # SQLITE_INSERT, SQLITE_DELETE
_ROWIDS_AT_ONCE = 500
# SQLite takes its own largest limit instead.
_NO_LIMIT = 2**31 - 1
_ROWID_NAMES = ("rowid", "_rowid_", "oid")
_ON_CHANGE = ctypes.CFUNCTYPE(
    None,
    *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64),
)
_WITHOUT_CALLBACK = _ON_CHANGE()


class CopyOnWrite:
    """One episode's view of a file; only one thread at a time may use it.

    Attributes:
        connection: the view, without any limits of an agent's.
        writable: the tables and views that can be changed. SQLite's own tables, virtual tables and the tables in which
            these keep their data are left out, and so is each of `unchangeable`.
        unchangeable: tables and views whose definition, trigger or index cannot be parsed, each with the reason.
        unparsed: these parts of the schema.
    Raises:
        BackendUnavailable: the file cannot be opened, or this Python's SQLite lacks the calls that are needed.
    """

    connection: sqlite3.Connection
    writable: frozenset[str]
    unchangeable: dict[str, str]

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed, self._latest = defaultdict[str, set[int]](set), defaultdict[str, set[int]](set)
        self._num_changed = self._num_before = self._total_before = 0
        library = _library()
        with contextlib.ExitStack() as undo:
            try:
                self._original, self.unparsed = opened(path)
                undo.callback(self._original.close)
                tables = [
                    each
                    for each in table_list(self._original, self.unparsed)
                    if each[1] in ("table", "view") and not each[0].lower().startswith("sqlite_")
                ]  # this also fails if the file waits for the end of another program's transaction
                descriptor = os.open(path, os.O_RDONLY)
                undo.callback(os.close, descriptor)
                self._stamp = _stamp(path)
                size = os.fstat(descriptor).st_size
                start = _mapped(None, size + MAX_WRITTEN_BYTES, mmap.MAP_ANONYMOUS, -1)
                undo.callback(_c_library().munmap, start, size + MAX_WRITTEN_BYTES)
                _mapped(start, size, _MAP_FIXED, descriptor)
            except (OSError, sqlite3.Error) as error:
                raise BackendUnavailable(
                    f"{path} cannot be opened: {error}; leave it in place during the run"
                ) from None
            ctypes.memmove(start + 18, b"\1\1", 2)  # a database in memory has no WAL
            self.connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            undo.callback(self.connection.close)
            # the first field of the object is SQLite's own connection
            self._handle = ctypes.c_void_p.from_address(id(self.connection) + object.__basicsize__).value
            if library.sqlite3_deserialize(self._handle, b"main", start, size, size + MAX_WRITTEN_BYTES, 0):
                raise BackendUnavailable(f"{path} cannot be opened as a database in memory")
            self._callback = _ON_CHANGE(self._note)  # ctypes keeps no reference
            library.sqlite3_preupdate_hook(self._handle, self._callback, None)
            undo.callback(library.sqlite3_preupdate_hook, self._handle, _WITHOUT_CALLBACK, None)
            load_schema(self.connection)  # before the first statement that needs it
            self.connection.execute("PRAGMA journal_mode = MEMORY")
            self.connection.execute("PRAGMA temp_store = MEMORY")
            (self._page_bytes,) = self.connection.execute("PRAGMA page_size").fetchone()
            self._undo = undo.pop_all()
        self.unchangeable = {
            entry.table: f"{entry.table} cannot be changed: {entry.kind} {entry.name}: {entry.why}"
            for entry in self.unparsed
        }
        self.writable = frozenset(name for name, _, _ in tables) - self.unchangeable.keys()
        self._without_rowid = {name for name, _, without in tables if without}

    def begin(self) -> None:
        """Say that a statement begins.

        Raises:
            BackendUnavailable: somebody has changed the file, whose pages the view shows.
        """
        try:
            unchanged = _stamp(self._path) == self._stamp
        except OSError:
            unchanged = False
        if not unchanged:
            raise BackendUnavailable(f"{self._path} was changed; leave it as it is until the run ends")
        self._settle()

    def full(self) -> bool:
        if self._num_changed == self._num_before:
            return False
        return self._num_changed > MAX_CHANGED_ROWS or self._written_bytes() > MAX_WRITTEN_BYTES

    def changes(self) -> Changes:
        """Rows that differ from the file's; tables that have no row ids, or hide them, are read whole.

        Raises:
            BackendUnavailable: somebody has changed the file.
        """
        self.begin()
        decoder, self.connection.text_factory = self.connection.text_factory, _decoded
        self._original.text_factory = _decoded
        # the agent's limit would forbid to read the long values of a table that is read whole
        limit = self.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _NO_LIMIT)
        try:
            found = {table: self._change(table, rowids) for table, rowids in sorted(self._changed.items())}
        finally:
            self.connection.text_factory = decoder
            self.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limit)
        return {table: change for table, change in found.items() if change.removed or change.added}

    def close(self) -> None:
        self._undo.close()

    def _note(self, _: object, __: object, kind: int, schema: bytes, table: bytes, old: int, new: int) -> None:
        if schema != b"main":
            return
        self._num_changed += 1
        rowids = self._latest[table.decode()]
        if kind != _INSERT:
            rowids.add(old)
        if kind != _DELETE:
            rowids.add(new)

    def _settle(self) -> None:
        # The rows are forgotten if the statement was undone.
        if self.connection.total_changes == self._total_before:
            self._num_changed = self._num_before
        else:
            for table, rowids in self._latest.items():
                self._changed[table] |= rowids
        self._latest.clear()
        self._num_before, self._total_before = self._num_changed, self.connection.total_changes

    def _written_bytes(self) -> int:
        pages, highest = ctypes.c_int(), ctypes.c_int()
        _library().sqlite3_db_status(self._handle, _CACHE_WRITE, ctypes.byref(pages), ctypes.byref(highest), 0)
        return pages.value * self._page_bytes

    def _change(self, table: str, rowids: set[int]) -> Change:
        quoted = '"' + table.replace('"', '""') + '"'
        columns = {row[1].lower() for row in self._original.execute(f"PRAGMA table_xinfo({quoted})")}
        rowid = next((name for name in _ROWID_NAMES if name not in columns), None)
        sql = f"SELECT * FROM main.{quoted}"
        if table in self._without_rowid or rowid is None:
            return _difference(self._original.execute(sql), self.connection.execute(sql))
        pairs = (_rows(connection, f"{sql} WHERE {rowid}", rowids) for connection in (self._original, self.connection))
        return _difference(*pairs)


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")  # different texts stay different


def _difference(before: Iterable[Row], after: Iterable[Row]) -> Change:
    # Little is held at once where both sides have about the same order.
    surplus = Counter[Row]()
    for old, new in zip_longest(before, after):
        for row, count in ((old, -1), (new, 1)):
            if row is not None:
                surplus[row] += count
                if not surplus[row]:
                    del surplus[row]
    return Change(tuple((-surplus).elements()), tuple((+surplus).elements()))


def _rows(connection: sqlite3.Connection, where: str, rowids: Iterable[int]) -> Iterator[Row]:
    ordered = sorted(rowids)
    for start in range(0, len(ordered), _ROWIDS_AT_ONCE):
        part = ordered[start : start + _ROWIDS_AT_ONCE]
        yield from connection.execute(f"{where} IN ({', '.join('?' * len(part))})", part)


def _stamp(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


@cache
def _library() -> ctypes.CDLL:
    """Raises BackendUnavailable: the SQLite library is built into Python, or lacks a call."""
    try:
        library = ctypes.CDLL(_sqlite3.__file__)
        library.sqlite3_deserialize.argtypes = [
            *(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
        ]
        library.sqlite3_preupdate_hook.argtypes = [ctypes.c_void_p, _ON_CHANGE, ctypes.c_void_p]
        library.sqlite3_preupdate_hook.restype = ctypes.c_void_p
        library.sqlite3_db_status.argtypes = [
            *(ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int), ctypes.c_int)
        ]
    except (AttributeError, OSError):
        raise BackendUnavailable(
            "tasks that change data need a Python that uses SQLite as a library with sqlite3_deserialize and "
            "sqlite3_preupdate_hook, as those of Debian, Ubuntu and python.org's Docker images do; make .venv with one "
            "of them, or leave these tasks out"
        ) from None
    return library


@cache
def _c_library() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    ]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library


def _mapped(start: int | None, size: int, more_flags: int, descriptor: int) -> int:
    # Nothing is reserved, so a large file needs no memory in advance. Python's own `mmap` maps nothing behind the end
    # of a file.
    flags = mmap.MAP_PRIVATE | _MAP_NORESERVE | more_flags
    found = _c_library().mmap(start, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, 0)
    if found == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return found

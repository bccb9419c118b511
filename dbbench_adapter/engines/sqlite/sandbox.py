"""Keeps a statement inside its SQLite database and its limits.

An authorizer knows this database's tables and MySQL's functions, SQLite's own limits are set, a guard counts steps and
memory for the progress handler, and a watchdog interrupts. `sqlite.backend` lists what all this does not guard against.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from functools import cache

from dbbench_adapter.dialect.functions import AGGREGATES, FUNCTIONS, MAX_VALUE_BYTES
from dbbench_adapter.dialect.functions.values import collate
from dbbench_adapter.dialect.syntax import COLLATION
from dbbench_adapter.statement_clock import WALL_RATIO

# A page has 4 KiB: a database holds at most 16 MiB, and its temporary tables as much again.
MAX_PAGES = 4_096
MAX_COLUMNS = 256
# A statement that sorts may take this many steps of SQLite's machine. A sort checks no clock, so its rows are limited
# to about 350,000, which take 0.8 s to sort after the deadline (measured).
MAX_SORT_OPCODES = 1_500_000
# The process may grow by this much while one statement runs; memory of other threads counts too.
MAX_GROWTH_BYTES = 256 * 1024**2
# The same limit for a statement that sorts, since a sort compares all its texts, at a few hundred MB a second.
MAX_SORT_GROWTH_BYTES = MAX_GROWTH_BYTES // 4
# Temporary tables have a database of their own; opening it takes as long as a short statement.
LIMIT_TEMPORARY = f"PRAGMA temp.max_page_count = {MAX_PAGES}"
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MAX_VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_COLUMN: MAX_COLUMNS,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 200,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 10,
}
PROGRESS_OPCODES = 2_000
_WATCH_S = 0.1
_ALLOWED = frozenset(
    getattr(sqlite3, f"SQLITE_{name}")
    for name in (
        *("SELECT", "READ", "INSERT", "UPDATE", "DELETE", "TRANSACTION", "SAVEPOINT", "RECURSIVE", "REINDEX"),
        *("CREATE_TABLE", "DROP_TABLE", "ALTER_TABLE", "CREATE_TEMP_TABLE", "DROP_TEMP_TABLE"),
        *("CREATE_INDEX", "DROP_INDEX"),
    )
)
_BUILT_IN = (
    "abs avg coalesce count ifnull iif ltrim max min nullif quote round rtrim substr substring sum trim "
    "typeof current_date current_timestamp row_number rank dense_rank ntile lag lead first_value last_value"
)
# SQLite's ALTER TABLE itself calls these, in addition to the functions that every statement may call.
_CALLED_BY_ALTER = frozenset(
    [
        *("printf", "glob", "sqlite_drop_column"),
        *(f"sqlite_rename_{what}" for what in ("table", "column", "test", "quotefix")),
    ]
)
FUNCTION_NAMES = frozenset([*FUNCTIONS, *AGGREGATES])
_CALLABLE = FUNCTION_NAMES | frozenset(_BUILT_IN.split())


class Watchdog:
    """Interrupts from a thread of its own.

    The progress handler is called every 2,000 operations; an interrupt takes effect at the next jump, which is sooner
    where each operation is slow.
    """

    def __init__(self) -> None:
        self._running: dict[int, tuple[int, float, float, sqlite3.Connection]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def ensure_alive(self) -> None:
        """Start the thread unless it runs; in a forked child it does not run."""
        if self._thread is None or not self._thread.is_alive():
            self._stop.clear()
            self._thread = threading.Thread(target=self._watch, name="sqlite-watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    @contextmanager
    def watching(self, connection: sqlite3.Connection, timeout_s: float) -> Iterator[None]:
        """
        Args:
            timeout_s: of this thread's CPU (`clock.time_limit`).
        """
        key, cpu = id(connection), time.pthread_getcpuclockid(threading.get_ident())
        last = time.monotonic() + WALL_RATIO * timeout_s
        self._running[key] = (cpu, time.clock_gettime(cpu) + timeout_s, last, connection)
        try:
            yield
        finally:
            with self._lock:  # no interrupt may reach the next statement
                del self._running[key]

    def _watch(self) -> None:
        while not self._stop.wait(_WATCH_S):
            with self._lock:
                for cpu, deadline, last, connection in list(self._running.values()):
                    if time.clock_gettime(cpu) > deadline or time.monotonic() > last:
                        connection.interrupt()


def allows(action: int, first: str | None, second: str | None, *, altering: bool) -> bool:
    """Whether an agent's statement may do this; SQLite passes these arguments to an authorizer.

    Args:
        altering: the statement is an ALTER TABLE or DROP, during which SQLite calls functions of its own.
    """
    if action == sqlite3.SQLITE_FUNCTION:
        name = (second or "").lower()
        return name in _CALLABLE or (altering and name in _CALLED_BY_ALTER)
    if action == sqlite3.SQLITE_READ and (first or "").lower() in virtual_tables():
        return False
    return action in _ALLOWED


class Guard:
    # The memory is that of the whole process: a statement also ends, with the error for memory, if other episodes grow.

    def __init__(self, max_opcodes: int | None = None, *, max_growth_bytes: float = MAX_GROWTH_BYTES) -> None:
        self.out_of_memory = self.out_of_steps = False
        self._max_growth_bytes = max_growth_bytes
        self._opcodes_left = max_opcodes
        self._memory_bytes: int | None = None

    def exceeded(self) -> bool:
        if self._opcodes_left is not None:
            self._opcodes_left -= PROGRESS_OPCODES
            if self._opcodes_left < 0:
                self.out_of_steps = True
                return True
        now = _memory_bytes()
        if self._memory_bytes is None:
            self._memory_bytes = now
        self.out_of_memory = now - self._memory_bytes > self._max_growth_bytes
        return self.out_of_memory


def _memory_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            _, resident, of_files, *_ = map(int, file.read().split())
            return (resident - of_files) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@cache
def virtual_tables() -> frozenset[str]:
    """The names that SQLite answers without any table: json_each, pragma_..., dbstat and so on."""
    with closing(sqlite3.connect(":memory:")) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM pragma_module_list")}
        names |= {f"pragma_{name}" for (name,) in connection.execute("SELECT name FROM pragma_pragma_list")}
    return frozenset(name.lower() for name in names)


@cache
def _shadowing() -> tuple[str, ...]:
    # Variants of our functions that SQLite defines with another number of arguments are blocked, because SQLite's own
    # FORMAT writes gigabytes.
    with closing(sqlite3.connect(":memory:")) as connection:
        own = connection.execute("SELECT name, narg FROM pragma_function_list").fetchall()
    return tuple(sorted({name for name, count in own if name in FUNCTIONS and FUNCTIONS[name][0] not in (-1, count)}))


def _refuse_arguments(*_: object) -> None:
    raise TypeError("no function of MySQL's takes so many arguments")


def connect_in_memory(content: bytes | None = None) -> sqlite3.Connection:
    """A connection to a database in memory, on which everything is allowed; `add_functions` adds MySQL's functions.

    Args:
        content: the whole database, as `sqlite3.Connection.serialize` returns it; None for one without tables.
    """
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    if content is not None:
        connection.deserialize(content)
    connection.execute(f"PRAGMA max_page_count = {MAX_PAGES}")
    connection.execute("PRAGMA trusted_schema = OFF")  # nothing in a schema calls a function of ours
    connection.execute("PRAGMA temp_store = MEMORY")
    for limit, value in _LIMITS.items():
        connection.setlimit(limit, value)
    connection.create_collation(COLLATION, collate)
    return connection


def add_functions(connection: sqlite3.Connection, names: Iterable[str]) -> None:
    """Let statements call these of MySQL's functions (`FUNCTION_NAMES`). All take 0.05 ms; most episodes call a few."""
    for name in names:
        if name in _shadowing():
            connection.create_function(name, -1, _refuse_arguments)  # this refuses all other numbers
        if name in FUNCTIONS:
            connection.create_function(name, *FUNCTIONS[name])
        if name in AGGREGATES:
            connection.create_aggregate(name, *AGGREGATES[name])  # pyright: ignore[reportArgumentType]


def renew_temporary(connection: sqlite3.Connection) -> None:
    """Drop everything temporary; call this outside a transaction."""
    for store in ("FILE", "MEMORY"):  # each change of it drops everything, and the limit too
        connection.execute(f"PRAGMA temp_store = {store}")
    connection.execute(LIMIT_TEMPORARY)

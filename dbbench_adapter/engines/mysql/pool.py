"""Keeps a pool of database names with their users and sessions on one MariaDB or MySQL server.

An episode gets a slot: a name, a user with privileges on the database of that name alone, the agent's session and an
administrator's. Between episodes the session is reset (COM_RESET_CONNECTION: variables, temporary tables, locks, open
transactions), the database is dropped and made again (0.25 ms on MariaDB, faster than listing what it holds), and the
user must be as it was made. A slot that fails any of this is never used again.

Each name carries its owner, and the reaper's connection holds a lock in the owner's name (`GET_LOCK`). The next owner
that starts on the server removes names whose owner no longer holds its lock. The number 0 belongs to the catalogue: a
database of views that replaces information_schema for agents. `allowed_sql` decides what an agent may send.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import secrets
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pymysql
from pymysql.constants import COMMAND

from dbbench_adapter.engines.base import BackendUnavailable
from dbbench_adapter.engines.mysql import parse_address
from dbbench_adapter.engines.mysql.names import NEUTRAL_NAME, PREFIX

CONNECT_TIMEOUT_S = 10.0
ADMIN_TIMEOUT_S = 30.0
LOCK_WAIT_S = 2
_REMOVE_ATTEMPTS = 150
# The statement is killed this long after its own limit, at which the server should have ended it.
KILL_AFTER_S = 0.25
# We stop waiting for the server this long after a statement's limit.
GIVE_UP_AFTER_S = 0.75
_WATCH_S = 0.1
_PING_S = 30.0
_OURS = re.compile(rf"{PREFIX}([0-9a-f]{{12}})_\d+")
_GRANTS = "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX, CREATE TEMPORARY TABLES, CREATE VIEW, SHOW VIEW"
MODES = (  # MySQL 8's defaults; MariaDB's are laxer
    "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
)
_GROUP_CONCAT_MAX_LEN = 1024  # MySQL's default; MariaDB's is 1 MiB
_COLLATION = "utf8mb4_unicode_520_nopad_ci"  # MariaDB's closest to MySQL 8's utf8mb4_0900_ai_ci
# These columns of the catalogue are compared with case, like names of files.
_CASE_SENSITIVE = frozenset(["SCHEMA_NAME", "TABLE_SCHEMA", "TABLE_NAME"])
_RESET_CONNECTION = 0x1F
# `together` takes this for a statement that makes the session as it was after connecting.
RESET = b"\0reset"
MAX_DATABASE_BYTES = 128 * 1024**2
# From this time on a running statement is ended if its database is larger than `MAX_DATABASE_BYTES`.
_MEASURE_AFTER_S = 0.25
_CATALOGUE_VIEWS = (
    *("TABLES", "COLUMNS", "SCHEMATA", "STATISTICS", "VIEWS", "ROUTINES", "TRIGGERS", "PROCESSLIST"),
    *("KEY_COLUMN_USAGE", "TABLE_CONSTRAINTS", "REFERENTIAL_CONSTRAINTS", "CHECK_CONSTRAINTS"),
    *("CHARACTER_SETS", "COLLATIONS", "ENGINES"),
)
_MAX_PACKET_BYTES = 2**24 - 1
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

Connection = pymysql.Connection


@dataclass(eq=False)
class Slot:
    name: str
    password: str
    admin: Connection
    account: str = ""
    """The result of SHOW CREATE USER after the user was made."""
    agent: Connection | None = None
    settings: tuple[bool, float] | None = None
    """The arguments with which the agent's session was set up; None if it has yet to be set up."""


@dataclass
class _Watched:
    database: str
    started: float
    limit_s: float


@dataclass
class ConnectionReaper:
    """Keeps the owner's lock, and ends statements that run too long or fill too much, on its own connection and thread.

    Args:
        connect: a function that opens a connection of the administrator.
        sizes_bytes: a function of a connection that returns the sizes of the owner's databases.
    """

    connect: Any
    owner: str
    sizes_bytes: Any
    _running: dict[int, _Watched] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        self._connection = self._locked()
        self._thread = threading.Thread(target=self._reap, name="mysql-reaper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(pymysql.Error):
            self._connection.close()

    @contextmanager
    def watching(self, session: Connection, name: str, timeout_s: float) -> Iterator[None]:
        thread_id = session.thread_id()
        self._running[thread_id] = _Watched(name, time.monotonic(), timeout_s + KILL_AFTER_S)
        try:
            yield
        finally:
            with self._lock:  # no KILL may reach the next statement
                self._running.pop(thread_id, None)

    def _locked(self) -> Connection:
        connection = self.connect()
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION wait_timeout = 31536000")
            cursor.execute(f"SELECT GET_LOCK('{PREFIX}{self.owner}', 0)")
        return connection

    def hold(self) -> None:
        """Take the lock again if it was lost. A restarted server has no locks, and the next owner that starts on it
        would remove our databases as orphans."""
        with self._lock:
            try:
                self._connection.ping(reconnect=False)
            except (pymysql.Error, OSError):
                self._connection = self._locked()

    def _reap(self) -> None:
        next_ping = time.monotonic() + _PING_S
        while not self._stop.wait(_WATCH_S):
            with contextlib.suppress(pymysql.Error, OSError):  # the server is gone, but it may come back
                self._end_overrun()
                if time.monotonic() > next_ping:
                    next_ping = time.monotonic() + _PING_S
                    self.hold()

    def _end_overrun(self) -> None:
        with self._lock:
            now = time.monotonic()
            slow = {i: each for i, each in list(self._running.items()) if now - each.started > _MEASURE_AFTER_S}
            for thread_id, watched in slow.items():
                if now - watched.started > watched.limit_s:
                    self._kill(thread_id, "")
            sizes = self.sizes_bytes(self._connection) if slow else {}
            for thread_id, watched in slow.items():
                if sizes.get(watched.database, 0) > MAX_DATABASE_BYTES and thread_id in self._running:
                    self._kill(thread_id, "QUERY")

    def _kill(self, thread_id: int, what: str) -> None:
        self._running.pop(thread_id, None)
        with contextlib.suppress(pymysql.OperationalError), self._connection.cursor() as cursor:
            cursor.execute(f"KILL {what} {thread_id}")


class Pool:
    """The slots on the server at `mysql://user:password@host:port`; its user may create databases and users.

    Raises:
        ValueError: the address cannot be read.
        BackendUnavailable: on entering, if the server does not answer or refuses that user.
    """

    def __init__(self, url: str) -> None:
        address = parse_address(url)
        self.host, self._port, self._user, self._password = address.host, address.port, address.user, address.password
        self._owner, self._numbers = secrets.token_hex(6), itertools.count(1)
        self._free: deque[Slot] = deque()
        self._all: list[Slot] = []
        self.reaper = ConnectionReaper(self._connect_admin, self._owner, self.sizes_bytes)
        self.catalogue = f"{PREFIX}{self._owner}_0"
        self._catalogue_lock, self._has_catalogue = threading.Lock(), False

    def open(self) -> None:
        with self.failures_named():
            self.reaper.start()
            slot = self._new_slot()
            self.is_mariadb = "mariadb" in slot.admin.get_server_info().lower()
            with slot.admin.cursor() as cursor:
                cursor.execute("SELECT @@hostname, @@datadir, @@max_allowed_packet")
                ((hostname, folder, max_packet_bytes),) = cursor.fetchall()
            self.private = {self.host: "localhost", str(hostname): "localhost", str(folder).strip("/"): "..."}
            # a packet's first byte names its command; a longer statement would be sent in several packets
            self.max_statement_bytes = min(int(max_packet_bytes), _MAX_PACKET_BYTES) - 1
            self._remove_orphans(slot.admin)
        self._free.append(slot)

    def close(self) -> None:
        self._free.clear()
        slots, self._all = self._all, []
        for slot in slots:
            hang_up(slot.agent)
            hang_up(slot.admin)
        with contextlib.suppress(pymysql.Error), self._connect_admin() as admin:
            for name in (self.catalogue, *(slot.name for slot in slots)):
                with contextlib.suppress(pymysql.Error):  # a call that ignores KILL holds it; the next start removes it
                    _remove(admin, name)
        self.reaper.close()

    def live_databases(self) -> int:
        with self.failures_named(), self._connect_admin() as admin:
            return len({slot.name for slot in self._all} & set(_databases(admin)))

    def make_catalogue(self) -> None:
        """Make the views that show an agent its information_schema with neutral names, unless they exist."""
        with self._catalogue_lock:
            if self._has_catalogue:
                return
            with self.failures_named(), self._connect_admin() as admin, admin.cursor() as cursor:
                cursor.execute(f"CREATE DATABASE IF NOT EXISTS {self.catalogue}")
                for table in _CATALOGUE_VIEWS:
                    cursor.execute(
                        "SELECT column_name, data_type FROM information_schema.columns "
                        "WHERE table_schema = 'information_schema' AND table_name = %s ORDER BY ordinal_position",
                        (table,),
                    )
                    query = self._catalogue_query(table, dict(cursor.fetchall()))
                    for view in (table, table.lower()):  # names in information_schema ignore case, other names do not
                        cursor.execute(
                            f"CREATE OR REPLACE SQL SECURITY INVOKER VIEW {self.catalogue}.{view} AS {query}"
                        )
            self._has_catalogue = True

    def _catalogue_query(self, table: str, types: dict[str, str]) -> str:
        columns = []
        for name, kind in types.items():
            shown = f"`{name}`"
            if name == "HOST":
                shown = "'localhost'"
            elif "blob" in kind.lower():  # the column holds a statement as it was sent
                shown = "NULL"
            elif "char" in kind.lower() or "text" in kind.lower():
                shown = f"REGEXP_REPLACE({shown}, '{PREFIX}[0-9a-f]+_[0-9]+', '{NEUTRAL_NAME}')"
                if name in _CASE_SENSITIVE:
                    shown = f"CONVERT({shown} USING utf8mb4) COLLATE utf8mb4_bin"
            columns.append(f"{shown} AS `{name}`")
        schema = next((name for name in types if name.endswith("_SCHEMA") or name == "SCHEMA_NAME"), None)
        where = f" WHERE `{schema}` <> '{self.catalogue}'" if schema else ""
        return f"SELECT {', '.join(columns)} FROM information_schema.{table}{where}"

    def sizes_bytes(self, admin: Connection) -> dict[str, int]:
        """The size on disk of each of our databases that holds anything, by name."""
        tablespaces = "innodb_sys_tablespaces" if self.is_mariadb else "innodb_tablespaces"
        with admin.cursor() as cursor:
            cursor.execute(  # unlike information_schema.tables, this waits for no lock
                f"SELECT SUBSTRING_INDEX(name, '/', 1), SUM(file_size) FROM information_schema.{tablespaces} "
                f"WHERE name LIKE '{PREFIX}{self._owner}\\_%/%' GROUP BY 1"
            )
            return {str(found): int(size) for found, size in cursor.fetchall()}

    def take(self) -> Slot:
        # MySQL 8's default ignores case and accents, but not trailing blanks
        collation = _COLLATION if self.is_mariadb else "utf8mb4_0900_ai_ci"
        while True:
            with self.failures_named():
                self.reaper.hold()
                try:
                    slot = self._free.pop()
                    stale = True
                except IndexError:
                    slot = self._new_slot()
                    stale = False
                try:
                    with slot.admin.cursor() as cursor:
                        cursor.execute(f"CREATE DATABASE {slot.name} CHARACTER SET utf8mb4 COLLATE {collation}")
                    return slot
                except pymysql.Error:
                    if not stale:
                        raise
                    hang_up(slot.agent)  # the server closed the session, so it is not used again

    def give_back(self, slot: Slot) -> None:
        # A slot that may not be empty is never used again.
        try:
            self.reset(slot)
            dropped, account = together(slot.admin, f"DROP DATABASE IF EXISTS {slot.name}", _show_user(slot))
            unchanged = not isinstance(dropped, pymysql.Error) and str(account) == slot.account
        except (pymysql.Error, OSError):
            unchanged = False
        if unchanged:
            self._free.append(slot)
        else:
            hang_up(slot.agent)
            threading.Thread(target=_remove_retired, args=(slot,), name="mysql-remove", daemon=True).start()

    def session(self, slot: Slot, *, typed: bool, statement_timeout_s: float) -> Connection:
        """The agent's session, set up to behave like MySQL on either server.

        A server that restarted during the episode would accept a new session, but may have lost the database. Therefore
        the administrator's session, which is as old as the episode, is checked first.
        """
        wanted = (typed, statement_timeout_s)
        with self.failures_named():
            if slot.agent is None or not slot.agent.open:
                slot.admin.ping(reconnect=False)
                self.end_session(slot)
                slot.agent = self._connect_agent(slot)
            if slot.settings != wanted:
                settings = self._settings(typed=typed, statement_timeout_s=statement_timeout_s)
                # MariaDB reads a database's character set only when a session changes to it from another database
                answers = together(slot.agent, "USE information_schema", f"USE {slot.name}", settings)
                if isinstance(answers[1], pymysql.Error):  # the agent dropped it, so none is selected from now on
                    slot.admin.ping(reconnect=False)
                    hang_up(slot.agent)
                    slot.agent = self._connect_agent(slot)
                    answers = together(slot.agent, settings)
                if isinstance(answers[-1], pymysql.Error):
                    raise answers[-1]
                setattr(slot.agent, "_read_timeout", statement_timeout_s + GIVE_UP_AFTER_S)  # noqa: B010
                slot.settings = wanted
        return slot.agent

    def reset_session(self, slot: Slot) -> Connection:
        # After the reset nothing is set, and perhaps no database is selected.
        self.reset(slot)
        if slot.agent is None or not slot.agent.open:
            self.end_session(slot)
            slot.agent = self._connect_agent(slot)
        return slot.agent

    def stop_reading(self, slot: Slot, cursor: object) -> None:
        if drop_rest(cursor):
            self.end_session(slot)

    def reset(self, slot: Slot, *, commit: bool = False) -> None:
        if slot.settings is None:  # the session has not been used since the last reset
            return
        slot.settings = None
        if slot.agent is None or not slot.agent.open:
            self.end_session(slot)  # a statement may still run on the server
            return
        try:
            (*_, done) = together(slot.agent, *["COMMIT"] * commit, RESET)
        except (pymysql.Error, OSError) as error:
            done = error
        if isinstance(done, Exception):
            self.end_session(slot)

    def end_session(self, slot: Slot) -> None:
        agent, slot.agent, slot.settings = slot.agent, None, None
        if agent is not None:
            with contextlib.suppress(pymysql.OperationalError), slot.admin.cursor() as cursor:
                cursor.execute(f"KILL {agent.thread_id()}")
            hang_up(agent)

    @contextmanager
    def failures_named(self) -> Iterator[None]:
        try:
            yield
        except (pymysql.Error, OSError) as error:
            raise BackendUnavailable(
                f"database server at {self.host}:{self._port}: {error}; it has to run and let {self._user!r} create "
                "databases and users"
            ) from error

    def _settings(self, *, typed: bool, statement_timeout_s: float) -> str:
        limit = f"max_execution_time = {round(statement_timeout_s * 1000)}"
        modes, collation = MODES, ""
        if self.is_mariadb:
            collation = f" COLLATE {_COLLATION}"
            # KILL takes effect once per join buffer, which may hold thousands of rows; before that, long joined texts
            # would fill gigabytes
            limit = f"max_statement_time = {statement_timeout_s}, SESSION join_cache_level = 0"
            # In strict mode MariaDB refuses UPDATE ... WHERE text = 1 if a text is no number, but MySQL compares them
            # (standard-278 and -295); in TEXT columns strict mode changes nothing else.
            modes = MODES if typed else MODES.replace("STRICT_TRANS_TABLES,", "")
        return (
            f"SET NAMES utf8mb4{collation}, SESSION sql_mode = '{modes}', SESSION autocommit = 1, "
            f"SESSION group_concat_max_len = {_GROUP_CONCAT_MAX_LEN}, SESSION {limit}"
        )

    def _new_slot(self) -> Slot:
        admin = self._connect_admin()
        slot = Slot(f"{PREFIX}{self._owner}_{next(self._numbers)}", secrets.token_hex(16), admin)
        with admin.cursor() as cursor:
            cursor.execute(f"CREATE USER {slot.name} IDENTIFIED BY '{slot.password}'")
            # an unescaped underscore stands for any character here, so databases of similar names could be made
            for rights, name in ((_GRANTS, slot.name), ("SELECT", self.catalogue)):
                cursor.execute(f"GRANT {rights} ON `{name.replace('_', chr(92) + '_')}`.* TO {slot.name}")
        (account,) = together(admin, _show_user(slot))
        if isinstance(account, pymysql.Error):
            raise account
        slot.account = str(account)
        self._all.append(slot)
        return slot

    def _remove_orphans(self, admin: Connection) -> None:
        with admin.cursor() as cursor:
            cursor.execute("SELECT user FROM mysql.user")
            names = {str(name) for (name,) in cursor.fetchall()} | set(_databases(admin))
            found = {name: match[1] for name in names if (match := _OURS.fullmatch(name))}
            for owner in set(found.values()) - {self._owner}:
                cursor.execute(f"SELECT IS_FREE_LOCK('{PREFIX}{owner}')")
                if cursor.fetchall() == ((1,),):
                    for name in (name for name, its in found.items() if its == owner):
                        with contextlib.suppress(pymysql.Error):  # another process removes it as well
                            _remove(admin, name)

    def _connect_admin(self) -> Connection:
        timeout = f"SET SESSION lock_wait_timeout = {LOCK_WAIT_S}"
        return self._connect(self._user, self._password, ADMIN_TIMEOUT_S, init_command=timeout)

    def _connect_agent(self, slot: Slot) -> Connection:
        try:
            return self._connect(slot.name, slot.password, ADMIN_TIMEOUT_S)
        except pymysql.OperationalError:  # the agent may have changed the user's password
            with slot.admin.cursor() as cursor:
                cursor.execute(f"ALTER USER {slot.name} IDENTIFIED BY '{slot.password}'")
            return self._connect(slot.name, slot.password, ADMIN_TIMEOUT_S)

    def _connect(self, user: str, password: str, read_timeout_s: float, **more: Any) -> Connection:
        timeouts = {"read_timeout": read_timeout_s, "write_timeout": ADMIN_TIMEOUT_S}
        return open_connection(
            self.host, port=self._port, user=user, password=password, sql_mode=MODES, **timeouts, **more
        )


def open_connection(host: str, **arguments: Any) -> Connection:
    return pymysql.connect(
        host=host,
        charset="utf8mb4",
        autocommit=True,
        local_infile=False,
        connect_timeout=CONNECT_TIMEOUT_S,
        ssl_disabled=host in _LOOPBACK,  # a TLS context costs 44 ms (measured)
        **arguments,
    )


def _show_user(slot: Slot) -> str:
    return f"SHOW CREATE USER {slot.name}"


def _databases(admin: Connection) -> list[str]:
    with admin.cursor() as cursor:
        cursor.execute("SHOW DATABASES")
        return [str(name) for (name,) in cursor.fetchall()]


def _remove(admin: Connection, name: str) -> None:
    with admin.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {name}")
        cursor.execute(f"DROP USER IF EXISTS {name}")


def _remove_retired(slot: Slot) -> None:
    # A slot that could not be emptied goes once nothing runs in it any more.
    for _ in range(_REMOVE_ATTEMPTS):
        try:
            _remove(slot.admin, slot.name)
            break
        # the database is still locked, or the connection was closed while it was read from
        except (pymysql.Error, OSError, AttributeError, ValueError):
            if not slot.admin.open:  # the server is gone, or the pool was closed and removed the database
                break
    hang_up(slot.admin)


def drop_rest(cursor: Any) -> bool:
    """Let pymysql not read the rest of a result, and say whether there is one.

    The server stops sending it only when the session ends. pymysql has no method for this, and would read from the
    closed socket.
    """
    rest, cursor.connection = cursor._result, None
    if rest is None or not rest.unbuffered_active:
        return False
    rest.unbuffered_active, rest.connection = False, None
    return True


def reset_connection(connection: Connection) -> None:
    """Make the session as it was after connecting. pymysql has no method for this command.

    Raises:
        pymysql.Error, OSError: the session has ended.
    """
    (done,) = together(connection, RESET)
    if isinstance(done, pymysql.Error):
        raise done


def together(connection: Connection, *commands: str | bytes) -> list[object]:
    """Send statements at once and read their answers: one wait instead of several. pymysql has no method for this.

    The server carries them out one by one, also after one that fails. None may return rows without end.

    Args:
        commands: statements of less than 16 MiB, or `RESET`.
    Returns:
        For each command its rows, or its error.
    Raises:
        pymysql.Error, OSError: the session has ended.
    """
    session: Any = connection
    if not connection.open:
        raise pymysql.InterfaceError(0, "the connection is closed")
    sent = [each.encode() if isinstance(each, str) else each for each in commands]
    packets = [bytes([_RESET_CONNECTION]) if each == RESET else bytes([COMMAND.COM_QUERY]) + each for each in sent]
    session._write_bytes(b"".join(struct.pack("<i", len(packet)) + packet for packet in packets))
    answers: list[Any] = []
    for _ in packets:
        session._next_seq_id = 1
        try:
            session._read_query_result()
            answers.append(session._result.rows)
        except pymysql.Error as error:
            if not connection.open:
                raise
            answers.append(error)
    session._result = None
    return answers


def hang_up(connection: Connection | None) -> None:
    if connection is not None and connection.open:
        with contextlib.suppress(pymysql.Error, OSError):
            connection.close()

"""Finds a user's own databases: one SQLite file, a folder with one per `db_id`, or one database on a MySQL server.

None of them is written to. `Databases` and `ServerDatabase` have the same methods; only a file has `open_view`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from agentgrpo.nearest import did_you_mean
from dbbench_adapter.backends.mysql.read_only import AccountError, ReadOnlyServer
from dbbench_adapter.backends.sqlite.sandbox import Watchdog
from dbbench_adapter.datatypes import DatabaseError
from sql_agent.text_to_sql.changes import ChangeableDatabase
from sql_agent.text_to_sql.sandbox import UserDatabase
from sql_agent.text_to_sql.schema import FileSchema, TableInfo, read_schema, said_unreadable
from sql_agent.text_to_sql.server import ServerSession, read_server_schema

Dialect = Literal["sqlite", "mysql"]
SUFFIXES = (".sqlite", ".sqlite3", ".db")
"""The first that a folder has is its database, as in the layout of Spider and BIRD; the others are stray files."""


class Databases:
    """Maps ids to SQLite files.

    Args:
        path: a file, whose id is its stem; or a folder in the layout of Spider and BIRD, `DB_ID/DB_ID.sqlite` in it or
            in its subfolder `database`.
    Raises:
        DatabaseError: there is no SQLite database.
    """

    dialect: ClassVar[Dialect] = "sqlite"
    engine: ClassVar[str] = "SQLite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = _files(path)
        self._watchdog = Watchdog()
        self._schemas: dict[str, FileSchema] = {}

    @property
    def ids(self) -> Sequence[str]:
        return list(self.files)

    def db_id(self, name: str | None) -> str:
        """Return the id of a database.

        Args:
            name: what a row calls it; None if it names none. A file is the database, whatever rows call it.
        Raises:
            DatabaseError: there is no such database, or there are several and none is named.
        """
        if self.path.is_file() or (name is None and len(self.files) == 1):
            return next(iter(self.files))
        if name is None:
            raise DatabaseError(f"no db_id, and {self.path} holds {len(self.files)} databases: name one of them")
        if name not in self.files:
            known = ", ".join(list(self.files)[:5]) + (", ..." if len(self.files) > 5 else "")
            meant = did_you_mean(name, list(self.files))
            raise DatabaseError(f"no database {name!r} in {self.path}, which has {known}{meant}")
        return name

    def schema(self, db_id: str) -> tuple[TableInfo, ...]:
        """Return the tables and views that can be read.

        Raises:
            DatabaseError: the file cannot be read, or has no table.
        """
        return self._schema(db_id).tables

    def _schema(self, db_id: str) -> FileSchema:
        if db_id not in self._schemas:
            self._schemas[db_id] = read_schema(self.files[db_id])
        return self._schemas[db_id]

    def unreadable_tables(self, db_id: str) -> dict[str, str]:
        """Return what of the schema no statement can use (`FileSchema.unreadable`), each with the reason."""
        return self._schema(db_id).unreadable

    def unreadable(self) -> dict[str, str]:
        """Return the databases that cannot be read, each with the reason; a run without questions about them goes on.

        Raises:
            DatabaseError: none can be read.
        """
        faults = dict[str, str]()
        for db_id in self.files:
            try:
                self.schema(db_id)
            except DatabaseError as error:
                faults[db_id] = str(error)
        if len(faults) == len(self.files):
            raise DatabaseError(next(iter(faults.values())))
        return faults

    def check(self) -> None:
        """Check that there is a database that can be read.

        Raises:
            DatabaseError: there is none.
        """
        self.unreadable()

    def open(self, db_id: str, *, statement_timeout_s: float) -> UserDatabase:
        """Open the database for one episode, or for a judge.

        Raises:
            BackendUnavailable: the file cannot be opened.
        """
        self._watchdog.ensure_alive()
        return UserDatabase(self.files[db_id], self._watchdog, statement_timeout_s=statement_timeout_s)

    def open_view(self, db_id: str, *, statement_timeout_s: float) -> ChangeableDatabase:
        """Open a view of the database that may be changed.

        Raises:
            BackendUnavailable: the file cannot be opened.
        """
        self._watchdog.ensure_alive()
        return ChangeableDatabase(self.files[db_id], self._watchdog, statement_timeout_s=statement_timeout_s)

    def summary(self) -> str:
        """Describe the databases in a line, with what of them is not read.

        Raises:
            DatabaseError: none can be read.
        """
        faults = self.unreadable()
        schemas = {db_id: self._schema(db_id) for db_id in self.files if db_id not in faults}
        tables = sum(len(schema.tables) for schema in schemas.values())
        size_mib = sum(file.stat().st_size for file in self.files.values()) / 1024**2
        left_out = [f"{said_unreadable(found.unreadable)} of {id}" for id, found in schemas.items() if found.unreadable]
        left_out += [f"{id} ({fault.partition('; ')[0]})" for id, fault in faults.items()]
        left_out += [f"{file.name}, since {self.files[db_id].name} is there" for db_id, file in self._strays()]
        said = f"{len(schemas)} SQLite, {tables} tables and views, {size_mib:,.1f} MiB"
        return said + (f"; left out: {'; '.join(left_out)}" if left_out else "")

    def _strays(self) -> Iterator[tuple[str, Path]]:
        """Yield the files that have a database's name with another suffix."""
        if not self.path.is_file():
            for db_id, file in self.files.items():
                others = (file.with_name(f"{db_id}{suffix}") for suffix in SUFFIXES)
                yield from ((db_id, other) for other in others if other != file and other.is_file())

    def close(self) -> None:
        self._watchdog.stop()


class ServerDatabase:
    """Holds one database on a MySQL or MariaDB server, `mysql://user:password@host:port/database`.

    Raises:
        DatabaseError: the address cannot be read.
    """

    dialect: ClassVar[Dialect] = "mysql"
    engine: ClassVar[str] = "MySQL"

    def __init__(self, spec: str) -> None:
        try:
            self._server = ReadOnlyServer(spec)
        except ValueError as error:
            raise DatabaseError(str(error)) from None
        self._schema: tuple[TableInfo, ...] | None = None

    @property
    def ids(self) -> Sequence[str]:
        return [self._server.address.database]

    def db_id(self, name: str | None) -> str:
        """Return the database's name, whatever a row calls it."""
        return self.ids[0]

    def schema(self, db_id: str) -> tuple[TableInfo, ...]:
        """Return the tables and views.

        Raises:
            DatabaseError: the account may do more than read, or there is no table.
            BackendUnavailable: the server does not answer.
        """
        if self._schema is None:
            try:
                self._schema = read_server_schema(self._server)
            except AccountError as error:
                raise DatabaseError(str(error)) from None
        return self._schema

    def check(self) -> None:
        """Check that the database can be read, and do no more than read; see `schema` for errors."""
        self.schema(self.ids[0])

    def open(self, db_id: str, *, statement_timeout_s: float) -> ServerSession:
        """Return what runs an episode's statements."""
        return ServerSession(self._server, statement_timeout_s)

    def summary(self) -> str:
        """Describe the database in a line."""
        tables = len(self.schema(self.ids[0]))
        return f"{self._server.version()}, {tables} tables and views, an account that may only read"

    def close(self) -> None:
        self._server.close()


def open_databases(place: Path | str) -> Databases | ServerDatabase:
    """Return the databases at a path or an address.

    Raises:
        DatabaseError: there is none.
    """
    return ServerDatabase(place) if isinstance(place, str) else Databases(place)


def _files(path: Path) -> dict[str, Path]:
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(16)
        if head and head != b"SQLite format 3\0":
            raise DatabaseError(f"{path} is no SQLite database; expected such a file, or a folder DB_ID/DB_ID.sqlite")
        return {path.stem: path}
    if not path.is_dir():
        expected = "a SQLite file, or a folder with DB_ID/DB_ID.sqlite"
        raise DatabaseError(f"{path} does not exist; expected {expected}{did_you_mean(path)}")
    for folder in (path, path / "database"):
        found = {
            inner.name: file
            for inner in sorted(folder.glob("*/"))
            for suffix in reversed(SUFFIXES)
            if (file := inner / f"{inner.name}{suffix}").is_file()
        }
        if found:
            return found
    expected = "DB_ID/DB_ID.sqlite in it, or in its subfolder `database`"
    raise DatabaseError(f"{path} holds no database; expected {expected}{_found_near(path)}")


def _found_near(path: Path) -> str:
    """Return what a message adds about databases that lie in another place."""
    for suffix in SUFFIXES:
        if file := next(iter(sorted(path.glob(f"*{suffix}"))), None):
            return f"; it has {file.name}: give that file, or move each into a folder of its name"
        if file := next(iter(sorted(path.glob(f"*/*/*{suffix}"))), None):
            return f"; give {file.parent.parent}, which has {file.parent.name}/{file.name}"
    return ""

"""Finds a user's own databases: one SQLite file, or a folder with one per `db_id`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from agentgrpo.nearest import did_you_mean
from dbbench_adapter.datatypes import DatabaseError
from dbbench_adapter.engines.engine import Databases
from dbbench_adapter.engines.schema import TableInfo, said_unreadable
from dbbench_adapter.engines.sqlite import SQLITE, faults
from dbbench_adapter.engines.sqlite.sandbox import Watchdog
from dbbench_adapter.engines.sqlite.schema import FileSchema, read_schema
from dbbench_adapter.engines.sqlite.user_database import ChangeableDatabase, UserDatabase

# The first that a folder has is its database, as in the layout of Spider and BIRD; the others are stray files.
SUFFIXES = (".sqlite", ".sqlite3", ".db")


class DatabaseFiles(Databases):
    """Maps ids to SQLite files.

    Args:
        path: a file, whose id is its stem; or a folder in the layout of Spider and BIRD, `DB_ID/DB_ID.sqlite` in it or
            in its subfolder `database`.
    Raises:
        DatabaseError: there is no SQLite database.
    """

    engine = SQLITE
    changeable = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = _files(path)
        self._watchdog = Watchdog()
        self._schemas: dict[str, FileSchema] = {}

    @property
    def ids(self) -> Sequence[str]:
        return list(self.files)

    def db_id(self, name: str | None) -> str:
        db_id = self._named(name)
        self.schema(db_id)  # a broken file is an error of the questions about it alone
        return db_id

    def _named(self, name: str | None) -> str:
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
        return self._schema(db_id).tables

    def _schema(self, db_id: str) -> FileSchema:
        if db_id not in self._schemas:
            self._schemas[db_id] = read_schema(self.files[db_id])
        return self._schemas[db_id]

    def unreadable(self, db_id: str) -> dict[str, str]:
        return self._schema(db_id).unreadable

    def _broken(self) -> dict[str, str]:
        """Raises DatabaseError: none can be read."""
        broken = dict[str, str]()
        for db_id in self.files:
            try:
                self.schema(db_id)
            except DatabaseError as error:
                broken[db_id] = str(error)
        if len(broken) == len(self.files):
            raise DatabaseError(next(iter(broken.values())))
        return broken

    def check(self) -> None:
        self._broken()

    def open(self, db_id: str, *, statement_timeout_s: float) -> UserDatabase:
        self._watchdog.ensure_alive()
        return UserDatabase(self.files[db_id], self._watchdog, statement_timeout_s=statement_timeout_s)

    def open_view(self, db_id: str, *, statement_timeout_s: float) -> ChangeableDatabase:
        self._watchdog.ensure_alive()
        return ChangeableDatabase(self.files[db_id], self._watchdog, statement_timeout_s=statement_timeout_s)

    def explained(self, error: str, db_id: str, query: str) -> str:
        return faults.explained(error, query, self.files[db_id], self.schema(db_id))

    def is_to_blame(self, fault: str) -> bool:
        return faults.of_database(fault)

    def summary(self) -> str:
        broken = self._broken()
        schemas = {db_id: self._schema(db_id) for db_id in self.files if db_id not in broken}
        tables = sum(len(schema.tables) for schema in schemas.values())
        size_mib = sum(file.stat().st_size for file in self.files.values()) / 1024**2
        left_out = [f"{said_unreadable(found.unreadable)} of {id}" for id, found in schemas.items() if found.unreadable]
        left_out += [f"{id} ({fault.partition('; ')[0]})" for id, fault in broken.items()]
        left_out += [f"{file.name}, since {self.files[db_id].name} is there" for db_id, file in self._strays()]
        said = f"{len(schemas)} SQLite, {tables} tables and views, {size_mib:,.1f} MiB"
        return said + (f"; left out: {'; '.join(left_out)}" if left_out else "")

    def _strays(self) -> Iterator[tuple[str, Path]]:
        if not self.path.is_file():
            for db_id, file in self.files.items():
                others = (file.with_name(f"{db_id}{suffix}") for suffix in SUFFIXES)
                yield from ((db_id, other) for other in others if other != file and other.is_file())

    def close(self) -> None:
        self._watchdog.stop()


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
    for suffix in SUFFIXES:
        if file := next(iter(sorted(path.glob(f"*{suffix}"))), None):
            return f"; it has {file.name}: give that file, or move each into a folder of its name"
        if file := next(iter(sorted(path.glob(f"*/*/*{suffix}"))), None):
            return f"; give {file.parent.parent}, which has {file.parent.name}/{file.name}"
    return ""

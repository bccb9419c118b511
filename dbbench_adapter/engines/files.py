"""Databases in files: one file, or a folder with one per `db_id` in the layout of Spider and BIRD."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from agentgrpo.spelling import did_you_mean
from dbbench_adapter.datatypes import DatabaseError
from dbbench_adapter.engines.engine import Databases, TableInfo, format_unreadable


@dataclass(frozen=True)
class FileSchema:
    tables: tuple[TableInfo, ...]
    unreadable: dict[str, str]
    """What is left out, such as tables that no statement can read, each with the reason."""


class FileDatabases(Databases):
    """Maps ids to files.

    Args:
        path: a file, whose id is its stem; or a folder with `DB_ID/DB_ID.SUFFIX` in it or in its subfolder `database`.
    Raises:
        DatabaseError: there is no database of this kind.
    """

    suffixes: ClassVar[Sequence[str]]
    """The first that a folder has is its database; the others are stray files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = self._find(path)
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

    @abstractmethod
    def _is_database(self, head: bytes) -> bool:
        """Whether a file that begins with these 16 bytes, or with fewer, may be one."""

    @abstractmethod
    def _read_schema(self, file: Path) -> FileSchema:
        """See `schema` for errors."""

    def schema(self, db_id: str) -> tuple[TableInfo, ...]:
        return self._schema(db_id).tables

    def _schema(self, db_id: str) -> FileSchema:
        if db_id not in self._schemas:
            self._schemas[db_id] = self._read_schema(self.files[db_id])
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

    def summary(self) -> str:
        broken = self._broken()
        schemas = {db_id: self._schema(db_id) for db_id in self.files if db_id not in broken}
        tables = sum(len(schema.tables) for schema in schemas.values())
        size_mib = sum(file.stat().st_size for file in self.files.values()) / 1024**2
        left_out = [
            f"{format_unreadable(found.unreadable)} of {id}" for id, found in schemas.items() if found.unreadable
        ]
        left_out += [f"{id} ({fault.partition('; ')[0]})" for id, fault in broken.items()]
        left_out += [f"{file.name}, since {self.files[db_id].name} is there" for db_id, file in self._strays()]
        said = f"{len(schemas)} {self.engine.name}, {tables} tables and views, {size_mib:,.1f} MiB"
        return said + (f"; left out: {'; '.join(left_out)}" if left_out else "")

    def _strays(self) -> Iterator[tuple[str, Path]]:
        if not self.path.is_file():
            for db_id, file in self.files.items():
                others = (file.with_name(f"{db_id}{suffix}") for suffix in self.suffixes)
                yield from ((db_id, other) for other in others if other != file and other.is_file())

    def _find(self, path: Path) -> dict[str, Path]:
        form = f"DB_ID/DB_ID{self.suffixes[0]}"
        if path.is_file():
            with path.open("rb") as file:
                head = file.read(16)
            if not self._is_database(head):
                raise DatabaseError(
                    f"{path} is no {self.engine.name} database; expected such a file, or a folder {form}"
                )
            return {path.stem: path}
        if not path.is_dir():
            expected = f"a {self.engine.name} file, or a folder with {form}"
            raise DatabaseError(f"{path} does not exist; expected {expected}{did_you_mean(path)}")
        found = databases_of(path, self.suffixes)
        if not found:
            expected = f"{form} in it, or in its subfolder `database`"
            raise DatabaseError(f"{path} holds no database; expected {expected}{self._found_near(path)}")
        return found

    def _found_near(self, path: Path) -> str:
        for suffix in self.suffixes:
            if file := next(iter(sorted(path.glob(f"*{suffix}"))), None):
                return f"; it has {file.name}: give that file, or move each into a folder of its name"
            if file := next(iter(sorted(path.glob(f"*/*/*{suffix}"))), None):
                return f"; give {file.parent.parent}, which has {file.parent.name}/{file.name}"
        return ""


def databases_of(path: Path, suffixes: Sequence[str]) -> dict[str, Path]:
    """The databases of a folder by their ids."""
    for folder in (path, path / "database"):
        found = {
            inner.name: file
            for inner in sorted(folder.glob("*/"))
            for suffix in reversed(suffixes)
            if (file := inner / f"{inner.name}{suffix}").is_file()
        }
        if found:
            return found
    return {}

"""Finds a user's own databases: one SQLite file, or a folder with one per `db_id`. None of them is written to."""

from __future__ import annotations

from pathlib import Path

SUFFIXES = (".sqlite", ".sqlite3", ".db")


class DatabaseError(ValueError):
    """Says that a database cannot be used; the message says why and what to do."""


class Databases:
    """Maps ids to SQLite files.

    Args:
        path: a file, whose id is its stem; or a folder in the layout of Spider and BIRD, `DB_ID/DB_ID.sqlite` in it or
            in its subfolder `database`.
    Raises:
        DatabaseError: there is no SQLite database.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = _files(path)

    def file(self, db_id: str | None) -> Path:
        """Return the file of a database.

        Args:
            db_id: None if a row names none, which is allowed if there is only one database.
        Raises:
            DatabaseError: there is no such database, or there are several and none is named.
        """
        if db_id is None and len(self.files) == 1:
            return next(iter(self.files.values()))
        if db_id is None:
            raise DatabaseError(f"no db_id, and {self.path} holds {len(self.files)} databases: name one of them")
        if db_id not in self.files:
            known = ", ".join(list(self.files)[:5]) + (", ..." if len(self.files) > 5 else "")
            raise DatabaseError(f"no database {db_id!r} in {self.path}, which has {known}")
        return self.files[db_id]


def _files(path: Path) -> dict[str, Path]:
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(16)
        if head and head != b"SQLite format 3\0":
            raise DatabaseError(f"{path} is no SQLite database; expected such a file, or a folder DB_ID/DB_ID.sqlite")
        return {path.stem: path}
    if not path.is_dir():
        raise DatabaseError(f"{path} does not exist; expected a SQLite file, or a folder with DB_ID/DB_ID.sqlite")
    for folder in (path, path / "database"):
        found = {
            inner.name: file
            for inner in sorted(folder.glob("*/"))
            for suffix in SUFFIXES
            if (file := inner / f"{inner.name}{suffix}").is_file()
        }
        if found:
            return found
    raise DatabaseError(f"{path} holds no database; expected DB_ID/DB_ID.sqlite in it, or in its subfolder `database`")

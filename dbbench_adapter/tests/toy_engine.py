"""An engine as somebody would add it: the CSV files of a folder are the tables of one database."""

import csv
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from dbbench_adapter.engines.engine import Databases, Engine
from dbbench_adapter.engines.sqlite import tokens
from dbbench_adapter.engines.sqlite.databases import DatabaseFiles
from dbbench_adapter.engines.sqlite.schema import quoted


class Csv(Engine):
    name = "CSV"
    dialect = "sqlite"
    scheme = "csv://"
    places = "csv:///FOLDER"

    def tokens(self, sql):
        return tokens(sql)

    def open_databases(self, place):
        return CsvFolder(Path(place.removeprefix(self.scheme)))


CSV = Csv()


class CsvFolder(Databases):
    engine = CSV

    def __init__(self, folder):
        self._copy = tempfile.TemporaryDirectory()
        path = Path(self._copy.name) / f"{folder.name}.sqlite"
        with closing(sqlite3.connect(path)) as connection, connection:
            for file in sorted(folder.glob("*.csv")):
                header, *rows = csv.reader(file.open(encoding="utf-8"))
                connection.execute(f"CREATE TABLE {quoted(file.stem)} ({', '.join(map(quoted, header))})")
                connection.executemany(f"INSERT INTO {quoted(file.stem)} VALUES ({', '.join('?' * len(header))})", rows)
        self._files = DatabaseFiles(path)

    @property
    def ids(self):
        return self._files.ids

    def schema(self, db_id):
        return self._files.schema(db_id)

    def open(self, db_id, *, statement_timeout_s):
        return self._files.open(db_id, statement_timeout_s=statement_timeout_s)

    def summary(self):
        return f"{len(self.schema(self.ids[0]))} CSV files"

    def close(self):
        self._files.close()
        self._copy.cleanup()

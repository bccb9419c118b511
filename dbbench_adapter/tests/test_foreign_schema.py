"""Which entries of a schema this SQLite cannot parse, each by its kind and name."""

import sqlite3
from contextlib import closing

import pytest

from dbbench_adapter.engines.sqlite.foreign_schema import Unparsed, load_schema

SCHEMA = """
    CREATE TABLE "t" (a); CREATE TABLE "u" (a); CREATE TABLE "f(x) - y" (a); CREATE TABLE "f" (a);
    CREATE TRIGGER "t" AFTER INSERT ON u BEGIN SELECT 1; END;
    CREATE TRIGGER "u" AFTER INSERT ON u BEGIN SELECT 1; END;
"""
ERROR = 'near "NEW_WORD": syntax error'


def unparsed(tmp_path, *broken):
    file = tmp_path / "a.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.executescript(SCHEMA)
        connection.execute("PRAGMA writable_schema = ON")
        for kind, name in broken:
            change = "UPDATE sqlite_master SET sql = 'CREATE NEW_WORD' WHERE type = ? AND name = ?"
            assert connection.execute(change, (kind, name)).rowcount == 1
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        return load_schema(connection)


def test_a_whole_schema_has_no_such_entry(tmp_path):
    assert unparsed(tmp_path) == ()


@pytest.mark.parametrize(("name", "table"), [("t", "u"), ("u", "u")])
def test_a_trigger_with_the_name_of_a_table_is_told_from_it(tmp_path, name, table):
    assert unparsed(tmp_path, ("trigger", name)) == (Unparsed("trigger", name, table, ERROR),)


def test_a_table_with_the_name_of_a_trigger_is_told_from_it(tmp_path):
    assert unparsed(tmp_path, ("table", "t")) == (Unparsed("table", "t", "t", ERROR),)


def test_a_table_and_a_trigger_with_one_name_are_both_found(tmp_path):
    found = unparsed(tmp_path, ("table", "t"), ("trigger", "t"))
    assert found == (Unparsed("table", "t", "t", ERROR), Unparsed("trigger", "t", "u", ERROR))


def test_a_bracket_in_a_name_belongs_to_it(tmp_path):
    found = unparsed(tmp_path, ("table", "f(x) - y"), ("table", "f"))
    assert found == (Unparsed("table", "f(x) - y", "f(x) - y", ERROR), Unparsed("table", "f", "f", ERROR))

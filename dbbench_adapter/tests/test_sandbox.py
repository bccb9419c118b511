"""SQLite's sandbox beyond what single hostile statements show: neighbours, what is counted, what may be called."""

import sqlite3
import threading
import time

import pytest
import sqlglot

from dbbench_adapter.backends import sqlite_sandbox
from dbbench_adapter.backends.clock import StatementTimeout, check, remaining_s, time_limit
from dbbench_adapter.backends.functions.patterns import like
from dbbench_adapter.backends.mysql_limits import blows_up
from dbbench_adapter.backends.sqlite_sandbox import Guard, allows
from dbbench_adapter.types import Column, Table

T = Table("t", (Column("a"), Column("b", "INT")), tuple((f"n{i}", i) for i in range(30)))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT REPEAT('x', 50000) REGEXP '(x+x+)+[yz]' FROM t",
        "SELECT COUNT(*) FROM t a, t b, t c, t d, t e, t f",
    ],
)
def test_a_hostile_statement_does_not_hold_up_the_neighbours(sqlite, sql):
    with (
        sqlite.open([T], typed=True, statement_timeout_s=1.0) as hog,
        sqlite.open([T], typed=True) as neighbour,
    ):
        thread = threading.Thread(target=hog.run, args=(sql,))
        thread.start()
        time.sleep(0.1)
        started = time.monotonic()
        assert neighbour.run("SELECT MAX(b) FROM t").rows == ((29,),)
        elapsed_s = time.monotonic() - started
        assert thread.is_alive() or "REGEXP" in sql  # a regular expression has half a second
        thread.join()
    assert elapsed_s < 0.3


def test_a_statement_that_ends_late_leaves_the_next_one_its_whole_time(sqlite):
    with sqlite.open([T], typed=True, statement_timeout_s=0.3) as database:
        for _ in range(5):
            assert database.run("SELECT COUNT(*) FROM t a, t b, t c, t d, t e, t f").error.startswith("3024")
            assert database.run("SELECT COUNT(*) FROM t a, t b").rows == ((900,),)  # 30 x 30


def test_the_guard_counts_steps():
    guard = Guard(max_opcodes=5_000)
    assert [guard.exceeded() for _ in range(3)] == [False, False, True]  # 2,000, 4,000, 6,000


def test_a_statement_ended_for_memory_says_so(sqlite, monkeypatch):
    grown = iter(range(0, 10**12, 2**28))  # of the process, by whomever: 256 MiB at each look
    monkeypatch.setattr(sqlite_sandbox, "_memory_bytes", lambda: next(grown))
    with sqlite.open([T], typed=True) as database:
        assert database.run("SELECT COUNT(*) FROM t a, t b, t c").error == "1038 (HY001): Out of memory"
        monkeypatch.undo()
        assert database.run("SELECT COUNT(*) FROM t a, t b").rows == ((900,),)


@pytest.mark.parametrize(
    ("action", "first", "second", "allowed"),
    [
        (sqlite3.SQLITE_FUNCTION, None, "SUBSTRING", True),
        (sqlite3.SQLITE_FUNCTION, None, "load_extension", False),
        (sqlite3.SQLITE_FUNCTION, None, "zeroblob", False),
        (sqlite3.SQLITE_READ, "t", "a", True),
        (sqlite3.SQLITE_READ, "json_each", "value", False),
        (sqlite3.SQLITE_READ, "pragma_database_list", "file", False),
        (sqlite3.SQLITE_ATTACH, "x", None, False),
        (sqlite3.SQLITE_PRAGMA, "x", None, False),
        (sqlite3.SQLITE_CREATE_TRIGGER, "x", None, False),
        (sqlite3.SQLITE_CREATE_VTABLE, "x", None, False),
    ],
)
def test_what_an_agent_may_do(action, first, second, allowed):
    assert allows(action, first, second, altering=False) is allowed


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        # c1 uses c0 twice: 2 tables; c2 uses c1 twice: 2 x (1 + 2) = 6; the query: 1 + 6
        ("WITH c0 AS (SELECT 1), c1 AS (SELECT 1 FROM c0 a, c0 b) SELECT 1 FROM c1 a, c1 b", False),
        # doubling eight times passes 200
        (
            "WITH c0 AS (SELECT 1)"
            + "".join(f", c{i + 1} AS (SELECT 1 FROM c{i} a, c{i} b)" for i in range(8))
            + " SELECT 1 FROM c8",
            True,
        ),
        # 10 x 10 x 10 x 10 = 10,000 columns, then 100,000
        ("SELECT " + f"{'+'.join('c' * 10)} AS c FROM (SELECT " * 4 + "c FROM t" + ") x" * 4, False),
        ("SELECT " + f"{'+'.join('c' * 10)} AS c FROM (SELECT " * 5 + "c FROM t" + ") x" * 5, True),
        ("SELECT " + ", ".join(["c"] * 300) + " FROM (SELECT c FROM t) x", False),
    ],
)
def test_what_doubles_is_counted(sql, expected):
    assert blows_up(sqlglot.parse_one(sql, read="mysql")) is expected


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("a%", "abc", 1),
        ("%c", "abc", 1),
        ("%b%", "abc", 1),
        ("a_c", "abc", 1),
        ("_", "", 0),
        ("%", "", 1),
        ("", "", 1),
        ("ab%ba", "aba", 0),  # the ends may not overlap
        ("a\\%", "a%", 1),
        ("a\\%", "ab", 0),
        ("%a_c%", "xxabcxx", 1),
        ("%aa%aa%", "aaa", 0),
        ("A%É", "abce", 1),  # case and accents do not count
        ("a\\", "a\\", 1),
    ],
)
def test_like(pattern, text, expected):
    assert like(pattern, text) == expected


def test_the_clock_stops_only_what_is_late():
    check()
    with time_limit(0.01):
        check()
        assert 0 < remaining_s(5.0) <= 0.01
        time.sleep(0.02)
        with pytest.raises(StatementTimeout):
            check()
        assert remaining_s(5.0) > 0  # a library would read 0 as no limit
    check()

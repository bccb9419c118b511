"""What a column of a declared type takes in a change, on both engines; values worked out by hand."""

import re

import pytest

from dbbench_adapter.datatypes import Column, Table
from dbbench_adapter.dialect.translate import translate
from dbbench_adapter.engines import TableError, TableState
from dbbench_adapter.tests.agent_sql import is_left_out

COLUMNS = {
    "id": "INT", "w": "VARCHAR(5)", "k": "CHAR(3)", "i": "INT", "s": "TINYINT",
    "c": "DECIMAL(5,2)", "f": "DOUBLE", "d": "DATE", "m": "DATETIME", "x": "TEXT",
}  # fmt: skip
T = Table(
    "t",
    tuple(Column(name, declared) for name, declared in COLUMNS.items()),
    ((1, "Plum", "abc", 4, 1, 7.5, 2.5, "2021-03-01", "2021-03-01 10:05:09", "x"),),
)
TOO_LONG, OUT_OF_RANGE, TRUNCATED, NO_NUMBER, NO_DATE = "1406", "1264", "1265", "1366", "1292"


@pytest.fixture
def database(backend):
    with backend.open([T], typed=True) as database:
        yield database


def stored(database, column):
    ((cell,),) = database.run(f"SELECT {column} FROM t").rows
    return str(cell)


CHANGES = [
    ("w", "'abcde'", "abcde"),
    ("w", "'äöüßé'", "äöüßé"),  # characters, not bytes
    ("w", "'abcde   '", "abcde"),  # blanks that are too many are cut
    ("w", "'abcdef'", TOO_LONG),
    ("w", "123456", TOO_LONG),
    ("w", "1.50", "1.50"),
    ("w", "CONCAT(w, w)", TOO_LONG),
    ("w", "d", TOO_LONG),
    ("k", "'ab '", "ab"),
    ("k", "'abcd'", TOO_LONG),
    ("i", "2147483647", "2147483647"),
    ("i", "2147483648", OUT_OF_RANGE),
    ("i", "i * 1000000000", OUT_OF_RANGE),
    ("i", "'12'", "12"),
    ("i", "'12.6'", "13"),
    ("i", "2.5", "3"),  # a decimal rounds halves away from zero
    ("i", "5 / 2", "3"),
    ("i", "f", "2"),  # a double to the even neighbour
    ("i", "'abc'", NO_NUMBER),
    ("i", "''", NO_NUMBER),
    ("i", "'12abc'", TRUNCATED),
    ("i", "d", "20210301"),
    ("i", "TRUE", "1"),
    ("i", "'1e500'", OUT_OF_RANGE),
    ("i", "REPEAT('9', 500)", OUT_OF_RANGE),
    ("s", "128", OUT_OF_RANGE),
    ("c", "1.005", "1.01"),
    ("c", "'1.239'", "1.24"),
    ("c", "1 / 3", "0.33"),
    ("c", "999.994", "999.99"),
    ("c", "999.995", OUT_OF_RANGE),
    ("c", "1000", OUT_OF_RANGE),
    ("c", "'abc'", NO_NUMBER),
    ("c", "'-1e500'", OUT_OF_RANGE),
    ("f", "'1.5'", "1.5"),
    ("d", "'2024/3/1'", "2024-03-01"),
    ("d", "'2024-3-1'", "2024-03-01"),
    ("d", "'2024.3.1'", "2024-03-01"),
    ("d", "20240301", "2024-03-01"),
    ("d", "'2024-03-01 10:00:00'", "2024-03-01"),
    ("d", "m", "2021-03-01"),
    ("d", "'2024-02-30'", NO_DATE),
    ("d", "'abc'", NO_DATE),
    ("d", "''", NO_DATE),
    ("m", "'2024-03-01'", "2024-03-01 00:00:00"),
    ("m", "20240301101112", "2024-03-01 10:11:12"),
    ("m", "'2024-03-01 25:00:00'", NO_DATE),
    ("x", "REPEAT('x', 65536)", TOO_LONG),
]
NUMBERS_AS_DATES = ("20240301", "20240301101112")
"""SQLite refuses these in a query."""


@pytest.mark.parametrize(("column", "value", "held"), CHANGES)
def test_an_update_stores_what_the_type_takes_or_changes_nothing(database, column, value, held):
    before = stored(database, column)
    error = database.run(f"UPDATE t SET {column} = {value}").error
    assert ((error or "").split(" ")[0] or stored(database, column)) == held
    assert error is None or stored(database, column) == before


@pytest.mark.parametrize(("column", "value", "held"), [case for case in CHANGES if case[1] not in NUMBERS_AS_DATES])
def test_an_insert_of_a_query_stores_the_same(database, column, value, held):
    error = database.run(f"INSERT INTO t (id, {column}) SELECT 9, {value} FROM t").error
    database.run("DELETE FROM t WHERE id = 1")
    if error is None:
        assert stored(database, column) == held
    else:
        assert error.split(" ")[0] == held


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("INSERT INTO t (id, w) VALUES (9, 'abc'), (10, 'abcdef')", TOO_LONG),
        ("REPLACE INTO t (id, w) VALUES (9, 'abcdef')", TOO_LONG),
        ("INSERT INTO t (id, w) SELECT * FROM (SELECT 9, 'abcdef') q", TOO_LONG),
        ("INSERT INTO t (id, w) SELECT id, w FROM t UNION ALL SELECT id, REPEAT(w, 2) FROM t", TOO_LONG),
        ("INSERT INTO t (id, w) SELECT id, w FROM t UNION ALL SELECT id, x FROM (SELECT 9 id, 'abcdef' x) q", TOO_LONG),
        ("UPDATE t SET w = 'abcdef' WHERE id = 99", ""),  # no row takes it
        ("UPDATE t SET w = 'abcdef' WHERE nobody = 1", "1054"),
        ("INSERT INTO t SELECT * FROM t", ""),
        ("INSERT INTO t (id, w) SELECT 9", "1136"),
        ("CREATE TABLE v (a VARCHAR(3) DEFAULT 'abcd')", "1067"),
    ],
)
def test_every_way_into_a_column_ends_at_its_type(database, sql, error):
    assert (database.run(sql).error or "").split(" ")[0] == error


def test_rows_of_the_same_table_are_copied_as_they_are(sqlite):
    """A function for each of a million rows takes seconds."""
    with sqlite.open([T], typed=True) as database:
        assert translate("INSERT INTO t SELECT * FROM t", database._columns).sql == "INSERT INTO `t` SELECT * FROM `t`"


def test_the_columns_of_a_new_table_take_what_their_types_take(database):
    columns = "a VARCHAR(3), b INT, c CHAR(3), d DATE DEFAULT '2024/1/1', e DECIMAL(4,1), k BIGINT PRIMARY KEY"
    assert database.run(f"CREATE TABLE v ({columns})").error is None
    for row, error in [
        ("('abcd', 1, 'x', NULL, 1, 1)", TOO_LONG),
        ("('abc', 3000000000, 'x', NULL, 1, 1)", OUT_OF_RANGE),
        ("('abc', 'y', 'x', NULL, 1, 1)", NO_NUMBER),
        ("('abc', 1, 'x', '2024-13-1', 1, 1)", NO_DATE),
        ("('abc', 1, 'x', NULL, 1000, 1)", OUT_OF_RANGE),
        ("('abc', 1, 'x', NULL, 1, NULL)", "1048"),
        ("('abc', 1.5, 'x ', '2024/3/1', 123.45, 4000000000)", ""),
    ]:
        assert (database.run(f"INSERT INTO v VALUES {row}").error or "").split(" ")[0] == error
    assert database.run("INSERT INTO v (b, k) VALUES (7, 2)").error is None
    rows = database.run("SELECT a, b, c, d, e, k FROM v ORDER BY k").rows
    assert [tuple(map(str, row)) for row in rows] == [
        ("None", "7", "None", "2024-01-01", "None", "2"),
        ("abc", "2", "x", "2024-03-01", "123.5", "4000000000"),
    ]
    conflict = "INSERT INTO v (k) VALUES (2) ON DUPLICATE KEY UPDATE a = 'abcd'"
    assert database.run(conflict).error.startswith(TOO_LONG)


def test_a_default_is_held_by_its_column(database):
    columns = "n INT DEFAULT -3, d DATE DEFAULT 20240101, w CHAR(4) DEFAULT 1.50"
    assert database.run(f"CREATE TABLE v (k INT, {columns})").error is None
    assert database.run("INSERT INTO v (k) VALUES (1)").error is None
    (row,) = database.run("SELECT n, d, w FROM v").rows
    assert tuple(map(str, row)) == ("-3", "2024-01-01", "1.50")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id, c FROM t WHERE id = 1",  # wrapped, since the column is another type's
        "SELECT id, c FROM t",
        "SELECT id, i FROM t",
        "SELECT 1, 3",
        "SELECT id, i FROM t UNION SELECT id, i FROM t",
        "WITH q AS (SELECT id, i FROM t) SELECT * FROM q",
        "(SELECT id, i FROM t)",
        "SELECT * FROM (SELECT id, c FROM t) q",
        "SELECT id, i FROM t ORDER BY id LIMIT 1",
    ],
)
def test_a_query_may_stand_before_on_duplicate_key_update(database, query):
    for statement in (
        "CREATE TABLE v (id INT PRIMARY KEY, n INT)",
        "INSERT INTO v VALUES (1, 2)",
        f"INSERT INTO v {query} ON DUPLICATE KEY UPDATE n = n + 7",
    ):
        assert database.run(statement).error is None
    assert database.run("SELECT * FROM v").rows == ((1, 9),)


def test_a_column_keeps_its_type_when_the_table_changes(database):
    for statement in (
        "ALTER TABLE t ADD COLUMN z VARCHAR(2)",
        "ALTER TABLE t RENAME COLUMN w TO v",
        "RENAME TABLE t TO s",
    ):
        assert database.run(statement).error is None
    for assigned, error in (("z = 'abc'", TOO_LONG), ("v = 'abcdef'", TOO_LONG), ("i = 3000000000", OUT_OF_RANGE)):
        assert database.run(f"UPDATE s SET {assigned}").error.startswith(error)
    assert database.run("UPDATE s SET i = 4.5").error is None
    assert database.run("SELECT i FROM s").rows == ((5,),)


def test_a_counted_key_goes_on_from_the_last(database):
    assert database.run("CREATE TABLE v (k BIGINT AUTO_INCREMENT PRIMARY KEY, a VARCHAR(3))").error is None
    assert database.run("INSERT INTO v (a) VALUES ('x'), ('y')").error is None
    assert database.snapshot()["v"] == TableState(("k", "a"), ((1, "x"), (2, "y")))


def test_a_table_of_a_task_is_held_by_the_same_rules(backend):
    columns = Column("d", "DATE"), Column("c", "DECIMAL(5,2)"), Column("w", "CHAR(3)")
    with backend.open([Table("v", columns, (("2024/3/1", 1.005, "x "),))], typed=True) as database:
        ((*cells,),) = database.run("SELECT d, c, w FROM v").rows
        assert list(map(str, cells)) == ["2024-03-01", "1.01", "x"]


@pytest.mark.parametrize(
    ("declared", "cell", "held"),
    [
        ("VARCHAR (5)", "Plum", "Plum"),
        ("TEXT NOT NULL", "Plum", "Plum"),
        ("TEXT ", "Plum", "Plum"),
        ("text character set utf8mb4", "Plum", "Plum"),
        ("DATE NOT NULL", "2024/3/1", "2024-03-01"),
        ("DECIMAL(10, 2) NOT NULL", 1.005, "1.01"),
        ("DOUBLE PRECISION", 2.5, "2.5"),
    ],
)
def test_a_task_may_write_a_type_with_more_words(backend, declared, cell, held):
    with backend.open([Table("v", (Column("a", declared),), ((cell,),))], typed=True) as database:
        assert str(database.run("SELECT a FROM v").rows[0][0]) == held


def test_a_type_of_more_words_is_described(sqlite):
    columns = Column("a", "DECIMAL(10, 2)"), Column("b", "VARCHAR (5) NOT NULL"), Column("c", "DATE NOT NULL")
    with sqlite.open([Table("v", columns, ())], typed=True) as database:
        described = database.run("DESCRIBE v").rows
        assert [row[1] for row in described] == ["decimal(10,2)", "varchar(5)", "date"]


@pytest.mark.parametrize(
    ("declared", "cell", "message"),
    [
        ("VARCHAR(2)", "abc", "Data too long for column 'w'"),
        ("INT", "1e500", "Out of range value for column 'w'"),
        ("DECIMAL(4,1)", "1e500", "Out of range value for column 'w'"),
    ],
)
def test_a_row_that_a_column_does_not_take_is_no_table(backend, declared, cell, message):
    with pytest.raises(TableError, match=message):
        backend.open([Table("v", (Column("w", declared),), ((cell,),))], typed=True)


@pytest.mark.parametrize("declared", ["ENUM('a')", "FLOAT", "INT UNSIGNED", "TIME", "YEAR", "TIMESTAMP", "BLOB"])
def test_a_type_that_sqlite_does_not_hold_is_refused(sqlite, declared):
    named = f"columns of type .*{re.escape(declared[:4])}.*: not supported on SQLite; use --backend mariadb"
    with pytest.raises(TableError, match=named):
        sqlite.open([Table("v", (Column("w", declared),), ())], typed=True)
    with sqlite.open([], typed=True) as database:
        assert re.search(named, database.run(f"CREATE TABLE v (w {declared})").error)


def test_a_temporary_table_s_columns_have_their_types_too(backend):
    with backend.open([T], typed=True) as database:
        assert database.run("CREATE TEMPORARY TABLE v (a VARCHAR(2))").error is None
        assert database.run("INSERT INTO v VALUES ('abc')").error.startswith(TOO_LONG)


@pytest.mark.parametrize("assigned", [
    "m = '2024-03-01 10:00:00.6'", "w = 0xFF", "f = 1 / 3", "w = i / 3", "i = i / s", "i = w + 1", "d = '240301'",
    "d = '2024-00-00'", "d = d + 31", "m = '2024/3/1 5:6'", "i = 18446744073709551615", "c = 1.12345678901234567",
])  # fmt: skip
def test_what_sqlite_cannot_store_as_mysql_is_refused(sqlite, assigned):
    with sqlite.open([T], typed=True) as database:
        assert is_left_out(database, database.run(f"UPDATE t SET {assigned}"), listed=True)
        assert database.snapshot()["t"].rows == T.rows

"""What agents write gives the same rows, errors and tables on SQLite as on MariaDB, but for what is listed here."""

import pytest

from dbbench_adapter.engines import TableState
from dbbench_adapter.tests.agent_sql import FRUIT, SALES, STATEMENTS, answer

AS_MYSQL_8 = "SQLite's answer is MySQL 8's, MariaDB's is its own"
LEFT_OUT = "left out on SQLite, answered with an error"
KNOWN = {
    "DESCRIBE Fruit": AS_MYSQL_8,  # int, not int(11)
    "DESC Fruit": AS_MYSQL_8,
    "SHOW COLUMNS FROM Fruit": AS_MYSQL_8,
    "EXPLAIN Fruit": AS_MYSQL_8,
    "SHOW CREATE TABLE Fruit": AS_MYSQL_8,
    "SELECT table_name FROM information_schema.tables WHERE table_schema = 'dbbench'": "no order is asked for",
    "SELECT STDDEV(Price), VARIANCE(Price), STD(Price), VAR_SAMP(Price), STDDEV_SAMP(Price) FROM Fruit": AS_MYSQL_8,
    "SELECT ANY_VALUE(Name) IS NOT NULL FROM Fruit": AS_MYSQL_8,
    "SELECT * FROM (SELECT 1)": AS_MYSQL_8,  # 1248, where MariaDB calls it a syntax error
    "SELECT Name FROM Fruit AS rank": AS_MYSQL_8,  # which reserves RANK
    "CREATE VIEW V AS SELECT Name FROM Fruit": LEFT_OUT,
    "ALTER TABLE Fruit MODIFY Price TEXT": LEFT_OUT,
    "SELECT @x": LEFT_OUT,
    "EXPLAIN SELECT * FROM Fruit": LEFT_OUT,
    "SELECT Color, SUM(Price) FROM Fruit GROUP BY Color WITH ROLLUP": LEFT_OUT,
    "SELECT Color, Name, COUNT(*) FROM Fruit GROUP BY Color, Name WITH ROLLUP": LEFT_OUT,
    "SELECT FOUND_ROWS() IS NOT NULL, ROW_COUNT() IS NOT NULL, LAST_INSERT_ID()": LEFT_OUT,
    "SELECT BIT_AND(Price), BIT_OR(Price) FROM Fruit": LEFT_OUT,
    "SELECT CONVERT('12', SIGNED), CAST('-5' AS UNSIGNED) IS NOT NULL, CAST('x' AS SIGNED)": LEFT_OUT,
    "SELECT PI(), PI() * 0 = 0": "SQLite shows all digits of PI(), MySQL six",
    "SELECT Name FROM Fruit GROUP BY Weight": "both refuse it, for one of its two mistakes each",
}


@pytest.mark.parametrize("sql", STATEMENTS)
def test_both_engines_agree(sqlite, mariadb, sql):
    answers = [answer(backend, sql) for backend in (sqlite, mariadb)]
    if sql in KNOWN:
        assert answers[0] != answers[1], f"no longer differs; take it off KNOWN ({KNOWN[sql]})"
    else:
        assert answers[0] == answers[1]


def test_there_are_enough_statements_and_no_stale_exceptions():
    assert len(set(STATEMENTS)) == len(STATEMENTS) > 200
    assert set(KNOWN) < set(STATEMENTS)


# Beyond one statement, on both engines -------------------------------------------------------------------------------


@pytest.fixture
def database(backend):
    with backend.open([FRUIT, SALES], typed=True) as database:
        yield database


@pytest.mark.parametrize(
    "sql", ["SELECT 900   INTO x", "SELECT Name INTO x FROM Fruit", "WITH c AS (SELECT 1) SELECT * INTO x FROM c"]
)
def test_select_into_wants_a_variable_and_makes_no_table(database, sql):
    before = database.snapshot()
    assert database.run(sql).error == "1327 (42000): Undeclared variable: x"
    assert database.run(f"({sql})").error.startswith("1064")
    assert database.snapshot() == before


def test_a_key_makes_insert_update_or_replace(database):
    database.run("CREATE TABLE T (a INT PRIMARY KEY, b INT)")
    for statement in (
        "INSERT INTO T VALUES (1, 1), (2, 2)",
        "INSERT INTO T VALUES (1, 9) ON DUPLICATE KEY UPDATE b = b + VALUES(b)",  # 1 + 9
        "REPLACE INTO T VALUES (2, 7)",
        "INSERT IGNORE INTO T VALUES (2, 8), (3, 3)",
    ):
        assert database.run(statement).error is None
    assert database.snapshot()["T"] == TableState(("a", "b"), ((1, 10), (2, 7), (3, 3)))
    assert database.run("INSERT INTO T VALUES (1, 1)").error.startswith("1062 (23000)")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT Color, Price FROM Fruit GROUP BY Color",
        "SELECT Color, Price + 1, COUNT(*) FROM Fruit GROUP BY Color",
        "SELECT f.Color, s.Day, SUM(s.Amount) FROM Fruit f JOIN Sales s ON f.Name = s.Fruit GROUP BY f.Color",
    ],
)
def test_a_column_beside_a_group_is_refused(database, sql):
    assert database.run(sql).error.startswith("1055 (42000)")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT Color, Color, COUNT(*) FROM Fruit GROUP BY Color",
        "SELECT UPPER(Color), COUNT(*) FROM Fruit GROUP BY UPPER(Color)",
        "SELECT Color AS c, MAX(Price) FROM Fruit GROUP BY c",
        "SELECT Color, MAX(Price) FROM Fruit GROUP BY 1",
        "SELECT f.Color, COUNT(*) FROM Fruit f GROUP BY Color",
        "SELECT Color, (SELECT MAX(Amount) FROM Sales), 1 FROM Fruit GROUP BY Color",
        "SELECT MAX(Price), 'x', NOW() IS NULL FROM Fruit",
    ],
)
def test_what_the_group_decides_is_not_refused(database, sql):
    assert database.run(sql).error is None


def test_what_depends_on_the_group_is_not_refused(sqlite):  # MySQL 8; MariaDB refuses it
    with sqlite.open([FRUIT, SALES], typed=True) as database:
        assert database.run("SELECT Name, MAX(Price) FROM Fruit WHERE Name = 'Fig'").rows == (("Fig", 3),)
        part = "SELECT CONCAT(UPPER(Color), '!') FROM Fruit GROUP BY UPPER(Color)"
        assert database.run(part).error is None
        joined = "SELECT f.Name, s.Fruit, COUNT(*) FROM Fruit f JOIN Sales s ON f.Name = s.Fruit GROUP BY f.Name"
        assert database.run(joined).error is None


def test_the_catalogue_follows_the_tables(database):
    database.run("CREATE TABLE more (a INT)")
    asked = "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() ORDER BY TABLE_NAME"
    assert {name for (name,) in database.run(asked).rows} == {"Fruit", "Sales", "more"}
    assert set(database.snapshot()) == {"Fruit", "Sales", "more"}


@pytest.mark.parametrize(
    ("statements", "left"),
    [
        (["SET autocommit = 0", "DELETE FROM Sales", "ROLLBACK"], 3),
        (
            ["SET @@autocommit = OFF", "DELETE FROM Sales WHERE Amount = 4", "COMMIT", "DELETE FROM Sales", "ROLLBACK"],
            2,
        ),
        (["SET SESSION autocommit = 0", "DELETE FROM Sales", "SET autocommit = 1", "ROLLBACK"], 0),
    ],
)
def test_without_autocommit_a_change_waits_for_commit(database, statements, left):
    for statement in statements:
        assert database.run(statement).error is None
    assert database.run("SELECT COUNT(*) FROM Sales").rows == ((left,),)


def test_columns_of_a_new_table_are_known_by_their_own_type(database):
    for statement in ("CREATE TABLE T (Price TEXT, oid INT)", "INSERT INTO T VALUES ('005', 1), ('Ab', 2)"):
        assert database.run(statement).error is None  # Fruit.Price is an INT
    assert database.run("SELECT oid FROM T WHERE Price = '5'").rows == ()
    assert database.run("SELECT oid FROM T WHERE Price = 5").rows == ((1,),)
    assert database.run("SELECT oid FROM T WHERE Price = 'AB'").rows == ((2,),)


@pytest.mark.parametrize(
    ("sql", "near"),
    [
        ("SELECT tok` FROM `t` ORDER BY `a` ASC LIMIT 1", "` ASC LIMIT 1"),
        ("DELETE FROM t WHERE a = 'b` = 'c'", "'"),
        ("SELECT 1 /* x", "/* x"),
    ],
)
def test_an_unclosed_quote_or_comment_is_named_from_where_it_begins(sqlite, sql, near):
    """As on the server; what a policy reads here decides what it samples next."""
    with sqlite.open((), typed=True) as database:
        error = str(database.run(sql).error)
    assert error.endswith(f"for the right syntax to use near '{near}' at line 1")


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("SELECT " + "(" * 3000 + "1" + ")" * 3000, "1064 (42000): the statement is nested too deeply"),
        ("SELECT '\ud800'", "1300 (HY000): Invalid utf8mb4 character string"),
        ("SELECT Name -> '$.x' FROM Fruit", "1235 (42000): This version of MySQL doesn't yet support '->'"),
    ],
)
def test_errors_read_like_mysql_s(sqlite, sql, error):
    with sqlite.open([FRUIT], typed=True) as database:
        assert database.run(sql).error == error

"""What agents write gives the same rows, errors and tables on SQLite as on MariaDB, or are refused."""

import random

import pytest

from dbbench_adapter.engines import TableState
from dbbench_adapter.tests import mixed_sql
from dbbench_adapter.tests.agent_sql import FRUIT, SALES, STATEMENTS, answer, is_left_out

REFUSED = {
    "SELECT Name n FROM Fruit HAVING n = 'Plum'",
    "SELECT ASCII('a'), HEX('a'), HEX(255), STRCMP('a', 'B'), FIELD('b', 'a', 'b'), ELT(2, 'a', 'b')",
    "SELECT 'a' 'b'",
    "SELECT 5 & 3, 5 | 3, 5 ^ 3, 1 << 3",
    "SELECT 1 AND 0, 1 OR NULL, NOT 0, 1 XOR 1, TRUE, FALSE, 1 && 1, 0 || 1, !1",
    "SELECT CONVERT('12', SIGNED), CAST('-5' AS UNSIGNED) IS NOT NULL, CAST('x' AS SIGNED)",
    "SELECT Color, SUM(Price) FROM Fruit GROUP BY Color WITH ROLLUP",
    "SELECT Color, Name, COUNT(*) FROM Fruit GROUP BY Color, Name WITH ROLLUP",
    "SELECT STDDEV(Price), VARIANCE(Price), STD(Price), VAR_SAMP(Price), STDDEV_SAMP(Price) FROM Fruit",
    "SELECT ANY_VALUE(Name) IS NOT NULL FROM Fruit",
    "SELECT BIT_AND(Price), BIT_OR(Price) FROM Fruit",
    "SELECT PI(), PI() * 0 = 0",
    "SELECT Name FROM Fruit WHERE Price > ALL (SELECT 3)",
    "SELECT Name FROM Fruit WHERE Price > ANY (SELECT Amount FROM Sales)",
    "SELECT STR_TO_DATE('x', '%Y')",
    "INSERT IGNORE INTO Fruit VALUES ('Kiwi', 'green', 3, 9)",
    "UPDATE Fruit f JOIN Sales s ON f.Name = s.Fruit SET f.Stock = s.Amount WHERE s.Day < '2024-02-01'",
    "CREATE TABLE T AS SELECT Name, Price FROM Fruit WHERE Price > 3",
    "CREATE TABLE T LIKE Fruit",
    "CREATE VIEW V AS SELECT Name FROM Fruit",
    "ALTER TABLE Fruit MODIFY Price TEXT",
    "SELECT @x",
    "SELECT VERSION() IS NOT NULL",
    "SELECT FOUND_ROWS() IS NOT NULL, ROW_COUNT() IS NOT NULL, LAST_INSERT_ID()",
    "SHOW CREATE TABLE Fruit",
    "EXPLAIN SELECT * FROM Fruit",
}
"""SQLite refuses these and names the engine that runs them; every other statement has MariaDB's answer."""
OTHER_ERRORS = {
    "SELECT NOSUCH(Name) FROM Fruit": "neither engine knows the function",
    "SELECT * FROM (SELECT 1)": "SQLite says as MySQL 8 what is missing, MariaDB that it is no syntax",
    "SELECT Name FROM Fruit AS rank": "MySQL 8 reserves RANK",
    "SELECT Name FROM Fruit GROUP BY Weight": "both refuse it, for one of its two mistakes each",
}
NO_ORDER = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'dbbench'"


@pytest.mark.parametrize("sql", STATEMENTS)
def test_sqlite_answers_as_mariadb_or_refuses(sqlite, mariadb, sql):
    with sqlite.open([FRUIT, SALES], typed=True) as database:
        result = database.run(sql)
        if sql in OTHER_ERRORS:
            assert result.error is not None
        elif not is_left_out(database, result, listed=sql in REFUSED):
            answers = [answer(backend, sql) for backend in (sqlite, mariadb)]
            rows = [sorted(rows) if sql == NO_ORDER else rows for rows, _, _ in answers]
            assert (rows[0], *answers[0][1:]) == (rows[1], *answers[1][1:])


_TABLES = [mixed_sql.EMP, mixed_sql.TASK]
NUM_MIXED, FULL_MIXED = 300, 20_000


def test_no_mixed_statement_has_another_answer_on_sqlite(sqlite, mariadb, request):
    """Values of all types in each other's places: SQLite answers as MariaDB, or with an error."""
    differs, executed = {}, 0
    for seed in range(FULL_MIXED if request.config.getoption("--full", default=False) else NUM_MIXED):
        sql = mixed_sql.statement(random.Random(seed))
        with sqlite.open(_TABLES, typed=seed % 2 == 0) as database:
            if (found := _left(database, sql)) is None:
                continue
        with mariadb.open(_TABLES, typed=seed % 2 == 0) as database:
            executed += 1
            if (right := _left(database, sql)) != found:
                differs[seed, sql] = found, right
    assert differs == {}
    assert executed > NUM_MIXED / 2


def _left(database, sql):
    """The rows that a statement gives, or else those that it leaves in the tables; None if it fails."""
    result = database.run(sql)
    if result.error is not None or result.rows is not None:
        return None if result.error is not None else [tuple(map(str, row)) for row in result.rows]
    queries = (f"SELECT * FROM {table.name}" for table in _TABLES)
    return [sorted([tuple(map(str, row)) for row in database.run(query).rows]) for query in queries]


def test_there_are_enough_statements_and_no_stale_exceptions():
    assert len(set(STATEMENTS)) == len(STATEMENTS) > 200
    assert REFUSED | set(OTHER_ERRORS) < set(STATEMENTS)


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
        "INSERT INTO T VALUES (3, 3)",
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
        (
            "SELECT Name -> '$.x' FROM Fruit",
            "1235 (42000): JSON_EXTRACT(Name, '$.x'): not supported on SQLite; use --backend mariadb",
        ),
    ],
)
def test_errors_read_like_mysql_s(sqlite, sql, error):
    with sqlite.open([FRUIT], typed=True) as database:
        assert database.run(sql).error == error

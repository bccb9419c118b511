"""What a change stores: the texts of computed values, and 300 seeded changes, the same on both engines or refused."""

import random

import pytest

from dbbench_adapter.datatypes import Column, Table
from dbbench_adapter.statement_clock import LEFT_OUT
from dbbench_adapter.table_hash import hash_after

NUM_CHANGES = 300


@pytest.mark.parametrize(
    ("expression", "stored"),
    [
        ("ABS(a)", "7"),  # doubles: without a point where they are whole
        ("POWER(a, 2)", "49"),
        ("LOG10(100)", "2"),
        ("SQRT(2)", "1.4142135623730951"),
        ("1e20 * 1", "1e20"),
        ("1e14 * 1", "100000000000000"),
        ("1e-15 * 1", "0.000000000000001"),
        ("1.5e-16 * 1", "1.5e-16"),
        ("1.10 + 1", "2.10"),  # decimals: with the digits of their operands
        ("0.1 + 0.2", "0.3"),
        ("1.5 * 2", "3.0"),
        ("CAST(1.5 AS DECIMAL(10, 3))", "1.500"),
        (".5", "0.5"),
        ("CONCAT(3 * 1.10, '')", "3.30"),
        ("CONCAT(1 / 3)", "0.3333"),  # a function of texts sees what SELECT shows
        ("CONCAT(ROUND(a, 2))", "7.00"),
        ("GREATEST('a', 'B')", "B"),
    ],
)
def test_computed_values_are_stored_as_mysql_writes_them(backend, expression, stored):
    table = Table("t", (Column("a"), Column("b")), (("7", "x"),))
    with backend.open([table], typed=False) as database:
        for statement in (f"UPDATE t SET b = {expression}", f"INSERT INTO t SELECT a, {expression} FROM t"):
            assert database.run(statement).error is None
        assert database.run("SELECT b FROM t").rows == ((stored,), (stored,))


@pytest.mark.parametrize("assignments", ["n = n + 1, b = n", "b = 'z', a = CONCAT(b, b), n = 4", "a = n, n = a"])
def test_an_assignment_that_reads_one_before_it_is_refused_on_sqlite(sqlite, assignments):
    """MySQL reads the new value there, SQLite the old one."""
    table = Table("t", (Column("a"), Column("b"), Column("n", "INT")), (("7", "x", 3),))
    with sqlite.open([table], typed=True) as database:
        assert "use two statements" in (database.run(f"UPDATE t SET {assignments}").error or "")
        assert database.run("SELECT * FROM t").rows == table.rows
        assert database.run("UPDATE t SET a = n, b = CONCAT(b, n)").error is None
        assert database.run("SELECT * FROM t").rows == (("3", "x3", 3),)


@pytest.mark.parametrize("number", range(NUM_CHANGES))
def test_a_change_leaves_the_same_hash_on_both_engines_or_is_refused(sqlite, mariadb, number):
    rng = random.Random(number)
    table, change = _table(rng), _change(rng)
    variant = ("text", "fc", "lab")[number % 3]
    answers = [hash_after(backend, variant, [table], [change]) for backend in (sqlite, mariadb)]
    if not (answers[0][1] or "").endswith(LEFT_OUT):
        found = [(hashed, (error or "").split(" ")[0]) for hashed, error in answers]
        assert found[0] == found[1], (change, table.rows, answers)


def _table(rng):
    """`a` holds numbers as texts, `b` words, `n` integers (texts, too, but for `lab`)."""
    rows = [
        (rng.choice(["1", "2", "7.5", "-3", "10", "0.25"]), rng.choice(WORDS), rng.randrange(-5, 20))
        for _ in range(rng.randrange(2, 7))
    ]
    return Table("t", (Column("a"), Column("b"), Column("n", "INT")), tuple(rows))


LITERALS = ["1.50", "3", "1e3", "-.5", "0.1 + 0.2", "007", "1.5e-7"]
WORDS = ["Plum", "plum", "Fig", "é", "E", "two words", "Pear-tree"]


def _number(rng, depth=2):
    if depth == 0:
        return rng.choice(["a", "n", "n", "3", "1.10", "0.5", "2.50", "100", "-4", "LENGTH(b)"])
    inner = [_number(rng, depth - 1), _number(rng, depth - 1)]
    form = rng.choice(
        [
            *("({} + {})", "({} - {})", "({} * {})", "({} + {})", "({} * {})"),
            *(
                "({} / 4)",
                "ROUND({}, 2)",
                "ROUND({}, 1)",
                "ROUND({})",
                "FLOOR({})",
                "CEIL({})",
                "ABS({})",
                "TRUNCATE({}, 1)",
            ),
            *("MOD({}, 7)", "SQRT(ABS({}))", "POWER({}, 2)", "SIGN({})", "({} DIV 3)", "-{}"),
            *("CAST({} AS DECIMAL(12, 3))", "CAST({} AS SIGNED)", "GREATEST({}, {})", "LEAST({}, {})"),
            *("IF({} > 2, {}, 5)", "COALESCE({}, {})", "CASE WHEN {} > 1 THEN {} ELSE 0 END"),
        ]
    )
    return form.format(*inner)


def _text(rng):
    number = _number(rng, 1)
    return rng.choice(
        [
            *(f"CONCAT(b, '-', {number})", f"CONCAT_WS(',', {number}, b)", "UPPER(b)", "LOWER(b)", "TRIM(b)"),
            *(
                "LEFT(b, 2)",
                "SUBSTRING(b, 2, 3)",
                "SUBSTR(b, 0, 2)",
                "MID(b, 2, 1)",
                "REPLACE(b, 'P', 'x')",
                "REVERSE(b)",
            ),
            *(f"LPAD({number}, 8, '0')", f"CAST({number} AS CHAR)", f"IF({number} > 2, b, 'none')", "GREATEST(b, 'M')"),
            *(f"IFNULL(b, {number})", f"CASE WHEN n > 3 THEN b ELSE {number} END", "LEAST(b, 'M')", "'new'", "NULL"),
        ]
    )


def _condition(rng):
    return rng.choice(
        [
            *(
                f"n > {rng.randrange(10)}",
                f"b = '{rng.choice(WORDS).upper()}'",
                "b LIKE 'p%'",
                f"{_number(rng, 1)} > 3",
            ),
            *("n BETWEEN 2 AND 9", "LEFT(b, 1) = 'p'", "a IN (1, 2)", "b IN ('plum', 'fig')", "a IS NOT NULL", "a = 2"),
            *("n = (SELECT MAX(n) FROM (SELECT n FROM t) u)", "TRIM(b) = 'e'", "LENGTH(b) > 3", "b < 'm'"),
        ]
    )


def _change(rng):
    number, text, condition = _number(rng), _text(rng), _condition(rng)
    aggregate = f"{rng.choice(['AVG', 'SUM', 'MAX', 'COUNT'])}({rng.choice(['a', 'n'])})"
    return rng.choice(
        [
            *(f"UPDATE t SET a = {number} WHERE {condition}", f"UPDATE t SET b = {text} WHERE {condition}"),
            *(f"UPDATE t SET a = {number}", f"UPDATE t SET n = {rng.choice(['n + 1', 'n * 1.5', 'n / 4', 'n - 2.5'])}"),
            *(f"DELETE FROM t WHERE {condition}", f"INSERT INTO t VALUES ({rng.choice(LITERALS)}, 'x', 4)"),
            f"INSERT INTO t SELECT {number}, {text}, n FROM t WHERE {condition}",
            f"INSERT INTO t (b, a) SELECT COUNT(*), {aggregate} FROM t GROUP BY b",
        ]
    )

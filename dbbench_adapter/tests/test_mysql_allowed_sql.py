"""Which statements reach MariaDB: the listed kinds, as its own lexer and keywords have it; and what names they tell."""

import random
import re
from itertools import product

import pymysql
import pytest

from dbbench_adapter.datatypes import Column, Table
from dbbench_adapter.dialect.lexer import tokens
from dbbench_adapter.engines.mysql.allowed_sql import may_write, refusal
from dbbench_adapter.engines.mysql.names import as_sent, scrubbed

T = Table("t", (Column("a"), Column("b", "INT")), (("x", 1), ("y", 2)))
HARMLESS = [
    "SELECT a, b FROM t WHERE b > 1",
    "UPDATE t SET b = 2",
    "SHOW TABLES",
    "SET @x = 1",
    "CREATE TABLE u (a INT)",
]
EXECUTABLE = ["/*!", "/*!50000 ", "/*!99999 ", "/*!999999 ", "/*M!", "/*M!100000 ", "/*M!999999 ", "/*+ "]


@pytest.fixture
def database(mariadb):
    with mariadb.open([T], typed=True) as database:
        yield database


@pytest.fixture
def keywords(database):
    """Every word that this server's grammar knows."""
    with database._slot.admin.cursor() as cursor:
        cursor.execute("SELECT word FROM information_schema.keywords")
        words = {str(word).lower() for (word,) in cursor.fetchall()}
    assert len(words) > 500
    return sorted(word for word in words if word.isidentifier())


def secrets(database):
    """What no agent may read: names and password on the server, its host and folder."""
    slot, private = database._slot, database._pool.private
    names = [slot.name, slot.name.split("_")[1], slot.password, database._pool.catalogue, *private]
    return [name for name in names if len(name) > 5]  # a short host's name stands in many a text


# kinds ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opening", EXECUTABLE)
@pytest.mark.parametrize("statement", HARMLESS)
def test_a_comment_that_is_executed_is_refused_wherever_it_stands(opening, statement):
    words = statement.split(" ")
    for place in range(len(words) + 1):
        sql = " ".join([*words[:place], f"{opening}x */", *words[place:]])
        assert refusal(sql).startswith("1235 (42000)"), sql


@pytest.mark.parametrize("opening", EXECUTABLE)
@pytest.mark.parametrize("around", ["'{}'", '"{}"', "`{}`", "1 /* {}", "1 -- {}\n", "1 # {}\n", "1 --\t{}\n"])
def test_a_comment_in_quotes_or_in_another_comment_is_text(opening, around):
    assert refusal("SELECT " + around.format(f"{opening}x */")) is None


def test_our_lexer_and_the_servers_agree_on_what_is_executed(database):
    """Random texts that hold an executable comment: none that is sent runs it."""
    rng = random.Random(0)
    pieces = [
        "'",
        '"',
        "`",
        "\\",
        "''",
        "/*",
        "*/",
        "--",
        "-- ",
        "#",
        "\n",
        "\r",
        "\t",
        "\x0b",
        "\xa0",
        "\u2003",
        "\x1f",
    ]
    pieces += ["\x7f", "1", "+1", " ", "-", "*", "/", "--\x01", "--\xa0", "é", "😀", ";", "@", "N'", "_utf8'", "x"]
    agent = database._pool.session(database._slot, typed=True, statement_timeout_s=5.0)
    num_sent = 0
    with agent.cursor() as cursor:
        cursor.execute("CREATE TABLE s (x INT, `1x` INT, `é` INT, `\xa0` INT, `\u2003` INT)")
        for _ in range(6_000):
            before, after = ("".join(rng.choices(pieces, k=rng.randrange(5))) for _ in range(2))
            sql = f"DELETE FROM s WHERE 1 {before}/*!00000 +marker */{after}"
            if refusal(sql) is not None:
                continue
            num_sent += 1
            try:
                cursor.execute(sql)
            except pymysql.Error as error:
                assert "marker' in" not in str(error), sql
    assert num_sent > 500


def test_an_agent_says_these_first_words_and_no_others(keywords):
    said = {word for word in keywords if refusal(word) is None or refusal(f"{word} 'x'") is None}
    assert said == {
        *("select", "with", "values", "insert", "replace", "update", "delete", "truncate", "do", "explain", "describe"),
        *("desc", "analyze", "check", "checksum", "optimize", "repair", "commit", "rollback", "savepoint", "use"),
        "begin",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("create", {"table", "tables", "view", "index", "database", "schema", "sequence"}),
        ("alter", {"table", "tables", "view", "index", "database", "schema", "sequence"}),
        ("drop", {"table", "tables", "view", "index", "database", "schema", "sequence"}),
        ("rename", {"table", "tables"}),
        ("start", {"transaction"}),
        ("release", {"savepoint"}),
        ("begin", {"work"}),
        (
            "show",
            {"tables", "columns", "fields", "index", "indexes", "keys", "databases", "schemas", "table"}
            | {"warnings", "errors", "count", "character", "charset", "collation", "engines", "storage", "processlist"},
        ),
        ("set", {"transaction"}),
    ],
)
def test_an_agent_makes_alters_and_looks_at_these_and_no_others(keywords, first, expected):
    assert {word for word in keywords if refusal(f"{first} {word} x") is None} == expected & set(keywords)


@pytest.mark.parametrize("keyword", ["begin", "commit", "x", "truncate", "`select`", "do", "repair"])
@pytest.mark.parametrize("body", ["BEGIN NOT ATOMIC SELECT 1; END", "LOOP SELECT 1; END LOOP", "WHILE 1 DO SELECT 1"])
def test_no_label_hides_a_compound_statement(keyword, body):
    for blank in ("", " ", "/* x */", "\n"):
        assert refusal(f"{keyword}{blank}:{blank}{body}") is not None


@pytest.mark.parametrize(
    "sql",
    [
        "XA START 'a'",
        "/* x */ xa start 'a'",
        "BEGIN NOT ATOMIC SELECT 1; END",
        "EXECUTE IMMEDIATE 'SET PASSWORD = 1'",
        "PREPARE s FROM 'SELECT 1'",
        "SHOW GRANTS FOR CURRENT_USER",
        "SHOW CREATE USER",
        "SHOW CREATE /* x */ USER",
        "SHOW FULL VARIABLES",
        "SHOW TABLE STATUS WHERE Comment LIKE '%x%'",
        "CREATE TABLE t (a INT) DATA DIRECTORY = '/tmp'",
        "CREATE TABLE t (a INT) PARTITION BY HASH (a) (PARTITION p DATA -- x\n DIRECTORY = '/tmp')",
        "ALTER TABLE t DISCARD TABLESPACE",
        "ALTER TABLE t IMPORT/**/TABLESPACE",
        "CREATE DEFINER = root VIEW v AS SELECT 1",
        "CREATE OR REPLACE ALGORITHM = MERGE DEFINER = root VIEW v AS SELECT 1",
        "SELECT * FROM t PROCEDURE/**/ANALYSE()",
        "SELECT * FROM performance_schema.global_status",
        "SELECT * FROM `PERFORMANCE_SCHEMA` . global_status",
        "SELECT\xa0: BEGIN NOT ATOMIC SELECT 1; END",
        "CREATE TABLE u (a INT) PARTITION BY HASH (a) PARTITIONS 8000",
        "ALTER TABLE t PARTITION /* x */ BY KEY (a) PARTITIONS 4 SUBPARTITION BY HASH (b)",
        "CREATE TABLE u (a INT) WITH SYSTEM VERSIONING PARTITION BY SYSTEM_TIME LIMIT 9",
        "SELECT 'a\0b'",
        "(XA START 'a')",
        "((",
    ],
)
def test_what_rights_do_not_stop_is_not_sent(sql):
    assert refusal(sql) is not None


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE u AS SELECT a, RANK() OVER (PARTITION BY b) FROM t WINDOW w AS (PARTITION BY a)",
        *("SELECT 'XA'", "BEGIN", "BEGIN WORK", "BEGIN;", "((SELECT 1))", "", "-- x", "SHOW FULL COLUMNS FROM t"),
        *(
            "SELECT discard, tablespace FROM t",
            "UPDATE t SET `get_lock` = 1",
            "CREATE OR REPLACE TEMPORARY TABLE u (a INT)",
        ),
        *("CREATE OR REPLACE SQL SECURITY INVOKER VIEW v AS SELECT 1", "INSERT INTO t (data, directory) VALUES (1, 2)"),
    ],
)
def test_what_is_harmless_is_sent(sql):
    assert refusal(sql) is None


@pytest.mark.parametrize(
    "sql",
    ["CREATE TALBE u (a INT)", "SHOW TABEL", "DROP TBALE t", "SELEC 1", "RENAME t TO u", "\n\nALTER\nTABEL x", "SHOW"],
)
def test_a_mistake_reads_as_the_server_words_it(database, sql):
    with database._slot.admin.cursor() as cursor, pytest.raises(pymysql.ProgrammingError) as raised:
        cursor.execute(sql)
    assert refusal(sql) == f"1064 (42000): {raised.value.args[1]}"


# settings and functions -----------------------------------------------------------------------------------------------


def test_only_what_changes_an_agents_own_statements_can_be_set(database):
    """Every variable that the server has, in every way of naming it."""
    with database._slot.admin.cursor() as cursor:
        cursor.execute("SHOW SESSION VARIABLES")
        names = [str(name) for name, _ in cursor.fetchall()]
    ways = ["{}", "SESSION {}", "LOCAL {}", "@@{}", "@@session.{}", "@@LOCAL . {}", "@x = 1, {}", "`{}`", "@@`{}`"]
    settable = {name for name, way in product(names, ways) if refusal(f"SET {way.format(name)} = 1") is None}
    assert settable <= {
        *("auto_increment_increment", "auto_increment_offset", "autocommit", "completion_type", "default_week_format"),
        *("div_precision_increment", "foreign_key_checks", "group_concat_max_len", "identity", "insert_id"),
        *("last_insert_id", "lc_time_names", "max_recursive_iterations", "sql_big_selects", "sql_notes"),
        *("sql_safe_updates", "sql_select_limit", "sql_warnings", "time_zone", "timestamp", "tx_isolation"),
        *("unique_checks", "transaction_isolation", "transaction_read_only", "tx_read_only"),
    }  # fmt: skip
    assert settable >= {"autocommit", "sql_safe_updates", "foreign_key_checks"}
    for name, way in product(names, ["GLOBAL {}", "@@global.{}", "PERSIST {}", "STATEMENT {}", "@x := 1, GLOBAL {}"]):
        assert refusal(f"SET {way.format(name)} = 1") is not None


@pytest.mark.parametrize(
    "sql",
    [
        *("SET NAMES gbk", "SET NAMES latin1", "SET NAMES DEFAULT", "SET CHARACTER SET sjis", "SET CHARSET utf8"),
        *("SET sql_mode = 'ANSI_QUOTES'", "SET sql_mode = 'ANSI'", "SET sql_mode = 4", "SET sql_mode = '' 'ANSI'"),
        *("SET sql_mode = 'NO_BACKSLASH_ESCAPES'", "SET sql_mode = @x", "SET sql_mode = 'ORACLE'", "SET NAMES"),
        *("SET sql_mode = CONCAT('ANSI', '')", "SET @x = 1, PASSWORD = PASSWORD('x')", "SET PASSWORD FOR x = 'y'"),
        *("SET ROLE r", "SET DEFAULT ROLE r", "SET @a = (1, 2), @@global.x = 1", "SET GLOBAL TRANSACTION READ ONLY"),
        "SET STATEMENT autocommit = 0 FOR SELECT 1",
    ],
)  # fmt: skip
def test_what_changes_how_statements_are_read_or_bounded_cannot_be_set(sql):
    assert refusal(sql).startswith("1227 (42000): Access denied; SET ")


@pytest.mark.parametrize(
    "sql",
    [
        *(
            "SET NAMES utf8mb4",
            "SET NAMES 'utf8' COLLATE 'utf8_bin'",
            "SET @x := 1, @`y` = (SELECT 2)",
            "SET @password = 1",
        ),
        *(
            "SET sql_mode = ''",
            "SET SESSION sql_mode = 'STRICT_TRANS_TABLES,NO_ZERO_DATE'",
            "SET TRANSACTION READ ONLY",
        ),
        *("SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE", "SET time_zone = '+00:00', @@autocommit = OFF"),
    ],
)
def test_what_agents_set_they_may(sql):
    assert refusal(sql) is None


def test_named_locks_which_all_share_are_refused_however_they_are_called():
    names = [
        "GET_LOCK",
        "IS_FREE_LOCK",
        "IS_USED_LOCK",
        "RELEASE_LOCK",
        "RELEASE_ALL_LOCKS",
        "MASTER_POS_WAIT",
        "LOAD_FILE",
    ]
    ways = ["SELECT {}('a')", "DO `{}` ('a')", "SELECT 1 FROM t WHERE {} /* x */ ('a')", "UPDATE t SET b = -{}\n('a')"]
    ways += [
        "CREATE VIEW v AS SELECT {}('a')",
        "SET @x = {}('a')",
        "SELECT {{fn {}('a')}}",
        "SHOW TABLES WHERE {}('a')",
    ]
    for name, way in product(names, ways):
        assert refusal(way.format(name)) == f"1305 (42000): FUNCTION dbbench.{name} does not exist"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        *((sql, True) for sql in ("INSERT INTO t VALUES (1)", "/* x */ alter TABLE t FORCE", "CREATE TABLE u (a INT)")),
        *((sql, True) for sql in ("ANALYZE UPDATE t SET b = 1", "(" * 500 + "SELECT 1")),
        *(
            (sql, False)
            for sql in ("SELECT 1", "((SELECT 1))", "SHOW TABLES", "SET @x = 1", "COMMIT", "-- x\nEXPLAIN t")
        ),
    ],
)
def test_statements_after_which_the_database_is_measured(sql, expected):
    assert may_write(sql) is expected


def test_tokens_joined_are_the_text():
    rng = random.Random(1)
    for _ in range(2_000):
        sql = "".join(
            rng.choices(["'", '"', "`", "/*", "*/", "-- ", "#", "\n", "\\", "a", "é", "\0", " ", ";", "1.5"], k=12)
        )
        assert "".join(token.text for token in tokens(sql)) == sql


# names ----------------------------------------------------------------------------------------------------------------

CALLS = {
    "USER()": "dbbench@localhost",
    "user ( )": "dbbench@localhost",
    "SESSION_USER()": "dbbench@localhost",
    "SYSTEM_USER/**/()": "dbbench@localhost",
    "CURRENT_USER": "dbbench@localhost",
    "CURRENT_USER()": "dbbench@localhost",
    "DATABASE()": "dbbench",
    "`database`()": "dbbench",
    "SCHEMA ()": "dbbench",
}
COMPUTED = ["{}", "SUBSTRING({}, 3)", "HEX({})", "REVERSE({})", "TO_BASE64({})", "ORD({})", "LENGTH({})", "MD5({})"]
COMPUTED += ["CONCAT('a', {})", "{} LIKE 'd%'", "(SELECT {} LIMIT 1)", "CAST({} AS BINARY)", "IF(1, LEFT({}, 9), 0)"]


@pytest.mark.parametrize("call", CALLS)
def test_what_is_computed_from_a_name_is_computed_from_the_neutral_one(database, call):
    for how in COMPUTED:
        given = database.run(f"SELECT {how.format(call)}").rows
        assert given == database.run(f"SELECT {how.format(repr(CALLS[call]))}").rows != None, (how, call)  # noqa: E711


def told(database, sql):
    """The secrets that a statement's rows or error hold, as they are or in what is computed from them."""
    result = database.run(sql)
    text = repr(result.rows) + str(result.error) + repr(result.columns)
    return [s for s in secrets(database) if s in text or s[2:] in text or s.encode().hex().upper()[4:] in text.upper()]


def test_no_variable_of_the_server_tells_a_name(database):
    with database._slot.admin.cursor() as cursor:
        cursor.execute("SHOW GLOBAL VARIABLES")
        names = [str(name) for name, _ in cursor.fetchall()]
    for name, way in product(names, ["SELECT HEX(@@{})", "SELECT @@global.{}", "UPDATE t SET b = @@{}"]):
        assert told(database, way.format(name)) == [], name
    for sql in ("SHOW VARIABLES", "SHOW GLOBAL VARIABLES LIKE 'datadir'", "SHOW STATUS", "SELECT @@ hostname"):
        assert told(database, sql) == []


def test_no_table_of_the_catalogue_tells_a_name(database):
    for sql in (
        "CREATE TABLE x (a INT)",
        "CREATE VIEW v AS SELECT a FROM x",
        "DROP TABLE x",
        "CREATE VIEW w AS SELECT 1",
    ):
        assert database.run(sql).error is None
    with database._slot.admin.cursor() as cursor:
        cursor.execute(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'information_schema'"
        )
        columns = [(str(table), str(column)) for table, column in cursor.fetchall()]
    for table in {table for table, _ in columns}:
        hexed = ", ".join(f"HEX(`{column}`)" for name, column in columns if name == table)
        for sql in (
            f"SELECT * FROM information_schema.{table}",
            f"SELECT {hexed} FROM information_schema.{table.lower()}",
        ):
            assert told(database, sql) == [], sql
    for sql in ("SHOW DATABASES LIKE 'agent%'", "SHOW SCHEMAS WHERE HEX(`Database`) LIKE '6167%'", "SHOW TABLE STATUS"):
        assert told(database, sql) == []
        assert not sql.startswith(("SHOW D", "SHOW S")) or database.run(sql).rows == ()
    for sql in (
        "SHOW CREATE VIEW v",
        "SHOW FULL PROCESSLIST",
        "DESCRIBE v",
        "EXPLAIN SELECT * FROM v",
        "CHECK TABLE v",
    ):
        assert told(database, sql) == []


@pytest.mark.parametrize("number", range(60, 100))
def test_a_message_that_cuts_a_name_tells_no_part_of_it(database, number):
    assert told(database, f"SELECT 1 {'x' * number} FORM dbbench.t, dbbench.t") == []
    assert told(database, f"x{'x' * number} dbbench.t, dbbench.t") == []
    assert told(database, f"SELECT * FROM {'x' * (number - 40)} JOIN dbbench.{'y' * 64}") == []
    assert told(database, "SHOW WARNINGS") == []


def test_warnings_tell_no_more_than_errors(database):
    database.run("SELECT 1 INTO OUTFILE '/tmp/agentgrpo-escape'")
    assert told(database, "SHOW WARNINGS") == [] and told(database, "SHOW ERRORS") == []
    assert "127.0.0.1" not in repr(database.run("SHOW ERRORS"))


def test_names_are_turned_where_they_are_names():
    def sent(sql):
        return as_sent(sql, name="x_1", catalogue="x_0")

    assert (
        sent("SELECT 'dbbench' FROM dbbench.t, `dbbench`.u -- dbbench")
        == "SELECT 'dbbench' FROM x_1.t, x_1.u -- dbbench"
    )
    assert sent("SELECT @dbbench, t.dbbench, dbbenchmark") == "SELECT @dbbench, t.dbbench, dbbenchmark"
    asked = "SELECT * FROM information_schema . `tables` WHERE table_schema = 'information_schema'"
    assert sent(asked) == asked.replace("FROM information_schema", "FROM x_0")
    assert sent("INSERT INTO user () VALUES ()") == "INSERT INTO user () VALUES ()"
    assert sent("SELECT database, user FROM t") == "SELECT database, user FROM t"


def test_messages_hold_no_account_host_or_path():
    text = "Access denied for user 'agentgrpo_1'@'%' to '/dev/shm/x/y.ibd' at 10.0.0.7, 'agentgrpo_1.t', 'agentgrpo_0'"
    shown = scrubbed(text, catalogue="agentgrpo_0", private={"10.0.0.7": "localhost"}, sql="SELECT 1")
    assert shown == "Access denied for user 'agent' to '...' at localhost, 'dbbench.t', 'information_schema'"


def test_what_the_catalogue_tells_is_what_an_agent_may_know(database):
    asked = "SELECT table_schema, table_name, tables.table_type FROM information_schema.tables WHERE table_schema = {}"
    for schema in ("DATABASE()", "'dbbench'", "SCHEMA()"):
        assert database.run(asked.format(schema)).rows == (("dbbench", "t", "BASE TABLE"),)
    assert database.run("SELECT schema_name FROM INFORMATION_SCHEMA.SCHEMATA ORDER BY 1").rows == (
        ("dbbench",),
        ("information_schema",),
    )
    assert database.run("SHOW DATABASES LIKE 'db%'").rows == (("dbbench",),)
    assert re.fullmatch(r"1146 .*Table 'information_schema.processes' doesn't exist", error(database, "processes"))


def error(database, table):
    return database.run(f"SELECT * FROM information_schema.{table}").error


def test_a_statement_calls_a_bounded_number_of_functions():
    def calls(n):
        return "SELECT " + ", ".join(["REPEAT('a', 9)"] * n)

    assert refusal(calls(200)) is None
    assert refusal(calls(201)) == "1105 (HY000): the statement calls 201 functions; at most 200 are allowed"
    assert refusal("SELECT " + ", ".join(["`repeat` /* x */ ('a', 9)"] * 201)) is not None
    values = ", ".join(["('f(x) g(y)', NULL)"] * 500)  # texts, and rows that call nothing
    assert refusal(f"INSERT INTO t VALUES {values}") is None
    assert refusal("SELECT a FROM t WHERE " + " OR ".join(["b IN (1, 2) AND a LIKE ('x%')"] * 500)) is None
    assert refusal("CREATE TABLE u (" + ", ".join(f"c{i} VARCHAR(9)" for i in range(500)) + ")") is None


@pytest.mark.parametrize("call", ["REGEXP_REPLACE(a, 'x', '')", "UPPER(`regexp_replace` /* x */ (a, 'x', a))"])
def test_a_function_that_ignores_kill_is_not_there(call):
    answer = refusal(f"SELECT {call} FROM t")
    assert answer is not None
    assert answer.lower() == "1305 (42000): function dbbench.regexp_replace does not exist"
    assert refusal("SELECT 'REGEXP_REPLACE(a, b, c)' FROM t") is None

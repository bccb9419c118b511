"""One shop on every engine, for the tests of what all of them promise.

The servers are a MariaDB and a PostgreSQL that the tests start. Their administrators play the person who owns the
database.
"""

import hashlib
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dbbench_adapter.engines import BackendUnavailable
from dbbench_adapter.tests.hostile import STATEMENTS
from dbbench_adapter.tests.hostile_postgres import POSTGRES_STATEMENTS

PASSWORD = "p@ss/w:rd#1"
WRITTEN = "p%40ss%2Fw%3Ard%231"
SHOP = """
CREATE TABLE customer (id INT PRIMARY KEY, name VARCHAR(40), `home town` TEXT, born DATE);
CREATE TABLE `order` (nr INT, customer INT, total DECIMAL(8,2), note BLOB, PRIMARY KEY (nr, customer),
    FOREIGN KEY (customer) REFERENCES customer(id));
CREATE VIEW spent AS SELECT customer, SUM(total) AS total FROM `order` GROUP BY customer;
INSERT INTO customer VALUES (1, 'Ann O''Hara', 'Ulm', '1990-02-03'), (2, 'Bo', NULL, NULL), (3, 'Cy', 'Bonn', NULL);
INSERT INTO `order` VALUES (1, 1, 2.50, x'00'), (2, 1, 4, NULL), (3, 2, 1.25, NULL);
CREATE TABLE t (a TEXT, b INT);
INSERT INTO t VALUES ('x', 1), ('y', 2), ('z', 3), ('x', 4)
"""


@dataclass(frozen=True)
class World:
    place: Path | str
    """The shop, whose id is `my_shop`."""
    empty: Path | str
    """A database without a table."""
    contents: Callable[[], object]
    """Everything that no statement of an agent may change."""
    secrets: tuple[str, ...]
    """What no error may tell."""
    clock: Callable[[], float]
    """The clock of this thread where it runs the statements itself, else the wall's."""
    longest_s: float
    """How long a statement may take by that clock whose limit is 0.5 s."""
    quote: str = "`"
    """What names stand in; the tests write backquotes."""
    zero_byte: str = "x'00'"
    types: tuple[str, str] = ("decimal(8,2)", "blob")
    """What DECIMAL(8,2) and BLOB are called in a schema."""

    statements: Sequence[tuple[str, str]] = tuple(STATEMENTS)
    """Hostile ones, each with its class."""

    def written(self, sql: str) -> str:
        return sql.replace("`", self.quote).replace("x'00'", self.zero_byte)


def file_world(folder):
    place, empty = folder / "shop" / "my_shop.sqlite", folder / "empty.sqlite"
    place.parent.mkdir()
    empty.touch()
    with closing(sqlite3.connect(place)) as connection:
        connection.executescript(SHOP)
    contents = lambda: {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in place.parent.iterdir()}  # noqa: E731
    return World(place, empty, contents, (str(folder),), time.thread_time, 1.5)


def server_world(server, account, address):
    empty = account("SELECT ON nothing.*").replace("/my_shop", "/nothing")
    secrets = (PASSWORD, WRITTEN, urlsplit(address).username)
    return World(address, empty, lambda: server_contents(server), secrets, time.monotonic, 3.0)


@pytest.fixture(scope="session")
def shop_server():
    from dbbench_adapter.engines.mysql.server import PrivateServer

    try:
        started = PrivateServer().__enter__()
    except BackendUnavailable as failure:
        pytest.skip(f"no MariaDB here: {failure}")
    yield started
    started.close()


def as_admin(server, *statements):
    """The rows of the last statement."""
    return answers_to_admin(server, *statements)[-1]


def answers_to_admin(server, *statements):
    """The rows of every statement, by one connection."""
    import pymysql

    parts = urlsplit(server.url)
    login = {"user": parts.username, "password": parts.password, "host": parts.hostname, "port": parts.port}
    login["ssl_disabled"] = True  # a TLS context costs more than the statements
    answers = []
    with pymysql.connect(**login, autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
            answers.append(list(cursor.fetchall()))
    return answers


@pytest.fixture(scope="session")
def shop_account(shop_server):
    """Make an account with these privileges and return its address; the password is full of signs."""
    as_admin(shop_server, "CREATE DATABASE my_shop", "USE my_shop", *SHOP.split(";\n"))
    as_admin(shop_server, "CREATE DATABASE nothing", "CREATE DATABASE other", "CREATE TABLE other.secret (a INT)")
    counted = "CREATE FUNCTION other.counted() RETURNS INT READS SQL DATA"
    as_admin(shop_server, f"{counted} RETURN (SELECT COUNT(*) FROM secret)")
    made = []

    def make(*grants):
        name = f"reader{len(made)}"
        made.append(name)
        to = f"'{name}'@'%'"
        as_admin(shop_server, f"CREATE USER {to} IDENTIFIED BY '{PASSWORD}'", *(f"GRANT {g} TO {to}" for g in grants))
        return f"mysql://{name}:{WRITTEN}@127.0.0.1:{urlsplit(shop_server.url).port}/my_shop"

    return make


@pytest.fixture(scope="session")
def shop_address(shop_account):
    return shop_account("SELECT, SHOW VIEW ON my_shop.*")


def server_contents(server):
    """Every table of the server's databases, by its checksum, and its accounts."""
    tables = as_admin(
        server,
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type = 'BASE TABLE' "
        "AND table_schema IN ('my_shop', 'other')",
    )
    sums = [f"CHECKSUM TABLE `{schema}`.`{table}`" for schema, table in sorted(tables)]
    return answers_to_admin(server, *sums, "SELECT user, host FROM mysql.user ORDER BY 1, 2", "SHOW DATABASES")


POSTGRES_SHOP = SHOP.replace("`", '"').replace("BLOB", "BYTEA").replace("x'00'", r"'\x00'")


def as_postgres_admin(server, *statements, database="postgres"):
    """The rows of the last statement; those of one that has none are empty."""
    psycopg = pytest.importorskip("psycopg", reason="the extra postgresql of pyproject.toml is not installed")
    with psycopg.connect(f"{server}{database}", autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="session")
def postgres_server():
    pytest.importorskip("psycopg", reason="the extra postgresql of pyproject.toml is not installed")
    from dbbench_adapter.tests.postgres_server import private_server

    with private_server() as server:
        as_postgres_admin(server, "CREATE DATABASE my_shop", "CREATE DATABASE nothing")
        as_postgres_admin(
            server,
            *POSTGRES_SHOP.split(";\n"),
            "CREATE SCHEMA other",
            "CREATE TABLE other.secret (a INT)",
            "CREATE SEQUENCE other.numbers",
            "SELECT lo_from_bytea(4711, 'large')",
            # what only the owner's own functions do
            "CREATE FUNCTION count_up() RETURNS bigint VOLATILE SECURITY DEFINER LANGUAGE sql "
            "AS $$ SELECT nextval('other.numbers') $$",
            "CREATE FUNCTION peek() RETURNS bigint STABLE LANGUAGE sql AS 'SELECT count(*) FROM other.secret'",
            "CREATE FUNCTION touched(t) RETURNS void VOLATILE LANGUAGE sql AS 'SELECT pg_advisory_lock(1)'",
            "CREATE FUNCTION two(int, int) RETURNS void VOLATILE LANGUAGE sql AS 'SELECT pg_advisory_lock(1)'",
            "CREATE OPERATOR <@@> (LEFTARG = int, RIGHTARG = int, FUNCTION = two)",
            database="my_shop",
        )
        yield server


@pytest.fixture(scope="session")
def postgres_account(postgres_server):
    """Make an account that may read the shop, do these things too (`{name}` is the account), and return its address."""
    made = []

    def make(*statements, database="my_shop"):
        name = f"reader{len(made)}"
        made.append(name)
        as_postgres_admin(
            postgres_server,
            f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'",
            f"GRANT CONNECT ON DATABASE {database} TO {name}",
            f"GRANT USAGE ON SCHEMA public TO {name}",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}",
            *(statement.format(name=name) for statement in statements),
            database=database,
        )
        return f"postgresql://{name}:{WRITTEN}@127.0.0.1:{urlsplit(postgres_server).port}/{database}"

    return make


@pytest.fixture(scope="session")
def postgres_address(postgres_account):
    return postgres_account()


def postgres_contents(server):
    """Tables, sequences, large objects, roles, settings, functions and files of the server."""
    tables = ["public.customer", 'public."order"', "public.t", "other.secret"]
    asked = [f"SELECT md5(string_agg(x::text, ',' ORDER BY x::text)) FROM {table} x" for table in tables]
    asked += [
        "SELECT last_value, is_called FROM other.numbers",
        "SELECT oid, lo_get(oid) FROM pg_largeobject_metadata",
        "SELECT oid, relname, relacl::text FROM pg_class ORDER BY oid",
        "SELECT * FROM pg_authid ORDER BY oid",
        "SELECT oid, datname FROM pg_database ORDER BY oid",
        "SELECT name, setting FROM pg_settings WHERE name <> 'application_name' ORDER BY name",
        "SELECT oid, proname, proacl::text FROM pg_proc ORDER BY oid",
        "SELECT extname FROM pg_extension",
        "SELECT name FROM pg_ls_dir('.') AS name WHERE name <> 'postmaster.pid' ORDER BY name",
        "SELECT count(*) FROM pg_locks WHERE locktype IN ('advisory', 'object')",
    ]
    return [as_postgres_admin(server, sql, database="my_shop") for sql in asked]


def postgres_world(server, account, address):
    secrets = (PASSWORD, WRITTEN, urlsplit(address).username, "127.0.0.1")
    empty = account(database="nothing")
    contents = lambda: postgres_contents(server)  # noqa: E731
    named = {
        "quote": '"',
        "zero_byte": r"'\x00'::bytea",
        "types": ("numeric(8,2)", "bytea"),
        "statements": (*STATEMENTS, *POSTGRES_STATEMENTS),
    }
    return World(address, empty, contents, secrets, time.monotonic, 3.0, **named)


@pytest.fixture(scope="session", params=["SQLite", "MariaDB", "PostgreSQL"])
def engine_world(request, tmp_path_factory):
    if request.param == "SQLite":
        return file_world(tmp_path_factory.mktemp("files"))
    if request.param == "PostgreSQL":
        return postgres_world(
            *map(request.getfixturevalue, ("postgres_server", "postgres_account", "postgres_address"))
        )
    return server_world(*map(request.getfixturevalue, ("shop_server", "shop_account", "shop_address")))

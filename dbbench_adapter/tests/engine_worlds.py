"""One shop on every engine, for the tests of what all of them promise.

The server is a MariaDB that the tests start. Its administrator plays the person who owns the database.
"""

import hashlib
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dbbench_adapter.engines import BackendUnavailable

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
    """What stands around a name; the statements of the tests have backquotes."""


def file_world(folder):
    place, empty = folder / "shop" / "my_shop.sqlite", folder / "empty.sqlite"
    place.parent.mkdir()
    empty.touch()
    with closing(sqlite3.connect(place)) as connection:
        connection.executescript(SHOP)
    return World(place, empty, lambda: file_contents(place.parent), (str(folder),), time.thread_time, 1.5)


def duckdb_world(folder):
    duckdb = pytest.importorskip("duckdb")
    place, empty = folder / "shop" / "my_shop.duckdb", folder / "empty.duckdb"
    place.parent.mkdir()
    for file, statements in ((place, SHOP.replace("`", '"')), (empty, "SELECT 1")):
        with duckdb.connect(file) as connection:
            connection.execute(statements)
    return World(place, empty, lambda: file_contents(place.parent), (str(folder),), time.monotonic, 3.0, '"')


def file_contents(folder):
    return {
        file.name: (hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_mtime_ns) for file in folder.iterdir()
    }


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


@pytest.fixture(scope="session", params=["SQLite", "DuckDB", "MariaDB"])
def engine_world(request, tmp_path_factory):
    if request.param == "SQLite":
        return file_world(tmp_path_factory.mktemp("files"))
    if request.param == "DuckDB":
        return duckdb_world(tmp_path_factory.mktemp("duckdb"))
    return server_world(*map(request.getfixturevalue, ("shop_server", "shop_account", "shop_address")))

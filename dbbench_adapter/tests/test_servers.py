"""What every engine on a server promises: how its address is read, its connections are shared, and its loss is told."""

import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from agentgrpo.passwords import VARIABLE
from dbbench_adapter.datatypes import DatabaseError
from dbbench_adapter.engines import BackendUnavailable, named_database, open_databases
from dbbench_adapter.engines import server as servers
from dbbench_adapter.engines.server import MAX_CONNECTIONS
from dbbench_adapter.tests.engine_worlds import PASSWORD, WRITTEN, as_admin, as_postgres_admin

pytestmark = pytest.mark.usefixtures("few_objects")
FORMS = ("mysql://", "postgresql://", "postgres://")


def crossed(count):
    return f"SELECT COUNT(*) FROM {', '.join(f't t{n}' for n in range(count))}"  # 4 ** count rows


ENDLESS = crossed(14)


@dataclass(frozen=True)
class Served:
    address: str
    as_admin: Callable
    connection_id: str
    """A query for it."""
    connections: str
    """A query for how many there are of the account; `{}` is a further condition on `statement`."""
    statement: str
    end_statements: str
    end_connections: str
    own: Callable
    """Starts another server with a table `t` and an account that may read it, as a context that gives its address."""


def mariadb_served(shop_server, address):
    user = urlsplit(address).username
    return Served(
        address,
        lambda sql: as_admin(shop_server, sql),
        "SELECT CONNECTION_ID()",
        f"SELECT COUNT(*) FROM information_schema.processlist WHERE user = '{user}' {{}}",
        "info",
        f"KILL QUERY USER '{user}'",
        f"KILL USER '{user}'",
        own_mariadb,
    )


def postgres_served(postgres_server, address):
    mine = f"FROM pg_stat_activity WHERE usename = '{urlsplit(address).username}'"
    return Served(
        address,
        lambda sql: as_postgres_admin(postgres_server, sql),
        "SELECT pg_backend_pid()",
        f"SELECT COUNT(*) {mine} {{}}",
        "query",
        f"SELECT pg_cancel_backend(pid) {mine}",
        f"SELECT pg_terminate_backend(pid) {mine}",
        own_postgres,
    )


@contextmanager
def own_mariadb():
    from dbbench_adapter.engines.mysql.server import PrivateServer

    with PrivateServer() as own:
        as_admin(own, "CREATE DATABASE d", "CREATE TABLE d.t (a INT)", "CREATE USER r@'%' IDENTIFIED BY 'pw1'",
                 "GRANT SELECT ON d.* TO r@'%'")  # fmt: skip
        yield f"mysql://r:pw1@127.0.0.1:{urlsplit(own.url).port}/d"


@contextmanager
def own_postgres():
    from dbbench_adapter.tests.postgres_server import private_server

    with private_server() as own:
        as_postgres_admin(own, "CREATE DATABASE d")
        as_postgres_admin(own, "CREATE TABLE t (a INT)", "CREATE ROLE r LOGIN PASSWORD 'pw1'",
                          "GRANT SELECT ON t TO r", database="d")  # fmt: skip
        yield f"postgresql://r:pw1@127.0.0.1:{urlsplit(own).port}/d"


@pytest.fixture(params=["MariaDB", "PostgreSQL"])
def served(request):
    if request.param == "MariaDB":
        return mariadb_served(*map(request.getfixturevalue, ("shop_server", "shop_address")))
    return postgres_served(*map(request.getfixturevalue, ("postgres_server", "postgres_address")))


@pytest.fixture
def databases(served):
    with closing(open_databases(served.address)) as opened:
        yield opened


def run(databases, sql, timeout_s=1.0):
    return databases.open("my_shop", statement_timeout_s=timeout_s).run(sql)


@pytest.mark.parametrize("scheme", FORMS)
@pytest.mark.parametrize("rest", [
    f"me:{WRITTEN}@host", f"me:{WRITTEN}@host/", f"me:{WRITTEN}@host:port/d", f"me:{WRITTEN}@/d", f":{WRITTEN}@host/d",
    f"me:{WRITTEN}@host/d/e", f"me:{PASSWORD}@host/d", f"me:{WRITTEN}@host:0/d", f"me:{WRITTEN}@host/d?ssl=1",
])  # fmt: skip
def test_what_is_no_address_of_a_database_is_said_without_the_password(scheme, rest):
    form = scheme.replace("postgres:", "postgresql:")
    with pytest.raises(DatabaseError, match=f"expected {form}user:password@host:port/database; in user") as caught:
        open_databases(named_database(scheme + rest))
    assert not any(part in str(caught.value) for part in (WRITTEN, PASSWORD, "w:rd", "p@ss"))


@pytest.mark.parametrize("scheme", FORMS)
def test_a_password_that_is_hidden_and_unknown_is_asked_for(scheme):
    with pytest.raises(DatabaseError, match=f"give the whole address again, or set {VARIABLE}"):
        open_databases(f"{scheme}nobody:***@host/d")


def test_a_process_has_few_connections_and_waits_for_a_free_one(served, databases, monkeypatch):
    most, done = 0, threading.Event()
    mine = served.connections.format("")

    def watch():
        nonlocal most
        while not done.is_set():
            most = max(most, served.as_admin(mine)[0][0])

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(lambda _: run(databases, crossed(9), 30.0).rows, range(24)))
    done.set()
    watcher.join()
    assert found == [((4**9,),)] * 24
    assert 0 < most <= MAX_CONNECTIONS
    monkeypatch.setattr(servers, "WAIT_S", 0.1)
    with ThreadPoolExecutor(MAX_CONNECTIONS) as pool:
        others = [pool.submit(run, databases, ENDLESS, 10.0) for _ in range(MAX_CONNECTIONS)]
        busy = served.connections.format(f"AND {served.statement} LIKE '%SELECT%t13%'")
        deadline = time.monotonic() + 10.0
        while served.as_admin(busy)[0][0] < MAX_CONNECTIONS and time.monotonic() < deadline:
            time.sleep(0.05)
        with pytest.raises(BackendUnavailable, match="all 8 connections of this process were busy for 0 s"):
            run(databases, "SELECT 1", 0.6)
        served.as_admin(served.end_statements)  # rather than both cores for 10 s
    assert {type(other.exception()) for other in others} <= {type(None), BackendUnavailable}


def test_a_fork_makes_connections_of_its_own(served, databases):
    assert run(databases, "SELECT 1").rows == ((1,),)
    ours = databases._server.query(served.connection_id)
    receive, send = os.pipe()
    if not (child := os.fork()):
        os.write(send, json.dumps(databases._server.query(served.connection_id)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert json.loads(os.read(receive, 99)) != [list(ours[0])]
    assert databases._server.query(served.connection_id) == ours


def test_a_server_that_is_gone_is_no_fault_of_the_statement_and_its_address_is_said(served):
    with served.own() as address:
        session = open_databases(address).open("d", statement_timeout_s=1.0)
        assert session.run("SELECT a FROM t").columns == ("a",)
    with pytest.raises(BackendUnavailable, match=r"://r:\*\*\*@127.0.0.1:\d+/d: .*; the server has to run") as caught:
        session.run("SELECT a FROM t")
    assert "pw1" not in str(caught.value)


def test_a_connection_that_the_server_ends_early_is_no_fault_of_the_statement(served, databases):
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(run, databases, ENDLESS, 20.0)
        while not served.as_admin(served.connections.format(f"AND {served.statement} LIKE '%SELECT%t13%'"))[0][0]:
            time.sleep(0.02)
        served.as_admin(served.end_connections)
        with pytest.raises(BackendUnavailable, match=r"the connection was lost|terminating connection"):
            lost.result()
    assert run(databases, "SELECT 1").rows == ((1,),)

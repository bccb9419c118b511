"""The private MariaDB: gone with its owner, however that one ends."""

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dbbench_adapter.datatypes import Column, Table
from dbbench_adapter.engines import BackendUnavailable, open_backend
from dbbench_adapter.engines.mysql.backend import MysqlBackend
from dbbench_adapter.engines.mysql.server import PrivateServer

OWNER = """
import sys, time
from dbbench_adapter.engines.mysql.server import PrivateServer
with PrivateServer() as server:
    print(server._process.pid, server._folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def server(mariadb):
    with PrivateServer() as server:
        yield server


def test_nothing_is_left_of_it(server):
    folder, pid = server._folder, server._process.pid
    assert (folder / "init.sql").stat().st_mode & 0o077 == 0  # it holds the password
    server.close()
    assert not folder.exists() and not Path("/proc", str(pid)).exists()


def test_it_dies_with_its_owner_and_the_next_one_cleans_up(mariadb):
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, folder = owner.stdout.readline().split()
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 5
    while Path("/proc", pid, "exe").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path("/proc", pid, "exe").exists()
    assert Path(folder).exists()
    with PrivateServer():
        assert not Path(folder).exists()


def test_a_server_that_dies_is_no_fault_of_the_agent(server):
    with MysqlBackend(server.url) as backend:
        table = Table("T", (Column("a"),), (("1",),))
        database = backend.open([table], typed=False)
        assert database.run("SELECT a FROM T").rows == (("1",),)
        server._process.kill()
        server._process.wait()
        for use in (lambda: database.run("SELECT a FROM T"), database.snapshot, lambda: database.table_hash([table])):
            with pytest.raises(BackendUnavailable, match="it has to run"):
                use()
        database.close()


def test_a_server_that_is_killed_comes_back_at_its_address_and_the_same_backend_goes_on(server):
    with MysqlBackend(server.url) as backend:
        table = Table("T", (Column("a"),), (("1",),))
        backend.open([table], typed=False).close()
        for _ in range(2):
            server._process.kill()
            server._process.wait()
            deadline = time.monotonic() + 20
            while (database := opened(backend, table)) is None:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert database.run("SELECT a FROM T").rows == (("1",),)
            database.close()


def test_what_was_made_since_a_server_came_back_is_no_orphan_to_the_next_one_that_starts_on_it(server):
    with MysqlBackend(server.url) as backend:
        table = Table("T", (Column("a"),), (("1",),))
        server._process.kill()
        server._process.wait()
        deadline = time.monotonic() + 20
        while (database := opened(backend, table)) is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with MysqlBackend(server.url):
            assert database.run("SELECT a FROM T").rows == (("1",),)
        database.close()


def opened(backend, table):
    with contextlib.suppress(BackendUnavailable):
        return backend.open([table], typed=False)


def test_a_server_that_is_told_to_end_stays_down(server):
    server._process.terminate()
    server._thread.join(60)
    assert not server._thread.is_alive()


def test_a_server_that_starts_removes_no_temporary_table_of_another(server):
    unused = server._temporary / "#sql-temptable-1-1-1.MAI"  # MariaDB starts by removing what has such a name
    unused.touch()
    with PrivateServer() as other:
        assert other._temporary != server._temporary and unused.exists()
        for each in (server, other):
            with MysqlBackend(each.url) as backend:
                admin = backend._pool._all[0].admin.cursor()
                admin.execute("SELECT @@tmpdir")
                assert admin.fetchone() == (str(each._temporary),)


def test_databases_and_users_of_ours_leave_a_shared_server(server):
    with MysqlBackend(server.url) as outer:
        admin = outer._pool._all[0].admin.cursor()

        def ours():
            admin.execute("SELECT User FROM mysql.user WHERE User LIKE 'agentgrpo\\_%'")
            users = admin.fetchall()
            admin.execute("SHOW DATABASES LIKE 'agentgrpo\\_%'")
            return len(users), len(admin.fetchall())

        assert ours() == (1, 0)
        with open_backend(server.url) as inner:
            inner.open([Table("T", (Column("a"),), ())], typed=False)
            inner.open([Table("T", (Column("a"),), ())], typed=False)
            assert ours() == (3, 2)
        assert ours() == (1, 0)


def test_without_mariadb_the_message_says_what_to_do(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(BackendUnavailable, match="apt-get install mariadb-server"), open_backend("mariadb"):
        pass

"""No statement of `hostile.py` takes too long, reaches out of its episode, or tells what it should not.

`--full` gives each statement a second instead of four tenths.
"""

import time
from functools import partial

import psutil
import pytest

from agentgrpo.tests.seconds import seconds_here
from dbbench_adapter.datatypes import Column, Table
from dbbench_adapter.engines.sqlite.backend import SqliteDatabase
from dbbench_adapter.tests.hostile import HOSTILE, STATEMENTS
from dbbench_adapter.tests.world import told, world

pytestmark = pytest.mark.slow
T = Table("t", (Column("a"), Column("b", "INT")), tuple((f"n{i}", i) for i in range(30)))
NEIGHBOUR = Table("t", (Column("a"), Column("b", "INT")), (("mine", 1), ("mine too", 2)))


@pytest.fixture(scope="module")
def limit_s(request):
    return 1.0 if request.config.getoption("--full") else 0.4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The working folder of the whole module, empty."""
    folder = tmp_path_factory.mktemp("work")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module", params=["sqlite", "mariadb"])
def engine(request, folder):
    """A backend, the open database of a neighbour, and all that no statement may change."""
    backend = request.getfixturevalue(request.param)
    with backend.open([NEIGHBOUR], typed=True) as neighbour:
        yield backend, partial(world, backend, neighbour, [NEIGHBOUR], folder)


def test_there_are_enough_of_them():
    assert len(set(STATEMENTS)) == len(STATEMENTS) >= 300


def answered_in_time(database, sql, limit_s):
    """The result, within the limit and a second; a late one is tried thrice, since other work may hold the cores.

    SQLite works in this thread, whose CPU seconds are what is limited.
    """
    here = isinstance(database, SqliteDatabase)
    for _ in range(3):
        clock = time.thread_time if here else time.monotonic
        started = clock()
        result = database.run(sql)
        took_s = clock() - started
        if took_s < limit_s + seconds_here(1):
            return result
    pytest.fail(f"{sql[:200]!r} took {took_s:.2f} s, thrice")


@pytest.mark.parametrize("name", HOSTILE)
def test_statements_end_in_time_and_change_nothing_outside(engine, limit_s, name):
    backend, world = engine
    before = world()
    for sql in HOSTILE[name]:
        with backend.open([T], typed=True, statement_timeout_s=limit_s) as database:
            result = answered_in_time(database, sql, limit_s)
            secrets = told(database, sql, result.error)
        assert not secrets, f"{sql[:200]!r} told {secrets}: {result.error}"
    assert world() == before


def test_an_episode_goes_on_after_all_of_them(engine, limit_s):
    """One after another in one episode: each still gets its answer in time, and the judge its tables."""
    backend, world = engine
    before = world()
    with backend.open([T], typed=True, statement_timeout_s=limit_s) as database:
        for name in ("limits_taken_away", "locks", "odd_texts", "programs", "server"):
            for sql in HOSTILE[name]:
                answered_in_time(database, sql, limit_s)
        assert "t" in database.snapshot()
    assert world() == before


def test_nothing_goes_on_in_the_server_after_all_of_them(mariadb):
    """A call that ignores its KILL would keep a core busy for as long as the server lives."""
    servers = [child for child in psutil.Process().children(recursive=True) if child.name() == "mariadbd"]
    assert servers  # other tests of this process have one of their own
    deadline = time.monotonic() + 240
    while (busy := max(server.cpu_percent(interval=1.0) for server in servers)) > 20:
        assert time.monotonic() < deadline, f"the server still takes {busy:.0f} % of a core"

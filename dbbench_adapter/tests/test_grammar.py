"""Random statements of `grammar`, twenty to an episode and then a judge, stay within limits and leave nothing behind.

Some hundred statements on each engine; `--full` plays for half an hour on each. What fails names the seed: `python -m
dbbench_adapter.tests.grammar SEED` prints its statements.
"""

import contextlib
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path

import pytest

from agentgrpo.tests.seconds import seconds_here
from dbbench_adapter.datatypes import Column, Gold, Table, Task
from dbbench_adapter.engines import Backend, BackendUnavailable, Result
from dbbench_adapter.engines.mysql.backend import MysqlBackend
from dbbench_adapter.engines.mysql.names import PREFIX
from dbbench_adapter.engines.mysql.pool import MAX_DATABASE_BYTES
from dbbench_adapter.engines.sqlite.backend import JUDGE_TIMEOUT_S
from dbbench_adapter.engines.sqlite.sandbox import MAX_PAGES
from dbbench_adapter.judges import JUDGES
from dbbench_adapter.protocols import open_episode
from dbbench_adapter.tests.grammar import statements
from dbbench_adapter.tests.world import told, world

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

T = Table("t", (Column("a"), Column("b", "INT")), tuple((f"n{i}", i) for i in range(30)))
U = Table("u", (Column("a"), Column("b", "INT")), tuple((f"n{i}", i * i) for i in range(5)))
TASK = Task(id="grammar", question="?", kind="UPDATE", tables=(T, U), gold=Gold(sql="UPDATE t SET b = 0"), typed=True)
NEIGHBOUR = Table("t", (Column("a"), Column("b", "INT")), (("mine", 1), ("mine too", 2)))
STATEMENT_S = 0.4
EPISODE_STATEMENTS = 20
QUICK_EPISODES = 6  # two minutes on each engine were a tenth of all tests; --full plays half an hour
FULL_S = 1_800
MAX_LATE_S = 0.5
"""A neighbour waits no longer for a statement of somebody else."""
TRIES = 3
"""An episode that took too long is played again: other work may have held the cores."""
MAX_GROWTH_BYTES = 256 * 1024**2
"""Between episodes the process holds no more than this beyond what it held after the first; a server fills its caches
besides."""
MAX_SERVER_GROWTH_BYTES = 1024**3
MAX_OVERSHOOT_BYTES = 64 * 1024**2
"""What a statement writes between two looks at the size of its database."""
_BEAT_S = 0.05
_SERVERS_OWN = frozenset(["ddl_recovery.log"])
"""Files that it makes at some time."""


@dataclass(frozen=True)
class Finding:
    """What an episode did wrong."""

    what: str
    """`late` where time alone may have been somebody else's."""
    sql: str
    detail: str


class Neighbour:
    """Runs `SELECT 1` in a database of its own all the time, and knows how late it got its answers."""

    def __init__(self, backend: Backend) -> None:
        self.database = backend.open([NEIGHBOUR], typed=True)
        self._own = backend.open([NEIGHBOUR], typed=True)
        self._is_here = not isinstance(backend, MysqlBackend)
        self._worst_s, self._beats, self.error = 0.0, 0, None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def settled_late_s(self) -> float:
        """How late it was at worst since this was last asked."""
        beats = self._beats
        while self._beats < beats + 2 and self._thread.is_alive():
            time.sleep(_BEAT_S / 5)
        worst_s, self._worst_s = self._worst_s, 0.0
        assert self.error is None, self.error
        return worst_s

    def stopwatch(self) -> Callable[[], float]:
        """Seconds since now: of time, and where the engine is in this process at most those that it worked; a busy
        machine lets it wait."""
        started, worked = time.monotonic(), time.process_time()
        if not self._is_here:
            return lambda: time.monotonic() - started
        return lambda: min(time.monotonic() - started, time.process_time() - worked)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._own.close()
        self.database.close()

    def _beat(self) -> None:
        while not self._stop.is_set():
            spent_s = self.stopwatch()
            time.sleep(_BEAT_S)
            result = self._own.run("SELECT 1")
            if result.rows != ((1,),):
                self.error = f"the neighbour was answered {result}"
                return
            self._worst_s = max(self._worst_s, spent_s() - (0 if self._is_here else _BEAT_S))
            self._beats += 1


class Player:
    """Plays seeds on one backend beside a neighbour, and counts what was answered."""

    def __init__(self, backend: Backend, neighbour: Neighbour) -> None:
        self.backend, self.neighbour = backend, neighbour
        self.answers: Counter[str] = Counter()
        self.worst_s: Counter[str] = Counter()

    def confirmed(self, seed: int) -> list[Finding]:
        """What is wrong with a seed, and is again where it only was late."""
        found = self.play(seed)
        for _ in range(TRIES - 1):
            if not found or any(finding.what != "late" for finding in found):
                break
            found = self.play(seed, one_by_one=True)
        return found

    def play(self, seed: int, *, one_by_one: bool = False) -> list[Finding]:
        """One episode, judged.

        Args:
            one_by_one: look at the neighbour after each statement, not only at the end.
        """
        found: list[Finding] = []
        protocol = ("text", "fc", "lab")[seed % 3]
        self.neighbour.settled_late_s()
        try:
            with open_episode(TASK, self.backend, protocol, statement_timeout_s=STATEMENT_S) as episode:
                database = episode._database
                sql = ""
                for sql in islice(statements(seed), EPISODE_STATEMENTS):
                    found += self._run(database, sql)
                    if protocol == "text":
                        found += self._timed("a new session", sql, database.new_session, STATEMENT_S)
                    if one_by_one:
                        found += self._late(sql)
                found += self._oversized(database, sql)
                episode.status, episode.answers = "completed", []
                for name in JUDGES:
                    found += self._timed(name, sql, partial(self._judged, episode, name, found), 2 * JUDGE_TIMEOUT_S)
            found += self._late("the episode" if not one_by_one else "its judges and its end")
        except BackendUnavailable as failure:
            found.append(Finding("unavailable", sql, str(failure)))
        return found

    def _run(self, database, sql: str) -> list[Finding]:
        result = Result()

        def run() -> None:
            nonlocal result
            result = database.run(sql)

        try:
            found = self._timed("a statement", sql, run, STATEMENT_S)
        except BackendUnavailable:
            raise
        except Exception as error:
            return [Finding("raised", sql, repr(error))]
        self.answers["error" if result.error is not None else "executed"] += 1
        if secrets := told(database, sql, result.error):
            found.append(Finding("told", sql, f"{secrets}: {result.error}"))
        return found

    def _timed(self, what: str, sql: str, act, limit_s: float) -> list[Finding]:
        spent_s = self.neighbour.stopwatch()
        act()
        elapsed_s = spent_s()
        self.worst_s[what] = max(self.worst_s[what], elapsed_s)
        return [Finding("late", sql, f"{what} took {elapsed_s:.2f} s")] if elapsed_s > limit_s + seconds_here(1) else []

    def _late(self, sql: str) -> list[Finding]:
        late_s = self.neighbour.settled_late_s()
        self.worst_s["the neighbour"] = max(self.worst_s["the neighbour"], late_s)
        return [Finding("late", sql, f"the neighbour was {late_s:.2f} s late")] if late_s > MAX_LATE_S else []

    def _judged(self, episode, name, found: list[Finding]) -> None:
        score = episode.judge(name)
        if score.value not in (0.0, 1.0):
            found.append(Finding("not judged", "", f"{name}: {score}"))

    def _oversized(self, database, sql: str) -> list[Finding]:
        if isinstance(self.backend, MysqlBackend):
            pool, slot = database._pool, database._slot
            held = {"main": pool.sizes_bytes(slot.admin).get(slot.name, 0)}
            limit = MAX_DATABASE_BYTES + MAX_OVERSHOOT_BYTES
        else:
            held = {part: database._read(f"PRAGMA {part}.page_count")[0][0] for part in ("main", "temp")}
            limit = MAX_PAGES
        self.worst_s["size"] = max(self.worst_s["size"], *held.values())
        return [Finding("too large", sql, f"{held}")] if max(held.values()) > limit else []


def server_folders(backend, neighbour):
    """The server's process, and what lies in its folders, by name; nothing for SQLite. All databases of the pool count
    under one name, since it removes them and makes others."""
    if not isinstance(backend, MysqlBackend):
        return None, Counter()
    with neighbour.database._slot.admin.cursor() as cursor:
        cursor.execute("SELECT @@pid_file, @@tmpdir, @@datadir")
        ((pid_file, temporary, data),) = cursor.fetchall()
    names = (path.name for folder in (temporary, data) for path in Path(folder).iterdir())
    slot = re.compile(rf"{PREFIX}{backend._pool._owner}_\d+")
    found = Counter(slot.sub("a database of the pool", name) for name in names if name not in _SERVERS_OWN)
    return int((Path(data) / pid_file).read_text()), found


def resident_bytes(process_id) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{process_id}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


@pytest.mark.parametrize("name", ["sqlite", "mariadb"])
def test_random_statements_keep_their_limits_and_leave_nothing_behind(request, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    backend = request.getfixturevalue(name)
    neighbour = Neighbour(backend)
    player = Player(backend, neighbour)
    try:
        time.sleep(1)
        idle_s = neighbour.settled_late_s()
        player.play(0)  # what is made once is made now
        neighbour.database.run("SHOW DATABASES")
        seen = partial(world, backend, neighbour.database, [NEIGHBOUR], tmp_path)
        before, server = seen(), server_folders(backend, neighbour)
        server_bytes, bytes_before = resident_bytes(server[0]), resident_bytes("self")
        for seed in seeds(full=request.config.getoption("--full")):
            found = player.confirmed(seed)
            assert not found, f"seed {seed}, the neighbour {idle_s:.2f} s late beside nothing: {found}"
        assert seen() == before
        assert server_folders(backend, neighbour)[0] == server[0]
        # another test's database may have been on its way out at the beginning
        assert after_a_while(lambda: server_folders(backend, neighbour)[1] - server[1], Counter()) == Counter()
        assert resident_bytes("self") - bytes_before < MAX_GROWTH_BYTES
        assert resident_bytes(server[0]) - server_bytes < MAX_SERVER_GROWTH_BYTES
    finally:
        neighbour.close()
        print(name, dict(player.answers), {what: round(worst, 2) for what, worst in player.worst_s.items()})


def seeds(*, full: bool):
    """The seeds to play: some, or as many as there is time for."""
    end = time.monotonic() + FULL_S
    for seed in count(1) if full else range(1, QUICK_EPISODES + 1):
        if full and time.monotonic() > end:
            return
        yield seed


def after_a_while(read, wanted):
    """What is read, once it is as wanted; the last that was, where it never is: what a call that heeds no KILL still
    uses is removed once it has ended."""
    for _ in range(3000):
        if (found := read()) == wanted:
            break
        time.sleep(0.1)
    return found


def test_the_same_seed_says_the_same():
    assert list(islice(statements(7), 200)) == list(islice(statements(7), 200))

"""Measures the cost of DB-Bench: `python -m bench.dbbench [--output FILE]`; two minutes on two idle cores.

One episode makes a database with a table of 30 rows, runs three statements (two SELECTs and a change), commits, and
calls the strict judge, which makes a second database for the reference; then both are dropped. No statement is
repeated, so that none is in a cache. Episodes run in processes with threads, as runners do.
"""

from __future__ import annotations

from agentgrpo.commands import execute, starting

if __name__ == "__main__":
    starting()

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentgrpo.flags import Parser
from bench.parts.report import Row, add_json, facts, finish
from dbbench_adapter import judge
from dbbench_adapter.datatypes import Column, Gold, Table, Task
from dbbench_adapter.engines import Backend, BackendUnavailable, known_backends, open_backend
from dbbench_adapter.protocols.fc import FcEpisode

NUM_ROWS = 30
NUM_ANSWERS = 10_000
NUM_ONE_BY_ONE = 1000
TARGET_PER_S = {"sqlite": 400.0, "mariadb": 200.0}
TARGET_MS = {"sqlite": 10.0, "mariadb": 40.0}
LIMIT = {
    "sqlite": "reading and translating each statement (sqlglot)",
    "mariadb": "round trips; making and dropping tables",
}
TARGET_JUDGE_S = 2.0
TARGET_GROWTH_MIB = 16.0
# Seconds of database work per episode of the originals, measured; the first plays one at a time.
ORIGINAL_S = {"LifelongAgentBench": 0.1, "AgentBench": 0.25}


@dataclass(frozen=True)
class Share:
    started: float
    ended: float
    cpu_s: float
    """CPU seconds of the process itself, without the server's; a busy machine changes them little."""
    times_ms: list[float]
    early_mib: float
    """Resident memory after a tenth of the episodes."""
    late_mib: float


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_args(arguments)
    rows = [row for backend in args.backend for row in measure_backend(backend, args)]
    rows.append(Row(f"judging {NUM_ANSWERS:,} answers, fc and strict", judging_s(), "s", TARGET_JUDGE_S))
    print(f"{args.processes} processes, {args.concurrency} episodes at once")
    return finish(rows, facts(), args.output)


def parse_args(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m bench.dbbench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--backend",
        action="append",
        metavar="SPEC",
        help=f"{known_backends()}; may be given again (default: sqlite and mariadb)",
    )
    parser.add_argument("--episodes", type=int, default=10_000, help="episodes on each backend, default 10000")
    parser.add_argument("--processes", type=int, default=2, help="processes that play them, default 2")
    parser.add_argument("--concurrency", type=int, default=32, help="episodes at once in all processes, default 32")
    add_json(parser)
    args = parser.parse_args(arguments)
    if not 1 <= args.processes <= args.concurrency <= args.episodes:
        parser.error("expected 1 <= processes <= concurrency <= episodes")
    args.backend = args.backend or ["sqlite", "mariadb"]
    return args


def measure_backend(spec: str, args: argparse.Namespace) -> list[Row]:
    """The rows of one backend; of a missing one, a row that says why."""
    name = spec.partition(":")[0]
    target = TARGET_PER_S.get(name, TARGET_PER_S["mariadb"])
    try:
        with served(spec) as (shared, watcher):
            shares = run_shares(shared, args.episodes, args.processes, args.concurrency)
            left = watcher.live_databases()
    except BackendUnavailable as missing:
        return [Row(f"{name} episodes", None, "1/s", target, "at least", limit=f"not measured: {missing}")]
    return backend_rows(name, target, shares, left)


def backend_rows(name: str, target: float, shares: Sequence[Share], left: int) -> list[Row]:
    times_ms = [time_ms for share in shares for time_ms in share.times_ms]
    seconds = max(share.ended for share in shares) - min(share.started for share in shares)
    rate = len(times_ms) / seconds
    early, late = (max(getattr(share, name) for share in shares) for name in ("early_mib", "late_mib"))
    cpu_s = sum(share.cpu_s for share in shares)
    a_tenth = f"{len(times_ms) // 10:,}"
    return [
        Row(f"{name} episodes, {len(times_ms):,}", rate, "1/s", target, "at least", LIMIT.get(name, "")),
        *(
            Row(f"{name}, times as many as {original} ({seconds_each} s each, one at a time)", rate * seconds_each, "x")
            for original, seconds_each in ORIGINAL_S.items()
        ),
        Row(f"{name} episode, CPU time in our processes", 1000 * cpu_s / len(times_ms), "ms"),
        Row(f"{name} episode, median while the others run", statistics.median(times_ms), "ms"),
        Row(f"{name}, memory of the larger process after {a_tenth} episodes", early, "MiB"),
        Row(f"{name}, growth from there to {len(times_ms):,}", late - early, "MiB", TARGET_GROWTH_MIB),
        Row(f"{name} databases left", float(left), "", 0.0),
    ]


@contextmanager
def served(spec: str) -> Iterator[tuple[str, Backend]]:
    """Yield a spec that several processes can open, and a backend that sees what they leave behind."""
    if spec == "mariadb":
        from dbbench_adapter.engines.mysql.server import PrivateServer

        with PrivateServer() as server, open_backend(server.url) as backend:
            yield server.url, backend
    else:
        with open_backend(spec) as backend:
            yield spec, backend


def run_shares(spec: str, episodes: int, processes: int, concurrency: int) -> list[Share]:
    """Play the episodes in this many processes, with `concurrency` of them at once in all."""
    parts = [(spec, range(i, episodes, processes), -(-concurrency // processes)) for i in range(processes)]
    if processes == 1:
        return [run_share(*parts[0])]
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(run_share, *zip(*parts, strict=True)))


def run_share(spec: str, numbers: range, threads: int) -> Share:
    """Play the episodes of these numbers, this many at once, and measure the memory that they leave."""
    with open_backend(spec) as backend, ThreadPoolExecutor(threads) as pool:
        early = numbers[: max(len(numbers) // 10, 1)]
        started, cpu_s = time.monotonic(), time.process_time()
        times_ms = list(pool.map(lambda number: play(backend, bench_task(number)), early))
        early_mib = _resident_mib()
        times_ms += pool.map(lambda number: play(backend, bench_task(number)), numbers[len(early) :])
        ended, cpu_s = time.monotonic(), time.process_time() - cpu_s
        left = backend.live_databases()
        if left:
            raise RuntimeError(f"{spec}: {left} databases left after all episodes were closed")
        return Share(started, ended, cpu_s, times_ms, early_mib, _resident_mib())


def measure_one_by_one(_model: Path, _folder: Path) -> list[Row]:
    return [row for spec in TARGET_MS for row in _one_by_one(spec)]


def _one_by_one(spec: str) -> list[Row]:
    what = f"{spec} episode, median of {NUM_ONE_BY_ONE:,}"
    try:
        with open_backend(spec) as backend:
            times_ms, left = episode_times(backend, NUM_ONE_BY_ONE), backend.live_databases()
    except BackendUnavailable as missing:
        return [Row(what, None, "ms", TARGET_MS[spec], limit=f"not measured: {missing}")]
    return [
        Row(what, statistics.median(times_ms), "ms", TARGET_MS[spec], limit=LIMIT[spec]),
        Row(f"{spec} databases left after them", float(left), "", 0.0),
    ]


def episode_times(backend: Backend, n: int) -> list[float]:
    return [play(backend, bench_task(index)) for index in range(n)]


def bench_task(index: int) -> Task:
    columns = (Column("Name"), Column("City"), Column("Year", "INT"), Column("Points", "INT"), Column("Note"))
    rows = tuple((f"name {i}", f"city {i % 7}", 1990 + i % 5, 10 * i + index, f"note {i}") for i in range(NUM_ROWS))
    return Task(
        id=f"bench-{index}",
        question="",
        kind="UPDATE",
        tables=(Table(f"Results {index}", columns, rows),),
        gold=Gold(sql=f"UPDATE `Results {index}` SET `Points` = {index} WHERE `Name` = 'name {index % NUM_ROWS}'"),
        typed=True,
    )


def play(backend: Backend, task: Task) -> float:
    """Play one episode from its beginning to its end; return the milliseconds.

    Raises:
        RuntimeError: the episode was not judged right.
    """
    name = task.tables[0].name
    statements = [
        f"SELECT `City`, AVG(`Points`) FROM `{name}` WHERE `Year` > 1990 GROUP BY `City` ORDER BY 2 DESC LIMIT 5",
        task.gold.sql,
        f"SELECT * FROM `{name}` WHERE `Name` LIKE 'name 1%'",
    ]
    started = time.perf_counter()
    with FcEpisode(task, backend, max_rounds=4) as episode:
        for statement in statements:
            episode.call_tool("execute_sql", json.dumps({"query": statement}))
        episode.call_tool("commit_final_answer", '{"answers": []}')
        score = episode.judge("strict")
    if score.value != 1.0:
        raise RuntimeError(f"{task.id}: judged {score}, expected a match")
    return (time.perf_counter() - started) * 1000


def judging_s() -> float:
    """The seconds to judge `NUM_ANSWERS` answers of one to ten values, no two alike, half under each judge."""
    cases = []
    for index in range(NUM_ANSWERS):
        values = [f"{index}.{place}" if place % 2 else f"name {index} {place}" for place in range(1 + index % 10)]
        cases.append({"variant": ("fc", "strict")[index % 2], "expected": values, "given": values[::-1]})
    started = time.perf_counter()
    if not all(judge.answer(case)["correct"] for case in cases):
        raise RuntimeError("a right answer was judged wrong; the time would mean nothing")
    return time.perf_counter() - started


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024**2


if __name__ == "__main__":
    execute(main)

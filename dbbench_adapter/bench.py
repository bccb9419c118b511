"""What an episode costs: `python -m dbbench_adapter.bench --backend sqlite`.

One episode is a database with a table of 30 rows, three statements (two looks and a change), a commit and the strict
judge, which makes a second database for the reference. No statement is said twice, so that none is in a cache. Leaves
out the model, the agent and concurrency.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from dbbench_adapter.backends import Backend, open_backend
from dbbench_adapter.protocols.fc import FcEpisode
from dbbench_adapter.types import Column, Gold, Table, Task

NUM_ROWS = 30


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m dbbench_adapter.bench", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--backend", default="sqlite", help="sqlite (default), mariadb or mysql://user:password@host:port"
    )
    parser.add_argument("--episodes", type=int, default=1000, help="default 1000")
    args = parser.parse_args()
    with open_backend(args.backend) as backend:
        times_ms = episode_times(backend, args.episodes)
        left = backend.live_databases()
    deciles = statistics.quantiles(times_ms, n=10)
    print(
        f"{args.backend}: {len(times_ms)} episodes, median {statistics.median(times_ms):.1f} ms, "
        f"90 % within {deciles[-1]:.1f} ms; {left} databases left"
    )


def episode_times(backend: Backend, n: int) -> list[float]:
    """Wall clock of each of `n` episodes, in milliseconds, one after another.

    Raises:
        RuntimeError: an episode was not judged right; its time would mean nothing.
    """
    return [_play(backend, _task(index)) for index in range(n)]


def _task(index: int) -> Task:
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


def _play(backend: Backend, task: Task) -> float:
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


if __name__ == "__main__":
    main()

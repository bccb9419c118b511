"""What an episode costs on either backend, and that none is left behind (`scripts.bench_dbbench`)."""

from __future__ import annotations

import statistics

from dbbench_adapter.backends import BackendUnavailable, open_backend
from scripts.bench.report import Row
from scripts.bench_dbbench import episode_times

EPISODES = 1000
TARGET_MS = {"sqlite": 10.0, "mariadb": 40.0}
LIMIT = {
    "sqlite": "parsing and translating each statement (sqlglot)",
    "mariadb": "round trips; making and dropping tables",
}


def measure() -> list[Row]:
    return [row for backend in TARGET_MS for row in _measure(backend)]


def _measure(spec: str) -> list[Row]:
    what, left_what = f"{spec} episode, median of {EPISODES:,}", f"{spec} databases left after them"
    try:
        with open_backend(spec) as backend:
            times_ms = episode_times(backend, EPISODES)
            left = backend.live_databases()
    except BackendUnavailable as missing:
        return [Row(what, None, "ms", TARGET_MS[spec], limit=f"not measured: {missing}")]
    return [
        Row(what, statistics.median(times_ms), "ms", TARGET_MS[spec], limit=LIMIT[spec]),
        Row(left_what, float(left), "", 0.0),
    ]

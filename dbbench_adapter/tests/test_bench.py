import statistics

import pytest

from dbbench_adapter.bench import episode_times


@pytest.mark.parametrize(("name", "limit_ms"), [("sqlite", 10), ("mariadb", 40)])
def test_an_episode_is_cheap_and_leaves_no_database(request, name, limit_ms):
    backend = request.getfixturevalue(name)
    times_ms = episode_times(backend, 100)
    assert backend.live_databases() == 0
    assert statistics.median(times_ms) < 3 * limit_ms  # the tests share their cores; doc/benchmarks.md has the figures

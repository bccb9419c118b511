"""The benchmark of episodes and judges, at a size that says only that it measures what it says."""

import json
import statistics

import pytest

from bench import dbbench
from bench.dbbench import Share, backend_rows, bench_task, episode_times, parse_args
from dbbench_adapter.engines import BackendUnavailable, open_backend


@pytest.mark.parametrize(("spec", "limit_ms"), [("sqlite", 10), ("mariadb", 40)])
def test_an_episode_is_cheap_and_leaves_no_database(spec, limit_ms):
    try:
        with open_backend(spec) as backend:
            times_ms = episode_times(backend, 100)
            assert backend.live_databases() == 0
    except BackendUnavailable as missing:
        pytest.skip(f"no {spec} here: {missing}")
    assert statistics.median(times_ms) < 3 * limit_ms  # the tests share their cores


def test_no_statement_is_said_twice():
    assert len({bench_task(i).gold.sql for i in range(100)}) == 100


def test_the_rate_is_over_the_time_in_which_any_process_played():
    # 30 episodes from second 10 to second 13
    shares = [Share(10.0, 12.0, 0.5, [1.0] * 10, 50.0, 51.0), Share(11.0, 13.0, 1.0, [2.0] * 20, 40.0, 58.0)]
    rows = {row.what: row for row in backend_rows("sqlite", 400.0, shares, left=0)}
    assert rows["sqlite episodes, 30"].value == pytest.approx(10.0)
    assert rows["sqlite episodes, 30"].met is False
    assert rows["sqlite episode, CPU time in our processes"].value == pytest.approx(50.0)  # 1.5 s / 30
    assert rows["sqlite, growth from there to 30"].value == pytest.approx(8.0)  # 58 - 50
    assert rows["sqlite, times as many as AgentBench (0.25 s each, one at a time)"].value == pytest.approx(2.5)


def test_it_writes_what_it_prints(tmp_path, capsys):
    file = tmp_path / "figures.json"
    dbbench.main(
        ["--backend", "sqlite", "--episodes", "40", "--processes", "1", "--concurrency", "4", "--json", str(file)]
    )
    printed, written = capsys.readouterr().out, json.loads(file.read_text())
    assert "1 processes, 4 episodes at once" in printed
    assert all(row["what"] in printed for row in written["rows"])
    assert {row["what"]: row["value"] for row in written["rows"]}["sqlite databases left"] == 0


def test_fewer_episodes_than_at_once_are_refused(capsys):
    with pytest.raises(SystemExit):
        parse_args(["--episodes", "10", "--concurrency", "32"])
    assert "processes <= concurrency <= episodes" in capsys.readouterr().err

"""`agentgrpo tasks replay`: the highest score there is on each data set, on either backend, each miss explained."""

from pathlib import Path

import pytest

from dbbench_adapter.datatypes import Column, Gold, Table, Task
from dbbench_adapter.engines import BackendUnavailable, open_backend
from dbbench_adapter.protocols import PROTOCOLS
from dbbench_adapter.tasks.load import load_tasks, write_tasks
from sql_agent.commands.replay import main, misses, reads_rows

DATA = Path(__file__).parents[3].parent / "shared" / "dbbench" / "data"
FRUIT = Table("Fruit", (Column("Name"), Column("Price", "INT")), (("Plum", 5), ("Pear", 4)))
CHEAP = Task(
    "t-0", "Cheap?", "SELECT", (FRUIT,), Gold(rows=(("Pear", 4),), sql="SELECT * FROM Fruit LIMIT 1"), typed=True
)
RAISE = Task("t-1", "Raise it.", "UPDATE", (FRUIT,), Gold(sql="UPDATE Fruit SET Price = 6"), typed=True)


@pytest.fixture(scope="module", params=["sqlite", "mariadb"])
def backend(request):
    try:
        opened = open_backend(request.param)
        backend = opened.__enter__()
    except BackendUnavailable as failure:
        pytest.skip(f"no {request.param} here: {failure}")
    yield backend
    opened.__exit__(None, None, None)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_wrong_reference_misses_what_the_gold_does_not(backend, protocol):
    assert misses([CHEAP, RAISE], backend, protocol, lambda task: task.gold) == ([], [])
    assert misses([CHEAP, RAISE], backend, protocol, reads_rows(backend)) == (["t-0"], ["t-0"])


def test_the_table_and_its_notes(tmp_path, capsys, monkeypatch):
    path = tmp_path / "two.jsonl"
    write_tasks(path, [CHEAP, RAISE])
    monkeypatch.setattr("sys.argv", ["replay_references", str(path), "--backends", "sqlite"])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:-3] == [f"| two.jsonl | sqlite | {name} | 2 | 2, 2 | 1, 1 |" for name in PROTOCOLS]
    assert lines[-2:] == ["not solved with the gold, under the protocol's own judge:", "none"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "protocol", "own", "strict"),
    [
        # FACTS 7.1: no server reproduces the stored hash of 225
        ("agentbench/standard.jsonl", "fc", ["225"], []),
        ("agentbench/standard_v0.2.jsonl", "text", ["225"], []),
        # FACTS 8.10: an empty column name; text goes on without the table
        ("agentbench/dev.jsonl", "fc", ["5"], ["5"]),
        ("agentbench/dev.jsonl", "text", [], []),
        # FACTS 8.10: double column names (13, 14) and ragged rows (17, 77), repaired in standard.jsonl
        ("agentbench/standard_v0.2.jsonl", "fc", ["13", "14", "17", "77", "225"], ["13", "14", "17", "77"]),
        ("lifelong/entry_dict.json", "lab", [], []),
        ("lifelong/entry_dict.json", "fc", [], []),
    ],
)
def test_ceiling(backend, name, protocol, own, strict):
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"no {name} in {DATA}: the benchmark's own data are not part of the repository")
    found = misses(load_tasks(path), backend, protocol, lambda task: task.gold)
    refused = ["359"] if path.stem == "entry_dict" and type(backend).__name__ == "SqliteBackend" else []  # STDDEV
    assert found == tuple([f"{path.stem}-{index}" for index in (*missed, *refused)] for missed in (own, strict))

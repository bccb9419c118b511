"""Fetching LifelongAgentBench: 500 good rows or nothing, offline from a local file, and what to do without the hub."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dbbench_adapter.tasks.load import load_tasks
from sql_agent.commands.download import main

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT.parent / "shared" / "dbbench" / "data" / "lifelong"


def entry(index):
    return {
        "sample_index": index,
        "instruction": f"List fruit cheaper than {index}.",
        "answer_info": {
            "direct": [["Pear", 4]],
            "md5": None,
            "sql": f"SELECT name, price FROM f WHERE price < {index};",
        },
        "table_info": {
            "name": "f",
            "column_info_list": [{"name": "name", "type": "TEXT"}, {"name": "price", "type": "INT"}],
            "row_list": [["Pear", 4], ["it's", 5]],
        },
        "skill_list": ["select"],
    }


def write(path, entries):
    nested = ("answer_info", "table_info", "skill_list")
    rows = [{key: str(value) if key in nested else value for key, value in entry.items()} for entry in entries]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("source", ["hub/db_bench/train.parquet", "hub/db_bench", "hub"])
def test_500_rows_become_the_benchmarks_own_file(tmp_path, capsys, source):
    entries = [entry(index) for index in range(500)]
    write(tmp_path / "hub" / "db_bench" / "train.parquet", entries)
    assert main(["--output_dir", str(tmp_path / "out"), "--source", str(tmp_path / source)]) == 0
    found = json.loads((tmp_path / "out" / "entry_dict.json").read_text("utf-8"))
    assert found == {str(index): entry for index, entry in enumerate(entries)}
    assert len(load_tasks(tmp_path / "out" / "db_bench.parquet")) == 500
    out = capsys.readouterr().out
    assert "500 rows (lifelong 500), nothing wrong" in out
    assert "kinds: SELECT 500" in out
    assert "licence: not established" in out


def change(index, **fields):
    entries = [entry(index) for index in range(500)]
    entries[index] |= fields
    return entries


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        pytest.param([entry(0)], "1 rows, expected the 500 of LifelongAgentBench", id="cut_off"),
        pytest.param(
            change(7, answer_info="print()"), "row 7, field answer_info: expected a Python literal", id="code"
        ),
        pytest.param(change(7, sample_index=6), "row 7, field sample_index: expected a number of its own", id="twice"),
        pytest.param(
            change(7, answer_info={"sql": "SELECT 1", "direct": None, "md5": None}),
            "record '7', field answer_info: a SELECT has direct set and md5 null",
            id="no_gold",
        ),
    ],
)
def test_nothing_is_written_unless_all_rows_are_good(tmp_path, capsys, entries, words):
    write(tmp_path / "in.parquet", entries)
    assert main(["--output_dir", str(tmp_path / "out"), "--source", str(tmp_path / "in.parquet")]) == 1
    assert words in capsys.readouterr().err
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        pytest.param("empty", r"no .parquet file in it or in db_bench/ below it", id="empty_folder"),
        pytest.param("./nowhere.parquet", "no such file or folder, and not the id of a data set", id="nowhere"),
        pytest.param("text.parquet", "not the parquet form of LifelongAgentBench", id="no_parquet"),
    ],
)
def test_a_source_that_is_none_is_named(tmp_path, capsys, monkeypatch, source, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.parquet").write_text("no parquet")
    assert main(["--output_dir", "out", "--source", source]) == 1
    assert words in capsys.readouterr().err


def test_what_is_there_stays(tmp_path, capsys):
    (tmp_path / "entry_dict.json").write_text("mine")
    assert main(["--output_dir", str(tmp_path), "--source", str(tmp_path)]) == 1
    assert "entry_dict.json is there already; name another --output" in capsys.readouterr().err
    assert (tmp_path / "entry_dict.json").read_text() == "mine"


@pytest.mark.parametrize(
    "command",
    [["scripts/download_huggingface_data.py"], ["-m", "agentgrpo", "tasks", "download"]],
    ids=["as_script", "as_module"],
)
def test_without_the_hub_it_says_what_to_do(tmp_path, command):
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    arguments = ["--output_dir", str(tmp_path / "out")]
    run = subprocess.run(
        [sys.executable, *command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 1
    assert "csyq/LifelongAgentBench could not be fetched from the hub" in run.stderr
    assert "unset HF_HUB_OFFLINE, or download its folder db_bench on another machine" in run.stderr
    assert "Traceback" not in run.stderr


def test_the_benchmarks_own_parquet_gives_the_benchmarks_own_entries(tmp_path):
    if not DATA.is_dir():
        pytest.skip(f"no {DATA}: the benchmark's own data are not part of the repository")
    assert main(["--output_dir", str(tmp_path), "--source", str(DATA)]) == 0
    ours, theirs = (json.loads((folder / "entry_dict.json").read_text("utf-8")) for folder in (tmp_path, DATA))
    assert ours == theirs

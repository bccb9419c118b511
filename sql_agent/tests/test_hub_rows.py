"""`hf://ORG/SET` names rows on the hub wherever a command reads a file of rows."""

import io
import json
import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentgrpo.hub_address import HubRows, hub_address
from agentgrpo.run_folder import begin, begun_with, start_of
from agentgrpo.tests.hub_process import run_with_hub
from agentgrpo.tests.loopback_hub import COMMIT, TOKEN, Repo, loopback_hub

NEWER = "f" * 40
NOBODY = "http://127.0.0.1:9"  # the discard port: nothing listens there
ROWS = [{"question": "How many?", "query": "SELECT 1"}, {"question": "Which?", "query": "SELECT 2"}]


QUESTIONS = [
    {
        "question": f"How many items cost more than {price}?",
        "query": f"SELECT COUNT(*) FROM items WHERE price > {price}",
    }
    for price in range(1, 9)
]


def make_database(file):
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE items (name TEXT, price INTEGER)")
        connection.executemany("INSERT INTO items VALUES (?, ?)", [("pen", 2), ("book", 7), ("lamp", 9)])
    connection.close()


def json_lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(rows):
    held = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), held)
    return held.getvalue()


CONFIGS = b"""---
configs:
- config_name: main
  data_files: [{split: train, path: main/train.jsonl}]
- config_name: hard
  data_files: [{split: test, path: hard/test.jsonl}]
---
"""
ONE, TWO = ([row] for row in ROWS)
SETS = {
    "org/lines": {"train.jsonl": json_lines(ROWS), "test.jsonl": json_lines(TWO)},
    "org/list": {"data/train.json": json.dumps(ROWS).encode()},
    # the two files of a split are read one after the other; parquet gives both rows the fields of each
    "org/shards": {
        "data/train-00000-of-00002.parquet": parquet([{"question": "How many?", "query": "SELECT 1", "hint": None}]),
        "data/train-00001-of-00002.parquet": parquet(TWO),
    },
    "org/table": {"train.csv": b'question,query,hint\nHow many?,SELECT 1,\n"Which?","SELECT 2",\n'},
    "org/configs": {"README.md": CONFIGS, "main/train.jsonl": json_lines(ONE), "hard/test.jsonl": json_lines(TWO)},
    "org/only-test": {"test.jsonl": json_lines(TWO)},
    "org/program": {"program.py": b"raise SystemExit('the code of a set was run')"},
    "org/pictures": {"train/a.png": b"png"},
    "org/torn": {"train.jsonl": b'{"question": "How many?"}\n{"question": \n'},
    "org/gated": Repo({"train.jsonl": json_lines(ROWS)}, gated=True),
    "org/private": Repo({"train.jsonl": json_lines(ROWS)}, private=True),
}
READ = {
    "hf://org/lines": ROWS,
    "hf://org/lines:test": TWO,
    f"hf://org/lines@{COMMIT}:test": TWO,
    "hf://org/lines@main": ROWS,
    "hf://org/list": ROWS,
    "hf://org/shards": ROWS,
    "hf://org/table": ROWS,
    "hf://org/configs:main/train": ONE,
    "hf://org/configs:hard/test": TWO,
    "hf://org/only-test": TWO,
}
REFUSED = {
    "hf://org/lines:tset": "there is no split tset; the data set has train, test: name one, hf://org/lines:train; did "
    "you mean test?",
    "hf://org/configs": "the data set has several configurations; name one of main, hard: hf://org/configs:main/train",
    "hf://org/configs:main/test": "there is no split test; the data set has train",
    "hf://org/lines@v2": "the data set has no revision v2; give a branch, tag or commit",
    "hf://org/nowhere": "there is no data set org/nowhere at http://127.0.0.1:",
    "hf://org/private": "there is no data set org/private at http://127.0.0.1:",
    "hf://org/gated": "the terms of the data set have to be accepted; do so at http://127.0.0.1:",
    "hf://org/program": "the data set has no rows in .parquet, .json, .jsonl, .csv (",
    "hf://org/pictures": "is read nowhere here; expected .parquet, .json, .jsonl, .csv",
    "hf://org/torn": "train.jsonl, line 2: not JSON",
    "hf://lines": "is no address of rows on the hub; expected hf://ORG/SET, hf://ORG/SET:SPLIT",
}
FIND = """
import json
from agentgrpo.hub_rows import local_rows
found = {}
for name in NAMES:
    try:
        found[name] = str(local_rows(name, BEGUN))
    except ValueError as error:
        found[name] = "refused: " + str(error)
print(json.dumps(found))
"""


def find(names, home, endpoint, begun=(), **options):
    """What `local_rows` gives for each name, and what it said."""
    code = FIND.replace("NAMES", repr(list(names))).replace("BEGUN", repr(list(begun)))
    done = run_with_hub(code, home, endpoint, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def rows_of(file):
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    with loopback_hub(datasets=SETS) as hub:
        return find([*READ, *REFUSED], tmp_path_factory.mktemp("home"), hub.address)


def test_a_split_is_read_as_its_rows_whatever_its_files_are(answers):
    found, said = answers
    assert {name: rows_of(found[name]) for name in READ} == READ
    assert f"hf://org/shards@{COMMIT}:train: fetching 2 files from http://127.0.0.1:" in said


@pytest.mark.parametrize("name", REFUSED)
def test_rows_that_cannot_be_read_come_with_what_to_do(answers, name):
    assert answers[0][name].startswith(f"refused: {name}") and REFUSED[name] in answers[0][name], answers[0][name]
    if name in ("hf://org/private", "hf://org/gated"):
        assert answers[0][name].endswith("hf auth login`")


def test_a_token_opens_what_is_private_or_gated_and_is_written_nowhere(tmp_path):
    names = ["hf://org/private", "hf://org/gated"]
    with loopback_hub(datasets=SETS) as hub:
        found, said = find(names, tmp_path, hub.address, token=TOKEN)
    assert [rows_of(found[name]) for name in names] == [ROWS, ROWS]
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert files and not [file for file in files if TOKEN.encode() in file.read_bytes()]
    assert TOKEN not in said


def test_what_was_fetched_is_read_offline_and_nothing_else(tmp_path):
    with loopback_hub(datasets=SETS) as hub:
        find(["hf://org/lines"], tmp_path, hub.address)
        asked = len(hub.asked)
        found, said = find(["hf://org/lines", "hf://org/list"], tmp_path, hub.address, HF_HUB_OFFLINE="1")
        assert len(hub.asked) == asked
    assert rows_of(found["hf://org/lines"]) == ROWS
    assert f"HF_HUB_OFFLINE is set: hf://org/lines@{COMMIT}:train is read from the cache" in said
    assert "HF_HUB_OFFLINE forbids to fetch it; unset that, or name a file" in found["hf://org/list"]


def test_a_hub_that_cannot_be_reached_is_said(tmp_path):
    found, _ = find(["hf://org/lines"], tmp_path, NOBODY)
    assert f"hf://org/lines could not be fetched from {NOBODY} (ConnectError: " in found["hf://org/lines"]
    assert "look at the network, or fetch it elsewhere with `" in found["hf://org/lines"]


def test_a_run_that_goes_on_reads_the_revision_it_began_with_and_says_that_there_is_another(tmp_path):
    moved = Repo({"train.jsonl": json_lines(TWO)}, commit=NEWER, earlier={COMMIT: {"train.jsonl": json_lines(ROWS)}})
    with loopback_hub(datasets={"org/lines": moved}) as hub:
        began = find(["hf://org/lines"], tmp_path / "old", hub.address, [f"hf://org/lines@{COMMIT}:train"])
        again = find(["hf://org/lines"], tmp_path / "old", hub.address, [f"hf://org/lines@{COMMIT}:train"])
        anew = find(["hf://org/lines"], tmp_path / "old", hub.address)
    assert [rows_of(found["hf://org/lines"]) for found, _ in (began, again, anew)] == [ROWS, ROWS, TWO]
    changed = f"hf://org/lines has changed since this run began and is at {NEWER} now; the run continues with hf://"
    assert [changed in said for _, said in (began, again, anew)] == [True, True, False]


def test_the_commit_is_a_fact_of_the_run(tmp_path):
    rows = HubRows("org/lines", COMMIT, "hard", "test")
    file = rows.place(tmp_path / "agentgrpo")
    assert hub_address(file) == str(rows) == f"hf://org/lines@{COMMIT}:hard/test"
    begin(tmp_path / "run", {"data": {"train_file": str(file)}, "seed": 0}, start_of("local"), resumed=False)
    assert begun_with(tmp_path / "run") == [f"hf://org/lines@{COMMIT}:hard/test"]
    begin(tmp_path / "other", {"data": {"train_file": "rows.jsonl"}}, start_of("local"), resumed=False)
    assert begun_with(tmp_path / "other") == []


# The commands ---------------------------------------------------------------------------------------------------------

NOWHERE = "hf://org/nowhere:train"
COMMANDS = {
    "train": ["--database", "DB", "--train-file", NOWHERE],
    "improve": ["--database", "DB", "--train-file", NOWHERE, "--model", "MODEL"],
    "sft": ["--dataset", NOWHERE],
    "dpo": ["--dataset", NOWHERE],
    "local": ["--model", "MODEL", "--database", "DB", "--train-file", "FILE", "--val-file", NOWHERE],
    "greedy-grpo": ["--train-file", NOWHERE],
    "gsm8k": ["--dataset", NOWHERE],
    "evaluate": ["--base-url", "http://127.0.0.1:9/v1", "--model", "m", "--tasks", NOWHERE],
    "interactive": ["--model", "MODEL", "--env", "text2sql", "--database", "DB", "--tasks", NOWHERE],
    "doctor": ["--database", "DB", "--train-file", NOWHERE],
    "check-env": ["examples/own_environment/orders.py:Orders", "--tasks", NOWHERE],
    "reward convert": ["--input", NOWHERE, "--output", "OUT"],
    "reward train": ["--model", "MODEL", "--dataset-name", NOWHERE, "--output-dir", "OUT"],
    "reward evaluate": ["--model", "MODEL", "--data", NOWHERE],
    "reward validate": [NOWHERE],
}
REFUSE = """
import contextlib, io, json, sys
from importlib import import_module
from agentgrpo.main import COMMANDS
said = {}
for name, words in GIVEN.items():
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(err):
        sys.argv[:] = [name, *words]
        try:
            status = import_module(COMMANDS[name][0]).main()
        except SystemExit as end:
            status = end.code
    said[name] = [status not in (0, None), err.getvalue() + (status if isinstance(status, str) else "")]
print(json.dumps(said))
"""


def test_every_command_that_reads_rows_asks_the_hub_for_them(tmp_path, small_policy):
    places = {"DB": str(tmp_path / "shop.sqlite"), "FILE": str(tmp_path / "rows.json"), "OUT": str(tmp_path / "out"),
              "MODEL": str(small_policy)}  # fmt: skip
    make_database(tmp_path / "shop.sqlite")
    (tmp_path / "rows.json").write_text(json.dumps(QUESTIONS))
    given = {name: [places.get(word, word) for word in words] for name, words in COMMANDS.items()}
    with loopback_hub(datasets={}) as hub:
        done = run_with_hub(REFUSE.replace("GIVEN", repr(given)), tmp_path / "home", hub.address)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    expected = f"hf://org/nowhere:train: there is no data set org/nowhere at {hub.address}; look at the spelling"
    assert {name: (failed, expected in text) for name, (failed, text) in said.items()} == dict.fromkeys(
        COMMANDS, (True, True)
    ), said
    assert not (tmp_path / "out").exists()


def test_a_run_learns_from_rows_on_the_hub_and_its_records_name_their_commit(tmp_path, small_policy):
    make_database(tmp_path / "shop.sqlite")
    rows = [{"ask": row["question"], "sql": row["query"]} for row in QUESTIONS]
    run = tmp_path / "run"
    words = [
        "sft",
        "--model",
        small_policy,
        "--database",
        tmp_path / "shop.sqlite",
        "--num-epochs",
        "1",
        "--device",
        "cpu",
    ]
    words += ["--columns", "question=ask,query=sql", "--train-file", "hf://org/asked", "--run-dir", run]
    with loopback_hub(datasets={"org/asked": {"train.parquet": parquet(rows)}}) as hub:
        done = run_with_hub(words, tmp_path / "home", hub.address)
    assert done.returncode == 0, done.stderr
    address = f"hf://org/asked@{COMMIT}:train"
    assert begun_with(run) == [address]
    record = json.loads((run / "trained_on.json").read_text())
    assert [source["tasks"] for source in record["sources"]][-1] == address

"""GRPO on any environment as a user types it: what is refused before the weights are read."""

import json
import sqlite3
from pathlib import Path

import pytest

from scripts.train_local_grpo import main
from sql_agent.tests.conftest import random_policy_folder  # noqa: F401  a fixture

ROOT = Path(__file__).parents[2]
ORDERS = f"{ROOT}/examples/own_environment/orders.py:Orders"
ROWS = ROOT / "examples" / "own_environment" / "rows.jsonl"
MINE = '''
class Silent:
    """Nobody says what its rollouts are worth."""

    def reset(self, **row):
        pass
'''


@pytest.fixture
def shop(tmp_path) -> Path:
    """A folder with a SQLite file and questions about it; the query of the last one is wrong."""
    with sqlite3.connect(tmp_path / "shop.sqlite") as connection:
        connection.execute("CREATE TABLE fruit (name TEXT, price INT)")
        connection.execute("INSERT INTO fruit VALUES ('apple', 3), ('pear', 5), ('fig', 9)")
    connection.close()
    rows = [
        {"question": f"What does a {name} cost?", "query": f"SELECT price FROM fruit WHERE name = '{name}'"}
        for name in ("apple", "pear", "fig")
    ]
    rows += [{"question": "How many fruits are there?", "query": "SELECT count(*) FROM fruit"}]
    rows += [{"question": "Which is rotten?", "query": "SELECT name FROM fruit WHERE rotten"}]
    (tmp_path / "train.json").write_text(json.dumps(rows))
    return tmp_path


def refusal(*arguments: object) -> str:
    """The message with which the command ends."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return str(ended.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--env", "agent"], "--env agent: an agent of your own calls the policy over HTTP, which only the main job"),
        (["--env", "dbbnch"], "unknown environment 'dbbnch'; known: "),
        (["--env", "gsm8k", "--database", "a.sqlite"], "env.database belongs to env.type=text2sql"),
        (["--reward", "mine.py:concise"], "argument --reward: invalid choice: 'mine.py:concise'"),
        (["--call_timeout_s", "0"], "--call_timeout_s: expected greater than 0"),
    ],
)
def test_flags_that_cannot_be_meant_are_refused(arguments, words, tmp_path, capsys):
    refusal("--model_path", "x", "--run_dir", tmp_path / "run", *arguments)
    assert words in " ".join(capsys.readouterr().err.split())


def test_what_does_not_fit_is_said_before_the_weights_are_read(random_policy_folder, shop, monkeypatch):  # noqa: F811
    def never(*_, **__):
        raise AssertionError("the weights were read")

    monkeypatch.setattr("sql_agent.local.trainer.start_policy", never)
    (shop / "mine.py").write_text(MINE)
    (shop / "rows.jsonl").write_text('{"prompt": "Say a word."}\n{"prompt": "Say two words."}\n')
    (shop / "bad.jsonl").write_text('{"question": "How many?"}\n')
    always = ["--model_path", random_policy_folder, "--run_dir", shop / "run"]
    silent = ["--env", f"{shop}/mine.py:Silent", "--train-file", shop / "rows.jsonl"]
    said = refusal(*always, *silent)
    assert f"nobody can tell right from wrong in environment {shop}/mine.py:Silent, and local training has no" in said
    assert "give the class a `get_reward` or a `judge`" in said
    assert "--train-file ROWS.jsonl" in refusal(*always, "--env", ORDERS)
    assert f"{shop}/bad.jsonl, line 1: no `prompt`" in refusal(
        *always, "--env", ORDERS, "--train_file", shop / "bad.jsonl"
    )
    assert "questions to train on: --train-file FILE" in refusal(*always, "--database", shop / "shop.sqlite")
    assert "the judge of env.type=text2sql is one of" in refusal(
        *always, "--database", shop / "shop.sqlite", "--train_file", shop / "train.json", "--judge", "lab"
    )
    too_long = refusal(*always, "--env", ORDERS, "--train_file", ROWS, "--max_prompt_tokens", 16)
    assert "no training task has a first prompt of at most 16 tokens, the shortest has " in too_long
    assert too_long.endswith("; raise --max_prompt_tokens")
    assert not (shop / "run").exists()

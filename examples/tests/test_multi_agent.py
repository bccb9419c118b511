"""examples/multi_agent: its tasks have the answers that they say, and its two agents play them."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentgrpo.user_files import load_object
from sql_agent import oracle
from sql_agent.evaluate import main

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "multi_agent"
ROWS = [json.loads(line) for line in (EXAMPLE / "tasks.jsonl").read_text().splitlines()]
AGENT = f"{EXAMPLE}/library_agents.py:triage"
REWARD = f"{EXAMPLE}/library_agents.py:reward"


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    make_database, _ = load_object(f"{EXAMPLE}/library_agents.py:make_database")
    file = tmp_path_factory.mktemp("library") / "library.sqlite"
    make_database(file)
    return file


def test_every_answer_is_what_its_query_gives(database):
    with closing(sqlite3.connect(database)) as db:
        for row in ROWS:
            if row["kind"] == "library":
                assert db.execute(row["query"]).fetchall() in ([(row["answer"],)], [(int_or_none(row["answer"]),)])
    assert {row["answer"] for row in ROWS if row["kind"] == "other"} == {"unknown"}


def int_or_none(text):
    return int(text) if text.isdigit() else None


def evaluate(url, folder, limit):
    main([
        "--base-url", url, "--model", "served", "--tasks", str(EXAMPLE / "tasks.jsonl"), "--limit", str(limit),
        "--agent", AGENT, "--reward", REWARD, "--output", str(folder / "out.jsonl"),
    ])  # fmt: skip
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def both_agents(messages):
    """Triage asks the analyst in other words; the analyst reads the database, and both say the first value."""
    said = messages[-1]
    if said["role"] == "tool":
        return {"role": "assistant", "content": str(said["content"]).strip("[](),'")}
    if messages[0]["content"].startswith("Answer with the value"):
        row = next(row for row in ROWS if f"Please: {row['prompt']}" == said["content"])
        return oracle.calls(oracle.call("execute_sql", {"query": row["query"]}))
    row = next(row for row in ROWS if row["prompt"] == said["content"])
    if row["kind"] == "other":
        return {"role": "assistant", "content": "unknown"}
    return oracle.calls(oracle.call("ask_analyst", {"input": f"Please: {row['prompt']}"}))


def test_triage_asks_the_analyst_and_both_conversations_are_in_the_record(tmp_path):
    with oracle.serve(oracle.app(both_agents, model="served")) as url:
        rollouts = evaluate(url, tmp_path, limit=16)
    assert [rollout["score"]["value"] for rollout in rollouts] == [1.0] * 16
    # triage, analyst, analyst, triage
    assert sorted(rollout["num_turns"] for rollout in rollouts) == [1] * 4 + [4] * 12
    asked = next(rollout for rollout in rollouts if rollout["num_turns"] == 4)
    assert [message["content"][:6] for message in asked["messages"] if message["role"] == "system"] == [
        "You an",
        "Answer",
    ]


def test_a_call_of_a_tool_that_triage_does_not_have_is_worth_nothing(tmp_path):
    said = oracle.calls(oracle.call("execute_sql", {"query": "SELECT 1"}))
    with oracle.serve(oracle.app(lambda messages: said, model="served")) as url:
        (rollout,) = evaluate(url, tmp_path, limit=1)
    assert (rollout["stop_reason"], rollout["score"]["value"]) == ("malformed", 0.0)

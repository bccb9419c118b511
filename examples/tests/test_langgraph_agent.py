"""examples/langgraph_agent: its tasks have the answers that they say, and the graph plays them as it is."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentgrpo.user_files import load_object
from sql_agent import oracle
from sql_agent.evaluate import main
from sql_agent.user_agents.tasks import load_agent

pytest.importorskip("langgraph", reason="needs the extra langgraph of pyproject.toml")

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "langgraph_agent"
ROWS = [json.loads(line) for line in (EXAMPLE / "tasks.jsonl").read_text().splitlines()]
FILE = f"{EXAMPLE}/sql_graph.py"


@pytest.fixture(scope="module")
def example():
    """The module, imported as a run imports it: without a key of OpenAI's."""
    load_agent(f"{FILE}:graph")
    return lambda name: load_object(f"{FILE}:{name}")[0]


def test_every_answer_is_what_its_query_gives(example, tmp_path):
    example("make_database")(tmp_path / "garden.sqlite")
    with closing(sqlite3.connect(tmp_path / "garden.sqlite")) as db:
        for row in ROWS:
            [(value,)] = db.execute(row["query"]).fetchall()
            assert str(value) == row["answer"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("DELETE FROM plants", "not authorized"),
        ("ATTACH 'x.sqlite' AS x", "not authorized"),
        ("PRAGMA writable_schema = 1", "not authorized"),
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n", "not authorized"),
        ("SELECT count(*) FROM sales a, sales b, sales c, sales d, sales e, sales f, sales g, sales h", "interrupted"),
        ("SELECT length(zeroblob(1000000))", "too big"),
    ],
)
def test_the_policy_may_read_and_nothing_else(example, query, words):
    assert words in example("tools")["sql_db_query"].invoke(query)


def evaluate(url, folder, limit):
    main([
        "--base-url", url, "--model", "served", "--tasks", str(EXAMPLE / "tasks.jsonl"), "--limit", str(limit),
        "--agent", f"{FILE}:graph", "--reward", f"{FILE}:reward", "--output", str(folder / "out.jsonl"),
    ])  # fmt: skip
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def writer(messages):
    """Asks for both schemas, writes the reference query, leaves it as it is when it checks it, says the value."""
    if messages[0]["role"] != "system":
        return oracle.calls(oracle.call("sql_db_schema", {"table_names": "plants, sales"}))
    if messages[0]["content"].startswith("Check"):
        return oracle.calls(oracle.call("sql_db_query", {"query": messages[-1]["content"]}))
    if messages[-1].get("name") == "sql_db_query" or messages[-1]["content"].startswith("[("):
        return {"role": "assistant", "content": messages[-1]["content"].strip("[](),'")}
    row = next(row for row in ROWS if row["prompt"] == messages[1]["content"])
    return oracle.calls(oracle.call("sql_db_query", {"query": row["query"]}))


def test_the_graph_of_the_tutorial_is_played_by_a_served_model(tmp_path):
    with oracle.serve(oracle.app(writer, model="served")) as url:
        rollouts = evaluate(url, tmp_path, limit=len(ROWS))
    assert [rollout["score"]["value"] for rollout in rollouts] == [1.0] * len(ROWS)
    # the schema, the query, its check, the answer; the first, the checker's and the writer's prompts are three
    assert {rollout["num_turns"] for rollout in rollouts} == {4}
    contents = [message["content"] for message in rollouts[0]["messages"]]
    assert "CREATE TABLE plants" in " ".join(filter(None, contents))


def test_a_reply_without_a_query_is_the_answer(tmp_path):
    with oracle.serve(oracle.app(lambda messages: {"role": "assistant", "content": "no"}, model="served")) as url:
        (rollout,) = evaluate(url, tmp_path, limit=1)
    assert (rollout["output"], rollout["stop_reason"], rollout["num_turns"], rollout["score"]["value"]) == (
        "no",
        "answered",
        2,
        0.0,
    )

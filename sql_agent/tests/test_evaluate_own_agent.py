"""`sql_agent.evaluate --agent`: an agent of the user's own against a model server, without a run."""

import json

import pytest

from sql_agent import oracle
from sql_agent.evaluate import main

EXAMPLE = "examples/own_agent"
ROWS = [{"prompt": "How many pears?", "answer": "35"}, {"prompt": "Who bought limes?", "answer": "Eve"}]
AGENT = ["--agent", f"{EXAMPLE}/orders_agent.py:agent", "--reward", f"{EXAMPLE}/orders_agent.py:reward=2"]


@pytest.fixture
def evaluate(tmp_path):
    """Runs the command on `ROWS` against a scripted model; gives the trajectories and the requests."""

    def evaluate(*options, script):
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        asked = []
        with oracle.serve(oracle.app(script, model="served", on_request=asked.append)) as url:
            main([
                "--base-url", url, "--model", "served", "--tasks", str(tmp_path / "rows.jsonl"),
                "--output", str(tmp_path / "out.jsonl"), *options,
            ])  # fmt: skip
        return [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()], asked

    return evaluate


def desk_and_clerk(messages):
    """The desk hands over; the clerk reads the table once, then says 35."""
    if not messages[0]["content"].startswith("Answer with the value"):
        return oracle.calls(oracle.call("transfer_to_clerk", {}, "call_over"))
    if messages[-1].get("tool_call_id") == "call_read":
        return {"role": "assistant", "content": "35"}
    sql = "SELECT sum(amount) FROM orders WHERE fruit = 'pear'"
    return oracle.calls(oracle.call("execute_sql", {"query": sql}, "call_read"))


def test_an_agent_is_played_with_its_handoffs_and_its_reward_is_the_score(evaluate, capsys):
    rollouts, asked = evaluate(*AGENT, script=desk_and_clerk)
    # 2 x 1 for the right value, 2 x 0.1 for a wrong one that read the table
    assert {row["score"]["value"] for row in rollouts} == {2.0, 0.2}
    assert {(row["output"], row["stop_reason"], row["num_turns"]) for row in rollouts} == {("35", "answered", 3)}
    printed = capsys.readouterr().out
    assert "mean reward" in printed and "1.1" in printed and "success" not in printed
    assert {(request["model"], request["temperature"], request["max_tokens"]) for request in asked} == {
        ("served", 0.0, 512)
    }
    assert not any("logprobs" in request or "return_token_ids" in request for request in asked)


def test_a_reward_that_is_high_enough_is_a_success(evaluate, capsys):
    """A user who asked for a success rate beside a mean reward."""
    rollouts, _ = evaluate(*AGENT, "--success-reward", "2", script=desk_and_clerk)
    found = sorted((row["score"]["value"], row["score"]["parts"]["correctness"]) for row in rollouts)
    assert found == [(0.2, 0.0), (2.0, 1.0)]
    printed = capsys.readouterr().out
    assert "50.0 %" in printed and "mean reward: 1.1" in printed


def test_an_agent_of_agent_lightning_brings_its_own_reward(evaluate, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import agentlightning as agl\nfrom openai import OpenAI\n\n@agl.rollout\ndef play(task, llm):\n"
        "    client = OpenAI(base_url=llm.endpoint, api_key=llm.api_key)\n"
        "    messages = [{'role': 'user', 'content': task['prompt']}]\n"
        "    said = client.chat.completions.create(model=llm.model, messages=messages, temperature=0.9)\n"
        "    return float(said.choices[0].message.content == task['answer'])\n"
    )
    rollouts, asked = evaluate(
        "--agent", f"{tmp_path}/mine.py:play", script=lambda messages: {"role": "assistant", "content": "Eve"}
    )
    assert sorted(row["score"]["value"] for row in rollouts) == [0.0, 1.0]
    assert {request["temperature"] for request in asked} == {0.0}  # the command's, as in a validation


def test_what_the_model_server_fails_is_counted_and_in_no_mean(evaluate, tmp_path, capsys):
    (tmp_path / "mine.py").write_text("def asked(record):\n    open(__file__ + '.asked', 'w').close()\n    return 1\n")
    flags = [*AGENT, "--reward", f"{tmp_path}/mine.py:asked"]
    rollouts, _ = evaluate(*flags, script=lambda messages: {"status": 500})
    assert {(row["score"]["value"], row["score"]["reason"]) for row in rollouts} == {(None, "model_unavailable")}
    printed = " ".join(capsys.readouterr().out.split())
    assert "not judged: model_unavailable 2" in printed and "mean reward" not in printed
    assert not (tmp_path / "mine.py.asked").exists()  # nobody says what a lost rollout is worth


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (AGENT[:2], "nobody can tell what a rollout of .* is worth; give a function of its record, --reward FILE"),
        (["--agent", f"{EXAMPLE}/orders_agent.py:nobody"], "--agent: .*nobody"),
        ([*AGENT[:2], "--reward", f"{EXAMPLE}/orders_agent.py:none"], "--reward .*orders_agent.py:none: "),
    ],
)
def test_what_cannot_be_played_is_said_before_anything_is_asked(evaluate, flags, words):
    with pytest.raises(SystemExit, match=words):
        evaluate(*flags, script=desk_and_clerk)


@pytest.mark.parametrize("flags", [["--env", "agent"], ["--reward", "my.py:good"]])
def test_flags_of_an_agent_come_with_one(evaluate, flags, capsys):
    with pytest.raises(SystemExit):
        evaluate(*flags, script=desk_and_clerk)
    assert "--agent" in capsys.readouterr().err.splitlines()[-1]

"""`sql_agent.oracle`: what the scripted model answers, over HTTP."""

import json
import time

import httpx
import pytest

from dbbench_adapter.datatypes import Column, Gold, Table, Task
from dbbench_adapter.protocols import PROTOCOLS
from dbbench_adapter.protocols.fc import messages
from dbbench_adapter.tasks.load import write_tasks
from sql_agent import oracle

FRUIT = Table("Fruit", (Column("Name"), Column("Price")), (("Plum", "5"), ("Pear", "4")))
CHEAPEST = Task(
    id="t-0", question="Which fruit is cheapest?", kind="other", tables=(FRUIT,),
    gold=Gold(answers=("Pear",), sql="SELECT Name FROM Fruit ORDER BY Price LIMIT 1"),
)  # fmt: skip
SET_PRICE = Task(
    id="t-1", question="Set the price of Plum to 7.", kind="UPDATE", tables=(FRUIT,),
    gold=Gold(sql="UPDATE Fruit SET Price = '7' WHERE Name = 'Plum'"),
)  # fmt: skip


def ask(url, history):
    return httpx.post(f"{url}/chat/completions", json={"model": "oracle", "messages": history}, timeout=5)


def the_call(reply):
    (call,) = reply["tool_calls"]
    return call["function"]["name"], json.loads(call["function"]["arguments"])


@pytest.mark.parametrize(("task", "answers"), [
    pytest.param(CHEAPEST, ["Pear"], id="a_question_is_answered_with_its_labels"),
    pytest.param(SET_PRICE, [], id="a_change_needs_no_answer"),
])  # fmt: skip
def test_it_runs_the_reference_of_the_task_it_recognises_and_commits_its_gold(task, answers):
    with oracle.serve(oracle.app(oracle.replay([CHEAPEST, SET_PRICE]))) as url:
        history = messages(task)
        first = ask(url, history).json()["choices"][0]
        history += [first["message"], {"role": "tool", "tool_call_id": "call00000", "content": "[]"}]
        second = ask(url, history).json()["choices"][0]
    assert the_call(first["message"]) == ("execute_sql", {"query": task.gold.sql})
    assert the_call(second["message"]) == ("commit_final_answer", {"answers": answers})
    assert first["finish_reason"] == second["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("protocol", "answer"),
    [("text", 'Final Answer: ["Pear"]'), ("lab", "Final Answer: [('Pear',)]")],
)
def test_it_also_writes_the_protocols_in_plain_text(protocol, answer):
    history = PROTOCOLS[protocol].messages(CHEAPEST)
    with oracle.serve(oracle.app(oracle.replay([CHEAPEST], protocol))) as url:
        first = ask(url, history).json()["choices"][0]["message"]
        second = ask(url, [*history, first, {"role": "user", "content": "[]"}]).json()["choices"][0]["message"]
    assert f"Action: Operation\n```sql\n{CHEAPEST.gold.sql}\n```" in first["content"]
    assert second["content"].endswith(f"Action: Answer\n{answer}")


def test_a_task_it_does_not_know_is_refused_in_words():
    with oracle.serve(oracle.app(oracle.replay([CHEAPEST]))) as url:
        answer = ask(url, messages(SET_PRICE))
    assert answer.status_code == 404
    assert "give it the same --tasks" in answer.json()["error"]["message"]


def test_two_tasks_that_look_alike_and_differ_in_their_gold_are_refused():
    twin = Task.from_dict({**CHEAPEST.to_dict(), "id": "t-2", "gold": {"answers": ["Plum"]}})
    with pytest.raises(ValueError, match="'t-2' has the same prompt as an earlier task"):
        oracle.replay([CHEAPEST, twin])


def test_it_lists_its_model_and_waits_as_long_as_it_is_told():
    body = {"model": "oracle", "messages": messages(CHEAPEST)}
    with (
        oracle.serve(oracle.app(oracle.replay([CHEAPEST]), latency_s=0.3)) as url,
        httpx.Client(base_url=url) as client,
    ):
        assert [model["id"] for model in client.get("/models").json()["data"]] == ["oracle"]
        started = time.perf_counter()
        client.post("/chat/completions", json=body)
        assert 0.3 <= time.perf_counter() - started < 2


@pytest.mark.parametrize(("argv", "words"), [
    pytest.param(["--tasks", "none.jsonl"], "none.jsonl: no such file", id="missing_file"),
    pytest.param(["--tasks", "{tasks}", "--port", "{taken}"], "choose another, 0 takes a free one", id="taken_port"),
])  # fmt: skip
def test_the_command_stops_with_words(tmp_path, argv, words):
    write_tasks(tmp_path / "tasks.jsonl", [CHEAPEST])
    with oracle.serve(oracle.app(oracle.recite([]))) as url:
        values = {"tasks": tmp_path / "tasks.jsonl", "taken": httpx.URL(url).port}
        with pytest.raises(SystemExit, match=words):
            oracle.main([word.format(**values) for word in argv])

"""`agentgrpo collect`: which rollouts become demonstrations, and that fine-tuning reads them."""

import json

import pytest

from dbbench_adapter.datatypes import Score
from sql_agent.commands.collect import main
from sql_agent.datatypes import RolloutRecord
from sql_agent.sft.data import read_messages

TOOLS = [{"type": "function", "function": {"name": "submit_sql", "parameters": {"type": "object", "properties": {}}}}]


def record(task, *queries, right=True, seconds=0.0, **fields):
    """A rollout that runs queries and hands the last one in."""
    messages = [{"role": "system", "content": "rules"}, {"role": "user", "content": task}]
    for number, query in enumerate(queries):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "submit_sql", "arguments": query}}
        messages += [{"role": "assistant", "content": None, "tool_calls": [call]}]
        messages += [{"role": "tool", "tool_call_id": f"c{number}", "content": "the result"}]
    value = None if right is None else float(right)
    made = RolloutRecord(task, "answer", "answered", Score(value, "match" if right else "wrong_result"), len(queries))
    return {**made.to_dict(), "messages": messages, "tools": TOOLS, "seconds": seconds, **fields}


def collect(tmp_path, *records, flags=()):
    (tmp_path / "rollouts").mkdir(exist_ok=True)
    (tmp_path / "rollouts" / "a.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    file = tmp_path / "demonstrations.jsonl"
    status = main(["--rollouts", str(tmp_path / "rollouts"), "--output", str(file), *flags])
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    return status, [[said(message) for message in row["completion"] if said(message)] for row in rows], file


def said(message):
    return "".join(call["function"]["arguments"] for call in message.get("tool_calls", ()))


A, AGAIN, LONGER, OTHER = '{"q": "aa"}', '{"q": "aab"}', '{"q": "aabb"}', '{"q": "zzzzzz"}'


@pytest.mark.parametrize(("most", "kept"), [(1, [[A]]), (2, [[A], [OTHER]]), (9, [[A], [OTHER], [LONGER], [AGAIN]])])
def test_of_a_task_the_shortest_right_rollout_is_kept_then_those_least_like_it(tmp_path, most, kept):
    rollouts = [record("one", query, seconds=n) for n, query in enumerate([LONGER, A, OTHER, A, AGAIN])]
    assert collect(tmp_path, *rollouts, flags=["--per-task", str(most)])[:2] == (0, kept)


def test_a_reply_that_was_answered_by_errors_alone_is_context(tmp_path):
    repaired = record("one", A, OTHER)
    repaired["messages"][3]["content"] = "Error: no such column: aa"
    (row,) = [json.loads(line) for line in collect(tmp_path, repaired)[2].read_text().splitlines()]
    assert [message.get("weight") for message in row["completion"] if message["role"] == "assistant"] == [0, None]


def test_wrong_lost_unjudged_and_held_out_rollouts_are_left_out_and_counted(tmp_path, capsys):
    rollouts = [
        record("one", A),
        record("one", OTHER, right=False),
        record("two", A, right=False),
        record("three", A, right=None),
        record("four", A, lost="rollout_failed"),
        record("five", A, validate=True),
        record("six", A, chains=2),
        record("seven", A, tools=None),
        record("eight", '{"q": "a</s>"}', messages=[
            {"role": "user", "content": "eight"}, {"role": "assistant", "content": "[INST] 3 [/INST]"},
        ]),
    ]  # fmt: skip
    assert collect(tmp_path, *rollouts)[:2] == (0, [[A]])
    assert capsys.readouterr().out.splitlines() == [
        "9 rollouts in 1 files: 1 of 4 tasks have a right one",
        "  left out, lost: 1",
        "  left out, not judged: 1",
        "  left out, of a run's validation: 1",
        "  left out, of an agent with several conversations: 1",
        "  left out, that calls tools which its file does not describe: 1",
        "  left out, with a mark of a chat format: 1",
        f"{tmp_path}/demonstrations.jsonl: 1 of 1 right rollouts",
    ]


def test_fine_tuning_learns_the_replies_and_no_prompt(tmp_path):
    _, _, file = collect(tmp_path, record("one", OTHER, A))
    (found,) = read_messages(file).kept
    assert [message["role"] for message in found.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert found.tools == TOOLS


def test_where_nothing_is_right_the_command_says_what_to_do_and_writes_nothing(tmp_path, capsys):
    status, _, file = collect(tmp_path, record("one", A, right=False))
    assert (status, file.exists()) == (1, False)
    assert "no rollout is right; sample more of each task (--samples 8 --temperature 1)" in capsys.readouterr().err

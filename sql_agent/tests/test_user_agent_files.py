"""What an agent's file and its rows are refused for before a run, and what is kept of an agent's output."""

import json
import math

import pytest
from pydantic import BaseModel

from agentgrpo.user_files import UserFileError
from sql_agent.user_agents.datatypes import AgentEnd
from sql_agent.user_agents.play import to_json_value
from sql_agent.user_agents.tasks import AgentTasks


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("agent = 3", "is 3; expected an agents.Agent"),
        ("import agentlightning as agl\nclass agent(agl.LitAgent): pass", "has neither `rollout` nor `rollout_async`"),
        (
            "import agentlightning as agl\n@agl.rollout\ndef agent(task, prompt_template): pass",
            "mine.py:2: it wants a prompt_template",
        ),
        ("def agent(): pass", r"mine.py:1: agent\(\) cannot be called with a task's row alone"),
        (
            "import agentlightning as agl\nclass agent(agl.LitAgent):\n    def __init__(self, x): pass",
            "make the object in the file",
        ),
        ("from agents import Agent\nagent = Agent(nam='x')", "mine.py:2: importing it raised TypeError"),
    ],
)
def test_what_is_no_agent_is_refused_by_file_line_and_remedy(load, text, words):
    with pytest.raises(UserFileError, match=words):
        load(text)


def test_rows_without_a_prompt_are_named(load, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": "hi"}) + "\n" + json.dumps({"question": "hi"}) + "\n")
    with pytest.raises(ValueError, match=r"rows.jsonl, line 2: has no `prompt`, .* it has question$"):
        AgentTasks(load("from agents import Agent\nagent = Agent(name='a')")).read_tasks(rows)


def test_an_output_is_kept_as_json():
    class Answer(BaseModel):
        value: int

    assert to_json_value(Answer(value=3)) == {"value": 3}
    assert to_json_value(AgentEnd("x")) == {"output": "x", "reward": None, "stop_reason": "answered", "error": None}
    assert to_json_value({"a": (1,)}) == {"a": [1]}
    assert to_json_value({1, 2}) == "{1, 2}"
    assert to_json_value(math.nan) == "nan"
    assert to_json_value("a" * 30_000) == "a" * 20_000 + "… (30,000 characters)"
